"""Matrix-vector products with cross-Gram matrices of point sets that recur from step to step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import FloatArray
from kbr_localization.kernels.low_rank import LowRankGram
import numpy as np

_KEPT = 4


class RecentArrays:
    """The last few arrays made from other arrays, found again by the identity of those."""

    def __init__(self) -> None:
        self._kept: list[tuple[tuple[Any, ...], FloatArray]] = []

    def get(self, sources: tuple[Any, ...], make: Callable[[], FloatArray]) -> FloatArray:
        """Return the array made from these sources, from memory when they are the same objects."""
        for index, (known, value) in enumerate(self._kept):
            if all(a is b for a, b in zip(known, sources, strict=True)):
                self._kept.insert(0, self._kept.pop(index))
                return value
        value = make()
        self._kept = [(sources, value), *self._kept[: _KEPT - 1]]
        return value


class CrossGramProducts:
    """
    Products k(z, x) w, dense or through the low-rank form of a training sample.

    `gram`: of the training sample `x`; when it is low-rank all products are, O(n r).
    """

    def __init__(self, kernel: Kernel, x: FloatArray, gram: FloatArray | LowRankGram) -> None:
        self.kernel, self.x, self.gram = kernel, x, gram
        self._recent = RecentArrays()

    def apply(self, z: FloatArray, points: FloatArray, weights: FloatArray) -> FloatArray:
        """Values sum_j w_j k(z_i, x_j). Shapes: (m, d), (n, d), (n,) -> (m,)."""
        if isinstance(self.gram, LowRankGram):
            rows = self._rows(self.gram, points)
            return np.asarray(self._rows(self.gram, z) @ (rows.T @ weights), dtype=np.float64)
        matrix = self._recent.get((z, points), lambda: self.kernel.cross_gram(z, points))
        return np.asarray(matrix @ weights, dtype=np.float64)

    def _rows(self, gram: LowRankGram, points: FloatArray) -> FloatArray:
        if points is self.x:
            return gram.factor
        return self._recent.get((points,), lambda: gram.features(self.kernel, self.x, points))
