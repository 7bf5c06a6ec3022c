"""
Kernel Bayes filters on any state-space model.

A filter is a transition, which gives the values of the predictive kernel mean at the training
states, and a Bayes' rule, which turns them into the posterior kernel mean:

- hybrid filter ([MbKSR] Algorithm 1): a model for the transition, pairs for the observation;
- fully-nonparametric filter, fKBF ([KBR] section 4.3): pairs for both, with or without controls;
- kReg-filter ([kReg]): either of them with supervised updates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
import logging
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel, require_kernel
from kbr_localization.kernels.checks import (
    as_points_like,
    FloatArray,
    NoMassError,
    renamed,
    require,
    require_callable,
)
from kbr_localization.kernels.embedding import is_same_kernel, values_at
from kbr_localization.kernels.inference import (
    as_pairs,
    gram_matrix,
    kernel_vector,
    KernelBayesRule,
    Supervision,
)
from kbr_localization.kernels.kernel_mean import Embedding, KernelMean
from kbr_localization.kernels.low_rank import LowRankGram
from kbr_localization.kernels.low_rank_rules import model_based_sum_rule
from kbr_localization.kernels.models import AdditiveNoiseModel
from kbr_localization.kernels.products import CrossGramProducts, RecentArrays
from kbr_localization.kernels.rules import nonparametric_sum_rule, regularise
import numpy as np
from numpy.typing import ArrayLike

_LOG = logging.getLogger(__name__)

Supervisor = Callable[[int, KernelMean, FloatArray], Supervision | None]


class Transition(ABC):
    """What is known of x' given x and a control."""

    @abstractmethod
    def predict(self, belief: KernelMean, z: FloatArray, *control: Any) -> FloatArray:
        """Values at z of the kernel mean of x' when x has the kernel mean `belief`: (m,)."""


class ModelTransition(Transition):
    """
    Transition by a model, through the model-based kernel sum rule.

    Without a control the matrix m(z_i | x_j) of the training states is computed only once.
    `tolerance`: when given, the rule goes through an incomplete Cholesky of the conditional
    kernel mean, O(n r^2) for every control.
    """

    def __init__(
        self, model: AdditiveNoiseModel, kernel: Kernel, tolerance: float | None = None
    ) -> None:
        require('model', model, AdditiveNoiseModel, 'an AdditiveNoiseModel(f, noise)')
        require_kernel('kernel', kernel)
        self.model, self.kernel, self.tolerance = model, kernel, tolerance
        self._recent = RecentArrays()

    def predict(self, belief: KernelMean, z: FloatArray, *control: Any) -> FloatArray:
        """Values of sum_j alpha_j m(z_i | x_j); only points with weight are evaluated."""
        if not control and self.tolerance is None:
            matrix = self._recent.get(
                (z, belief.points),
                lambda: self.model.kernel_matrix(self.kernel, z, belief.points),
            )
            return np.asarray(matrix @ belief.weights, dtype=np.float64)
        points, weights, _ = belief.terms()[0]
        if self.tolerance is None:
            matrix = self.model.kernel_matrix(self.kernel, z, points, *control)
            return np.asarray(matrix @ weights, dtype=np.float64)
        mean = self.model.noise_at(*control).conditional_kernel_mean(self.kernel)
        if not isinstance(mean, Kernel):
            raise KernelError(
                f'tolerance: expected None with {type(mean).__name__} of {self.kernel!r}, which '
                'is no kernel: only a conditional kernel mean that is a kernel has an incomplete '
                'Cholesky form, such as that of a normalised kernel'
            )
        images = self.model.images(points, *control)
        return model_based_sum_rule(mean, z, images, weights, self.tolerance).values


class LearntTransition(Transition):
    """
    Transition learnt from training transitions (X_i, X'_i), with controls U_i when given.

    `x`, `x_next`: (n, ...); `epsilon`: see `rules`; `controls` (n, ...) with `kernel_u`: the
    kernel on controls multiplies that on states ([MbKSR] section 6.3); `tolerance`: low rank.
    """

    def __init__(
        self,
        kernel: Kernel,
        x: ArrayLike,
        x_next: ArrayLike,
        epsilon: float,
        controls: ArrayLike | None = None,
        kernel_u: Kernel | None = None,
        tolerance: float | None = None,
    ) -> None:
        if (controls is None) != (kernel_u is None):
            raise KernelError(
                'controls, kernel_u: expected both or neither, got one of them: give the controls '
                'of the training transitions with a kernel on them'
            )
        require_kernel('kernel', kernel)
        self.kernel, self.kernel_u = kernel, kernel_u
        pairs = kernel.encode('x', x), kernel.encode('x_next', x_next)
        self.x, self.x_next = as_pairs(*pairs, ('x', 'x_next'))
        self.controls = None
        if kernel_u is not None:
            require_kernel('kernel_u', kernel_u)
            encoded = kernel_u.encode('controls', controls)
            self.controls = as_pairs(encoded, self.x, ('controls', 'x'))[0]
        on_states = gram_matrix(kernel, self.x, tolerance)
        self._products = CrossGramProducts(kernel, self.x, on_states)
        self._regularised_gram = regularise(self._with_controls(on_states), epsilon)

    def predict(self, belief: KernelMean, z: FloatArray, *control: Any) -> FloatArray:
        """Values of the NP-KSR estimate, [KBR] eq. 17 before its second regularised inverse."""
        if self.controls is None and control:
            raise KernelError(
                f'control: expected none, got {len(control)}: this transition was learnt without '
                'controls; give it those of the training transitions, and a kernel on them'
            )
        at_sample = self._products.apply(self.x, belief.points, belief.weights)
        if self.kernel_u is not None and self.controls is not None:
            if len(control) != 1:
                raise KernelError(
                    f'control: expected one control of shape {self.controls.shape[1:]}, got '
                    f'{len(control)} arguments: this transition was learnt with controls'
                )
            with renamed(observation='control'):
                at_sample *= kernel_vector(self.kernel_u, self.controls, control[0])
        weights = nonparametric_sum_rule(self._regularised_gram, at_sample)
        return self._products.apply(z, self.x_next, weights)

    def _with_controls(self, on_states: FloatArray | LowRankGram) -> FloatArray | LowRankGram:
        if self.kernel_u is None or self.controls is None:
            return on_states
        if not isinstance(on_states, LowRankGram):
            return np.asarray(on_states * self.kernel_u.gram(self.controls), dtype=np.float64)
        raise KernelError(
            'tolerance: expected None with controls: use the product kernel on joined points '
            'instead'
        )


@dataclass(frozen=True, eq=False)
class KernelBayesFilter:
    """
    Recursive filter: predict with the transition, update with the kernel Bayes' rule.

    `supervise`: called with the step, the belief before it and the observation; returns the
    supervision of the update, or None for an update without.
    """

    transition: Transition
    bayes_rule: KernelBayesRule
    supervise: Supervisor | None = None

    def __post_init__(self) -> None:
        require('transition', self.transition, Transition, 'a ModelTransition or LearntTransition')
        require('bayes_rule', self.bayes_rule, KernelBayesRule, 'a KernelBayesRule')
        known = self.bayes_rule.kernel_x
        kernel = getattr(self.transition, 'kernel', known)
        if not is_same_kernel(kernel, known):
            raise KernelError(
                f'transition: expected the kernel on states of bayes_rule, {known!r}, got '
                f'{kernel!r}: the belief goes from one to the other, use one kernel for both'
            )
        if self.supervise is not None:
            require_callable('supervise', self.supervise, 'of step, belief and observation')

    def start(self, observation: ArrayLike, prior: Embedding | None = None) -> KernelMean:
        """
        Posterior of the first state; without a prior by the conditional mean.

        An observation that is unlike the sample leaves the prior, or the law of the sample.
        """
        if prior is None:
            try:
                return self.bayes_rule.condition(observation).normalised()
            except NoMassError as error:
                _LOG.warning('began with the law of the sample: %s', error)
                return KernelMean.of_sample(self.bayes_rule.kernel_x, self.bayes_rule.x)
        values = values_at('prior', prior, self.bayes_rule.kernel_x, self.bayes_rule.x)
        return self._update(values, observation, None)

    def step(
        self,
        belief: KernelMean,
        observation: ArrayLike | None,
        *control: Any,
        supervision: Supervision | None = None,
    ) -> KernelMean:
        """
        One step of [MbKSR] Algorithm 1: predict under the control, update with the observation.

        Without an observation (None) the prediction, projected onto the training states.
        """
        require('belief', belief, KernelMean, 'the KernelMean that the last step returned')
        predicted = self.transition.predict(belief, self.bayes_rule.x, *control)
        if observation is None:
            return self._projected(predicted)
        return self._update(predicted, observation, supervision)

    def run(
        self,
        observations: ArrayLike,
        controls: Sequence[Any] | None = None,
        prior: Embedding | None = None,
    ) -> list[KernelMean]:
        """
        Filter a sequence of observations (T, ...); `controls[t]` leads from step t to t + 1.

        Returns the posterior kernel mean of every step.
        """
        points = self.bayes_rule.kernel_y.encode('observations', observations)
        sequence = as_points_like('observations', points, self.bayes_rule.y)
        count = -1 if controls is None else len(controls) if hasattr(controls, '__len__') else 0
        if 0 <= count < len(sequence) - 1:
            raise KernelError(
                f'controls: expected {len(sequence) - 1}, one between two observations, got '
                f'{count}: controls[t] leads from step t to t + 1'
            )
        beliefs = [self.start(sequence[0], prior)]
        for t, observation in enumerate(sequence[1:]):
            control = () if controls is None else (controls[t],)
            supervision = self._supervision(t + 1, beliefs[-1], observation)
            beliefs.append(self.step(beliefs[-1], observation, *control, supervision=supervision))
        return beliefs

    def _supervision(
        self, step: int, belief: KernelMean, observation: FloatArray
    ) -> Supervision | None:
        return None if self.supervise is None else self.supervise(step, belief, observation)

    def _update(
        self, predicted: FloatArray, observation: ArrayLike, supervision: Supervision | None
    ) -> KernelMean:
        try:
            posterior = self.bayes_rule.posterior(predicted, observation, supervision)
            return posterior.normalised()
        except NoMassError as error:
            _LOG.warning('started again from the conditional mean: %s', error)
            return self._restart(predicted, observation)

    def _restart(self, predicted: FloatArray, observation: ArrayLike) -> KernelMean:
        try:
            return self.bayes_rule.condition(observation).normalised()
        except NoMassError as error:
            _LOG.warning('update left out, the observation is unlike the sample: %s', error)
            return self._projected(predicted)

    def _projected(self, predicted: FloatArray) -> KernelMean:
        """Prediction as a kernel mean on the training states."""
        weights = self.bayes_rule.likelihood.sum_rule_weights(predicted)
        return KernelMean(self.bayes_rule.kernel_x, self.bayes_rule.x, weights).normalised()


def means(beliefs: Iterable[KernelMean]) -> FloatArray:
    """Posterior means of a run. Shapes: -> (T, d)."""
    return np.array([belief.mean() for belief in beliefs])


def modes(beliefs: Iterable[KernelMean], starts: int = 4) -> FloatArray:
    """Pseudo-MAP estimates of a run. Shapes: -> (T, d)."""
    return np.array([belief.mode(starts) for belief in beliefs])
