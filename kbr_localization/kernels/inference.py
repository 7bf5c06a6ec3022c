"""
Kernel Bayesian inference with kernel means: models learnt from pairs, and Bayes' rule.

`NonparametricModel` (learnt from pairs) and `AdditiveNoiseModel` (a formula) both `push` a kernel
mean through p(y | x), so chains of the two read as in [MbKSR] section 4.2:
`model.push(learnt.push(prior))` is NP-KSR followed by Mb-KSR, `learnt.push(model.push(prior))` is
Mb-KSR followed by NP-KSR.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import (
    as_floats,
    as_points,
    as_positive,
    as_sample,
    as_weights,
    FloatArray,
)
from kbr_localization.kernels.kernel_mean import Embedding, KernelMean, require_same_space
from kbr_localization.kernels.kernels import median_kernel
from kbr_localization.kernels.low_rank import incomplete_cholesky, LowRankGram
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


class NonparametricModel:
    """
    Conditional law p(y | x) learnt from pairs (X_i, Y_i), i = 1..n.

    `x`, `y`: (n, ...) points that the kernels take; `epsilon`: see `rules`; `tolerance`: when
    given, G_X is replaced by its incomplete Cholesky form and everything costs O(n r^2).
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
        self.x = as_sample('x', x)
        self.y = as_sample('y', y, size=len(self.x))
        kernel_y.diagonal(self.y[:1])  # refuses points that the kernel cannot take
        self.regularised_gram_x = regularise(gram_matrix(kernel_x, self.x, tolerance), epsilon)

    def at(self, x: ArrayLike) -> KernelMean:
        """Kernel mean of y given one x (...). Source: [MbKSR] eq. 7."""
        k_x = kernel_vector(self.kernel_x, self.x, x, 'x')
        return KernelMean(self.kernel_y, self.y, conditional_mean(self.regularised_gram_x, k_x))

    def sum_rule_weights(self, prior: Embedding | ArrayLike) -> FloatArray:
        """Weights mu on the pairs, from a kernel mean of x or its values at X_i (n,)."""
        if isinstance(prior, Embedding):
            require_same_space('prior', prior, self.kernel_x, self.x)
            prior = prior(self.x)
        values = as_weights('prior', prior, len(self.x))
        return nonparametric_sum_rule(self.regularised_gram_x, values)

    def push(self, prior: Embedding) -> KernelMean:
        """Return the NP-KSR estimate: the kernel mean of y when x has the kernel mean `prior`."""
        return KernelMean(self.kernel_y, self.y, self.sum_rule_weights(prior))

    def joint(self, prior: Embedding) -> KernelMean:
        """Kernel mean of (x, y), points (n, d_x + d_y): the chain rule of [KBR] Prop. 3."""
        split = self.x.shape[1]
        points = np.concatenate([self.x, self.y], axis=1)
        kernel = self.kernel_x.on(*range(split)) * self.kernel_y.on(*range(split, points.shape[1]))
        return KernelMean(kernel, points, self.sum_rule_weights(prior))


@dataclass(frozen=True, eq=False)
class Supervision:
    """
    Pairs of observation (s, ...) and state (s, ...) that the posterior is drawn to.

    `states`: points (s, ...), or s kernel means: the laws that the posteriors given the
    observations are drawn to. `weight` > 0: relative to the prior's weights. Source: [kReg] eq. 10
    and the remark after it.
    """

    observations: FloatArray
    states: FloatArray | Sequence[KernelMean]
    weight: float


class KernelBayesRule:
    """
    Bayes' rule learnt from pairs (X_i, Y_i): from a prior kernel mean to the posterior given y.

    `x`: (n, ...) states, `y`: (n, ...) observations. `method`: 'squared' or 'KBR' ([KBR], the
    default); 'thresholded', 'pKBR' or 'IW-KBR' ([kReg], [IW-KBR]), which is faster.
    `epsilon`: Tikhonov constant of C_XX + epsilon I, n epsilon on the Gram matrix. `delta`: of
    C_WW^2 + delta I (squared) or C_WW + delta I (thresholded), without n; see `rules`. None: 1% of
    the mean k_Y(Y_i, Y_i), squared for the squared rule. `tolerance`: when given, both Gram
    matrices are replaced by incomplete Cholesky forms, and a posterior costs O(n r^2).
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
        observation: ArrayLike,
        supervision: Supervision | None = None,
    ) -> KernelMean:
        """
        Kernel mean of the posterior of x given one observation (...), not normalised.

        `prior`: a kernel mean, or its values at the training states X_i (n,), so that a
        model-based prior can be plugged in ([MbKSR] section 4.3). With `supervision` the update
        is kRegBayes, a thresholded rule; of the squared rule's delta it takes the square root.
        """
        mu = self.likelihood.sum_rule_weights(prior)
        if supervision is not None:
            return self._supervised(mu, observation, supervision)
        k_y = kernel_vector(self.kernel_y, self.y, observation)
        return KernelMean(self.kernel_x, self.x, self.from_vectors(mu, k_y))

    def posterior_weights(
        self, prior: Embedding | ArrayLike, observations: ArrayLike
    ) -> FloatArray:
        """Posterior weights (n, q) on X_i given each of q observations (q, ...)."""
        queries = as_sample('observations', observations, self.y.shape[1:])
        k_y = self.kernel_y.cross_gram(self.y, queries)
        return self.from_vectors(self.likelihood.sum_rule_weights(prior), k_y)

    def from_vectors(self, mu: ArrayLike, k_y: ArrayLike) -> FloatArray:
        """Posterior weights from prior weights mu (n,) and kernel vectors k_Y, (n,) or (n, q)."""
        return BAYES_RULES[self.method](self.gram_y, mu, k_y, self.delta)

    def posterior_given(self, prior: Embedding | ArrayLike, evidence: Embedding) -> KernelMean:
        """Posterior of an observation known by a kernel mean of y: int q(x | y) p(y) dy."""
        require_same_space('evidence', evidence, self.kernel_y, self.y)
        weights = self.from_vectors(self.likelihood.sum_rule_weights(prior), evidence(self.y))
        return KernelMean(self.kernel_x, self.x, weights)

    def condition(self, observation: ArrayLike) -> KernelMean:
        """Kernel mean of x given one observation under the sample's own prior ("COND")."""
        k_y = kernel_vector(self.kernel_y, self.y, observation)
        return KernelMean(self.kernel_x, self.x, conditional_mean(self._regularised_gram_y, k_y))

    @cached_property
    def _regularised_gram_y(self) -> RegularisedGram:
        return regularise(self.gram_y, self.epsilon)

    def _supervised(
        self, mu: FloatArray, observation: ArrayLike, supervision: Supervision
    ) -> KernelMean:
        targets = [self._target(state) for state in supervision.states]
        added = as_sample(
            'observations', supervision.observations, self.y.shape[1:], size=len(targets)
        )
        # only points with positive prior weight enter the thresholded rule
        active = np.flatnonzero(mu > 0)
        kept = np.concatenate([self.y[active], added])
        gram = self.kernel_y.gram(kept)
        k_y = kernel_vector(self.kernel_y, kept, observation)
        delta = self.delta**0.5 if self.method == 'squared' else self.delta
        weights = regularised_bayes_rule(gram, mu[active], k_y, delta, supervision.weight)
        # a target law enters by its points, which share its weight
        own, shares = np.split(weights, [len(active)])
        shared = [w * law.weights for w, law in zip(shares, targets, strict=True)]
        points = np.concatenate([self.x[active], *(law.points for law in targets)])
        return KernelMean(self.kernel_x, points, np.concatenate([own, *shared]))

    def _target(self, state: ArrayLike | KernelMean) -> KernelMean:
        if not isinstance(state, KernelMean):
            state = KernelMean.of_sample(self.kernel_x, np.asarray(state)[np.newaxis])
        require_same_space('states', state, self.kernel_x, self.x)
        return state


class KernelABC:
    """
    Kernel approximate Bayesian computation: posteriors of parameters from simulated pairs.

    `prior`: maps a number n and a generator to parameters (n, d); `simulator`: maps parameters
    (n, d) and a generator to summaries (n, p) of one simulation each; `size`: n; `kernel_x` on
    parameters, `kernel_y` on summaries: Gaussian with the median bandwidth when None; `epsilon`:
    see `rules`. Nothing is rejected: every simulation has a weight. Sources: [KBR] eq. 19;
    Nakagome, Fukumizu, Mano, *Kernel approximate Bayesian computation in population genetic
    inferences* (2013).
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
        self.x = as_points('prior(size, rng)', prior(size, generator))
        summaries = simulator(self.x, generator)
        self.y = as_sample('simulator(x, rng)', summaries, size=len(self.x))
        self.kernel_x = kernel_x or median_kernel(self.x)
        self.kernel_y = kernel_y or median_kernel(self.y)
        self._model = NonparametricModel(self.kernel_y, self.kernel_x, self.y, self.x, epsilon)

    def posterior(self, summary: ArrayLike) -> KernelMean:
        """Kernel mean of the parameters given observed summaries (p,), not normalised."""
        return self._model.at(summary)


def gram_matrix(
    kernel: Kernel, points: FloatArray, tolerance: float | None
) -> FloatArray | LowRankGram:
    """Gram matrix of points, dense (n, n) or by incomplete Cholesky when a tolerance is given."""
    if tolerance is None:
        return kernel.gram(points)
    return incomplete_cholesky(kernel, points, tolerance)


def kernel_vector(
    kernel: Kernel, points: FloatArray, query: ArrayLike, name: str = 'observation'
) -> FloatArray:
    """Values k(x_i, query) at every point, for one query (...). Shapes: (n, ...) -> (n,)."""
    single = as_floats(name, query)
    if single.shape != points.shape[1:]:
        raise KernelError(
            f'{name}: expected one point of shape {points.shape[1:]}, got {single.shape}: give '
            'one at a time, shaped like one of the training sample'
        )
    return kernel.cross_gram(points, single[np.newaxis])[:, 0]
