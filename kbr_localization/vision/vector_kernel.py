"""
Kernel of descriptors that are vectors of numbers: the cosine, moved into [0, 1].

k(a, b) = (1 + a . b) / 2 for vectors of unit length: an inner product plus a constant, so positive
definite, and 1 between equal vectors. Sharpening it, exp((k - 1) / tau), gives the Gaussian kernel
on the sphere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SMALLEST = 1e-12


def unit(vector: NDArray[Any]) -> NDArray[np.float32]:
    """Scale a vector (d,) to unit length; zero stays zero."""
    values = np.asarray(vector, dtype=np.float64).ravel()
    return (values / max(float(np.linalg.norm(values)), _SMALLEST)).astype(np.float32)


def cross_gram(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
    """Kernel matrix (n, m) in [0, 1] of vectors of unit length (n, d) and (m, d)."""
    cosine = np.asarray(left, np.float32) @ np.asarray(right, np.float32).T
    return np.clip((1.0 + cosine.astype(np.float64)) / 2.0, 0.0, 1.0)
