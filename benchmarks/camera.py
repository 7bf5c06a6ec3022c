"""
A camera and an odometry of full rate: `python -m benchmarks.camera RUN RATE SECONDS`.

The images of a recorded run are sent again and again under stamps of now, as 640x480 or whatever
the run has, in colour, raw and best effort as camera drivers do it; the odometry comes at 50 Hz.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import cv2
from kbr_localization.datasets import Dataset, Frame, OdometryTrack, open_dataset
from kbr_localization.datasets.frame import Image
from kbr_localization.progress import silent
from kbr_localization.ros.player import Player, PlayerOptions
from kbr_localization.ros.running import ros_context
import numpy as np
from rclpy.node import Node

ODOMETRY_RATE = 50.0
SECOND = 1_000_000_000


class Upsampled(Dataset):
    """A run of `seconds` with frames at `rate` Hz, each with the nearest image of another run."""

    def __init__(self, dataset: Dataset, rate: float, seconds: float) -> None:
        self.name, self.skipped = f'{dataset.name} at {rate} Hz', dict[str, int]()
        stamps = np.array([frame.stamp_ns for frame in dataset])
        first_ns, last_ns = stamps[0], min(stamps[-1], stamps[0] + round(seconds * SECOND))
        used = [frame for frame in dataset if frame.stamp_ns <= last_ns]
        self._frames = [replace(frame, image=_grey(frame.load_image())) for frame in used]
        self._stamps = np.arange(first_ns, last_ns, round(SECOND / rate))
        stamps = stamps[stamps <= last_ns]
        centres = (stamps[1:] + stamps[:-1]) // 2
        self._nearest = np.searchsorted(centres, self._stamps)
        samples = np.arange(first_ns, last_ns, round(SECOND / ODOMETRY_RATE))
        poses = np.array([dataset.odometry.at(int(stamp)) for stamp in samples])
        self.odometry = OdometryTrack(samples, poses)

    def __len__(self) -> int:
        """Count the frames."""
        return len(self._stamps)

    def __getitem__(self, index: int) -> Frame:
        """Return a frame in colour; only then, as so many would not fit into the memory."""
        frame = self._frames[int(self._nearest[index])]
        colour = cv2.cvtColor(frame.load_image(), cv2.COLOR_GRAY2BGR)
        return replace(frame, stamp_ns=int(self._stamps[index]), image=np.asarray(colour))

    def __iter__(self) -> Iterator[Frame]:
        """Iterate over the frames in order of time."""
        return (self[index] for index in range(len(self)))


def _grey(image: Image) -> Image:
    return image if image.ndim == 2 else np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY))


def main() -> None:
    """Play and say what was sent."""
    parser = argparse.ArgumentParser(description='a camera and an odometry of full rate')
    parser.add_argument('run', help='whose images are sent')
    parser.add_argument('rate', type=float, help='images per second')
    parser.add_argument('seconds', type=float, help='how long')
    given = parser.parse_args()
    dataset = Upsampled(open_dataset(given.run), given.rate, given.seconds)
    options = PlayerOptions(
        stamps='now', reliability='best_effort', linger=0.0, reference=False, settle=0.5
    )
    with ros_context([]) as stop:
        node = Node('camera')
        print('ready', flush=True)
        print(Player(node, dataset, options, silent, stop).play(), flush=True)
        node.destroy_node()


if __name__ == '__main__':
    main()
