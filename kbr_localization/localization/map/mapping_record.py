"""How the poses of a map came about where no other localizer gave them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.se2 import FloatArray
import numpy as np

_SHAPES = {
    'odometry': ('n', 3),
    'covariances': ('n', 3, 3),
    'closures': ('m', 2),
    'chain': ('m',),
    'relative': ('m', 3),
    'misses': ('m', 3),
    'score': ('m',),
    'kept': ('m',),
    'parameters': ('runs', 6),
    'point': (3,),
}
"""Of the arrays, n images, m closures."""
_ROUNDING = 1e-6  # m² and rad²
_INTEGERS = ('closures', 'chain', 'kept')


@dataclass(frozen=True)
class MappingRecord:
    """
    Odometry, closures and covariances of the images of a map.

    `odometry`: (n, 3) poses by the odometry of each run. `covariances`: (n, 3, 3) of the map's
    poses, zero where they were known. `closures`: (m, 2) images of one place, and the number of
    the `chain` (m,) that each is part of; `relative`: (m, 3) pose of the first in the frame of the
    second as the images have it, `misses`: (m, 3) what the poses of the map make otherwise,
    `score`: (m,), `kept`: (m,) 1 where it was used, 0 where it contradicts others. `parameters`:
    (runs, 6) errors of the odometry (see `mapping.wheels`). `point`: (3,) pose in the frame of the
    camera of the point whose poses these are, zero for the camera itself. `aligned`: whether the
    frame is one that was given, by `kbr map align` or by a map of known poses that was extended;
    False: still that of the first image; None: a package that did not keep it made the map.
    """

    odometry: FloatArray
    covariances: FloatArray
    closures: np.ndarray
    chain: np.ndarray
    relative: FloatArray
    misses: FloatArray
    score: FloatArray
    kept: np.ndarray
    parameters: FloatArray
    point: FloatArray = field(default_factory=lambda: np.zeros(3))
    aligned: bool | None = None

    @property
    def deviation_m(self) -> float:
        """Root mean square of the deviations of the positions, in metres."""
        return float(np.mean(self.covariances[:, 0, 0] + self.covariances[:, 1, 1]) ** 0.5)

    def subset(self, indices: np.ndarray) -> MappingRecord:
        """Return that of some of the images, indices (k,), with the closures among them."""
        place = np.full(len(self.odometry), -1)
        place[indices] = np.arange(len(indices))
        closures = place[self.closures]
        among = np.all(closures >= 0, axis=1)
        return replace(
            self,
            odometry=self.odometry[indices],
            covariances=self.covariances[indices],
            closures=closures[among],
            chain=self.chain[among],
            relative=self.relative[among],
            misses=self.misses[among],
            score=self.score[among],
            kept=self.kept[among],
        )

    def moved(self, motion: FloatArray, scale: float = 1.0) -> MappingRecord:
        """Return that of the poses after a motion (3,) of the whole map, its metres scaled."""
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
        """Return that with more images at the end, (k, 3) and (k, 3, 3), and no more closures."""
        return replace(
            self,
            odometry=np.concatenate([self.odometry, odometry]),
            covariances=np.concatenate([self.covariances, covariances]),
        )

    def joined(self, more: MappingRecord) -> MappingRecord:
        """Return this with the closures of another record, and its runs' parameters behind."""
        first = int(self.chain.max(initial=-1)) + 1
        return replace(
            self,
            closures=np.concatenate([self.closures, more.closures]),
            chain=np.concatenate([self.chain, more.chain + first]),
            relative=np.concatenate([self.relative, more.relative]),
            misses=np.concatenate([self.misses, more.misses]),
            score=np.concatenate([self.score, more.score]),
            kept=np.concatenate([self.kept, more.kept]),
            parameters=np.concatenate([self.parameters, more.parameters]),
        )

    def arrays(self) -> dict[str, Any]:
        """Return the values by name, for a file, which holds no empty arrays."""
        found = {name: np.asarray(getattr(self, name)) for name in _SHAPES}
        kept = {name: array for name, array in found.items() if array.size}
        return kept | {'aligned': self.aligned}

    @staticmethod
    def of_arrays(arrays: Mapping[str, Any], images: int) -> MappingRecord:
        """Make one of the arrays of a file; raises MapError for those that fit no such map."""
        sizes: dict[Any, Any] = {'n': images, 'm': len(arrays.get('closures', ()))}
        arrays = _empty() | dict(arrays)
        for name, shape in _SHAPES.items():
            found: Any = arrays.get(name)
            wanted = tuple(sizes.get(side, side) for side in shape)
            got = None if found is None else found.shape
            if got is None or len(got) != len(wanted) or got[1:] != wanted[1:]:
                raise MapError(f'mapping/{name} has shape {got}: expected {wanted}')
            if shape[0] != 'runs' and got[0] != wanted[0]:
                raise MapError(f'mapping/{name} has shape {got}: expected {wanted}')
            kinds, wanted_kind = ('iu', 'integers') if name in _INTEGERS else ('f', 'numbers')
            if found.dtype.kind not in kinds:
                raise MapError(f'mapping/{name} is {found.dtype}: expected {wanted_kind}')
            if not np.isfinite(found).all():
                raise MapError(f'mapping/{name} has values that are not finite')
        ends = arrays['closures']
        if np.any(ends < 0) or np.any(ends >= images):
            raise MapError(f'mapping/closures names images beyond the {images} of the map')
        if np.any(np.diagonal(arrays['covariances'], axis1=1, axis2=2) < -_ROUNDING):
            raise MapError('mapping/covariances has negative variances')
        aligned = arrays.get('aligned')
        if not isinstance(aligned, (bool, type(None))):
            raise MapError(f'mapping/aligned is {aligned!r:.80}: expected true or false')
        values = {name: np.asarray(arrays[name]) for name in _SHAPES}
        return MappingRecord(**values, aligned=aligned)


def _empty() -> dict[str, np.ndarray]:
    """Arrays of no closures, and the point of older maps, which is the camera."""
    return {
        'closures': np.zeros((0, 2), dtype=np.int64),
        'chain': np.zeros(0, dtype=np.int64),
        'relative': np.zeros((0, 3)),
        'misses': np.zeros((0, 3)),
        'score': np.zeros(0),
        'kept': np.zeros(0, dtype=np.uint8),
        'point': np.zeros(3),
    }
