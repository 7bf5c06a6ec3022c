"""
The rules for arrays of other libraries (CuPy, JAX, PyTorch, ...) by the array-API standard.

The results stay on the device of the arguments. The standard has neither triangular solves nor a
symmetric indefinite one, so that a solve is a general one. No ridge is raised: a matrix that is
not positive definite with its own is refused. PyTorch needs array-api-compat.
"""

from __future__ import annotations

import importlib
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import as_positive, NoMassError
import numpy as np

Array = Any


def is_foreign(value: Any) -> bool:
    """Return whether a value is an array of another library than NumPy."""
    if isinstance(value, np.ndarray):
        return False
    return hasattr(value, '__array_namespace__') or type(value).__module__.startswith('torch')


def namespace(array: Array) -> Any:
    """Return the module of array-API functions that belongs to an array."""
    if hasattr(array, '__array_namespace__'):
        return array.__array_namespace__()
    try:
        return importlib.import_module('array_api_compat.torch')
    except ImportError as error:
        raise KernelError(
            f'gram: expected an array with __array_namespace__, got {type(array).__name__}, which '
            f'needs array-api-compat ({error}): pip install array-api-compat'
        ) from error


class ArrayRegularised:
    """
    Solves with G + ridge I by the array-API standard; what `regularise` returns for such a G.

    `gram`: (n, n). Raises KernelError when the sum is not positive definite.
    """

    def __init__(self, gram: Array, ridge: float, name: str = 'ridge') -> None:
        xp = namespace(gram)
        require_square('gram', gram)
        self.size, self.ridge = int(gram.shape[0]), as_positive(name, ridge)
        self._matrix = gram + self.ridge * _identity(xp, gram)
        require_definite(xp, self._matrix, name, ridge)

    def solve(self, right_side: Array) -> Array:
        """Return (G + ridge I)^-1 b. Shapes: (n,) or (n, q) -> the same."""
        require_rows('right_side', right_side, self.size)
        return namespace(self._matrix).linalg.solve(self._matrix, right_side)


def squared_bayes_rule(gram_y: Array, mu: Array, k_y: Array, delta: float) -> Array:
    """Posterior weights of [KBR] eq. 13; see `rules.squared_bayes_rule`, also for delta."""
    xp = _checked(gram_y, mu, k_y)
    if not bool(xp.any(mu != 0)):
        raise NoMassError('mu: expected at least one weight, got zeros: widen the kernel')
    half = xp.sqrt(xp.abs(mu))
    one = xp.ones_like(mu)
    # points without weight are alone in their rows, where any sign will do
    signs = xp.where(mu < 0, -one, one)
    root = as_positive('delta', delta) ** 0.5
    kind = xp.complex128 if gram_y.dtype == xp.float64 else xp.complex64
    system = xp.astype(half[:, None] * gram_y * half, kind)
    system = system + 1j * xp.astype(root * _identity(xp, gram_y) * signs, kind)
    right = xp.astype(_rows(half, k_y) * k_y, kind)
    return _rows(half, k_y) * xp.real(xp.linalg.solve(system, right))


def thresholded_bayes_rule(gram_y: Array, mu: Array, k_y: Array, delta: float) -> Array:
    """Posterior weights of [kReg] eq. 8; see `rules.thresholded_bayes_rule`, also for delta."""
    xp = _checked(gram_y, mu, k_y)
    if not bool(xp.any(mu > 0)):
        raise NoMassError(
            'mu: expected at least one positive weight, got none: the prior has no mass near the '
            'sample; raise epsilon or widen the kernel'
        )
    half = xp.sqrt(xp.where(mu > 0, mu, xp.zeros_like(mu)))
    system = half[:, None] * gram_y * half
    system = system + as_positive('delta', delta) * _identity(xp, gram_y)
    require_definite(xp, system, 'delta', delta)
    return _rows(half, k_y) * xp.linalg.solve(system, _rows(half, k_y) * k_y)


def require_square(name: str, value: Array) -> None:
    """Refuse what is no square matrix."""
    if len(value.shape) != 2 or value.shape[0] != value.shape[1] or value.shape[0] == 0:
        raise KernelError(
            f'{name}: expected a square matrix (n, n) with n > 0, got shape '
            f'{tuple(value.shape)}: give the Gram matrix of one sample'
        )


def require_rows(name: str, value: Array, size: int) -> None:
    """Refuse what has not one row for every point of the sample."""
    shape = tuple(getattr(value, 'shape', ()))
    if not is_foreign(value) or len(shape) not in (1, 2) or shape[0] != size:
        raise KernelError(
            f'{name}: expected an array of shape ({size},) or ({size}, q) of the same library as '
            f'the Gram matrix, got {type(value).__name__} of shape {shape}: put it on the device'
        )


def require_finite(xp: Any, name: str, array: Array) -> None:
    """Refuse NaN and infinity."""
    if not bool(xp.all(xp.isfinite(array))):
        raise KernelError(
            f'{name}: expected finite numbers, got NaN or infinite entries in an array of shape '
            f'{tuple(array.shape)}: remove or repair these entries'
        )


def require_definite(xp: Any, matrix: Array, name: str, ridge: float) -> None:
    """Refuse a matrix without a Cholesky factor; libraries raise various errors, or give NaN."""
    try:
        usable = bool(xp.all(xp.isfinite(xp.linalg.cholesky(matrix))))
    except (ArithmeticError, RuntimeError, ValueError):
        usable = False
    if not usable:
        raise KernelError(
            f'gram: expected a positive semi-definite matrix, got shape {tuple(matrix.shape)} '
            f'without a Cholesky factor for {name} = {ridge:.3g}: raise {name}, or check that the '
            'kernel is positive definite'
        )


def _checked(gram_y: Array, mu: Array, k_y: Array) -> Any:
    require_square('gram_y', gram_y)
    size = int(gram_y.shape[0])
    require_rows('mu', mu, size)
    require_rows('k_y', k_y, size)
    xp = namespace(gram_y)
    for name, array in (('gram_y', gram_y), ('mu', mu), ('k_y', k_y)):
        require_finite(xp, name, array)
    return xp


def _identity(xp: Any, like: Array) -> Array:
    return xp.eye(like.shape[0], dtype=like.dtype, device=like.device)


def _rows(half: Array, columns: Array) -> Array:
    return half if len(columns.shape) == 1 else half[:, None]
