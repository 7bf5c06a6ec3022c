"""The map of a building: poses, image descriptors, and what was learnt from its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
import functools
from pathlib import Path
from typing import Any

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.calibration import Calibration, in_metres, MotionNoise
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.map.decay import SimilarityDecay
from kbr_localization.localization.map.index import SketchIndex
from kbr_localization.localization.map.similarity import Centring, Similarity
from kbr_localization.se2 import FloatArray, StampArray
from kbr_localization.vision import Describer
from kbr_localization.vision.describer import Comparer, kernel_vectors, missing_cameras
import numpy as np
from scipy.spatial import cKDTree

EXACT_IMAGES = 2048
"""Images up to which the whole kernel vector is computed; a larger map is searched by an index."""
PER_IMAGE = ('poses', 'controls', 'next_poses', 'stamps_ns', 'run_index', 'descriptors')
"""Arrays of a map with a row per image."""
_PER_CLOSURE = ('closures', 'chain', 'relative', 'misses', 'score', 'kept')


@dataclass(frozen=True)
class MapStatistics:
    """
    Statistics of wrong places in nats, measured when a map is built (`filter.wrong_places`).

    `evidence_limit`: the highest log odds of a wrong place when half of the map is driven on the
    other half. `typical_log_likelihood`: mean log likelihood of images at wrong places.
    `reference_log_likelihood`: k, with which images are no evidence for the likeliest wrong
    places. The defaults are about the medians of maps of 100 images of rendered offices.
    """

    evidence_limit: float = 0.8
    typical_log_likelihood: float = 0.9
    reference_log_likelihood: float = 3.0


@dataclass(frozen=True)
class MappingRecord:
    """
    Odometry, loop closures and covariances of a map that was built from odometry.

    `odometry`: (n, 3) poses by the odometry of each run. `covariances`: (n, 3, 3) of the map's
    poses, zero for known poses. `parameters`: (runs, 7) errors of the odometry (see
    `calibration`). `closures`: (m, 2) pairs of images of one place, in chains numbered by `chain`
    (m,); `relative`: (m, 3) measured pose of the first image in the frame of the second;
    `misses`: (m, 3) its difference from the poses of the map; `score`: (m,); `kept`: (m,) 1 if it
    was used, 0 if it contradicts others. `point`: (3,) pose, in the frame of the camera, of the
    point whose poses the map holds. `aligned`: True if `kbr map align` or known poses
    define the map frame; False if it is the frame of the first image.
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
    aligned: bool = False

    @property
    def deviation_m(self) -> float:
        """Root mean square of the standard deviations of the positions, metres."""
        return float(np.mean(self.covariances[:, 0, 0] + self.covariances[:, 1, 1]) ** 0.5)

    def subset(self, indices: np.ndarray) -> MappingRecord:
        """Return the record of some images (k,) and the closures between them."""
        place = np.full(len(self.odometry), -1)
        place[indices] = np.arange(len(indices))
        inside = np.all(place[self.closures] >= 0, axis=1)
        found = replace(
            self,
            odometry=self.odometry[indices],
            covariances=self.covariances[indices],
            **{name: getattr(self, name)[inside] for name in _PER_CLOSURE},
        )
        return replace(found, closures=place[found.closures])

    def moved(self, motion: FloatArray, scale: float = 1.0) -> MappingRecord:
        """Return the record of a map whose positions are scaled, then moved by `motion` (3,)."""
        metres = np.array([scale, scale, 1.0])
        turn = se2.rotation(motion[2]) * metres
        return replace(
            self,
            covariances=turn @ self.covariances @ turn.T,
            parameters=in_metres(self.parameters, scale),
            relative=self.relative * metres,
            misses=self.misses * metres,
            point=self.point * metres,
        )

    def extended(
        self, odometry: FloatArray, covariances: FloatArray, more: MappingRecord | None = None
    ) -> MappingRecord:
        """
        Return the record with k more images at its end.

        `odometry`: (k, 3), `covariances`: (k, 3, 3). `more`: closures and parameters to add.
        """
        whole: dict[str, Any] = {
            'odometry': np.concatenate([self.odometry, odometry]),
            'covariances': np.concatenate([self.covariances, covariances]),
        }
        if more is not None:
            more = replace(more, chain=more.chain + int(self.chain.max(initial=-1)) + 1)
            for name in (*_PER_CLOSURE, 'parameters'):
                whole[name] = np.concatenate([getattr(self, name), getattr(more, name)])
        return replace(self, **whole)


@dataclass(frozen=True)
class KernelMap:
    """
    Poses and image descriptors (X_i, Y_i), i = 1..n, and all that a localizer needs with them.

    `poses`: (n, 3) in the map frame. `descriptors`: (n, d) of the describer. `stamps_ns`: (n,).
    `run_index`: (n,) into `run_names`. `image_shape`: (height, width) of the images. `controls`:
    (n, 3) odometry increment from each image to the next one of its run, `next_poses`: (n, 3) the
    pose of that image; both NaN at the end of a run. `thumbnails`: n JPEG files, or empty.
    `baselines`: tuned parameters of other methods by method and name (see `methods.registry`).
    `index`, `means`: stored search index and kernel means (n,) of a large map (see `Centring`).
    `statistics`: see `MapStatistics`; None if not measured. `decay`: None if not known.
    `calibration`: systematic errors of the odometry of the runs. `mapping`: record of a map that
    was built from odometry.
    """

    poses: FloatArray
    descriptors: np.ndarray
    stamps_ns: StampArray
    run_index: np.ndarray
    run_names: tuple[str, ...]
    describer: Describer
    image_shape: tuple[int, int]
    controls: FloatArray
    next_poses: FloatArray
    filter_config: KbrConfig = field(default_factory=KbrConfig)
    motion_noise: MotionNoise = field(default_factory=MotionNoise.default)
    thumbnails: Sequence[bytes] = ()
    baselines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    index: SketchIndex | None = None
    means: FloatArray | None = None
    statistics: MapStatistics | None = None
    decay: SimilarityDecay | None = None
    calibration: Calibration = field(default_factory=Calibration.unknown)
    mapping: MappingRecord | None = None

    def __post_init__(self) -> None:
        n = len(self.poses)
        if n == 0:
            raise MapError('the map has no images: give runs with images and reference poses')
        if not np.isfinite(self.poses).all():
            raise MapError('the map has poses that are not finite: build it again')

    def __len__(self) -> int:
        return len(self.poses)

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras; empty for a map of one camera."""
        return self.describer.cameras

    @property
    def decay_length(self) -> float:
        """Metres over which the similarity of images falls by a factor e; 0 if not known."""
        return self.decay.length if self.decay else 0.0

    def per_camera(self, values: FloatArray) -> FloatArray:
        """Return the geometric mean of the cameras' kernels from values of their product."""
        return np.asarray(values ** (1.0 / max(1, len(self.cameras))))

    @property
    def aligned(self) -> bool:
        """Whether known poses define the map frame; else it is the frame of the first image."""
        return True if self.mapping is None else self.mapping.aligned

    def subset(self, indices: np.ndarray) -> KernelMap:
        """Return the map of some images, by indices (m,)."""
        return replace(
            self,
            **{name: getattr(self, name)[indices] for name in PER_IMAGE},
            thumbnails=tuple(self.thumbnails[i] for i in indices) if self.thumbnails else (),
            index=None,
            means=None,
            statistics=None,
            mapping=self.mapping.subset(indices) if self.mapping else None,
        )

    def appended(self, more: KernelMap) -> KernelMap:
        """Append the images of one run, which have the same describer."""
        names = (*self.run_names, *(n for n in more.run_names if n not in self.run_names))
        rows: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(more, name)]) for name in PER_IMAGE
        }
        rows['run_index'][len(self) :] = names.index(more.run_names[0])  # noqa: E203
        shown = (*self.thumbnails, *more.thumbnails) if self.thumbnails else ()
        return replace(self, **rows, run_names=names, thumbnails=shown, index=None, means=None)

    @functools.cached_property
    def centring(self) -> Centring:
        return Centring(self.describer, self.descriptors, self.means)

    @functools.cached_property
    def similarities(self) -> Comparer:
        """Compute the kernel values (n,), not centred, of a descriptor (d,) and all images."""
        if self.is_large:
            return functools.partial(kernel_vectors, self.describer, self.descriptors)
        return self.describer.comparer(self.descriptors)

    def compare(
        self, descriptor: np.ndarray, thorough: bool = False, nearby: np.ndarray | None = None
    ) -> Similarity:
        """
        Compare a descriptor (d,) with the map's images.

        Up to `EXACT_IMAGES` images the whole kernel vector is computed; beyond, the cost does not
        grow with the map, except with `thorough`, which searches the whole map for candidates, for
        a start without a belief. `nearby`: (m,) increasing indices of images that will be needed.
        """
        missing = missing_cameras(self.describer, descriptor)
        if not self.is_large:
            return Similarity.from_vector(self.similarities(descriptor), missing)
        # a few candidates find a robot that was carried; a global start needs many
        candidates = self.search_index.candidates(descriptor, 2048 if thorough else 64, thorough)

        def compute(indices: np.ndarray) -> FloatArray:
            return kernel_vectors(self.describer, self.descriptors[indices], descriptor)

        initial = self.centring.references, self.centring.reference_values(descriptor)
        return Similarity(len(self), initial, compute, np.sort(candidates), nearby, missing)

    def best_match(self, descriptor: np.ndarray) -> tuple[int, float]:
        """Return index and kernel value of the image most similar to a descriptor (d,)."""
        similarity = self.compare(descriptor)
        values = similarity.values_at(similarity.candidates)
        best = int(np.argmax(values))
        return int(similarity.candidates[best]), float(values[best])

    def uncertainty_at(self, poses: FloatArray) -> FloatArray:
        """Covariances (..., 3, 3) of the map's nearest poses to `poses` (..., 3)."""
        if self.mapping is None:
            return np.zeros((*poses.shape, 3))
        return np.asarray(self.mapping.covariances[self._places.query(poses[..., :2])[1]])

    @functools.cached_property
    def _places(self) -> cKDTree:
        return cKDTree(self.poses[:, :2])

    @functools.cached_property
    def is_large(self) -> bool:
        """Whether the map is searched by its index."""
        return len(self) > EXACT_IMAGES

    @functools.cached_property
    def search_index(self) -> SketchIndex:
        return self.index or SketchIndex.fit(self.descriptors, np.random.default_rng(0))

    def save(self, path: Path | str) -> None:
        """Write the map to one HDF5 file, atomically; raises MapError when that fails."""
        from kbr_localization.localization.map.file import write_map  # noqa: PLC0415

        write_map(self, Path(path))

    @staticmethod
    def load(path: Path | str) -> KernelMap:
        """Read a map; raises MapError with the fault of the file and the remedy."""
        from kbr_localization.localization.map.file import read_map  # noqa: PLC0415

        return read_map(Path(path))
