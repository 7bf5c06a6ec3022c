"""Lines and planes through the origin that outliers do not bend."""

from __future__ import annotations

from kbr_localization.se2 import FloatArray
import numpy as np


def robust_line(columns: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """
    Coefficients (c,) that make columns (m, c) values (m,), by Cauchy's law, and their information.

    Reweighted least squares, the scale of the errors being their median absolute deviation.
    The information (c, c) is the inverse of the covariance of the coefficients.
    """
    weight = np.ones(len(values))
    for _ in range(10):
        weighted = columns.T * weight
        normal = weighted @ columns
        found = np.linalg.lstsq(normal, weighted @ values, rcond=None)[0]
        left = values - columns @ found
        # 1.4826 median |error| is the deviation of a normal law
        scale = max(1.4826 * float(np.median(np.abs(left))), 1e-5)
        weight = 1.0 / (1.0 + (left / (2.0 * scale)) ** 2)
    return np.asarray(found), np.asarray(normal / scale**2)
