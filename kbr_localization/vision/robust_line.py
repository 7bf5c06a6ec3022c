"""Lines and planes through the origin that outliers do not bend."""

from __future__ import annotations

from kbr_localization.se2 import FloatArray
import numpy as np

_ROUNDS = 10
_OF_NORMAL = 1.4826  # times the median of the absolute errors: the deviation of a normal law
_SHARPNESS = 2.0  # deviations where an error counts half
_SMALLEST = 1e-5  # deviation of errors that are all but none


def robust_line(columns: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """
    Coefficients (c,) that make columns (m, c) values (m,), by Cauchy's law, and their information.

    Reweighted least squares, the scale of the errors being their median absolute deviation.
    The information (c, c) is the inverse of the covariance of the coefficients.
    """
    weight = np.ones(len(values))
    for _ in range(_ROUNDS):
        weighted = columns.T * weight
        normal = weighted @ columns
        found = np.linalg.lstsq(normal, weighted @ values, rcond=None)[0]
        left = values - columns @ found
        scale = max(_OF_NORMAL * float(np.median(np.abs(left))), _SMALLEST)
        weight = 1.0 / (1.0 + (left / (_SHARPNESS * scale)) ** 2)
    return np.asarray(found), np.asarray(normal / scale**2)
