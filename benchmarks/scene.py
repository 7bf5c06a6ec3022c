"""What the speed of a frame is measured on: a rendered building, its map, and a drive in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kbr_localization import se2
from kbr_localization.datasets import Frame, open_dataset
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.progress import Progress
from kbr_localization.simulation import RunConfig, write_building
from kbr_localization.workers import open_workers
import numpy as np

IMAGES = 1000
SEED = 11
RUNS = (
    RunConfig('tour_cloudy', route='tour', seed=1),
    RunConfig('tour_sunny', route='tour', light='sunny', seed=2),
    RunConfig('walk', seconds=100.0, seed=3),
)
START = np.diag([0.1, 0.1, 0.05]) ** 2


@dataclass(frozen=True)
class Scene:
    """A map of `IMAGES` images of 640x480, and a drive with its images in memory."""

    training: tuple[Path, ...]
    kernel_map: KernelMap
    frames: tuple[Frame, ...]
    images: tuple[np.ndarray, ...]

    @property
    def start(self) -> se2.FloatArray:
        """Return the true pose (3,) of the first frame."""
        pose = self.frames[0].reference
        assert pose is not None
        return pose

    def increments(self) -> list[se2.FloatArray]:
        """Return the odometry increment (3,) to each frame, zero for the first."""
        odometry = np.array([frame.odometry for frame in self.frames])
        return [np.zeros(3), *se2.between(odometry[:-1], odometry[1:])]


def make_scene(folder: Path, progress: Progress) -> Scene:
    """Render the runs into a folder, build the map."""
    paths = write_building(folder / 'building', SEED, RUNS, progress=progress)
    training = tuple(paths[:2])
    with open_workers(None) as workers:
        datasets = [open_dataset(path) for path in training]
        kernel_map = build_map(datasets, max_images=IMAGES, progress=progress, workers=workers)
    frames = tuple(open_dataset(paths[2]))
    return Scene(training, kernel_map, frames, tuple(frame.load_image() for frame in frames))
