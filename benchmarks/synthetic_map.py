"""
A map of any size without images: corridors with random descriptors.

The path winds through a building in rows 5 m apart, and was driven once in each direction with an
image every 0.2 m. Every 1.2 m along it, for each direction, a random scene gives the frequency of
each word in each cell of the pyramid. An image interpolates the two nearest scenes, so that images
of neighbouring poses share words, while distant images share only what all images have in common.
Half of a scene comes from 64 motifs that repeat throughout the building: places are similar, but
never equal. Noise is added to the root counts.

With the constants below the kernel is about 0.8 between two images of one pose, 0.7 at 0.5 m and
0.55 far away, as measured on rendered runs of the size of COLD.
"""

from collections.abc import Iterator
from pathlib import Path

from kbr_localization import se2
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
from kbr_localization.vision import VisionConfig
from kbr_localization.vision.local_descriptors import DenseSift
from kbr_localization.vision.preparation import Preparation
from kbr_localization.vision.pyramid_describer import PyramidDescriber
from kbr_localization.vision.spatial_pyramid import CELLS
import numpy as np

IMAGE_SHAPE = (480, 640)
VISION = VisionConfig(vocabulary_tree=False)
SPACING = 0.2
_ROW_DISTANCE, _SCENE_DISTANCE = 5.0, 1.2
_TABLE = 1 << 22
_IMAGES_PER_BLOCK = 2048


class Corridors:
    """
    The building: poses along the path, and descriptors of images there.

    `length`: of the path, in metres. The same seed gives the same building.
    """

    def __init__(self, length: float, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.length = length
        self.row = max(10.0, float(np.sqrt(length * _ROW_DISTANCE)))
        self.size = CELLS * VISION.words
        words = rng.gamma(1.5, 1.0, VISION.words)
        cells = rng.gamma(6.0, 1.0 / 6.0, self.size)
        self._common = (4.3 * np.tile(words, CELLS) * cells).astype(np.float32)
        self._table = rng.gamma(0.6, 1.0 / 0.6, _TABLE + self.size).astype(np.float32)
        # in eighths of a root count
        self._noise = (3.0 * rng.standard_normal(_TABLE + self.size)).astype(np.float32)
        scenes = (2, int(length / _SCENE_DISTANCE) + 2)
        motifs = rng.integers(_TABLE, size=64)
        self._motif = motifs[rng.integers(64, size=scenes)]
        self._own = rng.integers(_TABLE, size=scenes)

    def poses(self, way: FloatArray, backward: bool, rng: np.random.Generator) -> FloatArray:
        """Return jittered poses, (m, 3), at distances `way` (m,) along the path, in metres."""
        row, along = np.divmod(way, self.row + _ROW_DISTANCE)
        even = row % 2 == 0
        x = np.where(even, np.minimum(along, self.row), self.row - np.minimum(along, self.row))
        y = _ROW_DISTANCE * row + np.maximum(along - self.row, 0.0)
        heading = np.where(along > self.row, 0.5 * np.pi, np.where(even, 0.0, np.pi))
        poses = np.stack([x, y, se2.wrap_angle(heading + np.pi * backward)], axis=-1)
        jitter = rng.standard_normal(poses.shape) * [0.03, 0.08, 0.04]
        return se2.compose(poses, jitter)

    def descriptors(self, way: FloatArray, backward: bool, rng: np.random.Generator) -> np.ndarray:
        """Draw root counts (m, size) of images at distances `way` (m,) along the path."""
        position = way / _SCENE_DISTANCE
        scene = position.astype(np.int64)
        fraction = (position - scene).astype(np.float32)[:, np.newaxis]
        first = scene.min()
        seen, entries = np.arange(first, scene.max() + 2), np.arange(self.size)
        starts = np.stack([self._own, self._motif])[:, int(backward), seen]
        own, motif = self._table[np.add.outer(starts, entries)]
        scenes = self._common * (0.5 * own + 0.5 * motif)
        counts = (1.0 - fraction) * scenes[scene - first] + fraction * scenes[scene - first + 1]
        counts += self._noise[np.add.outer(rng.integers(_TABLE, size=len(way)), entries)]
        counts[counts < 5.5] = 0.0
        return np.asarray(np.minimum(counts, 255.0), dtype=np.uint8)


def synthetic_map(images: int, folder: Path, seed: int = 0) -> tuple[KernelMap, Corridors]:
    """Generate a map; its descriptors are stored in a memory-mapped file of the folder."""
    per_run = images // 2
    building = Corridors(per_run * SPACING, seed)
    rng = np.random.default_rng([seed, 1])
    name = folder / f'descriptors_{images}.npy'
    descriptors = np.lib.format.open_memmap(
        name, mode='w+', dtype=np.uint8, shape=(2 * per_run, building.size)
    )
    way = np.arange(per_run, dtype=np.float64) * SPACING
    poses = []
    for run, places in enumerate((way, way[::-1])):
        poses.append(building.poses(places, bool(run), rng))
        for start in range(0, per_run, _IMAGES_PER_BLOCK):
            part = places[start : start + _IMAGES_PER_BLOCK]  # noqa: E203
            at = run * per_run + start
            rows = descriptors[at : at + len(part)]  # noqa: E203
            rows[:] = building.descriptors(part, bool(run), rng)
    descriptors.flush()
    return _kernel_map(np.concatenate(poses), descriptors, per_run), building


def drive(
    building: Corridors, start: float, metres: float, rng: np.random.Generator, step: float = 0.4
) -> Iterator[tuple[FloatArray, FloatArray, np.ndarray]]:
    """Yield true pose, noisy increment to it and descriptor, from `start` along the path."""
    way = np.arange(start, start + metres, step)
    poses = building.poses(way, False, rng)
    images = building.descriptors(way, False, rng)
    increments = [np.zeros(3), *se2.between(poses[:-1], poses[1:])]
    for pose, increment, image in zip(poses, increments, images, strict=True):
        yield pose, increment + rng.standard_normal(3) * [0.01, 0.005, 0.005], image


def _kernel_map(poses: FloatArray, descriptors: np.ndarray, per_run: int) -> KernelMap:
    preparation = Preparation(VISION, IMAGE_SHAPE)
    words = np.random.default_rng(0).random((VISION.words, DenseSift.size), dtype=np.float32)
    learnt = {'vocabulary': words, 'word_weights': np.ones(VISION.words, np.float32)}
    following = np.roll(poses, -1, axis=0)
    following[[per_run - 1, -1]] = np.nan  # nothing follows the end of a run
    return KernelMap(
        poses=poses,
        descriptors=descriptors,
        stamps_ns=np.arange(len(poses), dtype=np.int64) * 10**8,
        run_index=np.repeat([0, 1], per_run).astype(np.int32),
        run_names=('forward', 'backward'),
        describer=PyramidDescriber(VISION, preparation, learnt),
        image_shape=IMAGE_SHAPE,
        controls=se2.between(poses, following),
        next_poses=following,
    )
