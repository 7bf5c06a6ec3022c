"""The kernel Bayes rule in its importance-weighted form, on points that may lie off the map."""

from __future__ import annotations

from kbr_localization.se2 import FloatArray
import numpy as np
import scipy.linalg

_JITTER = 1e-9  # on the diagonal of G_Y, so that it has a Cholesky factor


def importance_weighted(
    evidence: FloatArray, weights: FloatArray, smoother: FloatArray, gram: FloatArray, delta: float
) -> FloatArray:
    """
    Divide the rule's weights (m,) by gamma, times delta: the evidence for large delta.

    `evidence`: (m,) B^T k_Y(y) at m points. `weights`: (m,) gamma, those before the image.
    `smoother`: B (a, m) on the a map images in reach. `gram`: G_Y (a, a) among these. With the
    formula of `observation`, Gamma = Z Z^T, Z = B^T L and G_Y = L L^T has the rank of the images
    in reach, so that (D Gamma D + delta I)^-1 v = (v - Q (Q^T Q + delta I)^-1 Q^T v) / delta with
    Q = D Z and D = diag(sqrt(gamma)).
    """
    identity = np.eye(len(gram))
    factor = scipy.linalg.cholesky(gram + _JITTER * identity, lower=True)
    root = np.sqrt(weights)
    q = (root[:, np.newaxis] * smoother.T) @ factor
    v = root * evidence
    solved = v - q @ scipy.linalg.solve(q.T @ q + delta * identity, q.T @ v, assume_a='pos')
    return np.asarray(np.maximum(solved, 0.0) / np.maximum(root, 1e-300))
