"""
Pre-images: points x whose k(., x) is nearest to a kernel mean, i.e. its modes ([MbKSR] eq. 33).

Quasi-Newton from many starts, with the gradient where the kernel is radial.
"""

from __future__ import annotations

from typing import Any

from kbr_localization.kernels.algebra import Kernel, ScaledKernel
from kbr_localization.kernels.checks import FloatArray, IndexArray, NoMassError
from kbr_localization.kernels.kernels import RadialKernel
from kbr_localization.kernels.manifold import nearest_rotation, TraceKernel
import numpy as np


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


def _radial_modes(
    kernel: RadialKernel, points: FloatArray, weights: FloatArray, starts: int
) -> FloatArray:
    """Ascend in whitened coordinates, where bandwidths are one; m over its peak."""
    centres, dimension = kernel.scale.whiten(points), points.shape[1]
    chosen = _spread_starts(kernel, points, weights, starts)
    # the first step, a quarter of a bandwidth, stays on the hill of the start
    step = 0.25

    def loss(v: FloatArray) -> tuple[float, FloatArray]:
        offsets = centres - step * v
        s = (offsets**2).sum(axis=1)
        gradient = 2.0 * step * (weights * kernel.slope(s, dimension)) @ offsets
        return -float(weights @ kernel.profile(s, dimension)), -gradient

    ends = [_minimize(loss, centres[index] / step, jac=True) for index in chosen]
    heights = -np.array([loss(v)[0] for v in ends])
    return kernel.scale.colour(_distinct(step * np.array(ends), heights))


def _general_modes(
    kernel: Kernel, points: FloatArray, weights: FloatArray, starts: int
) -> FloatArray:
    """Ascend by differences, for any kernel on vectors."""
    begin = points[_spread_starts(kernel, points, weights, starts)]
    spread = np.maximum(points.std(axis=0), 1e-12)
    # lengths that do not depend on the units of the points; the first step is 0.1 deviations
    length = np.where(spread > 1e-12, 0.1 * spread, 1.0)

    def loss(u: FloatArray) -> float:
        row = (length * u)[np.newaxis]
        value = weights @ kernel.cross_gram(points, row)[:, 0]
        return float(0.5 * kernel.diagonal(row)[0] - value)

    ends = [_minimize(loss, x / length) for x in begin]
    return _distinct(length * np.array(ends), -np.array([loss(u) for u in ends]), spread)


def _spread_starts(
    kernel: Kernel, points: FloatArray, weights: FloatArray, starts: int
) -> IndexArray:
    """Greedy choice among the heaviest points: high ones, unlike the ones chosen before."""
    pool = np.argsort(-weights)[:256]
    height = weights @ kernel.cross_gram(points, points[pool])
    gram = kernel.gram(points[pool])
    scale = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    # points within about one bandwidth of a chosen one lead to the same mode
    close = gram / scale[:, np.newaxis] / scale > np.exp(-0.5)
    chosen: list[int] = []
    free = np.ones(pool.size, dtype=bool)
    while free.any() and len(chosen) < starts:
        chosen.append(int(np.argmax(np.where(free, height, -np.inf))))
        free &= ~close[chosen[-1]]
        free[chosen[-1]] = False
    return pool[chosen]


def _distinct(u: FloatArray, heights: FloatArray, unit: FloatArray | float = 1.0) -> FloatArray:
    """Points by falling height, without copies of a higher one."""
    kept: list[FloatArray] = []
    for point in u[np.argsort(-heights)]:
        if all(np.sum(((point - other) / unit) ** 2) > 1e-4 for other in kept):
            kept.append(point)
    return np.array(kept)


def _minimize(loss: Any, start: FloatArray, jac: bool = False) -> FloatArray:
    """Minimise a loss that is scaled by its value at the start, however small that is."""
    # the optimiser is slow to import, and a robot's node finds no modes
    from scipy.optimize import minimize  # noqa: PLC0415

    first = loss(start)[0] if jac else loss(start)
    unit = max(abs(first), 1e-100)

    def scaled(u: FloatArray) -> Any:
        value = loss(u)
        return (value[0] / unit, value[1] / unit) if jac else value / unit

    options = {'ftol': 1e-15, 'gtol': 1e-9} if jac else {}
    found = minimize(scaled, start, jac=jac or None, method='L-BFGS-B', options=options)
    return np.asarray(found.x)
