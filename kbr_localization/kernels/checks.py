"""Argument checks: a KernelError names the argument, what was expected, and what was given."""

from __future__ import annotations

from typing import Any

from kbr_localization.errors import KernelError
import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int64]

ROUNDING = 1e-6
"""Negative values up to this fraction of the largest k(x, x) are rounding errors."""


class NoMassError(KernelError):
    """The prior or the posterior has no mass on the training sample."""


def as_floats(name: str, value: Any) -> FloatArray:
    """Return finite real numbers of any shape."""
    array = _as_real(name, value)
    require_finite(name, array)
    return array


def _as_real(name: str, value: Any) -> FloatArray:
    if np.iscomplexobj(value) or np.ma.is_masked(value):
        raise KernelError(f'{name}: expected real numbers, got complex or masked ones')
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise KernelError(f'{name}: expected an array of numbers, got {error}') from None


def require_finite(name: str, array: FloatArray) -> None:
    """Refuse NaN and infinity."""
    bad = array.size - int(np.count_nonzero(np.isfinite(array)))
    if bad:
        raise KernelError(
            f'{name}: expected finite numbers, got {bad} NaN or infinite ones in {array.shape}'
        )


def as_points(name: str, value: ArrayLike, dimension: int | None = None) -> FloatArray:
    """Return points (n, d), n > 0."""
    points = as_floats(name, value)
    if points.ndim != 2 or points.size == 0 or dimension not in (None, points.shape[1]):
        raise KernelError(
            f'{name}: expected points of shape (n, {dimension or "d"}) with n > 0, got '
            f'{points.shape}: reshape scalars with x.reshape(-1, 1)'
        )
    return points


def as_sample(
    name: str, value: ArrayLike, shape: tuple[int, ...] | None = None, size: int | None = None
) -> FloatArray:
    """Return points (n, ...), n > 0, such as rotations (n, 3, 3); `shape`: of one point."""
    points = as_floats(name, value)
    fits = points.ndim > 1 and points.size > 0 and size in (None, len(points))
    if not fits or shape not in (None, points.shape[1:]):
        inner = '...' if shape is None else ', '.join(map(str, shape))
        raise KernelError(
            f'{name}: expected points of shape ({size or "n"}, {inner}), got {points.shape}: give '
            'one point per row; reshape scalars with x.reshape(-1, 1)'
        )
    return points


def as_sequence(name: str, value: Any, shape: tuple[int, ...]) -> list[FloatArray | None]:
    """Return the points (T, ...) of a sequence; None for one that is None, masked or has NaN."""
    if not isinstance(value, list | tuple | np.ma.MaskedArray):
        value = np.asarray(value)
    gap = np.full(shape, np.nan)
    try:
        rows = [gap if row is None else np.ma.asarray(row, dtype=np.float64) for row in value]
        array = np.array([np.ma.filled(row, np.nan) for row in rows])
    except (TypeError, ValueError) as error:
        raise KernelError(f'{name}: expected points {shape} or None, got {error}') from None
    missing = np.isnan(array).any(axis=tuple(range(1, array.ndim)))
    array[missing] = 0.0
    points = as_sample(name, array, shape)
    return [None if gone else row for gone, row in zip(missing, points, strict=True)]


def as_gram(name: str, value: ArrayLike) -> FloatArray:
    """Return a square matrix (n, n) with the diagonal of a positive definite kernel."""
    matrix = _as_real(name, value)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise KernelError(f'{name}: expected a square matrix (n, n), got shape {matrix.shape}')
    diagonal = matrix.diagonal()
    if not diagonal.any() or diagonal.min() < -ROUNDING * diagonal.max():
        raise KernelError(
            f'{name}: expected a diagonal k(x_i, x_i) >= 0 that is not all zero, got '
            f'{diagonal.min():.3g} to {diagonal.max():.3g}: is the kernel positive definite?'
        )
    return matrix


def as_weights(name: str, value: ArrayLike, size: int) -> FloatArray:
    """Return one number per point of a sample (size,)."""
    weights = as_floats(name, value)
    if weights.shape != (size,):
        raise KernelError(f'{name}: expected shape ({size},), got {weights.shape}')
    return weights


def as_columns(name: str, value: ArrayLike, size: int) -> FloatArray:
    """Return kernel values at the sample: (size,), or one column per query (size, q)."""
    columns = as_floats(name, value)
    if columns.ndim not in (1, 2) or columns.shape[0] != size:
        raise KernelError(
            f'{name}: expected shape ({size},) or ({size}, q), a value at every point of the '
            f'sample, got {columns.shape}'
        )
    return columns


def as_positive(name: str, value: Any, allow_zero: bool = False) -> float:
    """Return a finite number > 0, or >= 0."""
    number = as_floats(name, value)
    if number.ndim or number < 0 or (number == 0 and not allow_zero):
        wanted = '>= 0' if allow_zero else '> 0'
        raise KernelError(f'{name}: expected a finite number {wanted}, got {value!r}')
    return float(number)


def as_count(name: str, value: Any) -> int:
    """Return an integer > 0."""
    if not isinstance(value, int | np.integer) or value < 1:
        raise KernelError(f'{name}: expected an integer > 0, got {value!r}')
    return int(value)


def require_mass(weights: FloatArray, usable: NDArray[np.bool_]) -> IndexArray:
    """Return the indices of the usable prior weights; NoMassError when there is none."""
    active = np.flatnonzero(usable)
    if active.size == 0:
        raise NoMassError(
            f'mu: expected at least one usable weight, got {int(np.sum(weights < 0))} negative '
            f'and {int(np.sum(weights == 0))} zero ones: the prior has no mass near the sample; '
            'raise epsilon or widen the kernel'
        )
    return active
