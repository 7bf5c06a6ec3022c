"""A belief on moving points: a kernel mean whose points are poses, and what can be asked of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbr_localization import se2
from kbr_localization.localization.calibration import SIZE
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

OTHER_WAY = 1.0
"""Radians: a belief that faces as far off is another one, and does not turn by itself."""
_HALVINGS = 20
_MODE_STARTS = 4
_MODE_ROUNDS = 15
_CELL_NUMBERS = np.array([1, 1 << 20, 1 << 40, 1 << 50])  # a different sum for every cell


@dataclass(frozen=True)
class _Mode:
    """A mode (3,), and what it is the mode of: see `Belief.mode`."""

    points: FloatArray
    weights: FloatArray
    widths: tuple[float, float]
    pose: FloatArray

    def is_of(self, belief: Belief, widths: tuple[float, float]) -> bool:
        """Whether it is still that of a belief."""
        same = self.points is belief.points and self.weights is belief.weights
        return same and self.widths == widths


@dataclass
class Belief:
    """
    Poses `points` (m, 3) with `weights` (m,) that are not negative and add up to one.

    `odometry`: (m, 7) what each point holds of the odometry's errors (see `OdometryCalibration`).
    The arrays may be replaced, but never changed in place.
    """

    points: FloatArray
    weights: FloatArray
    odometry: FloatArray = field(default_factory=lambda: np.zeros((0, SIZE)))
    _last_mode: _Mode | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.odometry) != len(self.points):
            self.odometry = np.zeros((len(self.points), SIZE))

    @staticmethod
    def gaussian(
        pose: FloatArray, covariance: FloatArray, size: int, rng: np.random.Generator
    ) -> Belief:
        """Draw `size` equally weighted points about a pose (3,) with covariance (3, 3)."""
        root = covariance_root(covariance)
        points = pose + rng.standard_normal((size, 3)) @ root.T
        points[:, 2] = se2.wrap_angle(points[:, 2])
        return Belief(points, np.full(size, 1.0 / size))

    def effective_size(self) -> float:
        """Count the points that carry the belief, 1 / sum of squared weights."""
        return float(1.0 / np.sum(self.weights**2))

    def reweigh(self, factors: FloatArray) -> float:
        """Multiply the weights (m,) and normalise; return their sum before, the likelihood."""
        weights = self.weights * factors
        total = float(weights.sum())
        if total > 0 and np.isfinite(total):
            self.weights = weights / total
        return total

    def reweighed(self, factors: FloatArray) -> Belief:
        """Return the same points with the weights (m,) multiplied and normalised."""
        belief = Belief(self.points, self.weights, self.odometry)
        belief.reweigh(factors)
        return belief

    def resampled(self, size: int, rng: np.random.Generator) -> Belief:
        """Equally weighted points of the same law, by systematic resampling."""
        ticks = (rng.random() + np.arange(size)) / size
        chosen = np.searchsorted(np.cumsum(self.weights), ticks)
        chosen = np.minimum(chosen, len(self.points) - 1)
        return Belief(self.points[chosen], np.full(size, 1.0 / size), self.odometry[chosen])

    def resampled_in_parts(
        self, of: NDArray[np.intp], parts: NDArray[np.intp], size: int, rng: np.random.Generator
    ) -> Belief:
        """
        Resample some of the parts of the belief, each by itself; equally weighted points.

        `of`: (m,) the part of each point, increasing from 0. `parts`: (k,) which of them; a part
        without weight is resampled evenly. The answer has k times `size` points, part by part.
        """
        ends = np.cumsum(np.bincount(of))
        mass = np.bincount(of, weights=self.weights)[of]
        counts = np.diff(ends, prepend=0)[of]
        even = mass <= 0.0
        shares = np.where(even, 1.0 / counts, self.weights / np.where(even, 1.0, mass))
        ticks = (rng.random((len(parts), 1)) + np.arange(size)) / size + parts[:, np.newaxis]
        chosen = np.searchsorted(np.cumsum(shares), ticks)
        # a sum that rounding left below its part's number ends in the next part
        chosen = np.minimum(chosen, ends[parts, np.newaxis] - 1).ravel()
        weights = np.full(chosen.size, 1.0 / chosen.size)
        return Belief(self.points[chosen], weights, self.odometry[chosen])

    def joined(self, other: Belief, share: float) -> Belief:
        """Mix with another belief, whose part of the mixture is `share`."""
        return Belief(
            np.concatenate([self.points, other.points]),
            np.concatenate([(1.0 - share) * self.weights, share * other.weights]),
            np.concatenate([self.odometry, other.odometry]),
        )

    def among(self, members: np.ndarray) -> Belief:
        """Return the part of the belief on the points that `members` (m,) selects."""
        weights = self.weights[members]
        total = float(weights.sum())
        weights = weights / total if total > 0.0 else np.full(len(weights), 1.0 / len(weights))
        return Belief(self.points[members], weights, self.odometry[members])

    def drawn(self, size: int) -> FloatArray:
        """Poses (size, 3) of the belief; the same ones whenever it is looked at."""
        return self.resampled(size, np.random.default_rng(0)).points

    def disperse(self, variances: FloatArray, rng: np.random.Generator) -> None:
        """Add Gaussian noise of variances (3,) along, across and in heading."""
        self.move(rng.standard_normal(self.points.shape) * np.sqrt(variances))

    def move(self, increments: FloatArray) -> None:
        """Move the points by increments (3,) or (m, 3) in their own frames."""
        self.points = se2.compose(self.points, increments)

    def mode(self, bandwidth: float, heading_bandwidth: float) -> FloatArray:
        """
        Pose (3,) where the kernel mean of a Gaussian kernel is largest.

        `bandwidth`: in x and y, metres; `heading_bandwidth`: in (cos, sin) of the heading. The
        fixed-point iteration of [MbKSR] eq. 33 on (x, y, cos, sin), from the points of the
        heaviest cells; the best end wins. An update and the answer after it ask for the same one.
        """
        last, widths = self._last_mode, (bandwidth, heading_bandwidth)
        if last is None or not last.is_of(self, widths):
            last = _Mode(self.points, self.weights, widths, self._found_mode(*widths))
            self._last_mode = last
        return last.pose.copy()

    def _found_mode(self, bandwidth: float, heading_bandwidth: float) -> FloatArray:
        circle = bandwidth / heading_bandwidth
        scale = np.array([1.0, 1.0, circle, circle])
        points = scale * se2.to_plane_and_circle(self.points)
        means = points[self._heaviest_cells(points, bandwidth)]
        for _ in range(_MODE_ROUNDS):
            kernel = self._weighted_kernel(means, points, bandwidth)
            moved = kernel @ points / np.maximum(kernel.sum(axis=1), 1e-300)[:, np.newaxis]
            shift = float(np.max(np.abs(moved[:, :2] - means[:, :2])))
            means = moved
            if shift < 1e-2:
                break
        heights = self._weighted_kernel(means, points, bandwidth).sum(axis=1)
        return se2.from_plane_and_circle(means[int(np.argmax(heights))] / scale)

    def within(self, pose: FloatArray, radius: float, turn: float = np.pi) -> np.ndarray:
        """Which points (m,) lie within `radius` metres and `turn` radians of a pose."""
        near = np.hypot(*(self.points[:, :2] - pose[:2]).T) <= radius
        return np.asarray(near & (np.abs(se2.wrap_angle(self.points[:, 2] - pose[2])) <= turn))

    def about_mode(
        self, radius: float, bandwidth: float, heading_bandwidth: float
    ) -> tuple[NDArray[np.bool_], float]:
        """
        Which points (m,) are within `radius` metres of the highest mode, facing as it does.

        Returns also their fraction of the belief. `bandwidth`, `heading_bandwidth`: see `mode`.
        """
        # that of a kernel wider than the radius may lie between the points: then look closer
        for halving in range(_HALVINGS):
            mode = self.mode(0.5**halving * bandwidth, heading_bandwidth)
            members = self.within(mode, radius, OTHER_WAY)
            mass = float(self.weights[members].sum())
            if mass > 0.0:  # points without weight have no mean
                break
        return members, mass

    def moments(self, members: np.ndarray) -> tuple[FloatArray, FloatArray]:
        """Mean (3,) and covariance (3, 3) of the points that `members` (m,) selects."""
        points, weights = self.points[members], self.weights[members]
        weights = weights / weights.sum()
        mean = weighted_mean(points, weights[np.newaxis])[0]
        deviation = points - mean
        deviation[:, 2] = se2.wrap_angle(deviation[:, 2])
        root = np.sqrt(weights)[:, np.newaxis] * deviation
        return mean, np.asarray(root.T @ root)

    def _heaviest_cells(self, points: FloatArray, size: float) -> np.ndarray:
        """One point (its index) of each of the cells of a grid that hold most of the weight."""
        cells = np.floor(points / (2.0 * size)).astype(np.int64) @ _CELL_NUMBERS
        _, first, cell = np.unique(cells, return_index=True, return_inverse=True)
        mass = np.bincount(cell, weights=self.weights)
        return np.asarray(first[np.argsort(-mass)[:_MODE_STARTS]])

    def _weighted_kernel(
        self, means: FloatArray, points: FloatArray, bandwidth: float
    ) -> FloatArray:
        squared = cdist(means, points, 'sqeuclidean')
        return np.asarray(np.exp(squared * (-0.5 / bandwidth**2)) * self.weights)


def weighted_mean(points: FloatArray, weights: FloatArray) -> FloatArray:
    """Means (q, 3) of poses (m, 3) under rows of weights (q, m), the heading on the circle."""
    embedded = weights @ se2.to_plane_and_circle(points)
    return se2.from_plane_and_circle(embedded)


def covariance_root(covariance: FloatArray) -> FloatArray:
    """Return R (n, n), R R^T = C, of a covariance (n, n), which is one but for rounding."""
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
