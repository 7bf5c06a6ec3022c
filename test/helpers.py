"""Tiny runs on disk for the tests of every room, and damage of files."""

import functools
import os
from pathlib import Path

import cv2
from kbr_localization import se2
from kbr_localization.datasets import Frame, OdometryTrack
from kbr_localization.datasets.cold import write_cold_run
import numpy as np

START_NS = 1_600_000_000_000_000_000
"""Stamp of the first frame of every tiny run."""
FRAME_NS = 400_000_000
"""Time between two frames of a tiny run: 2.5 Hz."""
ODOMETRY_NS = 50_000_000
"""Time between two odometry poses: 20 Hz."""
SPEED = 0.5
"""Metres per second along the x axis of a tiny run."""
EXAMPLES = int(os.environ.get('KBR_FUZZ_EXAMPLES', '0'))
"""Damaged files per test, and their seed; 0: few, and the same ones in every run."""


def textured_image(seed: int, shape: tuple[int, ...] = (96, 128)) -> np.ndarray:
    """Smooth random texture, different for every seed: uint8 of the given shape."""
    noise = np.random.default_rng(seed).uniform(0, 255, shape).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), 2.0)
    return cv2.normalize(smooth, None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)


def wall_image(x: float, shape: tuple[int, int] = (96, 128), pixels_per_metre=32.0) -> np.ndarray:
    """View of a long textured wall at `x` metres along it: neighbours in x look alike."""
    left = round((x + 1.0) * pixels_per_metre) % 2000
    return _wall(shape)[:, slice(left, left + shape[1])].copy()


@functools.cache
def _wall(shape: tuple[int, int]) -> np.ndarray:
    return textured_image(0, (shape[0], shape[1] + 2000))


def straight_reference(seconds: float) -> np.ndarray:
    """Return the reference pose (3,) of a tiny run: along the x axis at constant speed."""
    return np.array([SPEED * seconds, 0.0, 0.0])


def tiny_odometry(frames: int, origin=(2.0, -1.0, 3.0)) -> OdometryTrack:
    """Track at 20 Hz of the straight drive, half a second longer than the frames at both ends."""
    stamps = np.arange(-10, (frames - 1) * 8 + 11, dtype=np.int64) * ODOMETRY_NS
    poses = np.array([straight_reference(stamp * 1e-9) for stamp in stamps])
    return OdometryTrack(stamps + START_NS, se2.compose(np.array(origin), poses))


def tiny_frames(frames: int, shape: tuple[int, int] = (96, 128), colour=False) -> list[Frame]:
    """Frames of the straight drive past a textured wall, at 2.5 Hz and 0.2 m from each other."""
    odometry = tiny_odometry(frames)
    result = []
    for index in range(frames):
        stamp_ns = START_NS + index * FRAME_NS
        reference = straight_reference(index * FRAME_NS * 1e-9)
        image = wall_image(reference[0], shape)
        if colour:
            image = np.stack([image, image[::-1], 255 - image], axis=-1)
        result.append(Frame(stamp_ns, image, odometry.at(stamp_ns), reference, f'frame {index}'))
    return result


def write_tiny_cold_run(
    path: Path, frames: int = 8, shape: tuple[int, int] = (96, 128), colour=False
) -> Path:
    """Write a tiny run in COLD's format and return its path."""
    write_cold_run(path, tiny_frames(frames, shape, colour), tiny_odometry(frames))
    return path


def damage(content, rng):
    """Cut, insert, overwrite or flip a piece."""
    at, piece = int(rng.integers(len(content))), rng.bytes(int(rng.integers(1, 65)))
    flipped = bytes([content[at] ^ (1 << int(rng.integers(8)))])
    over, behind = at + len(piece), at + 1
    forms = [b'', piece + content[at:], piece + content[over:], *[flipped + content[behind:]] * 3]
    return content[:at] + forms[int(rng.integers(len(forms)))]
