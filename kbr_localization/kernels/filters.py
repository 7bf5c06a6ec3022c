"""
Kernel Bayes filters on any state-space model.

A filter is a transition, which gives the values of the predictive kernel mean at the training
states, and a Bayes' rule, which turns them into the posterior kernel mean:

- hybrid filter ([MbKSR] Algorithm 1): a model for the transition, pairs for the observation;
- fully-nonparametric filter, fKBF ([KBR] section 4.3): pairs for both, with or without controls;
- kernel Monte Carlo filter ([KMCF]): draws for the transition, pairs for the observation;
- kReg-filter ([kReg]): any of them with supervised updates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
import logging
from typing import Any, TypeVar

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import as_sample, as_sequence, FloatArray, NoMassError
from kbr_localization.kernels.inference import (
    gram_matrix,
    kernel_vector,
    KernelBayesRule,
    Supervision,
)
from kbr_localization.kernels.kernel_mean import (
    Embedding,
    is_same_kernel,
    KernelMean,
    require_same_space,
)
from kbr_localization.kernels.low_rank import LowRankGram
from kbr_localization.kernels.models import AdditiveNoiseModel, MonteCarloModel, Sampler
from kbr_localization.kernels.rules import model_based_sum_rule, nonparametric_sum_rule, regularise
import numpy as np
from numpy.typing import ArrayLike

_LOG = logging.getLogger(__name__)

E = TypeVar('E', bound=Embedding)
Supervisor = Callable[[int, KernelMean, FloatArray], Supervision | None]


class Transition(ABC):
    """What is known of x' given x and a control."""

    kernel: Kernel

    @abstractmethod
    def predict(self, belief: KernelMean, z: FloatArray, *control: Any) -> FloatArray:
        """Values at z of the kernel mean of x' when x has the kernel mean `belief`: (m,)."""


class _Recent:
    """The last results of a function of arrays, found by the identity of its arguments."""

    def __init__(self, function: Callable[..., FloatArray]) -> None:
        self._function = function
        self._kept: list[tuple[tuple[FloatArray, ...], FloatArray]] = []

    def __call__(self, *arrays: FloatArray) -> FloatArray:
        for known, value in self._kept:
            if len(known) == len(arrays) and all(map(lambda a, b: a is b, known, arrays)):
                return value
        value = self._function(*arrays)
        self._kept = [(arrays, value), *self._kept[:3]]
        return value


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
        self.model, self.kernel, self.tolerance = model, kernel, tolerance
        self._matrix = _Recent(partial(model.kernel_matrix, kernel))

    def predict(self, belief: KernelMean, z: FloatArray, *control: Any) -> FloatArray:
        """Values of sum_j alpha_j m(z_i | x_j); only points with weight are evaluated."""
        if not control and self.tolerance is None:
            return np.asarray(self._matrix(z, belief.points) @ belief.weights)
        points, weights, _ = belief.terms()[0]
        mean = self.model.noise_at(*control).conditional_kernel_mean(self.kernel)
        images = self.model.images(points, *control)
        return model_based_sum_rule(mean, z, images, weights, self.tolerance)


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
            raise KernelError('controls, kernel_u: expected both or neither, got one of them')
        if controls is not None and tolerance is not None:
            raise KernelError(
                'tolerance: expected None with controls: use the product kernel on joined points'
            )
        self.kernel, self.kernel_u = kernel, kernel_u
        self.x = as_sample('x', x)
        self.x_next = as_sample('x_next', x_next, size=len(self.x))
        gram, self._values = gram_matrix(kernel, self.x, tolerance), _Recent(kernel.cross_gram)
        self._low_rank = isinstance(gram, LowRankGram)
        if isinstance(gram, LowRankGram):
            self._values = _Recent(partial(gram.features, kernel, self.x))
        elif kernel_u is not None and controls is not None:
            self.controls = as_sample('controls', controls, size=len(self.x))
            gram = gram * kernel_u.gram(self.controls)
        self._regularised_gram = regularise(gram, epsilon)

    def predict(self, belief: KernelMean, z: FloatArray, *control: Any) -> FloatArray:
        """Values of the NP-KSR estimate, [KBR] eq. 17 before its second regularised inverse."""
        if len(control) != (self.kernel_u is not None):
            raise KernelError(
                f'control: expected {"none" if self.kernel_u is None else "one"}, as in training, '
                f'got {len(control)}'
            )
        at_sample = self._evaluate(self.x, belief.points, belief.weights)
        if self.kernel_u is not None:
            at_sample = at_sample * kernel_vector(
                self.kernel_u, self.controls, control[0], 'control'
            )
        weights = nonparametric_sum_rule(self._regularised_gram, at_sample)
        return self._evaluate(z, self.x_next, weights)

    def _evaluate(self, z: FloatArray, points: FloatArray, weights: FloatArray) -> FloatArray:
        """Return sum_j w_j k(z_i, x_j), dense or by features. (m, d), (n, d), (n,) -> (m,)."""
        if self._low_rank:
            return np.asarray(self._values(z) @ (self._values(points).T @ weights))
        return np.asarray(self._values(z, points) @ weights)


class MonteCarloTransition(Transition):
    """
    Transition by draws: the belief is resampled, and a draw of x' made for every point.

    `sampler`, `rng`: as in MonteCarloModel; `kernel`: on states; `draws`: how many points, as many
    as the belief has when None; `resample`: by kernel herding, which turns signed weights into
    points of equal weight ([KMCF]); without it the points keep their weights and have an equal
    share of the draws, at least one.
    """

    def __init__(
        self,
        sampler: Sampler,
        kernel: Kernel,
        draws: int | None = None,
        rng: np.random.Generator | int = 0,
        resample: bool = True,
    ) -> None:
        self.model, self.kernel = MonteCarloModel(sampler, 1, rng), kernel
        self.draws, self.resample = draws, resample

    def predict(self, belief: KernelMean, z: FloatArray, *control: Any) -> FloatArray:
        """Values at z of the kernel mean of the draws. Shapes: (m, d) -> (m,)."""
        count = len(belief.points) if self.draws is None else self.draws
        if self.resample:
            points, weights = belief.herd(count), np.full(count, 1.0 / count)
        else:
            points, weights, _ = belief.terms()[0]
            copies = max(1, count // len(points))
            points, weights = (
                np.repeat(points, copies, axis=0),
                np.repeat(weights, copies) / copies,
            )
        images = self.model.sample(points, *control)
        return np.asarray(self.kernel.cross_gram(z, images) @ weights)


@dataclass(frozen=True, eq=False)
class KernelBayesFilter:
    """
    Recursive filter: predict with the transition, update with the kernel Bayes' rule.

    `supervise`: called with the step, the belief before it and the observation; returns the
    supervision of the update, or None for an update without. `normalise`: divide the weights of
    every belief by their sum; False leaves them as Algorithm 1 of [MbKSR] prints them.
    """

    transition: Transition
    bayes_rule: KernelBayesRule
    supervise: Supervisor | None = None
    normalise: bool = True

    def __post_init__(self) -> None:
        known, kernel = self.bayes_rule.kernel_x, self.transition.kernel
        if not is_same_kernel(kernel, known):
            raise KernelError(
                f'transition: expected the kernel on states of bayes_rule, {known!r}, got '
                f'{kernel!r}: use one kernel for both'
            )

    def start(self, observation: ArrayLike | None, prior: Embedding | None = None) -> KernelMean:
        """
        Posterior of the first state; without a prior the conditional mean.

        Without an observation (None) the prior on the training states, or their empirical law.
        """
        rule = self.bayes_rule
        if prior is not None:
            require_same_space('prior', prior, rule.kernel_x, rule.x)
            return self._update(prior(rule.x), observation, None)
        try:
            if observation is not None:
                return self._scaled(rule.condition(observation))
        except NoMassError as error:
            _LOG.warning('the first observation is unlike the sample and left out: %s', error)
        return KernelMean.of_sample(rule.kernel_x, rule.x)

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
        predicted = self.transition.predict(belief, self.bayes_rule.x, *control)
        return self._update(predicted, observation, supervision)

    def run(
        self,
        observations: ArrayLike | Sequence[Any],
        controls: Sequence[Any] | None = None,
        prior: Embedding | None = None,
    ) -> list[KernelMean]:
        """
        Posteriors of a sequence (T, ...); `controls[t]` leads from step t to t + 1.

        An observation that is None, masked or has NaN is missing: its belief is the prediction.
        """
        sequence = as_sequence('observations', observations, self.bayes_rule.y.shape[1:])
        if controls is not None and len(controls) < len(sequence) - 1:
            raise KernelError(
                f'controls: expected {len(sequence) - 1}, one between two observations, got '
                f'{len(controls)}'
            )
        beliefs = [self.start(sequence[0], prior)]
        for t, observation in enumerate(sequence[1:]):
            control = () if controls is None else (controls[t],)
            supervision = None
            if self.supervise is not None and observation is not None:
                supervision = self.supervise(t + 1, beliefs[-1], observation)
            beliefs.append(self.step(beliefs[-1], observation, *control, supervision=supervision))
        return beliefs

    def _scaled(self, belief: KernelMean) -> KernelMean:
        return belief.normalised() if self.normalise else belief

    def _update(
        self, predicted: FloatArray, observation: ArrayLike | None, supervision: Supervision | None
    ) -> KernelMean:
        if observation is None:
            return self._projected(predicted)
        try:
            return self._scaled(self.bayes_rule.posterior(predicted, observation, supervision))
        except NoMassError as error:
            _LOG.warning('restart from the conditional mean: %s', error)
        try:
            return self._scaled(self.bayes_rule.condition(observation))
        except NoMassError as error:
            _LOG.warning('update left out, the observation is unlike the sample: %s', error)
            return self._projected(predicted)

    def _projected(self, predicted: FloatArray) -> KernelMean:
        weights = self.bayes_rule.likelihood.sum_rule_weights(predicted)
        return self._scaled(KernelMean(self.bayes_rule.kernel_x, self.bayes_rule.x, weights))


class KernelMonteCarloFilter(KernelBayesFilter):
    """
    Kernel Monte Carlo filter: a MonteCarloTransition, with its `settings`, and Bayes' rule.

    With the squared rule it is the filter of [KMCF]. Runs share one generator: make a new filter
    to repeat a run.
    """

    def __init__(self, sampler: Sampler, bayes_rule: KernelBayesRule, **settings: Any) -> None:
        transition = MonteCarloTransition(sampler, bayes_rule.kernel_x, **settings)
        super().__init__(transition, bayes_rule)


@dataclass(frozen=True, eq=False)
class KernelBayesSmoother:
    """
    Smoother for a filter: forward with the filter, backward with Bayes' rule on transitions.

    p(x_t | y_1..T) = int p(x_t | x_t+1, y_1..t) p(x_t+1 | y_1..T) dx_t+1: the inner law is Bayes'
    rule with the filter's belief as the prior and the transition as the likelihood.

    `forward`: any KernelBayesFilter; `backward`: the rule of pairs (X_i, X'_i) with x as the
    state and x' as the observation, so that its delta regularises C_X'X'.
    Transitions with controls need pairs of that control. Source: [KBR] section 4.3.
    """

    forward: KernelBayesFilter
    backward: KernelBayesRule

    def smooth(self, beliefs: Sequence[E]) -> list[E | KernelMean]:
        """Kernel means of x_t given y_1..T, from those given y_1..t; without mass these stand."""
        if not beliefs:
            raise KernelError('beliefs: expected those of a run, got none')
        smoothed: list[E | KernelMean] = [beliefs[-1]]
        for belief in beliefs[-2::-1]:
            try:
                step = self.backward.posterior_given(belief, smoothed[-1])
                smoothed.append(step.normalised())
            except NoMassError:
                smoothed.append(belief)
        return smoothed[::-1]

    def run(self, *arguments: Any, **named: Any) -> list[KernelMean]:
        """Filter and smooth a sequence; arguments as in `KernelBayesFilter.run`."""
        return self.smooth(self.forward.run(*arguments, **named))


def means(beliefs: Iterable[KernelMean]) -> FloatArray:
    """Posterior means of a run. Shapes: -> (T, d)."""
    return np.array([belief.mean() for belief in beliefs])


def modes(beliefs: Iterable[KernelMean], starts: int = 4) -> FloatArray:
    """Pseudo-MAP estimates of a run. Shapes: -> (T, d)."""
    return np.array([belief.mode(starts) for belief in beliefs])
