"""A small robot for node tests: runs past a textured wall, their map, and what the robot sends."""

from dataclasses import dataclass
from pathlib import Path

from geometry_msgs.msg import PoseWithCovarianceStamped
from helpers import START_NS, straight_reference, wall_image
from kbr_localization import se2
from kbr_localization.datasets import open_dataset
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.map.build import build_map
from kbr_localization.ros import conversions
from kbr_localization.vision import VisionConfig
from nav_msgs.msg import Odometry
import numpy as np
from ros_helpers import RELIABLE
from sensor_msgs.msg import Image

SECOND = 1_000_000_000
VISION = VisionConfig(words=60, vocabulary_samples=4000, scale_up=False)


@dataclass(frozen=True)
class TinyWorld:
    """A run of 8 m on disk and the map made from it, with its statistics as `kbr` saves it."""

    run: Path
    map_file: Path


def make_tiny_world(folder, run):
    kernel_map = build_map([open_dataset(run)], VISION)
    with_statistics(kernel_map).save(folder / 'map.h5')
    return TinyWorld(run, folder / 'map.h5')


class Robot:
    """Sends odometry and images of a drive along the wall, stamp by stamp, as a test asks."""

    start_ns = START_NS

    def __init__(self, ros, image_topic='image'):
        self.ros, create = ros, ros.node.create_publisher
        self.images = create(Image, image_topic, RELIABLE)
        self.odometry = create(Odometry, 'odom', RELIABLE)
        self.initialpose = create(PoseWithCovarianceStamped, 'initialpose', 10)

    def wait_for_listeners(self):
        publishers = (self.images, self.odometry)
        self.ros.spin_until(lambda: all(p.get_subscription_count() for p in publishers))

    def stamp_ns(self, seconds):
        return self.start_ns + round(seconds * SECOND)

    def pose(self, seconds):
        return straight_reference(seconds)

    def odometry_pose(self, seconds):
        return se2.compose(np.array([2.0, -1.0, 3.0]), straight_reference(seconds))

    def send_odometry(self, seconds, pose=None):
        pose = self.odometry_pose(seconds) if pose is None else pose
        frames = ('odom', 'base_footprint')
        message = conversions.odometry_message(self.stamp_ns(seconds), pose, *frames)
        self.odometry.publish(message)

    def send_image(self, seconds, image=None):
        image = wall_image(self.pose(seconds)[0]) if image is None else image
        self.images.publish(conversions.image_message(image, self.stamp_ns(seconds), 'camera'))

    def stand(self, seconds, at):
        """Send odometry and image of the place of time `at` under a later stamp."""
        self.send_odometry(seconds, pose=self.odometry_pose(at))
        self.send_image(seconds, wall_image(self.pose(at)[0]))

    def drive(self, start, end, image_every=0.4):
        """Send odometry at 20 Hz and images in between, five times as fast as stamped."""
        for tick in range(round(start * 20), round(end * 20) + 1):
            seconds = tick / 20
            self.send_odometry(seconds)
            if tick % round(image_every * 20) == 0:
                self.send_image(seconds)
            self.ros.spin(0.01)

    def send_initial_pose(self, seconds, pose, frame_id='map'):
        self.ros.spin_until(self.initialpose.get_subscription_count)
        stamp_ns = 0 if seconds is None else self.stamp_ns(seconds)
        message = conversions.pose_with_covariance(stamp_ns, frame_id, pose, 0.01 * np.eye(3))
        self.initialpose.publish(message)
