"""
Kernels on what is no vector: precomputed Gram matrices, and any Python objects such as strings.

The rules need kernel values only. Here a point is a handle, the number (n, 1) of a row or of an
object, so that everything that takes points takes these kernels as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
import math
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import (
    as_count,
    as_floats,
    as_gram,
    as_points,
    FloatArray,
    IndexArray,
    require_callable,
    require_finite,
)
from kbr_localization.kernels.linalg import require_symmetric
import numpy as np
from numpy.typing import ArrayLike


class PrecomputedKernel(Kernel):
    """
    Kernel known by a Gram matrix: the points are row numbers (n, 1).

    `gram`: (N, N) of everything that will ever be asked for, training sample and queries.
    `points()` are all row numbers; `points()[:n]` of the first n.
    """

    def __init__(self, gram: ArrayLike) -> None:
        self.matrix = as_gram('gram', gram)
        require_finite('gram', self.matrix)
        require_symmetric('gram', self.matrix)

    def points(self) -> FloatArray:
        """Return the row numbers 0..N-1, shape (N, 1)."""
        return np.arange(float(len(self.matrix)))[:, np.newaxis]

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, z_j). Shapes: (n, 1), (m, 1) -> (n, m)."""
        size = len(self.matrix)
        rows = np.ix_(_numbers('x', x, size), _numbers('z', z, size))
        return np.asarray(self.matrix[rows], dtype=np.float64)

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(x_i, x_i). Shapes: (n, 1) -> (n,)."""
        return np.asarray(self.matrix.diagonal()[_numbers('x', x, len(self.matrix))])

    def __repr__(self) -> str:
        return f'PrecomputedKernel(shape={self.matrix.shape}, id={id(self)})'


class ObjectKernel(Kernel):
    """
    Kernel on Python objects of any type, from a function of two of them.

    `function`: k(a, b), positive definite and symmetric. Wherever points are asked for a list of
    objects may be given; it becomes handles (n, 1), and `objects(handles)` gives the objects back.
    Hashable objects that are equal share a handle.
    """

    def __init__(self, function: Callable[[Any, Any], float]) -> None:
        require_callable('function', function, 'k(a, b) of two objects')
        self.function = function
        self._known: list[Any] = []
        self._handles: dict[Hashable, int] = {}

    def encode(self, name: str, value: Any) -> FloatArray:
        """Return handles (n, 1) of a list of n objects; handles are returned as they are."""
        if isinstance(value, np.ndarray) and value.dtype == np.float64 and value.ndim == 2:
            return as_floats(name, value)
        if isinstance(value, str | bytes) or not isinstance(value, Sequence | np.ndarray):
            raise KernelError(
                f'{name}: expected a list of objects, got {type(value).__name__}: put a single '
                'object into a list'
            )
        if len(value) == 0:
            raise KernelError(f'{name}: expected at least one object, got an empty list')
        return np.array([[float(self._handle(item))] for item in value])

    def encode_one(self, name: str, value: Any) -> FloatArray:
        """Return the handle (1,) of one object."""
        if isinstance(value, np.ndarray) and value.dtype == np.float64 and value.shape == (1,):
            return as_floats(name, value)
        return np.asarray(self.encode(name, [value])[0], dtype=np.float64)

    def objects(self, handles: ArrayLike) -> list[Any]:
        """Return the objects that handles (n, 1) stand for."""
        numbers = _numbers('handles', handles, len(self._known))
        return [self._known[number] for number in numbers]

    def cross_gram(self, x: Any, z: Any) -> FloatArray:
        """Matrix of k(x_i, z_j), of objects or handles: n, m -> (n, m)."""
        left = self.objects(self.encode('x', x))
        right = left if z is x else self.objects(self.encode('z', z))
        return self._checked([[self.function(a, b) for b in right] for a in left])

    def gram(self, x: Any) -> FloatArray:
        """Matrix of k(x_i, x_j), exactly symmetric: n -> (n, n); the function is called half."""
        items = self.objects(self.encode('x', x))
        lower = [[self.function(a, b) for b in items[: i + 1]] for i, a in enumerate(items)]
        matrix = self._checked([row + [0.0] * (len(items) - len(row)) for row in lower])
        return matrix + np.tril(matrix, -1).T

    def diagonal(self, x: Any) -> FloatArray:
        """Values k(x_i, x_i): n -> (n,)."""
        return self._checked([self.function(a, a) for a in self.objects(self.encode('x', x))])

    def _handle(self, item: Any) -> int:
        new = len(self._known)
        try:
            handle = self._handles.setdefault(item, new)
        except TypeError:  # a list; also a tuple of lists, whose class says that it can be hashed
            handle = new
        if handle == new:
            self._known.append(item)
        return handle

    def _checked(self, values: Any) -> FloatArray:
        return as_floats(f'{self!r}(a, b)', values)

    def __repr__(self) -> str:
        name = getattr(self.function, '__name__', type(self.function).__name__)
        return f'ObjectKernel({name}, id={id(self)})'


def spectrum(first: str, second: str, length: int = 3) -> float:
    """
    Spectrum kernel of two strings: the cosine of their counts of substrings of one length.

    `length` >= 1. 1 for equal counts, 0 when no substring is shared. A string shorter than
    `length` has no substrings: 1 with itself, 0 with any other string.
    Source: Leslie, Eskin, Noble, *The spectrum kernel* (2002), normalised.
    """
    size = as_count('length', length)
    left, right = _substrings(first, size), _substrings(second, size)
    if not left or not right:
        return float(first == second)
    shared = sum(count * right[part] for part, count in left.items())
    return shared / math.sqrt(_squares(left) * _squares(right))


def _substrings(text: str, length: int) -> Counter[str]:
    return Counter(text[i:][:length] for i in range(len(text) - length + 1))


def _squares(counts: Counter[str]) -> float:
    return float(sum(count * count for count in counts.values()))


def _numbers(name: str, value: ArrayLike, size: int) -> IndexArray:
    points = as_points(name, value, 1)[:, 0]
    numbers = points.astype(np.int64)
    if np.any(numbers != points) or numbers.min() < 0 or numbers.max() >= size:
        raise KernelError(
            f'{name}: expected numbers of rows or handles, integers in 0..{size - 1}, got '
            f'{points.min():g} to {points.max():g}: give what points() or encode() returned'
        )
    return numbers
