"""Kalman, extended and unscented Kalman filters, the baselines of the papers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_STEP = 1e-6  # of a numerical derivative


@dataclass(frozen=True, eq=False)
class GaussianStateSpaceModel:
    """
    State-space model x' = f(x) + e, y = h(x) + r with Gaussian noises and a Gaussian first state.

    `transition` f, `observation` h: vectorised functions (n, d) -> (n, d) and (n, d) -> (n, d_y),
    or matrices (d, d) and (d_y, d). `mean` (d,), `covariance` (d, d): of the first state before
    its observation.
    """

    transition: Any
    transition_covariance: Any
    observation: Any
    observation_covariance: Any
    mean: Any
    covariance: Any


def classical_filter(
    method: str, model: GaussianStateSpaceModel, observations: Any, spread: float = 0.5
) -> tuple[Any, Any]:
    """
    Return posterior means (T, d) and covariances (T, d, d) given observations (T, d_y).

    `method`: 'kalman' for matrices, 'extended' or 'unscented'. `spread`: alpha of the unscented
    transform, the distance of its sigma points from the mean.
    """

    def moments(function: Any, m: Any, p: Any) -> tuple[Any, Any, Any]:
        f = function if callable(function) else lambda x: x @ np.asarray(function).T
        return _unscented(f, m, p, spread) if method == 'unscented' else _linearised(f, m, p)

    m, p = np.asarray(model.mean, dtype=np.float64), np.asarray(model.covariance)
    means, covariances = [], []
    for t, y in enumerate(np.asarray(observations, dtype=np.float64)):
        if t > 0:
            m, p, _ = moments(model.transition, m, p)
            p = p + model.transition_covariance
        expected, s, cross = moments(model.observation, m, p)
        s = s + model.observation_covariance
        gain = np.linalg.solve(s, cross.T).T
        m, p = m + gain @ (y - expected), p - gain @ s @ gain.T
        means.append(m)
        covariances.append(p)
    return np.array(means), np.array(covariances)


def _linearised(f: Callable[[Any], Any], m: Any, p: Any) -> tuple[Any, Any, Any]:
    """Return mean and covariance of f(x), and cov(x, f(x)), for x ~ N(m, p), by the Jacobian."""
    steps = _STEP * np.eye(len(m))
    jacobian = (f(m + steps) - f(m - steps)).T / (2.0 * _STEP)
    return f(m[np.newaxis])[0], jacobian @ p @ jacobian.T, p @ jacobian.T


def _unscented(f: Callable[[Any], Any], m: Any, p: Any, alpha: float) -> tuple[Any, Any, Any]:
    """Return the same by sigma points, with beta = 2 and kappa = 3 - d."""
    d, c = len(m), 3.0 * alpha**2
    root = np.sqrt(c) * np.linalg.cholesky(0.5 * (p + p.T)).T
    points = np.concatenate([[m], m + root, m - root])
    weights = np.full(2 * d + 1, 0.5 / c)
    weights[0] = 1.0 - d / c
    images = f(points)
    mean = weights @ images
    weights[0] += 3.0 - alpha**2
    left, right = (points - m) * weights[:, np.newaxis], images - mean
    return mean, right.T @ (weights[:, np.newaxis] * right), left.T @ right
