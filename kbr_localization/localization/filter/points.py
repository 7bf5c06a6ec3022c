"""
Weighted poses: the points of a kernel mean, m = sum_j w_j k_X(., U_j).

Each point carries the mean of its own Gaussian law of the systematic errors of the odometry
(`odometry`), as in a Rao-Blackwellised particle filter. A pose is within a radius of another one
only where it faces the same way.
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


@dataclass(eq=False)
class Points:
    """
    `poses` (m, 3) with `weights` (m,) that add up to one.

    `odometry`: (m, 7) errors of the odometry by point (`calibration.NAMES`); zero if not given.
    Replace the arrays, never change them in place: points share them.
    """

    poses: FloatArray
    weights: FloatArray
    odometry: FloatArray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if self.odometry.ndim == 1:
            self.odometry = np.zeros((len(self.weights), SIZE))

    def __len__(self) -> int:
        """Count the points."""
        return len(self.weights)

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

    def select(self, index: NDArray[Any] | slice) -> Points:
        """Select points."""
        return Points(self.poses[index], self.weights[index], self.odometry[index])

    def reweighted(self, factors: FloatArray) -> Points:
        """Multiply the weights by factors (m,) and normalise them, where the sum is not 0."""
        weights = self.weights * factors
        total = float(weights.sum())
        usable = total > 0.0 and np.isfinite(total)
        return Points(self.poses, weights / total if usable else self.weights, self.odometry)

    def resampled(self, size: int, rng: np.random.Generator) -> Points:
        """Draw equally weighted points of the same law, by systematic resampling."""
        drawn = self.select(systematic(self.weights, np.array([len(self)]), np.array([size]), rng))
        drawn.weights = np.full(size, 1.0 / size)
        return drawn

    def effective_size(self) -> float:
        """Return 1 / sum w^2."""
        return float(1.0 / np.sum(self.weights**2))

    def move(self, increments: FloatArray) -> None:
        """Move the points by increments (m, 3) or (3,) in their own frames."""
        self.poses = se2.compose(self.poses, increments)

    def within(self, pose: FloatArray, radius: float) -> NDArray[np.bool_]:
        """Find points (m,) within `radius` metres of a pose (3,) that face as it does."""
        return se2.within(self.poses, pose, radius, MAX_HEADING_DIFF)

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
        numbers = cells(np.floor(0.5 * points))
        _, first, cell = np.unique(numbers, return_index=True, return_inverse=True)
        heaviest = np.argsort(-np.bincount(cell, weights=self.weights))[:4]
        means = points[first[heaviest]]
        for _ in range(15):
            kernel = np.exp(-0.5 * cdist(means, points, 'sqeuclidean')) * self.weights
            height = kernel.sum(axis=1)
            moved = kernel @ points / np.maximum(height, 1e-300)[:, np.newaxis]
            step = float(np.abs(moved - means).max())
            means = moved
            if step < 0.01:
                break
        return se2.from_plane_and_circle(means[int(np.argmax(height))] * widths)


def systematic(
    weights: FloatArray, sets: NDArray[np.intp], sizes: NDArray[np.intp], rng: np.random.Generator
) -> NDArray[np.intp]:
    """
    Draw indices by systematic resampling of sets of points that follow each other.

    `weights`: (m,) that add up to one in each of `sets` (s,), their numbers of points; `sizes`:
    (s,) how many are drawn of each. The drawn indices (sum of `sizes`,) increase.
    """
    number = np.repeat(np.arange(len(sizes)), sizes)
    position = ranges(np.zeros_like(sizes), sizes)
    ticks = number + (rng.random(len(sizes))[number] + position) / sizes[number]
    ends = np.cumsum(sets)[number]
    chosen = np.searchsorted(np.cumsum(weights), ticks)
    return np.asarray(np.clip(chosen, ends - sets[number], ends - 1))


def ranges(starts: NDArray[np.intp], sizes: NDArray[np.intp]) -> NDArray[np.intp]:
    """Join ranges of whole numbers, each given by its first one and its size: (sum of sizes,)."""
    ends = np.cumsum(sizes)
    return np.asarray(np.arange(ends[-1]) + np.repeat(starts - (ends - sizes), sizes))


def cells(squares: FloatArray) -> FloatArray:
    """Give numbers, which seldom repeat, to squares (m, 4) of a grid of (x, y, cos, sin)."""
    return np.asarray(squares @ [1.0, 2.0**18, 2.0**36, 2.0**42])
