"""
Pre-images: points x whose k(., x) is nearest to a kernel mean, i.e. its modes.

For radial kernels the fixed-point iteration x <- sum_i w_i g_i X_i / sum_i w_i g_i with
g_i = -profile'(|X_i - x|^2) ([KBR] section 4.1 for the Gaussian kernel), run from many starts at
once and damped so that it climbs although weights are signed.
"""

from __future__ import annotations

from typing import Any

from kbr_localization.kernels.algebra import Kernel, ScaledKernel
from kbr_localization.kernels.checks import FloatArray, IndexArray, NoMassError
from kbr_localization.kernels.kernels import RadialKernel
from kbr_localization.kernels.manifold import nearest_rotation, TraceKernel
import numpy as np
from scipy.spatial.distance import cdist


def find_modes(
    kernel: Kernel, points: FloatArray, weights: FloatArray, starts: int
) -> tuple[FloatArray, FloatArray]:
    """Local maxima (q, d) of m(x) - k(x, x) / 2, the largest first, and m > 0 there (q,)."""
    inner = kernel
    while isinstance(inner, ScaledKernel):
        inner = inner.kernel
    if isinstance(inner, TraceKernel):
        # one global maximum: the rotation nearest to the mean matrix
        modes = nearest_rotation(np.tensordot(weights, points, axes=1))[np.newaxis]
    elif isinstance(inner, RadialKernel):
        modes = _radial_modes(inner, points, weights, starts)
    else:
        modes = _general_modes(kernel, points, weights, starts)
    heights = weights @ kernel.cross_gram(points, modes)
    sizes = np.abs(weights) @ np.abs(kernel.cross_gram(points, modes))
    positive = heights > weights.size * np.finfo(np.float64).eps * sizes
    if not positive.any():
        raise NoMassError(
            f'weights: expected a kernel mean that is positive somewhere, got a largest value of '
            f'{heights.max():.3g} and weights of sum {weights.sum():.3g}: it has no mode; start '
            'again from the conditional mean'
        )
    return modes[positive], heights[positive]


def _general_modes(
    kernel: Kernel, points: FloatArray, weights: FloatArray, starts: int
) -> FloatArray:
    """Quasi-Newton from each start, for any kernel on vectors."""
    begin = points[_spread_starts(kernel, points, weights, starts)]
    spread = np.maximum(points.std(axis=0), 1e-12)
    # lengths and heights that do not depend on the units of the points and of the kernel; the
    # first step, 0.1 deviations, stays on the hill of the start
    length = np.where(spread > 1e-12, 0.1 * spread, 1.0)
    heights = np.abs(weights @ kernel.cross_gram(points, begin))
    unit = max(float(heights.max()), 1e-6 * float(kernel.diagonal(begin).max())) or 1.0

    def loss(u: FloatArray) -> float:
        row = (length * u)[np.newaxis]
        value = weights @ kernel.cross_gram(points, row)[:, 0]
        return float(0.5 * kernel.diagonal(row)[0] - value) / unit

    scaled = [_minimize(loss, x / length, method='L-BFGS-B').x for x in begin]
    return _distinct(length * np.array(scaled), -np.array([loss(u) for u in scaled]), spread)


def _radial_modes(
    kernel: RadialKernel, points: FloatArray, weights: FloatArray, starts: int
) -> FloatArray:
    landscape = _Landscape(kernel, points, weights)
    chosen = _spread_starts(kernel, points, weights, starts)
    near = landscape.ascend(landscape.points[chosen])
    near = _distinct(near, landscape.heights(near))
    ends = np.array([landscape.polish(u) for u in near])
    return kernel.scale.colour(_distinct(ends, landscape.heights(ends)))


class _Landscape:
    """m over its peak, for a radial kernel, in whitened coordinates: bandwidths are one."""

    def __init__(self, kernel: RadialKernel, points: FloatArray, weights: FloatArray) -> None:
        self.kernel, self.weights = kernel, weights
        self.points, self.dimension = kernel.scale.whiten(points), points.shape[1]

    def heights(self, u: FloatArray) -> FloatArray:
        profile = self.kernel.profile(cdist(self.points, u, 'sqeuclidean'), self.dimension)
        return np.asarray(self.weights @ profile)

    def shift(self, u: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return half the gradient (q, d) and the sum of its coefficients (q,)."""
        slope = self.kernel.slope(cdist(self.points, u, 'sqeuclidean'), self.dimension)
        pull = self.weights[:, np.newaxis] * slope
        total = pull.sum(axis=0)
        return pull.T @ self.points - total[:, np.newaxis] * u, total

    def ascend(self, u: FloatArray) -> FloatArray:
        """Fixed-point iteration of all starts at once, until steps are small."""
        heights, moving = self.heights(u), np.arange(len(u))
        for _ in range(200):
            before = u[moving]
            direction, total = self.shift(before)
            # with a negative sum the fixed point would descend: step the same length uphill
            step = direction / np.maximum(np.abs(total), 1e-300)[:, np.newaxis]
            # halve the steps that descend; stay where no step climbs
            pending = np.arange(len(moving))
            for _ in range(12):
                trial = before[pending] + step[pending]
                found = self.heights(trial)
                climbs = found >= heights[moving[pending]]
                done = moving[pending[climbs]]
                u[done], heights[done] = trial[climbs], found[climbs]
                pending = pending[~climbs]
                if pending.size == 0:
                    break
                step[pending] *= 0.5
            moving = moving[((u[moving] - before) ** 2).sum(axis=1) > 1e-8]
            if moving.size == 0:
                break
        return u

    def polish(self, u: FloatArray) -> FloatArray:
        """Quasi-Newton from a nearly converged point, where the fixed point is slow."""
        # scaled by its own height, which may be tiny, but not so tiny that the quotient overflows
        floor = 1e-100 * float(np.abs(self.weights).sum()) or 1.0
        unit = max(abs(float(self.heights(u[np.newaxis])[0])), floor)

        def loss(v: FloatArray) -> tuple[float, FloatArray]:
            direction, _ = self.shift(v[np.newaxis])
            return -float(self.heights(v[np.newaxis])[0]) / unit, -2.0 * direction[0] / unit

        options = {'ftol': 1e-15, 'gtol': 1e-9}
        found = _minimize(loss, u, jac=True, method='L-BFGS-B', options=options)
        pair = np.array([u, found.x])
        return np.asarray(pair[np.argmax(self.heights(pair))])


def _spread_starts(
    kernel: Kernel, points: FloatArray, weights: FloatArray, starts: int
) -> IndexArray:
    """Greedy choice among the heaviest points: high ones, unlike the ones chosen before."""
    pool = np.argsort(-weights)[:256]
    height = weights @ kernel.cross_gram(points, points[pool])
    gram = kernel.gram(points[pool])
    scale = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    # points within about one bandwidth of a chosen one lead to the same mode
    alike = gram / scale[:, np.newaxis] / scale > np.exp(-0.5)
    chosen: list[int] = []
    free = np.ones(pool.size, dtype=bool)
    while free.any() and len(chosen) < starts:
        chosen.append(int(np.argmax(np.where(free, height, -np.inf))))
        free &= ~alike[chosen[-1]]
        free[chosen[-1]] = False
    return pool[chosen]


def _distinct(u: FloatArray, heights: FloatArray, unit: FloatArray | float = 1.0) -> FloatArray:
    """Points by falling height, without copies of a higher one."""
    kept: list[FloatArray] = []
    for point in u[np.argsort(-heights)]:
        if all(np.sum(((point - other) / unit) ** 2) > 1e-4 for other in kept):
            kept.append(point)
    return np.array(kept)


def _minimize(function: Any, start: FloatArray, **options: Any) -> Any:
    # the optimiser is slow to import, and a robot's node finds no modes
    from scipy.optimize import minimize  # noqa: PLC0415

    return minimize(function, start, **options)
