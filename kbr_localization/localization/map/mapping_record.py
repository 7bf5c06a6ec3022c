"""How the poses of a map came about where no other localizer gave them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from kbr_localization import se2
from kbr_localization.se2 import FloatArray
import numpy as np

_OF_CLOSURES = ('closures', 'chain', 'relative', 'misses', 'score', 'kept')


@dataclass(frozen=True)
class MappingRecord:
    """
    Odometry, loop closures and covariances of the images of a map.

    `odometry`: (n, 3) poses by the odometry of each run. `covariances`: (n, 3, 3) of the map's
    poses, zero where they were known. `parameters`: (runs, 6) errors of the odometry (see
    `mapping.odometry_model`). `closures`: (m, 2) images of one place, in chains numbered by
    `chain` (m,); `relative`: (m, 3) measured pose of the first image in the frame of the second;
    `misses`: (m, 3) its difference from the poses of the map; `score`: (m,); `kept`: (m,) 1 where
    it was used, 0 where it contradicts others. `point`: (3,) pose, in the frame of the camera, of
    the point whose poses these are. `aligned`: whether the map frame was given, by `kbr map align`
    or by a map of known poses; False: it is that of the first image; None: unknown.
    """

    odometry: FloatArray
    covariances: FloatArray
    parameters: FloatArray
    closures: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    chain: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    relative: FloatArray = field(default_factory=lambda: np.zeros((0, 3)))
    misses: FloatArray = field(default_factory=lambda: np.zeros((0, 3)))
    score: FloatArray = field(default_factory=lambda: np.zeros(0))
    kept: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))
    point: FloatArray = field(default_factory=lambda: np.zeros(3))
    aligned: bool | None = None

    @property
    def deviation_m(self) -> float:
        """Root mean square of the standard deviations of the positions, in metres."""
        return float(np.mean(self.covariances[:, 0, 0] + self.covariances[:, 1, 1]) ** 0.5)

    def subset(self, indices: np.ndarray) -> MappingRecord:
        """Return the record of images (k,), with the closures between them."""
        place = np.full(len(self.odometry), -1)
        place[indices] = np.arange(len(indices))
        inside = np.all(place[self.closures] >= 0, axis=1)
        found = replace(
            self,
            odometry=self.odometry[indices],
            covariances=self.covariances[indices],
            **{name: getattr(self, name)[inside] for name in _OF_CLOSURES},
        )
        return replace(found, closures=place[found.closures])

    def moved(self, motion: FloatArray, scale: float = 1.0) -> MappingRecord:
        """Return the record after a motion (3,) of the whole map, its metres scaled."""
        metres = np.array([scale, scale, 1.0])
        turn = se2.rotation(motion[2]) * metres
        return replace(
            self,
            covariances=turn @ self.covariances @ turn.T,
            relative=self.relative * metres,
            misses=self.misses * metres,
            point=self.point * metres,
        )

    def extended(self, odometry: FloatArray, covariances: FloatArray) -> MappingRecord:
        """Return the record with more images at the end, (k, 3) and (k, 3, 3)."""
        return replace(
            self,
            odometry=np.concatenate([self.odometry, odometry]),
            covariances=np.concatenate([self.covariances, covariances]),
        )

    def joined(self, more: MappingRecord) -> MappingRecord:
        """Return the record with the closures of another one, and its runs' parameters."""
        more = replace(more, chain=more.chain + int(self.chain.max(initial=-1)) + 1)
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(more, name)])
            for name in (*_OF_CLOSURES, 'parameters')
        }
        return replace(self, **joined)
