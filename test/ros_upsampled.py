"""
A camera of a higher rate: the images of a run again and again, under stamps in between.

`python ros_upsampled.py RUN HZ [colour] --ros-args …` plays such a run with stamps of now.
"""

from dataclasses import replace
import sys

from kbr_localization.datasets import Dataset, open_dataset
from kbr_localization.datasets.frame import Frame
from kbr_localization.ros.common.running import ros_context
from kbr_localization.ros.playback.player import Player
from kbr_localization.ros.playback.schedule import PlayerOptions
import numpy as np
from rclpy.node import Node


class Upsampled(Dataset):
    """A dataset with frames at `rate` Hz, each with the image of the nearest frame of a run."""

    def __init__(self, dataset, rate, colour=False, keep=200):
        self.name, self.skipped, self.odometry = (
            f'{dataset.name} at {rate} Hz',
            {},
            dataset.odometry,
        )
        frames = [dataset[index] for index in range(min(keep, len(dataset)))]
        images = [frame.load_image() for frame in frames]
        if colour:
            images = [np.stack([image] * 3, axis=-1) for image in images]
        self._frames = [replace(f, image=i) for f, i in zip(frames, images, strict=True)]
        starts = np.array([frame.stamp_ns for frame in frames])
        self.stamps_ns = np.arange(starts[0], starts[-1], round(1e9 / rate))
        self._nearest = np.abs(starts[:, None] - self.stamps_ns[None]).argmin(axis=0)

    def __len__(self):
        return len(self.stamps_ns)

    def __getitem__(self, index):
        stamp_ns = int(self.stamps_ns[index])
        frame = self._frames[self._nearest[index]]
        return Frame(stamp_ns, frame.image, self.odometry.at(stamp_ns), frame.reference)


def main(run, rate, colour=''):
    dataset = Upsampled(open_dataset(run), float(rate), colour == 'colour')
    options = PlayerOptions(stamps='now', duration=len(dataset) / float(rate), linger=0.2)
    with ros_context([]) as stop:
        node = Node('player')
        print(Player(node, dataset, options, lambda *_: None, stop).play(), flush=True)
        node.destroy_node()


if __name__ == '__main__':
    main(*sys.argv[1:])
