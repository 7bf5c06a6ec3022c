"""Argument checks; a KernelError names the argument, what was expected and what was given."""

from typing import Any

from kbr_localization.errors import KernelError
import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int64]

ROUNDING = 1e-6
"""Errors up to this fraction of the largest kernel value count as rounding errors."""


class NoMassError(KernelError):
    """The prior or the posterior has no mass on the training sample."""


def as_floats(name: str, value: Any, *shape: Any) -> FloatArray:
    """
    Return an array of finite real numbers, of any shape or of the given one.

    In a shape a letter stands for any length > 0 and `...` for any further axes: ('n', 'd') is any
    matrix, (9, ...) nine numbers or points.
    """
    if np.iscomplexobj(value) or np.ma.is_masked(value):
        raise KernelError(f'{name}: expected real numbers, got complex or masked ones')
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise KernelError(f'{name}: expected an array of numbers, got {error}') from None
    wanted = tuple(length for length in shape if length is not ...)
    fits = array.ndim == len(wanted) or (... in shape and array.ndim > len(wanted))
    lengths = zip(wanted, array.shape, strict=False)
    if shape and not (fits and all(n == w or (n > 0 and isinstance(w, str)) for w, n in lengths)):
        shown = ', '.join('...' if length is ... else str(length) for length in shape)
        raise KernelError(
            f'{name}: expected shape ({shown}), got {array.shape}: points are rows, scalars are '
            'reshaped with x.reshape(-1, 1)'
        )
    require_finite(name, array)
    return array


def require_finite(name: str, array: FloatArray) -> None:
    bad = array.size - int(np.count_nonzero(np.isfinite(array)))
    if bad:
        raise KernelError(
            f'{name}: expected finite numbers, got {bad} NaN or infinite ones in {array.shape}'
        )


def as_sequence(name: str, value: Any, shape: tuple[int, ...]) -> list[FloatArray | None]:
    """Return the T points of a sequence, with None for each that is None, masked or has NaN."""
    gap = np.full(shape, np.nan)
    try:
        rows = [gap if row is None else np.ma.asarray(row, dtype=np.float64) for row in value]
        array = np.array([np.ma.filled(row, np.nan) for row in rows])
    except (TypeError, ValueError) as error:
        raise KernelError(f'{name}: expected points {shape} or None, got {error}') from None
    missing = np.isnan(array).any(axis=tuple(range(1, array.ndim)))
    array[missing] = 0.0
    points = as_floats(name, array, 'T', *shape)
    return [None if absent else row for absent, row in zip(missing, points, strict=True)]


def as_gram(name: str, value: ArrayLike) -> FloatArray:
    """Return a square matrix (n, n) whose diagonal is nonnegative and not all zero."""
    matrix = np.asarray(value, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise KernelError(f'{name}: expected a square matrix (n, n), got shape {matrix.shape}')
    diagonal = matrix.diagonal()
    if not diagonal.any() or diagonal.min() < -ROUNDING * diagonal.max():
        raise KernelError(
            f'{name}: expected a diagonal k(x_i, x_i) >= 0 that is not all zero, got '
            f'{diagonal.min():.3g} to {diagonal.max():.3g}: is the kernel positive definite?'
        )
    return matrix


def require_symmetric(name: str, matrix: FloatArray) -> None:
    """Refuse an asymmetric matrix: compare G v and G^T v for a generic v. O(n^2), no copy."""
    probe = np.cos(np.arange(1.0, len(matrix) + 1.0))
    bound = len(matrix) * max(matrix.max(), -matrix.min())
    if np.abs(matrix @ probe - probe @ matrix).max() > ROUNDING * bound:
        raise KernelError(
            f'{name}: expected a symmetric matrix, got |G - G^T| up to '
            f'{np.abs(matrix - matrix.T).max():.3g}: pass k(x_i, x_j) of a single sample'
        )


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
