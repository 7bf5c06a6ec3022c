"""
Weighted poses: the points of a kernel mean, m = sum_j w_j k_X(., U_j).

Each point carries the mean of its own Gaussian law of the systematic errors of the odometry
(`odometry`), as in a Rao-Blackwellised particle filter. A pose is within a radius of another one
only where it faces the same way. Leading axes hold several sets of points.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kbr_localization import se2
from kbr_localization.localization.calibration import SIZE
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

MAX_HEADING_DIFF = 1.0
"""Radians: poses whose headings differ by more are different places."""
GRID = 2.0 ** np.array([0, 18, 36, 42])
"""Weights (4,) that give each cell of a grid of (x, y, cos, sin) a number."""
_MODE_STARTS, _MODE_STEPS = 4, 15  # of the search for the highest mode


@dataclass(eq=False)
class Points:
    """
    `poses` (..., m, 3) with `weights` (..., m) that add up to one.

    `odometry`: (..., m, 7) errors of the odometry by point (`calibration.NAMES`); zero if not
    given. Replace the arrays, never change them in place: points share them.
    """

    poses: FloatArray
    weights: FloatArray
    odometry: FloatArray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if self.odometry.ndim == 1:
            self.odometry = np.zeros((*self.weights.shape, SIZE))

    def __len__(self) -> int:
        """Count the points of each set."""
        return int(self.weights.shape[-1])

    @staticmethod
    def gaussian(
        pose: FloatArray, covariance: FloatArray, size: int, rng: np.random.Generator
    ) -> Points:
        """Draw equally weighted points about a pose (3,) with covariance (3, 3)."""
        values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
        deviations = np.sqrt(np.maximum(values, 0.0))
        poses = pose + rng.standard_normal((size, 3)) * deviations @ vectors.T
        poses[:, 2] = se2.wrap_angle(poses[:, 2])
        return Points(poses, np.full(size, 1.0 / size))

    def select(self, index: NDArray[Any] | int | None) -> Points:
        """Select sets of points."""
        return Points(self.poses[index], self.weights[index], self.odometry[index])

    def reweighted(self, factors: FloatArray) -> Points:
        """Multiply the weights by factors (..., m) and normalise them, where the sum is not 0."""
        weights = self.weights * factors
        total = weights.sum(axis=-1, keepdims=True)
        usable = (total > 0.0) & np.isfinite(total)
        weights = np.where(usable, weights / np.where(usable, total, 1.0), self.weights)
        return Points(self.poses, weights, self.odometry)

    def resampled(self, size: int, rng: np.random.Generator) -> Points:
        """Draw equally weighted points of the same law, by systematic resampling of each set."""
        weights = self.weights.reshape(-1, len(self))
        number = np.arange(len(weights))[:, np.newaxis]
        shares = np.minimum(np.cumsum(weights, axis=1), 1.0) + number
        ticks = (rng.random((len(weights), 1)) + np.arange(size)) / size + number
        chosen = np.searchsorted(shares.ravel(), ticks.ravel()).reshape(ticks.shape)
        chosen = np.minimum(chosen, (number + 1) * len(self) - 1)
        shape = (*self.weights.shape[:-1], size)
        return Points(
            self.poses.reshape(-1, 3)[chosen].reshape(*shape, 3),
            np.full(shape, 1.0 / size),
            self.odometry.reshape(-1, SIZE)[chosen].reshape(*shape, SIZE),
        )

    def mixed(self, other: Points, share: float) -> Points:
        """Mix with other points, whose total weight becomes `share`."""
        return Points(
            np.concatenate([self.poses, other.poses]),
            np.concatenate([(1.0 - share) * self.weights, share * other.weights]),
            np.concatenate([self.odometry, other.odometry]),
        )

    def effective_size(self) -> FloatArray:
        """Return 1 / sum w^2 of each set."""
        return np.asarray(1.0 / np.sum(self.weights**2, axis=-1))

    def move(self, increments: FloatArray) -> None:
        """Move the points by increments (..., 3) in their own frames."""
        self.poses = se2.compose(self.poses, increments)

    def within(self, pose: FloatArray, radius: float) -> NDArray[np.bool_]:
        """Find points (..., m) within `radius` metres of a pose (3,) that face as it does."""
        offsets = self.poses - pose
        near = np.hypot(offsets[..., 0], offsets[..., 1]) <= radius
        return np.asarray(near & (np.abs(se2.wrap_angle(offsets[..., 2])) <= MAX_HEADING_DIFF))

    def moments_about(
        self, pose: FloatArray, radius: float
    ) -> tuple[FloatArray, FloatArray, float]:
        """Return mean (3,), covariance (3, 3) and mass of the points within a radius of a pose."""
        members = self.within(pose, radius)
        mass = float(self.weights[members].sum())
        if mass <= 0.0:
            members, mass = np.ones(len(self), dtype=bool), 0.0
        weights = self.weights[members] / self.weights[members].sum()
        poses = self.poses[members]
        mean = se2.from_plane_and_circle(weights @ se2.to_plane_and_circle(poses))
        deviations = poses - mean
        deviations[:, 2] = se2.wrap_angle(deviations[:, 2])
        return mean, np.asarray((weights[:, np.newaxis] * deviations).T @ deviations), mass

    def mode(self, widths: FloatArray) -> FloatArray:
        """
        Find the pose (3,) where the kernel mean of a Gaussian kernel is largest.

        `widths`: (4,) of the kernel in x, y, cos, sin. Runs the fixed-point iteration of [MbKSR]
        eq. 33 from the heaviest cells of a grid and takes the highest end.
        """
        points = se2.to_plane_and_circle(self.poses) / widths
        cells = np.floor(0.5 * points) @ GRID
        _, first, cell = np.unique(cells, return_index=True, return_inverse=True)
        heaviest = np.argsort(-np.bincount(cell, weights=self.weights))[:_MODE_STARTS]
        means = points[first[heaviest]]
        for _ in range(_MODE_STEPS):
            kernel = np.exp(-0.5 * cdist(means, points, 'sqeuclidean')) * self.weights
            height = kernel.sum(axis=1)
            moved = kernel @ points / np.maximum(height, 1e-300)[:, np.newaxis]
            step = float(np.abs(moved - means).max())
            means = moved
            if step < 0.01:
                break
        return se2.from_plane_and_circle(means[int(np.argmax(height))] * widths)
