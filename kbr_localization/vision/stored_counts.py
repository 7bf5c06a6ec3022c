"""What is kept of counts of words: small unsigned integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_UNITS = 8.0  # in one


class StoredCounts:
    """
    Keeps counts or sums of weights, at most `most` patches of mean weight one in a cell.

    `root`: their square roots, in a byte. These and sums of weights (`weighted`) are kept in
    eighths, or in units a little larger where so many patches would not fit; plain counts as they
    are, in the smallest type that holds them. `dtype`: of what is kept.
    """

    def __init__(self, most: int, root: bool, weighted: bool) -> None:
        self._root = root
        kept = np.uint16 if weighted else np.min_scalar_type(most)
        self.dtype: np.dtype[Any] = np.dtype(np.uint8 if root else kept)
        self._largest = np.iinfo(self.dtype).max
        highest = np.sqrt(max(most, 1)) if root else max(most, 1)
        self._units = min(_UNITS, self._largest / highest) if root or weighted else 1.0

    def __call__(self, sums: NDArray[Any]) -> NDArray[np.unsignedinteger]:
        """Round counts or sums of weights (n,) to what is kept, at most the largest."""
        values = np.sqrt(sums) if self._root else sums
        return np.minimum(np.rint(self._units * values), self._largest).astype(self.dtype)
