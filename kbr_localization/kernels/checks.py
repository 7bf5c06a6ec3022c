"""
Checks of arguments: every KernelError names the argument, the expected and given shape, a remedy.

Private to the room; the checks cost O(size of the argument).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import math
from typing import Any

from kbr_localization.errors import KernelError
import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int64]

# the rules multiply kernel values with each other: their squares must be floats as well
_LARGEST_LOG_PEAK = 350.0
# of the largest k(x, x): a negative one up to there is zero but for rounding, as in `linalg`
ROUNDING = 1e-6
# booleans, integers, floats, and objects that may be any of these; no texts, dates or durations
_NUMBERS = 'biufO'


class NoNumberError(KernelError, TypeError):
    """An array of objects that are no numbers."""


class NoMassError(KernelError):
    """The prior or the posterior has no mass where the training sample is."""


def require_mass(weights: FloatArray, usable: NDArray[np.bool_]) -> IndexArray:
    """Return the indices of the usable prior weights, or refuse a prior that has none."""
    active = np.flatnonzero(usable)
    if active.size == 0:
        raise NoMassError(
            f'mu: expected at least one usable weight, got {int(np.sum(weights < 0))} negative '
            f'and {int(np.sum(weights == 0))} zero weights in shape {weights.shape}: the prior '
            'has no mass near the sample; raise epsilon or widen the kernel'
        )
    return active


def as_points(name: str, value: ArrayLike, dimension: int | None = None) -> FloatArray:
    """Points (n, d) with n > 0 and finite entries."""
    points = as_floats(name, value)
    if points.ndim != 2 or points.shape[1] == 0:
        raise KernelError(
            f'{name}: expected points of shape (n, d), got {points.shape}: '
            'reshape scalars with x.reshape(-1, 1) and one point with x.reshape(1, -1)'
        )
    if points.shape[0] == 0:
        raise KernelError(f'{name}: expected at least one point, got shape {points.shape}')
    if dimension is not None and points.shape[1] != dimension:
        raise KernelError(
            f'{name}: expected points of shape (n, {dimension}), got {points.shape}: '
            'give points of the same dimension as the kernel and the other argument'
        )
    return points


def select_columns(name: str, value: ArrayLike, columns: tuple[int, ...]) -> FloatArray:
    """Return some columns of points, which have to be that many. (n, d) -> (n, len(columns))."""
    points = as_points(name, value)
    if points.shape[1] <= max(columns):
        raise KernelError(
            f'{name}: expected points with a coordinate {max(columns)}, got shape '
            f'{points.shape}: give all coordinates, or select fewer with on()'
        )
    return points[:, columns]


def as_square(name: str, value: ArrayLike) -> FloatArray:
    """Return a non-empty square matrix (n, n); its entries are checked where they are used."""
    matrix = _as_numbers(name, value)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise KernelError(
            f'{name}: expected a square matrix (n, n) with n > 0, got shape {matrix.shape}: '
            'give the Gram matrix of one sample'
        )
    return matrix


def as_gram(name: str, value: ArrayLike) -> FloatArray:
    """Return a square matrix (n, n) whose diagonal k(x_i, x_i) is that of a kernel."""
    matrix = as_square(name, value)
    diagonal = matrix.diagonal()
    if not diagonal.any() or diagonal.min() < -ROUNDING * diagonal.max():
        raise KernelError(
            f'{name}: expected a diagonal k(x_i, x_i) >= 0 that is not all zero, got '
            f'{diagonal.min():.3g} to {diagonal.max():.3g} in shape {matrix.shape}: the kernel is '
            'not positive definite, or its values are too small for floating point; use '
            'normalised=False'
        )
    return matrix


def as_weights(name: str, value: ArrayLike, size: int) -> FloatArray:
    """Return one finite number per point of a sample, shape (size,)."""
    weights = as_floats(name, value)
    if weights.shape != (size,):
        raise KernelError(
            f'{name}: expected shape ({size},), got {weights.shape}: give one weight per point'
        )
    return weights


def as_columns(name: str, value: ArrayLike, size: int) -> FloatArray:
    """Return finite kernel values at the sample, shape (size,) or one column per query."""
    columns = as_floats(name, value)
    if columns.ndim not in (1, 2) or columns.shape[0] != size:
        raise KernelError(
            f'{name}: expected shape ({size},) or ({size}, q), got {columns.shape}: '
            'evaluate at every point of the sample that made the Gram matrix'
        )
    return columns


def as_floats(name: str, value: ArrayLike) -> FloatArray:
    """Return a float array without NaN or infinity."""
    array = _as_numbers(name, value)
    require_finite(name, array)
    return array


def _as_numbers(name: str, value: ArrayLike) -> FloatArray:
    if value is None or _is_masked(value):
        raise NoNumberError(f'{name}: expected an array of numbers, got {_missing(value)}')
    try:
        array = np.asarray(value)
        if array.dtype.kind in _NUMBERS:
            return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        kind = NoNumberError if isinstance(error, TypeError) else KernelError
        raise kind(
            f'{name}: expected an array of numbers, got {error}: give floats in one shape'
        ) from error
    if array.dtype.kind != 'c':
        raise NoNumberError(
            f'{name}: expected an array of numbers, got {array.dtype} of shape {array.shape}: '
            'say in which unit, e.g. seconds as floats; read texts as numbers first'
        )
    raise KernelError(
        f'{name}: expected real numbers, got complex ones of shape {array.shape}. Complex data '
        'not supported: give real and imaginary parts as separate coordinates'
    )


def _is_masked(value: Any) -> bool:
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.getmaskarray(value).any())


def _missing(value: Any) -> str:
    if value is None:
        return 'None: give the data, or leave the argument out where it has a default'
    return (
        f'one of shape {value.shape} with {int(np.ma.getmaskarray(value).sum())} masked entries: '
        'leave out their points, with value[~value.mask.any(axis=1)]'
    )


def as_points_like(name: str, value: ArrayLike, like: FloatArray) -> FloatArray:
    """Points (q, ...) with q > 0 of the same shape each as the points of another sample."""
    points = as_floats(name, value)
    if points.ndim < 2 or len(points) == 0 or points.shape[1:] != like.shape[1:]:
        inner = ', '.join(map(str, like.shape[1:]))
        raise KernelError(
            f'{name}: expected points of shape (q, {inner}) with q > 0, got {points.shape}: give '
            'an array with one point per row, shaped like those of the sample'
        )
    return points


def require_finite(name: str, array: FloatArray) -> None:
    """Refuse NaN and infinity."""
    # one pass without a temporary array; a sum that overflows is looked at entry by entry
    with np.errstate(invalid='ignore', over='ignore'):
        total = array.sum()
    if not np.isfinite(total) and not np.all(np.isfinite(array)):
        bad = int(np.count_nonzero(~np.isfinite(array)))
        raise KernelError(
            f'{name}: expected finite numbers, got {bad} NaN or infinite entries '
            f'in an array of shape {array.shape}: remove or repair these entries'
        )


def as_positive(name: str, value: float, *, allow_zero: bool = False) -> float:
    """Return a finite positive (or non-negative) number."""
    scalar = np.asarray(value)
    if scalar.ndim != 0 or scalar.dtype.kind not in 'iuf':
        raise KernelError(
            f'{name}: expected a number, got {type(value).__name__} of shape {scalar.shape}'
        )
    number = float(scalar)
    if not np.isfinite(number) or number < 0 or (number == 0 and not allow_zero):
        wanted = 'a finite number >= 0' if allow_zero else 'a finite number > 0'
        remedy = 'choose a larger value' if number <= 0 else 'choose a finite one'
        raise KernelError(f'{name}: expected {wanted}, got {number:g}: {remedy}')
    return number


def exp_peak(log_peak: float, dimension: int, kernel: Any) -> float:
    """Return exp(log_peak), the k(x, x) of a density; KernelError where floats cannot hold it."""
    if abs(log_peak) > _LARGEST_LOG_PEAK:
        raise KernelError(
            f'normalised: expected a density that floating point can represent in dimension '
            f'{dimension}, got one of logarithm {log_peak:.4g} at zero: use normalised=False in '
            f'{_shown(kernel)}'
        )
    return math.exp(log_peak)


def as_count(name: str, value: Any, least: int = 1) -> int:
    """Return an integer that is not below `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise KernelError(
            f'{name}: expected an integer > {least - 1}, got {value!r}: give a count'
        )
    return int(value)


def as_generator(name: str, value: Any) -> np.random.Generator:
    """Return a generator of random numbers: the one that was given, or a new one of a seed."""
    try:
        return np.random.default_rng(value)
    except (TypeError, ValueError) as error:
        raise KernelError(
            f'{name}: expected a generator or a seed >= 0, got {_shown(value)} ({error}): give '
            'e.g. 0, or numpy.random.default_rng(0)'
        ) from None


def require(name: str, value: Any, kinds: Any, wanted: str) -> None:
    """Refuse what is not an instance of `kinds`; `wanted` says what to give in its place."""
    if not isinstance(value, kinds):
        raise KernelError(f'{name}: expected {wanted}, got {_shown(value)}')


def require_callable(name: str, value: Any, wanted: str) -> None:
    """Refuse what cannot be called; `wanted` says what the function maps to what."""
    if not callable(value):
        raise KernelError(f'{name}: expected a function {wanted}, got {_shown(value)}')


@contextmanager
def renamed(**names: str) -> Iterator[None]:
    """Give the arguments of an inner call the names that the caller knows them by."""
    try:
        yield
    except KernelError as error:
        name, colon, rest = str(error).partition(':')
        raise type(error)(f'{names.get(name, name)}{colon}{rest}') from None


def _shown(value: Any) -> str:
    text = repr(value)
    shape = f' of shape {value.shape}' if isinstance(value, np.ndarray) else ''
    return f'{type(value).__name__}{shape} {text if len(text) < 40 and not shape else ""}'.rstrip()
