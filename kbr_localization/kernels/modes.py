"""
Pre-images: points x whose k(., x) is nearest to a kernel mean, i.e. its modes.

For radial kernels the fixed-point iteration x <- sum_i w_i g_i X_i / sum_i w_i g_i with
g_i = -profile'(|X_i - x|^2) ([KBR] section 4.1 for the Gaussian kernel), run from many starts at
once and damped so that it climbs although weights are signed.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from kbr_localization.kernels.algebra import Kernel, ScaledKernel
from kbr_localization.kernels.checks import FloatArray, NoMassError
from kbr_localization.kernels.kernels import RadialKernel
from kbr_localization.kernels.manifold import nearest_rotation, TraceKernel
import numpy as np
from scipy.spatial.distance import cdist

_MAX_ITERATIONS = 200
_MAX_HALVINGS = 12
# squared steps and separations, in squared bandwidths
_SMALL_STEP = 1e-8
_DISTINCT = 1e-4
# of the deviation of the points: the first step of a search stays on the hill it starts from
_FIRST_STEP = 0.1
# of k(x, x): below it rounding hides the slopes of m
_SMALL_HEIGHT = 1e-6
# heights below this fraction of the largest possible one are as good as zero
_NEGLIGIBLE = 1e-100
# starts are sought among this many of the heaviest points
_POOL = 256


def find_modes(
    kernel: Kernel, points: FloatArray, weights: FloatArray, starts: int
) -> tuple[FloatArray, FloatArray]:
    """
    Local maxima (q, d) of m(x) - k(x, x) / 2 where m is positive, with m's heights (q,) there.

    The one whose k(., x) is nearest to m comes first: the highest, where k(x, x) is constant.
    Where m is negative everywhere, every ascent leads away from all points, to no mode: raises
    NoMassError when m is positive at none of the ends.
    """
    modes, heights = _find_modes(kernel, points, weights, starts)
    sizes = np.abs(weights) @ np.abs(kernel.cross_gram(points, modes))
    positive = heights > weights.size * np.finfo(np.float64).eps * sizes
    if not positive.any():
        raise NoMassError(
            f'weights: expected a kernel mean that is positive somewhere, got a largest value of '
            f'{heights.max():.3g} and weights of sum {weights.sum():.3g} in shape '
            f'{weights.shape}: it has no mode; check the sign of the weights, or start again from '
            'the conditional mean'
        )
    return modes[positive], heights[positive]


@singledispatch
def _find_modes(
    kernel: Kernel, points: FloatArray, weights: FloatArray, starts: int
) -> tuple[FloatArray, FloatArray]:
    """
    Local maxima (q, d) of m(x) - k(x, x) / 2, the largest first, and the heights m(x) (q,).

    Any kernel on vectors: quasi-Newton from each start.
    """
    begin = points[_spread_starts(kernel, points, weights, starts)]
    spread = np.maximum(points.std(axis=0), 1e-12)
    # the optimiser stops at slopes of a fixed size and steps by one: it gets lengths and heights
    # that do not depend on the units of the points and of the kernel
    length = np.where(spread > 1e-12, _FIRST_STEP * spread, 1.0)
    floor = _SMALL_HEIGHT * float(kernel.diagonal(begin).max())
    unit = max(float(np.abs(_heights(kernel, points, weights, begin)).max()), floor) or 1.0

    def loss(u: FloatArray) -> float:
        row = (length * u)[np.newaxis]
        value = weights @ kernel.cross_gram(points, row)[:, 0]
        return float(0.5 * kernel.diagonal(row)[0] - value) / unit

    scaled = [_minimize(loss, x / length, method='L-BFGS-B').x for x in begin]
    ends = _distinct(length * np.array(scaled), -np.array([loss(u) for u in scaled]), spread)
    return ends, _heights(kernel, points, weights, ends)


@_find_modes.register
def _(
    kernel: RadialKernel, points: FloatArray, weights: FloatArray, starts: int
) -> tuple[FloatArray, FloatArray]:
    landscape = _Landscape(kernel, points, weights)
    chosen = _spread_starts(kernel, points, weights, starts)
    near = landscape.ascend(landscape.points[chosen])
    near = _distinct(near, landscape.heights(near))
    ends = np.array([landscape.polish(u) for u in near])
    ends = _distinct(ends, landscape.heights(ends))
    return kernel.scale.colour(ends), landscape.heights(ends)


@_find_modes.register
def _(
    kernel: ScaledKernel, points: FloatArray, weights: FloatArray, starts: int
) -> tuple[FloatArray, FloatArray]:
    modes, heights = _find_modes(kernel.kernel, points, weights, starts)
    return modes, kernel.factor * heights


@_find_modes.register
def _(
    kernel: TraceKernel, points: FloatArray, weights: FloatArray, starts: int
) -> tuple[FloatArray, FloatArray]:
    # one global maximum: the rotation nearest to the mean matrix
    rotation = nearest_rotation(np.tensordot(weights, points, axes=1))[np.newaxis]
    return rotation, _heights(kernel, points, weights, rotation)


class _Landscape:
    """The function m of a radial kernel in whitened coordinates, where bandwidths are one."""

    def __init__(self, kernel: RadialKernel, points: FloatArray, weights: FloatArray) -> None:
        self.kernel, self.weights = kernel, weights
        self.points = kernel.scale.whiten(points)
        self.dimension = points.shape[1]
        self.peak = kernel.peak(self.dimension)

    def heights(self, u: FloatArray) -> FloatArray:
        """Return m(u) (q,)."""
        profile = self.kernel.profile(cdist(self.points, u, 'sqeuclidean'), self.dimension)
        return np.asarray(self.peak * (self.weights @ profile), dtype=np.float64)

    def shift(self, u: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return half the gradient of m / peak (q, d) and the sum of its coefficients (q,)."""
        slope = self.kernel.slope(cdist(self.points, u, 'sqeuclidean'), self.dimension)
        pull = self.weights[:, np.newaxis] * slope
        total = pull.sum(axis=0)
        return pull.T @ self.points - total[:, np.newaxis] * u, total

    def ascend(self, u: FloatArray) -> FloatArray:
        """Fixed-point iteration of all starts at once, until steps are small."""
        heights = self.heights(u)
        moving = np.arange(len(u))
        for _ in range(_MAX_ITERATIONS):
            before = u[moving]
            direction, total = self.shift(before)
            # with a negative sum the fixed point would descend: step the same length uphill
            step = direction / np.maximum(np.abs(total), 1e-300)[:, np.newaxis]
            u[moving], heights[moving] = self._climb(before, heights[moving], step)
            moving = moving[((u[moving] - before) ** 2).sum(axis=1) > _SMALL_STEP]
            if moving.size == 0:
                break
        return u

    def _climb(
        self, u: FloatArray, heights: FloatArray, step: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Take the step, halved until it does not descend; stay where no step climbs."""
        best, best_heights = u.copy(), heights.copy()
        pending = np.arange(len(u))
        for halving in range(_MAX_HALVINGS):
            trial = u[pending] + 0.5**halving * step[pending]
            found = self.heights(trial)
            climbs = found >= heights[pending]
            best[pending[climbs]], best_heights[pending[climbs]] = trial[climbs], found[climbs]
            pending = pending[~climbs]
            if pending.size == 0:
                break
        return best, best_heights

    def polish(self, u: FloatArray) -> FloatArray:
        """Quasi-Newton from a nearly converged point, where the fixed point is slow."""
        # scaled by its own height, which may be tiny, but not so tiny that the quotient overflows
        floor = _NEGLIGIBLE * self.peak * float(np.abs(self.weights).sum()) or 1.0
        unit = max(abs(float(self.heights(u[np.newaxis])[0])), floor)

        def loss(v: FloatArray) -> tuple[float, FloatArray]:
            direction, _ = self.shift(v[np.newaxis])
            value = float(self.heights(v[np.newaxis])[0])
            return -value / unit, -2.0 * self.peak * direction[0] / unit

        result = _minimize(
            loss, u, jac=True, method='L-BFGS-B', options={'ftol': 1e-15, 'gtol': 1e-9}
        )
        pair = np.array([u, result.x])
        return np.asarray(pair[np.argmax(self.heights(pair))], dtype=np.float64)


def _heights(kernel: Kernel, points: FloatArray, weights: FloatArray, x: FloatArray) -> FloatArray:
    return np.asarray(weights @ kernel.cross_gram(points, x), dtype=np.float64)


def _spread_starts(
    kernel: Kernel, points: FloatArray, weights: FloatArray, starts: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Greedy choice of high points that are unlike the ones chosen before."""
    pool = np.argsort(-weights)[:_POOL]
    height = _heights(kernel, points, weights, points[pool])
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
    """Points by falling height, or another value, without copies of a higher one."""
    ordered = u[np.argsort(-heights)]
    kept: list[FloatArray] = []
    for point in ordered:
        if all(np.sum(((point - other) / unit) ** 2) > _DISTINCT for other in kept):
            kept.append(point)
    return np.array(kept)


def _minimize(function: Any, start: FloatArray, **options: Any) -> Any:
    # a robot's node finds no modes: it starts sooner without the optimiser
    from scipy.optimize import minimize  # noqa: PLC0415

    return minimize(function, start, **options)
