"""
Kernel Bayesian inference with kernel means: sum rules and Bayes' rule.

`NonparametricModel` (learnt from pairs), `AdditiveNoiseModel` (a formula) and `MonteCarloModel`
(draws) `push` a kernel mean through p(y | x). Chains read as in [MbKSR] section 4.2:
`model.push(learnt.push(prior))` is NP-KSR followed by Mb-KSR, and
`learnt.push(model.push(prior))` is Mb-KSR followed by NP-KSR.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import (
    as_count,
    as_floats,
    as_positive,
    FloatArray,
    NoMassError,
)
from kbr_localization.kernels.kernel_mean import (
    Embedding,
    KernelMean,
    ModelKernelMean,
    require_same_space,
)
from kbr_localization.kernels.kernels import median_kernel
from kbr_localization.kernels.linalg import incomplete_cholesky, LowRankGram
from kbr_localization.kernels.noise import Noise
from kbr_localization.kernels.rules import (
    BAYES_RULES,
    conditional_mean,
    nonparametric_sum_rule,
    PAPER_NAMES,
    regularise,
    regularised_bayes_rule,
    RegularisedGram,
)
import numpy as np
from numpy.typing import ArrayLike


@dataclass
class AdditiveNoiseModel:
    """
    Model x' = f(x, *control) + e.

    `function` f: maps points (n, d), and arguments that may change from step to step (a control,
    the time), to noise-free images (n, d'). `noise`: the law of e, or a function that returns it
    for the same arguments.
    """

    function: Callable[..., Any]
    noise: Noise | Callable[..., Noise]

    def images(self, x: ArrayLike, *control: Any) -> FloatArray:
        """Return the noise-free images f(x, *control). Shapes: (n, d) -> (n, d')."""
        points = as_floats('x', x, 'n', 'd')
        return as_floats('function(x)', self.function(points, *control), len(points), 'd')

    def _noise_at(self, *control: Any) -> Noise:
        return self.noise if isinstance(self.noise, Noise) else self.noise(*control)

    def push(
        self, prior: KernelMean, *control: Any, kernel: Kernel | None = None
    ) -> ModelKernelMean:
        """
        Return the kernel mean of x' if x has the kernel mean `prior`, by the model-based sum rule.

        `kernel`: on the images, the prior kernel when None. A prior with noise, which f would
        distort, needs `MonteCarloModel(model.sample)`. Source: [MbKSR] eq. 21.
        """
        if not isinstance(prior, KernelMean):
            raise KernelError(f'prior: expected a KernelMean, got {prior!r}: use MonteCarloModel')
        points, weights, _ = prior.terms[0]
        images, noise = self.images(points, *control), self._noise_at(*control)
        return ModelKernelMean(kernel or prior.kernel, images, weights, noise)

    def predict(self, belief: KernelMean, z: FloatArray, *control: Any) -> FloatArray:
        """Evaluate the pushed belief at z. Shapes: (m, d) -> (m,)."""
        return self.push(belief, *control)(z)

    def sample(self, x: ArrayLike, rng: np.random.Generator, *control: Any) -> FloatArray:
        """Draw one x' for each x. Shapes: (n, d) -> (n, d')."""
        images = self.images(x, *control)
        noise = self._noise_at(*control).sample(len(images), images.shape[1], rng)
        return np.asarray(images + noise)


class MonteCarloModel:
    """
    Model p(x' | x) given by a sampler, for the model-based sum rule without a closed form.

    `sampler`: maps points (n, d), a generator and controls to draws (n, d'), one for each point,
    such as `AdditiveNoiseModel.sample`; `draws`: L per point. The conditional kernel mean is
    estimated by the mean of k(., x'_l), l = 1..L, whose error in the RKHS norm is O(L^-1/2).
    """

    def __init__(
        self, sampler: Callable[..., Any], draws: int = 100, rng: np.random.Generator | int = 0
    ) -> None:
        self.sampler, self.draws = sampler, as_count('draws', draws)
        self.rng = np.random.default_rng(rng)

    def sample(self, x: ArrayLike, *control: Any) -> FloatArray:
        """Draw one x' for each x. Shapes: (n, d) -> (n, d')."""
        points = as_floats('x', x, 'n', 'd')
        return as_floats(
            'sampler(x, rng)', self.sampler(points, self.rng, *control), len(points), 'd', ...
        )

    def push(self, prior: Embedding, *control: Any, kernel: Kernel | None = None) -> KernelMean:
        """
        Return the kernel mean of x' if x has the kernel mean `prior`, by the Monte Carlo sum rule.

        L draws for each point of the prior, including its noise if any. `kernel`: on x', that of
        the prior when None. Source: [MbKSR] eq. 15 with the integral replaced by draws.
        """
        images, shares = [], []
        for points, weights, noise in prior.terms:
            copies = np.repeat(points, self.draws, axis=0)
            if noise is not None:
                copies = copies + noise.sample(len(copies), copies.shape[1], self.rng)
            images.append(self.sample(copies, *control))
            shares.append(np.repeat(weights / self.draws, self.draws))
        return KernelMean(kernel or prior.kernel, np.concatenate(images), np.concatenate(shares))


class NonparametricModel:
    """
    Conditional law p(y | x) learnt from pairs (X_i, Y_i), i = 1..n.

    `x`, `y`: (n, ...) points of the kernels; `epsilon`: see `rules`; `tolerance`: if given, G_X is
    approximated by incomplete Cholesky, and a solve costs O(n r).
    """

    def __init__(
        self,
        kernel_x: Kernel,
        kernel_y: Kernel,
        x: ArrayLike,
        y: ArrayLike,
        epsilon: float,
        tolerance: float | None = None,
    ) -> None:
        self.kernel_x, self.kernel_y = kernel_x, kernel_y
        self.x = as_floats('x', x, 'n', 'd', ...)
        self.y = as_floats('y', y, len(self.x), 'd', ...)
        kernel_y.diagonal(self.y[:1])  # raises KernelError for points of a wrong shape
        self.regularised_gram_x = regularise(gram_matrix(kernel_x, self.x, tolerance), epsilon)

    def at(self, x: ArrayLike) -> KernelMean:
        """Return the kernel mean of y given one x (...). Source: [MbKSR] eq. 7."""
        k_x = kernel_vector(self.kernel_x, self.x, x, 'x')
        return KernelMean(self.kernel_y, self.y, conditional_mean(self.regularised_gram_x, k_x))

    def sum_rule_weights(self, prior: Embedding | ArrayLike) -> FloatArray:
        """Return mu (n,) on the pairs; `prior`: a kernel mean of x or its values at X_i (n,)."""
        if isinstance(prior, Embedding):
            require_same_space('prior', prior, self.kernel_x, self.x)
            prior = prior(self.x)
        values = as_floats('prior', prior, len(self.x))
        return nonparametric_sum_rule(self.regularised_gram_x, values)

    def push(self, prior: Embedding) -> KernelMean:
        """Return the NP-KSR estimate of the kernel mean of y if x has the kernel mean `prior`."""
        return KernelMean(self.kernel_y, self.y, self.sum_rule_weights(prior))

    def predict(self, belief: KernelMean, z: FloatArray, *control: Any) -> FloatArray:
        """
        Evaluate the pushed belief at z (m, d): [KBR] eq. 17 without the left regularised inverse.

        With a control, the columns of the training x hold the state and then the control,
        for a kernel such as `k.on(0, 1) * k_u.on(2)` ([MbKSR] section 6.3).
        """
        require_same_space('belief', belief, self.kernel_y, self.y)
        if control:
            points = np.hstack([belief.points, np.tile(control[0], (len(belief.points), 1))])
            belief = KernelMean(self.kernel_x, points, belief.weights)
        require_same_space('belief', belief, self.kernel_x, self.x)
        return self.push(belief)(z)

    def joint(self, prior: Embedding) -> KernelMean:
        """Return the kernel mean of (x, y) on points (n, d_x + d_y) by [KBR] Prop. 3."""
        split = self.x.shape[1]
        points = np.concatenate([self.x, self.y], axis=1)
        kernel = self.kernel_x.on(*range(split)) * self.kernel_y.on(*range(split, points.shape[1]))
        return KernelMean(kernel, points, self.sum_rule_weights(prior))


@dataclass(frozen=True, eq=False)
class Supervision:
    """
    Pairs of observations (s, ...) and states (s, ...) that regularise the posterior.

    The posterior given each observation is drawn to its state, a point or a kernel mean.
    `weight` > 0: relative to the weights of the prior. Source: [kReg] eq. 10 and the remark after
    it.
    """

    observations: FloatArray
    states: FloatArray | Sequence[KernelMean]
    weight: float


class KernelBayesRule:
    """
    Kernel Bayes' rule learnt from pairs (X_i, Y_i): map a prior kernel mean to the posterior.

    `x`: (n, ...) states, `y`: (n, ...) observations. `method`: 'squared' or 'KBR' ([KBR], the
    default); 'thresholded', 'pKBR' or 'IW-KBR' ([kReg], [IW-KBR]), which is faster.
    `epsilon`: Tikhonov constant of C_XX + epsilon I, n epsilon on the Gram matrix. `delta`: of
    C_WW^2 + delta I (squared) or C_WW + delta I (thresholded), without n; see `rules`. None: 1% of
    the mean k_Y(Y_i, Y_i), squared for the squared rule. `tolerance`: if given, both Gram matrices
    are approximated by incomplete Cholesky, and a posterior costs O(n r^2).
    """

    def __init__(
        self,
        kernel_x: Kernel,
        kernel_y: Kernel,
        x: ArrayLike,
        y: ArrayLike,
        epsilon: float,
        delta: float | None = None,
        method: str = 'squared',
        tolerance: float | None = None,
    ) -> None:
        self.method = PAPER_NAMES.get(method, method)
        if self.method not in BAYES_RULES:
            known = ', '.join((*BAYES_RULES, *PAPER_NAMES))
            raise KernelError(f'method: expected one of {known}, got {method!r}')
        self.likelihood = NonparametricModel(kernel_x, kernel_y, x, y, epsilon, tolerance)
        self.kernel_x, self.kernel_y = kernel_x, kernel_y
        self.x, self.y = self.likelihood.x, self.likelihood.y
        if delta is None:
            delta = 0.01 * float(kernel_y.diagonal(self.y).mean())
            delta = delta**2 if self.method == 'squared' else delta
        self.epsilon, self.delta = epsilon, as_positive('delta', delta)
        self.gram_y = gram_matrix(kernel_y, self.y, tolerance)

    def posterior(
        self,
        prior: Embedding | ArrayLike,
        observation: Embedding | ArrayLike,
        supervision: Supervision | None = None,
    ) -> KernelMean:
        """
        Return the kernel mean of the posterior of x given one observation (...), not normalised.

        `prior`: a kernel mean, or its values (n,) at the training states X_i, such as those of a
        model-based prior ([MbKSR] section 4.3). `observation`: a point, or a kernel mean of y for
        the average posterior int q(x | y) p(y) dy. With `supervision` the update is kRegBayes, a
        thresholded rule, with the square root of the delta of a squared rule.
        """
        mu = self.likelihood.sum_rule_weights(prior)
        if supervision is not None:
            return self._supervised(mu, observation, supervision)
        weights = self.from_vectors(mu, self._k_y(observation, self.y))
        return KernelMean(self.kernel_x, self.x, weights)

    def posterior_weights(
        self, prior: Embedding | ArrayLike, observations: ArrayLike
    ) -> FloatArray:
        """Return posterior weights (n, q) on X_i given each of q observations (q, ...)."""
        queries = as_floats('observations', observations, 'q', *self.y.shape[1:])
        k_y = self.kernel_y.cross_gram(self.y, queries)
        return self.from_vectors(self.likelihood.sum_rule_weights(prior), k_y)

    def from_vectors(self, mu: ArrayLike, k_y: ArrayLike) -> FloatArray:
        """Return posterior weights for mu (n,) and kernel vectors k_Y, (n,) or (n, q)."""
        return BAYES_RULES[self.method](self.gram_y, mu, k_y, self.delta)

    def condition(self, observation: ArrayLike) -> KernelMean:
        """Return the kernel mean of x given one observation, without a prior ("COND")."""
        weights = conditional_mean(self._regularised_gram_y, self._k_y(observation, self.y))
        return KernelMean(self.kernel_x, self.x, weights)

    def _k_y(self, observation: Embedding | ArrayLike, y: FloatArray) -> FloatArray:
        if not isinstance(observation, Embedding):
            return kernel_vector(self.kernel_y, y, observation)
        require_same_space('observation', observation, self.kernel_y, y)
        return observation(y)

    @cached_property
    def _regularised_gram_y(self) -> RegularisedGram:
        return regularise(self.gram_y, self.epsilon)

    def _supervised(
        self, mu: FloatArray, observation: Embedding | ArrayLike, supervision: Supervision
    ) -> KernelMean:
        targets = [
            state if isinstance(state, KernelMean) else KernelMean(self.kernel_x, [state], [1.0])
            for state in supervision.states
        ]
        for target in targets:
            require_same_space('states', target, self.kernel_x, self.x)
        added = as_floats('observations', supervision.observations, len(targets), ...)
        # the thresholded rule uses only points of positive prior weight
        active = np.flatnonzero(mu > 0)
        if not active.size:
            raise NoMassError(
                'mu: expected a positive weight: the prior has no mass near the sample; raise '
                'epsilon or widen the kernel'
            )
        kept = np.concatenate([self.y[active], added])
        gram, k_y = self.kernel_y.gram(kept), self._k_y(observation, kept)
        delta = self.delta**0.5 if self.method == 'squared' else self.delta
        weights = regularised_bayes_rule(gram, mu[active], k_y, delta, supervision.weight)
        own, shares = np.split(weights, [len(active)])
        # distribute the weight of a pair over the points of its kernel mean
        shared = [w * target.weights for w, target in zip(shares, targets, strict=True)]
        points = np.concatenate([self.x[active], *(target.points for target in targets)])
        return KernelMean(self.kernel_x, points, np.concatenate([own, *shared]))


class KernelABC(NonparametricModel):
    """
    Kernel approximate Bayesian computation: posteriors of parameters from simulated pairs.

    `prior`: maps a number n and a generator to parameters (n, d); `simulator`: maps parameters
    (n, d) and a generator to the summaries (n, p) of one simulation each; `size`: n; `kernel_x` on
    parameters, `kernel_y` on summaries: Gaussian with the median bandwidth when None; `epsilon`:
    see `rules`. No simulation is rejected; each gets a weight. Sources: [KBR] eq. 19; Nakagome,
    Fukumizu, Mano, *Kernel approximate Bayesian computation in population genetic inferences*
    (2013).
    """

    def __init__(
        self,
        prior: Callable[[int, np.random.Generator], Any],
        simulator: Callable[[FloatArray, np.random.Generator], Any],
        size: int = 1000,
        epsilon: float = 1e-4,
        kernel_x: Kernel | None = None,
        kernel_y: Kernel | None = None,
        rng: np.random.Generator | int = 0,
    ) -> None:
        generator = np.random.default_rng(rng)
        x = as_floats('prior(size, rng)', prior(size, generator), 'n', 'd')
        y = as_floats('simulator(x, rng)', simulator(x, generator), len(x), 'd', ...)
        on_y, on_x = kernel_y or median_kernel(y), kernel_x or median_kernel(x)
        super().__init__(on_y, on_x, y, x, epsilon)

    def posterior(self, summary: ArrayLike) -> KernelMean:
        """Return the kernel mean of the parameters given summaries (p,), not normalised."""
        return self.at(summary)


def gram_matrix(
    kernel: Kernel, points: FloatArray, tolerance: float | None
) -> FloatArray | LowRankGram:
    """Return the Gram matrix, dense (n, n) or by incomplete Cholesky if a tolerance is given."""
    if tolerance is None:
        return kernel.gram(points)
    return incomplete_cholesky(kernel, points, tolerance)


def kernel_vector(
    kernel: Kernel, points: FloatArray, query: ArrayLike, name: str = 'observation'
) -> FloatArray:
    """Return k(x_i, query) for one query (...). Shapes: (n, ...) -> (n,)."""
    single = as_floats(name, query, *points.shape[1:])
    return kernel.cross_gram(points, single[np.newaxis])[:, 0]
