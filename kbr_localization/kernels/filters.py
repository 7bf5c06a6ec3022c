"""
Kernel filters for state-space models.

A kernel Bayes filter combines a transition, which evaluates the predictive kernel mean at the
training states, with a Bayes' rule, which turns these values into the posterior kernel mean:

- hybrid filter ([MbKSR] Algorithm 1): a model for the transition, pairs for the observation;
- fully-nonparametric filter, fKBF ([KBR] section 4.3): pairs for both, with or without controls;
- kernel Monte Carlo filter, KMCF ([KMCF]): draws for the transition, pairs for the observation;
- kRegBayes filter ([kReg]): any of these with supervised updates.

The kernel Kalman filter ([KKR]) propagates a mean and a covariance in the RKHS instead.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
import logging
from typing import Any, Protocol

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import (
    as_floats,
    as_positive,
    as_sequence,
    FloatArray,
    NoMassError,
)
from kbr_localization.kernels.inference import (
    kernel_vector,
    KernelBayesRule,
    MonteCarloModel,
    Supervision,
)
from kbr_localization.kernels.kernel_mean import Embedding, KernelMean, require_same_space
from kbr_localization.kernels.rules import regularise
import numpy as np
from numpy.typing import ArrayLike

_LOG = logging.getLogger(__name__)

Supervisor = Callable[[int, KernelMean, FloatArray], Supervision | None]


class Transition(Protocol):
    """Law of x' given x and a control: an AdditiveNoiseModel, a NonparametricModel, or similar."""

    def predict(self, belief: KernelMean, z: FloatArray, *control: Any) -> FloatArray:
        """Values at z of the kernel mean of x' when x has the kernel mean `belief`: (m,)."""


class MonteCarloTransition:
    """
    Transition of [KMCF]: resample the belief by herding, then draw x' for every point.

    Herding turns signed weights into points of equal weight. `sampler`, `rng`: as in
    MonteCarloModel; `draws`: number of points, as many as the belief has when None. Runs share one
    generator: make a new transition to repeat a run.
    """

    def __init__(
        self,
        sampler: Callable[..., Any],
        draws: int | None = None,
        rng: np.random.Generator | int = 0,
    ) -> None:
        self.model, self.draws = MonteCarloModel(sampler, 1, rng), draws

    def predict(self, belief: KernelMean, z: FloatArray, *control: Any) -> FloatArray:
        """Values at z of the kernel mean of the draws. Shapes: (m, d) -> (m,)."""
        points = belief.herd(len(belief.points) if self.draws is None else self.draws)
        images = self.model.sample(points, *control)
        return np.asarray(belief.kernel.cross_gram(z, images).mean(axis=1))


@dataclass(frozen=True, eq=False)
class KernelBayesFilter:
    """
    Recursive filter: predict with the transition, update with the kernel Bayes' rule.

    `supervise`: called with the step, the previous belief and the observation; returns the
    supervision of the update, or None. `normalise`: whether weights are divided by their sum after
    each step; Algorithm 1 as printed does not normalise, and its weights decay where the training
    states are sparse.
    """

    transition: Transition
    bayes_rule: KernelBayesRule
    supervise: Supervisor | None = None
    normalise: bool = True

    def start(self, observation: ArrayLike | None, prior: Embedding | None = None) -> KernelMean:
        """
        Return the posterior of the first state; without a prior the conditional mean.

        Without an observation (None) return the prior on the training states, or their empirical
        distribution.
        """
        predicted = None
        if prior is not None:
            require_same_space('prior', prior, self.bayes_rule.kernel_x, self.bayes_rule.x)
            predicted = prior(self.bayes_rule.x)
        return self._update(predicted, observation, None)

    def step(
        self,
        belief: KernelMean,
        observation: ArrayLike | None,
        *control: Any,
        supervision: Supervision | None = None,
    ) -> KernelMean:
        """
        Do one step of [MbKSR] Algorithm 1: predict with the control, update with the observation.

        Without an observation (None) return the prediction, projected onto the training states.
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
        Return the posteriors of a sequence (T, ...); `controls[t]` leads from step t to t + 1.

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

    def _update(
        self,
        predicted: FloatArray | None,
        observation: ArrayLike | None,
        supervision: Supervision | None,
    ) -> KernelMean:
        rule = self.bayes_rule
        try:
            if observation is not None and predicted is not None:
                return self._scaled(rule.posterior(predicted, observation, supervision))
        except NoMassError as error:
            _LOG.warning('restart from the conditional mean: %s', error)
        try:
            if observation is not None:
                return self._scaled(rule.condition(observation))
        except NoMassError as error:
            _LOG.warning('update skipped, the observation is unlike the sample: %s', error)
        if predicted is None:
            return KernelMean.of_sample(rule.kernel_x, rule.x)
        weights = rule.likelihood.sum_rule_weights(predicted)
        return self._scaled(KernelMean(rule.kernel_x, rule.x, weights))

    def _scaled(self, belief: KernelMean) -> KernelMean:
        return belief.normalised() if self.normalise else belief


@dataclass(frozen=True, eq=False)
class KernelBayesSmoother:
    """
    Smoother: forward with a filter, backward with Bayes' rule on transitions.

    p(x_t | y_1..T) = int p(x_t | x_t+1, y_1..t) p(x_t+1 | y_1..T) dx_t+1, whose first factor is
    Bayes' rule with the belief of the filter as the prior and the transition as the likelihood.

    `forward`: any KernelBayesFilter; `backward`: the rule learnt from pairs (X_i, X'_i) with x as
    the state and x' as the observation, so that its delta regularises C_X'X'. Transitions with
    controls need pairs of that control. With a hundred pairs and little observation noise the
    smoother is worse than the filter. Source: [KBR] section 4.3.
    """

    forward: KernelBayesFilter
    backward: KernelBayesRule

    def smooth(self, beliefs: Sequence[KernelMean]) -> list[KernelMean]:
        """
        Return kernel means of x_t given y_1..T, from the beliefs given y_1..t.

        Where the backward step has no mass, the belief of the filter is kept.
        """
        if not beliefs:
            raise KernelError('beliefs: expected the beliefs of a run, got none')
        smoothed = [beliefs[-1]]
        for belief in beliefs[-2::-1]:
            try:
                step = self.backward.posterior(belief, smoothed[-1])
                smoothed.append(step.normalised())
            except NoMassError:
                smoothed.append(belief)
        return smoothed[::-1]

    def run(self, *arguments: Any, **named: Any) -> list[KernelMean]:
        """Filter and smooth a sequence; arguments as in `KernelBayesFilter.run`."""
        return self.smooth(self.forward.run(*arguments, **named))


class KernelGaussian(KernelMean):
    """
    Mean sum_i m_i k(., X_i) and covariance operator sum_ij S_ij k(., X_i) (x) k(., X_j).

    `points` X: (n, ...); `weights` m: (n,); `covariance_weights` S: (n, n).
    """

    def __init__(
        self,
        kernel: Kernel,
        points: FloatArray,
        weights: FloatArray,
        covariance_weights: FloatArray,
    ) -> None:
        super().__init__(kernel, points, weights)
        self.covariance_weights = 0.5 * (covariance_weights + covariance_weights.T)

    def mean(self) -> FloatArray:
        """Return sum_i m_i X_i without normalisation. Shapes: -> (d,), (3, 3)."""
        return self.expectation(lambda x: x)

    def covariance(self) -> FloatArray:
        """Return the covariance X^T S X of the state. Shapes: -> (d, d)."""
        flat = self.points.reshape(len(self.points), -1)
        return np.asarray(flat.T @ self.covariance_weights @ flat)


class KernelKalmanFilter:
    """
    Kalman filter on the features k_X(., x), learnt from transitions and observations.

    `x`, `x_next`: (n, ...) transitions (X_i, X'_i); `y_next`: (n, ...) observations at x_next;
    `epsilon`: Tikhonov constant of both conditional operators, see `rules`; `kappa` > 0: variance
    of the observation noise in the RKHS of k_Y, R = kappa I. The transition noise is the empirical
    covariance of the residuals. With linear kernels this is the Kalman filter of the ridge
    regressions x -> x' and x' -> y. O(n^3) per step. Source: [KKR].
    """

    def __init__(
        self,
        kernel_x: Kernel,
        kernel_y: Kernel,
        x: ArrayLike,
        x_next: ArrayLike,
        y_next: ArrayLike,
        epsilon: float,
        kappa: float,
    ) -> None:
        self.kernel_x, self.kernel_y = kernel_x, kernel_y
        before = as_floats('x', x, 'n', 'd', ...)
        self.x = as_floats('x_next', x_next, *before.shape)
        self.y = as_floats('y_next', y_next, len(before), 'd', ...)
        self.kappa = as_positive('kappa', kappa)
        gram, gram_next = kernel_x.gram(before), kernel_x.gram(self.x)
        transition = regularise(gram, epsilon)
        self._transition = transition.solve(kernel_x.cross_gram(before, self.x))
        residual = np.eye(len(gram)) - transition.solve(gram)
        self._noise = residual @ residual.T / len(gram)
        self._observation = regularise(gram_next, epsilon).solve(gram_next)
        self._gram_y = kernel_y.gram(self.y)

    def start(self) -> KernelGaussian:
        """Return mean and covariance of the sample `x_next`."""
        mean = np.full(len(self.x), 1.0 / len(self.x))
        scatter = np.diag(mean) - np.outer(mean, mean)
        return KernelGaussian(self.kernel_x, self.x, mean, scatter)

    def predict(self, belief: KernelGaussian) -> KernelGaussian:
        """Predict one step: mean T m and covariance T S T^T + V."""
        t = self._transition
        spread = t @ belief.covariance_weights @ t.T + self._noise
        return KernelGaussian(self.kernel_x, self.x, t @ belief.weights, spread)

    def update(self, belief: KernelGaussian, observation: ArrayLike) -> KernelGaussian:
        """
        Update by the kernel Kalman rule with one observation (...).

        Gain Q = S O^T (G_Y O S O^T + kappa I)^-1, mean m + Q (k_Y(y) - G_Y O m).
        """
        k_y = kernel_vector(self.kernel_y, self.y, observation)
        o, s = self._observation, belief.covariance_weights
        spread = s @ o.T
        innovation = self._gram_y @ (o @ spread)
        innovation.flat[:: len(o) + 1] += self.kappa
        gain = np.linalg.solve(innovation.T, spread.T).T
        mean = belief.weights + gain @ (k_y - self._gram_y @ (o @ belief.weights))
        return KernelGaussian(self.kernel_x, self.x, mean, s - gain @ (self._gram_y @ spread.T))

    def run(self, observations: ArrayLike | Sequence[Any]) -> list[KernelGaussian]:
        """
        Return the beliefs of a sequence (T, ...) after each update, the first from `start`.

        An observation that is None, masked or has NaN is missing: its belief is the prediction.
        """
        beliefs: list[KernelGaussian] = []
        for observation in as_sequence('observations', observations, self.y.shape[1:]):
            belief = self.predict(beliefs[-1]) if beliefs else self.start()
            beliefs.append(belief if observation is None else self.update(belief, observation))
        return beliefs


def means(beliefs: Iterable[KernelMean]) -> FloatArray:
    """Return the means of T beliefs. Shapes: -> (T, d)."""
    return np.array([belief.mean() for belief in beliefs])


def modes(beliefs: Iterable[KernelMean], starts: int = 4) -> FloatArray:
    """Return the pseudo-MAP estimates of T beliefs. Shapes: -> (T, d)."""
    return np.array([belief.mode(starts) for belief in beliefs])
