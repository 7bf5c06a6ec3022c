"""
Kernel Bayesian inference with kernel means: models learnt from pairs, and Bayes' rule.

`NonparametricModel` (learnt from pairs) and `AdditiveNoiseModel` (a formula) both `push` a kernel
mean through p(y | x), so chains of the two read as in [MbKSR] section 4.2:
`model.push(learnt.push(prior))` is NP-KSR followed by Mb-KSR, `learnt.push(model.push(prior))` is
Mb-KSR followed by NP-KSR.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel, require_kernel
from kbr_localization.kernels.checks import (
    as_floats,
    as_points_like,
    as_positive,
    FloatArray,
    IndexArray,
    renamed,
    require,
)
from kbr_localization.kernels.embedding import values_at
from kbr_localization.kernels.kernel_mean import Embedding, KernelMean
from kbr_localization.kernels.low_rank import incomplete_cholesky, LowRankGram
from kbr_localization.kernels.rules import (
    BAYES_RULES,
    conditional_mean,
    GramMatrix,
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
        require_kernel('kernel_x', kernel_x)
        require_kernel('kernel_y', kernel_y)
        self.x, self.y = as_pairs(kernel_x.encode('x', x), kernel_y.encode('y', y))
        with renamed(x='y'):
            kernel_y.diagonal(self.y[:1])  # refuses points that the kernel cannot take
        self.regularised_gram_x = regularise(gram_matrix(kernel_x, self.x, tolerance), epsilon)

    def at(self, x: ArrayLike) -> KernelMean:
        """Kernel mean of y given one x (...). Source: [MbKSR] eq. 7."""
        with renamed(observation='x'):
            k_x = kernel_vector(self.kernel_x, self.x, x)
        return KernelMean(self.kernel_y, self.y, conditional_mean(self.regularised_gram_x, k_x))

    def sum_rule_weights(self, prior: Embedding | ArrayLike) -> FloatArray:
        """Weights mu on the pairs, from a kernel mean of x or its values at X_i (n,)."""
        if isinstance(prior, Embedding):
            values = values_at('prior', prior, self.kernel_x, self.x)
            return nonparametric_sum_rule(self.regularised_gram_x, values)
        given = as_floats('prior', prior)
        if given.shape != (len(self.x),):
            raise KernelError(
                f'prior: expected a kernel mean, or its values at the training points, shape '
                f'({len(self.x)},), got an array of shape {given.shape}: a sample becomes a '
                'kernel mean by KernelMean.of_sample(kernel, sample)'
            )
        return nonparametric_sum_rule(self.regularised_gram_x, given)

    def push(self, prior: Embedding) -> KernelMean:
        """Return the NP-KSR estimate: the kernel mean of y when x has the kernel mean `prior`."""
        return KernelMean(self.kernel_y, self.y, self.sum_rule_weights(prior))

    def joint(self, prior: Embedding) -> KernelMean:
        """
        Kernel chain rule: the kernel mean of (x, y) in the product space, points (n, d_x + d_y).

        For x and y that are vectors. Source: [KBR] Prop. 3.
        """
        require('prior', prior, Embedding, 'a kernel mean of x')
        if self.x.ndim != 2 or self.y.ndim != 2:
            raise KernelError(
                f'x, y: expected points of shape (n, d), whose coordinates are joined, got '
                f'{self.x.shape} and {self.y.shape}: the weights on the pairs, of any shape, are '
                'those of sum_rule_weights()'
            )
        split = self.x.shape[1]
        columns = range(split, split + self.y.shape[1])
        kernel = self.kernel_x.on(*range(split)) * self.kernel_y.on(*columns)
        points = np.concatenate([self.x, self.y], axis=1)
        return KernelMean(kernel, points, self.sum_rule_weights(prior))


@dataclass(frozen=True, eq=False)
class Supervision:
    """
    Pairs of observation and state that the posterior is drawn to ([kReg] eq. 10).

    `observations`: (s, ...); `states`: (s, ...); `weight` > 0: relative to the prior's weights.
    """

    observations: FloatArray
    states: FloatArray
    weight: float

    def __post_init__(self) -> None:
        names = ('observations', 'states')
        observations, states = as_pairs(self.observations, self.states, names)
        object.__setattr__(self, 'observations', observations)
        object.__setattr__(self, 'states', states)
        as_positive('weight', self.weight)


class KernelBayesRule:
    """
    Bayes' rule learnt from pairs (X_i, Y_i): from a prior kernel mean to the posterior given y.

    `x`: (n, ...) states, `y`: (n, ...) observations. `method`: 'squared' or 'KBR', the rule of
    [KBR] and the default; 'thresholded', 'pKBR' or 'IW-KBR', that of [kReg] and [IW-KBR], which is
    faster. `epsilon` is the Tikhonov constant of C_XX + epsilon I, which is n epsilon on the Gram
    matrix; `delta` that of C_WW^2 + delta I (squared) or C_WW + delta I (thresholded), without n:
    a delta of the thresholded rule compares with the square root of the squared rule's, and
    [KBR] Fig. 1 has n^2 times the latter. `tolerance`: when given, both Gram matrices are replaced
    by their incomplete Cholesky forms and a posterior costs O(n r^2).
    """

    def __init__(
        self,
        kernel_x: Kernel,
        kernel_y: Kernel,
        x: ArrayLike,
        y: ArrayLike,
        epsilon: float,
        delta: float,
        method: str = 'squared',
        tolerance: float | None = None,
    ) -> None:
        self.method = _method(method)
        self.likelihood = NonparametricModel(kernel_x, kernel_y, x, y, epsilon, tolerance)
        self.kernel_x, self.kernel_y = kernel_x, kernel_y
        self.x, self.y = self.likelihood.x, self.likelihood.y
        self.epsilon = as_positive('epsilon', epsilon)
        self.delta = as_positive('delta', delta)
        with renamed(x='y', points='y'):
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
            require('supervision', supervision, Supervision, 'a Supervision or None')
            return self._supervised(mu, observation, supervision)
        k_y = kernel_vector(self.kernel_y, self.y, observation)
        weights = self.from_vectors(mu, k_y)
        return KernelMean(self.kernel_x, self.x, weights)

    def posterior_weights(
        self, prior: Embedding | ArrayLike, observations: ArrayLike
    ) -> FloatArray:
        """
        Posterior weights on X_i given each of q observations, with one factorisation for all.

        Shapes: observations (q, ...) -> (n, q), one column per observation.
        """
        queries = self.kernel_y.encode('observations', observations)
        k_y = self.kernel_y.cross_gram(self.y, as_points_like('observations', queries, self.y))
        return self.from_vectors(self.likelihood.sum_rule_weights(prior), k_y)

    def from_vectors(self, mu: ArrayLike, k_y: ArrayLike) -> FloatArray:
        """Posterior weights from prior weights mu (n,) and kernel vectors k_Y, (n,) or (n, q)."""
        return BAYES_RULES[self.method](self.gram_y, mu, k_y, self.delta)

    def posterior_given(self, prior: Embedding | ArrayLike, evidence: Embedding) -> KernelMean:
        """
        Kernel mean of x when the observation is known only by a kernel mean of y.

        The posterior is linear in k_Y(., y), so that int q(x | y) p(y) dy is that of
        m_Y(Y_i) = (m_Y(Y_1), ..., m_Y(Y_n)). Not normalised.
        """
        k_y = values_at('evidence', evidence, self.kernel_y, self.y)
        weights = self.from_vectors(self.likelihood.sum_rule_weights(prior), k_y)
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
        states = as_points_like('states', supervision.states, self.x)
        observations = as_points_like('observations', supervision.observations, self.y)
        # only points with positive prior weight enter the thresholded rule
        active = np.flatnonzero(mu > 0)
        kept = np.concatenate([self.y[active], observations])
        k_y = kernel_vector(self.kernel_y, kept, observation)
        gram = self._extended_gram(active, observations)
        delta = self.delta**0.5 if self.method == 'squared' else self.delta
        weights = regularised_bayes_rule(gram, mu[active], k_y, delta, supervision.weight)
        points = np.concatenate([self.x[active], states])
        return KernelMean(self.kernel_x, points, weights)

    def _extended_gram(self, active: IndexArray, observations: FloatArray) -> GramMatrix:
        if isinstance(self.gram_y, LowRankGram):
            return self.gram_y.restricted(active).extended(self.kernel_y, self.y, observations)
        own = self.kernel_y.gram(observations)
        if active.size == 0:
            return own
        cross = self.kernel_y.cross_gram(self.y[active], observations)
        return np.block([[self.gram_y[np.ix_(active, active)], cross], [cross.T, own]])


def _method(name: str) -> str:
    method = PAPER_NAMES.get(name, name) if isinstance(name, str) else ''
    if method not in BAYES_RULES:
        known = ', '.join((*BAYES_RULES, *PAPER_NAMES))
        raise KernelError(f'method: expected one of {known}, got {name!r}')
    return method


def gram_matrix(
    kernel: Kernel, points: FloatArray, tolerance: float | None
) -> FloatArray | LowRankGram:
    """Gram matrix of points, dense (n, n) or by incomplete Cholesky when a tolerance is given."""
    return (
        kernel.gram(points)
        if tolerance is None
        else incomplete_cholesky(kernel, points, tolerance)
    )


def kernel_vector(kernel: Kernel, points: FloatArray, query: ArrayLike) -> FloatArray:
    """Values k(x_i, query) at every point, for one query (...). Shapes: (n, ...) -> (n,)."""
    single = kernel.encode_one('observation', query)
    if single.shape != points.shape[1:]:
        raise KernelError(
            f'observation: expected one point of shape {points.shape[1:]}, got {single.shape}: '
            'give one observation at a time, shaped like one of the training sample'
        )
    return kernel.cross_gram(points, single[np.newaxis])[:, 0]


def as_pairs(
    x: ArrayLike, y: ArrayLike, names: tuple[str, str] = ('x', 'y')
) -> tuple[FloatArray, FloatArray]:
    """Training pairs of one length n > 0."""
    left, right = as_floats(names[0], x), as_floats(names[1], y)
    if left.ndim < 2 or right.ndim < 2 or len(left) != len(right) or len(left) == 0:
        raise KernelError(
            f'{", ".join(names)}: expected pairs of shapes (n, ...) and (n, ...) with n > 0, got '
            f'{left.shape} and {right.shape}: give as many of one as of the other; reshape '
            f'scalars with {names[0]}.reshape(-1, 1)'
        )
    return left, right
