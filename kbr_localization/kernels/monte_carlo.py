"""
Models that are known by draws only: Monte Carlo sum rule, and the kernel Monte Carlo filter.

For pairs of noise and kernel without a closed form, and for simulators: whatever draws from
p(x' | x) can be pushed through and filtered with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel, require_kernel
from kbr_localization.kernels.checks import (
    as_count,
    as_floats,
    as_generator,
    as_points,
    FloatArray,
    require,
    require_callable,
)
from kbr_localization.kernels.embedding import Embedding
from kbr_localization.kernels.filters import KernelBayesFilter, Transition
from kbr_localization.kernels.inference import KernelBayesRule
from kbr_localization.kernels.kernel_mean import KernelMean
import numpy as np
from numpy.typing import ArrayLike

Sampler = Callable[..., Any]


class MonteCarloModel:
    """
    Model p(x' | x) that can be drawn from, for the model-based sum rule without a closed form.

    `sampler`: maps points (n, d), a generator and controls to draws (n, d'), one for each point,
    such as `AdditiveNoiseModel.sample`; `draws`: L draws in place of every conditional law; `rng`:
    a generator or a seed. The conditional kernel mean is estimated by the mean of k(., x'_l),
    l = 1..L, whose error in the RKHS norm is O(L^-1/2).
    """

    def __init__(
        self, sampler: Sampler, draws: int = 100, rng: np.random.Generator | int = 0
    ) -> None:
        require_callable('sampler', sampler, "of points (n, d) and a generator to draws of x'")
        self.sampler, self.draws = sampler, as_count('draws', draws)
        self.rng = as_generator('rng', rng)

    def sample(self, x: ArrayLike, *control: Any) -> FloatArray:
        """Draw one x' for every x. Shapes: (n, d) -> (n, d')."""
        points = as_points('x', x)
        return draws_of(self.sampler, points, self.rng, *control)

    def kernel_matrix(
        self, kernel: Kernel, z: ArrayLike, x: ArrayLike, *control: Any
    ) -> FloatArray:
        """Estimate conditional kernel means m(z_i | x_j). Shapes: (m, d'), (n, d) -> (m, n)."""
        require_kernel('kernel', kernel)
        points, queries = as_points('x', x), as_floats('z', z)
        sums = np.zeros((len(queries), len(points)))
        for _ in range(self.draws):
            sums += kernel.cross_gram(queries, self.sample(points, *control))
        return np.asarray(sums / self.draws, dtype=np.float64)

    def push(self, prior: Embedding, *control: Any, kernel: Kernel | None = None) -> KernelMean:
        """
        Monte Carlo sum rule: the kernel mean of x' when x has the kernel mean `prior`.

        The sum of w_j / L k(., x'_jl): L draws for each of the n points of the prior; those of
        its points that have a noise are drawn as well. `kernel`: of the space of x', the prior's
        when None. Source: [MbKSR] eq. 15 with draws in place of the integral.
        """
        require('prior', prior, Embedding, 'a kernel mean of x')
        parts = []
        for points, weights, noise in prior.terms():
            copies = np.repeat(points, self.draws, axis=0)
            if noise is not None:
                copies = copies + noise.sample(len(copies), copies.shape[1], self.rng)
            images = self.sample(copies, *control)
            parts.append((images, np.repeat(weights / self.draws, self.draws)))
        images, weights = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return KernelMean(kernel or prior.kernel, images, weights)


class MonteCarloTransition(Transition):
    """
    Transition by draws: the belief is resampled, and a draw of x' made for every point.

    `sampler`, `rng`: as in MonteCarloModel; `kernel`: on states; `draws`: how many points, as many
    as the belief has when None; `resample`: by kernel herding, which turns signed weights into
    points of equal weight ([KMCF]); without it the points keep their weights, and each has as many
    draws as there are in `draws` for it, at least one.
    """

    def __init__(
        self,
        sampler: Sampler,
        kernel: Kernel,
        draws: int | None = None,
        rng: np.random.Generator | int = 0,
        resample: bool = True,
    ) -> None:
        require_callable('sampler', sampler, "of points (n, d) and a generator to draws of x'")
        require_kernel('kernel', kernel)
        self.sampler, self.kernel, self.resample = sampler, kernel, resample
        self.draws = None if draws is None else as_count('draws', draws)
        self.rng = as_generator('rng', rng)

    def predict(self, belief: KernelMean, z: FloatArray, *control: Any) -> FloatArray:
        """Values at z of the kernel mean of the draws. Shapes: (m, d) -> (m,)."""
        points, weights = self._particles(belief)
        images = draws_of(self.sampler, points, self.rng, *control)
        return np.asarray(self.kernel.cross_gram(z, images) @ weights, dtype=np.float64)

    def _particles(self, belief: KernelMean) -> tuple[FloatArray, FloatArray]:
        count = len(belief.points) if self.draws is None else self.draws
        if self.resample:
            return belief.herd(count), np.full(count, 1.0 / count)
        points, weights, _ = belief.terms()[0]
        copies = max(1, count // len(points))
        return np.repeat(points, copies, axis=0), np.repeat(weights / copies, copies)


class KernelMonteCarloFilter(KernelBayesFilter):
    """
    Kernel Monte Carlo filter: transitions are drawn, observations are learnt from pairs.

    Predict by drawing from p(x' | x) after resampling, update by Bayes' rule on the pairs
    (X_i, Y_i). `sampler`, `draws`, `rng`, `resample`: see MonteCarloTransition; `bayes_rule`: with
    the squared rule, its default, the filter is that of the paper. Its generator goes on from run
    to run: make a new filter to repeat one. Source: [KMCF].
    """

    def __init__(
        self,
        sampler: Sampler,
        bayes_rule: KernelBayesRule,
        draws: int | None = None,
        rng: np.random.Generator | int = 0,
        resample: bool = True,
    ) -> None:
        require('bayes_rule', bayes_rule, KernelBayesRule, 'a KernelBayesRule')
        kernel = bayes_rule.kernel_x
        transition = MonteCarloTransition(sampler, kernel, draws, rng, resample)
        super().__init__(transition, bayes_rule)


def draws_of(
    sampler: Sampler, points: FloatArray, rng: np.random.Generator, *control: Any
) -> FloatArray:
    """Draws of a sampler, one for each point, checked. Shapes: (n, d) -> (n, d')."""
    draws = as_floats('sampler(x, rng)', sampler(points, rng, *control))
    if draws.ndim < 2 or len(draws) != len(points):
        raise KernelError(
            f'sampler: expected draws of shape ({len(points)}, d), got {draws.shape}: draw one '
            'point for every given point, all at once'
        )
    return draws
