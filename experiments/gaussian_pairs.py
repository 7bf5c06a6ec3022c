"""Jointly Gaussian pairs with a known posterior: the problem of [KBR] sections 5.1 and 5.2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class GaussianPairs:
    """
    (X, Y) ~ N((0, 1), V) with V = A^T A + 2 I, and the prior N(0, V_XX / 2) of X.

    `covariance` V: (2 d, 2 d), x first.
    """

    covariance: Any

    @classmethod
    def random(cls, dimension: int, rng: np.random.Generator) -> GaussianPairs:
        """Draw the entries of A from the standard normal distribution."""
        a = rng.standard_normal((2 * dimension, 2 * dimension))
        return cls(a.T @ a + 2.0 * np.eye(2 * dimension))

    @property
    def dimension(self) -> int:
        """Dimension d of x, and of y."""
        return len(self.covariance) // 2

    @property
    def blocks(self) -> tuple[Any, Any, Any]:
        """V_XX, V_YX and V_YY."""
        d = self.dimension
        return self.covariance[:d, :d], self.covariance[d:, :d], self.covariance[d:, d:]

    def sample(self, rng: np.random.Generator, size: int) -> tuple[Any, Any]:
        """Draw training pairs, (size, d) each."""
        mean = np.repeat([0.0, 1.0], self.dimension)
        pairs = rng.multivariate_normal(mean, self.covariance, size)
        first, second = np.split(pairs, [self.dimension], axis=1)
        return first, second

    def sample_prior(self, rng: np.random.Generator, size: int) -> Any:
        """Draw states from the prior (size, d)."""
        return rng.multivariate_normal(np.zeros(self.dimension), self.blocks[0] / 2.0, size)

    def sample_likelihood(self, x: Any, rng: np.random.Generator) -> Any:
        """Draw one observation for each state (n, d)."""
        v_xx, v_yx, v_yy = self.blocks
        gain = np.linalg.solve(v_xx, v_yx.T).T
        noise = rng.multivariate_normal(np.zeros(self.dimension), v_yy - gain @ v_yx.T, len(x))
        return 1.0 + x @ gain.T + noise

    def sample_observations(self, rng: np.random.Generator, size: int) -> Any:
        """Draw y ~ N(0, V_YY), (size, d), at which the paper evaluates the posterior."""
        return rng.multivariate_normal(np.zeros(self.dimension), self.blocks[2], size)

    def posterior_means(self, y: Any) -> Any:
        """Return the exact posterior means (q, d) given each y (q, d)."""
        v_xx, v_yx, v_yy = self.blocks
        gain = np.linalg.solve(v_xx, v_yx.T).T
        noise = v_yy - gain @ v_yx.T
        prior = v_xx / 2.0
        innovation = gain @ prior @ gain.T + noise
        return (y - 1.0) @ np.linalg.solve(innovation, gain @ prior)
