"""Variances of errors that grow with what causes them, by maximum likelihood."""

from __future__ import annotations

from kbr_localization.se2 import FloatArray
import numpy as np
from scipy.optimize import nnls

_ROUNDS = 20
_SMALLEST = 1e-9  # variance


def fit_variance(amounts: FloatArray, squared: FloatArray) -> FloatArray:
    """
    Fit variance = amounts @ rates to squared errors, by reweighted least squares.

    Shapes: (m, k) and (m,) -> (k,) rates that are not negative. It is the Gaussian maximum
    likelihood estimate.
    """
    rates = np.zeros(amounts.shape[1])
    rates[0] = squared.sum() / amounts[:, 0].sum()
    for _ in range(_ROUNDS):
        variance = np.maximum(amounts @ rates, _SMALLEST)
        rates = _non_negative(amounts / variance[:, np.newaxis], squared / variance)
    return rates


def _non_negative(left: FloatArray, right: FloatArray) -> FloatArray:
    """Least squares of left (m, k) @ x = right (m,) with x >= 0."""
    free = np.linalg.lstsq(left, right, rcond=None)[0]
    return np.asarray(free if free.min() >= 0.0 else nnls(left, right)[0])
