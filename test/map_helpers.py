"""Small maps for the tests of localization."""

from dataclasses import replace

from helpers import tiny_frames, tiny_odometry
from kbr_localization import se2
from kbr_localization.datasets import Dataset, Frame, OdometryTrack
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.vision import Describer, VisionConfig
import numpy as np

TINY_VISION = VisionConfig(words=20, vocabulary_samples=2000, scale_up=False)


class TinyRun(Dataset):
    """A run in memory: the robot drives straight past a textured wall. `frames` may be changed."""

    def __init__(self, frames: int = 30, name: str = 'tiny') -> None:
        self.name, self.skipped = name, {}
        self.odometry: OdometryTrack = tiny_odometry(frames)
        self.frames: list[Frame] = tiny_frames(frames)

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, index):
        return self.frames[index]


def tiny_map(frames: int = 30, vision=TINY_VISION, **options) -> KernelMap:
    """Map of a tiny run."""
    return build_map([TinyRun(frames)], vision=vision, **options)


def map_along(poses, closed=False, vision=TINY_VISION) -> KernelMap:
    """Map of as many images as if taken at poses (n, 3) in turn; `closed`: then at the first."""
    following = np.roll(poses, -1, axis=0)
    if not closed:
        following[-1] = np.nan
    controls = se2.between(poses, following)
    tiny = tiny_map(frames=len(poses), vision=vision)
    return replace(tiny, poses=poses, controls=controls, next_poses=following)


def straight(metres) -> np.ndarray:
    """Pose (3,) so far along the x axis."""
    return np.array([metres, 0.0, 0.0])


def on_circle(metres, radius) -> np.ndarray:
    """Poses (..., 3) so far along a circle about the origin."""
    angle = np.asarray(metres) / radius
    x, y = radius * np.cos(angle), radius * np.sin(angle)
    return np.stack([x, y, se2.wrap_angle(angle + np.pi / 2)], axis=-1)


def random_poses(rng, count, size) -> np.ndarray:
    """Poses (count, 3) in a square of twice `size` metres, facing anywhere."""
    return np.column_stack([rng.uniform(-size, size, (count, 2)), rng.uniform(-4, 4, count)])


def position_errors(trajectory, run) -> np.ndarray:
    """Distances (n,) in metres from the reference."""
    references = np.array([frame.reference for frame in run])
    return np.hypot(*(trajectory.poses - references)[:, :2].T)


def assert_equal_maps(first, *others):
    """All that was learnt from the images is the same to the last bit."""
    for other in others:
        for name in ('poses', 'descriptors', 'stamps_ns', 'controls', 'next_poses', 'run_index'):
            np.testing.assert_array_equal(getattr(other, name), getattr(first, name), name)
        assert tuple(other.thumbnails) == tuple(first.thumbnails)
        np.testing.assert_equal(dict(other.describer.state()), dict(first.describer.state()))


class GramDescriber(Describer):
    """A describer whose descriptors (1,) are row numbers of a known kernel matrix."""

    def __init__(self, gram):
        self.gram = gram

    def cross_gram(self, left, right):
        return self.gram[np.ix_(left[:, 0], right[:, 0])]
