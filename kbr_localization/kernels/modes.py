"""
Pre-images: points x whose k(., x) is nearest to a kernel mean, i.e. its modes.

For radial kernels the fixed-point iteration x <- sum_i w_i g_i X_i / sum_i w_i g_i with
g_i = -profile'(|X_i - x|^2) ([KBR] section 4.1 for the Gaussian kernel), run from many starts at
once and damped so that it climbs although weights are signed.
"""

from __future__ import annotations

from functools import singledispatch

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel, ScaledKernel
from kbr_localization.kernels.checks import FloatArray
from kbr_localization.kernels.distances import squared_distances
from kbr_localization.kernels.kernels import RadialKernel
from kbr_localization.kernels.manifold import nearest_rotation, TraceKernel
import numpy as np
import scipy.optimize

_MAX_ITERATIONS = 1000
_MAX_HALVINGS = 12
# squared steps and separations, in squared bandwidths
_CONVERGED = 1e-20
_DISTINCT = 1e-4
# starts are sought among this many of the heaviest points
_POOL = 256


@singledispatch
def find_modes(
    kernel: Kernel, points: FloatArray, weights: FloatArray, starts: int
) -> tuple[FloatArray, FloatArray]:
    """
    Local maxima (q, d) of m(x) - k(x, x) / 2 and the heights m(x) (q,), highest first.

    Any kernel on vectors: quasi-Newton from each start.
    """

    def loss(x: FloatArray) -> float:
        row = x[np.newaxis]
        value = weights @ kernel.cross_gram(points, row)[:, 0]
        return float(0.5 * kernel.diagonal(row)[0] - value)

    begin = points[_spread_starts(kernel, points, weights, starts)]
    found = [scipy.optimize.minimize(loss, x, method='L-BFGS-B') for x in begin]
    found.sort(key=lambda result: float(result.fun))
    ends = np.array([result.x for result in found])
    spread = np.maximum(points.std(axis=0), 1e-12)
    return _distinct(ends, _heights(kernel, points, weights, ends), ends / spread)


@find_modes.register
def _(
    kernel: RadialKernel, points: FloatArray, weights: FloatArray, starts: int
) -> tuple[FloatArray, FloatArray]:
    x = points[_spread_starts(kernel, points, weights, starts)]
    height = _heights(kernel, points, weights, x)
    moving = np.arange(len(x))
    for _ in range(_MAX_ITERATIONS):
        step = _shift(kernel, points, weights, x[moving])
        before = x[moving]
        x[moving], height[moving] = _climb(kernel, points, weights, before, height[moving], step)
        moved = ((kernel.scale.whiten(x[moving] - before)) ** 2).sum(axis=1)
        moving = moving[moved > _CONVERGED]
        if moving.size == 0:
            break
    order = np.argsort(-height)
    return _distinct(x[order], height[order], kernel.scale.whiten(x[order]))


@find_modes.register
def _(
    kernel: ScaledKernel, points: FloatArray, weights: FloatArray, starts: int
) -> tuple[FloatArray, FloatArray]:
    modes, heights = find_modes(kernel.kernel, points, weights, starts)
    return modes, kernel.factor * heights


@find_modes.register
def _(
    kernel: TraceKernel, points: FloatArray, weights: FloatArray, starts: int
) -> tuple[FloatArray, FloatArray]:
    # one global maximum: the rotation nearest to the mean matrix
    rotation = nearest_rotation(np.tensordot(weights, points, axes=1))[np.newaxis]
    return rotation, _heights(kernel, points, weights, rotation)


def _shift(
    kernel: RadialKernel, points: FloatArray, weights: FloatArray, x: FloatArray
) -> FloatArray:
    """Return the fixed-point steps; they ascend also where the sum of weights is negative."""
    distances = squared_distances(points, x, kernel.scale)
    pull = weights[:, np.newaxis] * kernel.slope(distances, points.shape[1])
    total = pull.sum(axis=0)
    size = np.abs(total)
    usable = size > 1e-300
    step = pull.T @ points - total[:, np.newaxis] * x
    rate = np.where(usable, 1.0 / np.where(usable, size, 1.0), 0.0)
    return np.asarray(rate[:, np.newaxis] * step, dtype=np.float64)


def _climb(
    kernel: RadialKernel,
    points: FloatArray,
    weights: FloatArray,
    x: FloatArray,
    height: FloatArray,
    step: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Take the step, halved until it does not descend; stay where no step climbs."""
    best, best_height = x.copy(), height.copy()
    pending = np.arange(len(x))
    for halving in range(_MAX_HALVINGS):
        trial = x[pending] + 0.5**halving * step[pending]
        trial_height = _heights(kernel, points, weights, trial)
        climbs = trial_height >= height[pending]
        best[pending[climbs]], best_height[pending[climbs]] = trial[climbs], trial_height[climbs]
        pending = pending[~climbs]
        if pending.size == 0:
            break
    return best, best_height


def _heights(kernel: Kernel, points: FloatArray, weights: FloatArray, x: FloatArray) -> FloatArray:
    return np.asarray(weights @ kernel.cross_gram(points, x), dtype=np.float64)


def _spread_starts(
    kernel: Kernel, points: FloatArray, weights: FloatArray, starts: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Greedy choice of high points that are unlike the ones chosen before."""
    if starts < 1:
        raise KernelError(f'starts: expected an integer > 0, got {starts}')
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


def _distinct(
    x: FloatArray, heights: FloatArray, whitened: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Drop what is a copy of a higher mode."""
    kept: list[int] = []
    for i, position in enumerate(whitened):
        if all(np.sum((position - whitened[j]) ** 2) > _DISTINCT for j in kept):
            kept.append(i)
    return x[kept], heights[kept]
