"""A linear-Gaussian state-space model with its exact filter and smoother, in plain formulas."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LinearGaussian:
    """Model x' = A x + e, y = C x + r with covariances Q and R and a Gaussian first state."""

    a: np.ndarray
    q: np.ndarray
    c: np.ndarray
    r: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray

    def simulate(self, steps, rng):
        x = [rng.multivariate_normal(self.mean, self.covariance)]
        for _ in range(steps - 1):
            x.append(rng.multivariate_normal(self.a @ x[-1], self.q))
        x = np.array(x)
        return x, x @ self.c.T + rng.multivariate_normal(np.zeros(len(self.r)), self.r, len(x))

    def kalman(self, observations):
        """Posterior means (T, d), covariances (T, d, d), and the predictions before them."""
        m, p = self.mean, self.covariance
        rows = []
        for t, y in enumerate(observations):
            if t:
                m, p = self.a @ m, self.a @ p @ self.a.T + self.q
            predicted = m, p
            if np.isfinite(y).all():
                gain = p @ self.c.T @ np.linalg.inv(self.c @ p @ self.c.T + self.r)
                m, p = m + gain @ (y - self.c @ m), p - gain @ self.c @ p
            rows.append((m, p, *predicted))
        return [np.array(column) for column in zip(*rows, strict=True)]

    def rts(self, observations):
        """Rauch-Tung-Striebel smoother: means (T, d), covariances (T, d, d)."""
        m, p, m_predicted, p_predicted = self.kalman(observations)
        for t in range(len(m) - 2, -1, -1):
            gain = p[t] @ self.a.T @ np.linalg.inv(p_predicted[t + 1])
            m[t] += gain @ (m[t + 1] - m_predicted[t + 1])
            p[t] += gain @ (p[t + 1] - p_predicted[t + 1]) @ gain.T
        return m, p


def autoregression(a=0.9, q=0.3, r=0.2):
    """One-dimensional model, started in its stationary law."""
    one = np.ones((1, 1))
    return LinearGaussian(a * one, q * one, one, r * one, np.zeros(1), q / (1 - a**2) * one)
