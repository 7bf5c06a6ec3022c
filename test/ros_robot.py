"""A small robot for node tests: runs past a textured wall, their map, and what the robot sends."""

from dataclasses import dataclass
from pathlib import Path
import time

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
from ros_helpers import PATIENCE, RELIABLE
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
    """
    Sends odometry and images of a drive along the wall, stamp by stamp, as a test asks for it.

    `odometry_origin`: where the odometry frame has the start. Stamps begin at `start_ns`.
    """

    def __init__(
        self,
        ros,
        namespace='',
        start_ns=START_NS,
        x=0.0,
        image_qos=RELIABLE,
        image_topic='image',
    ):
        self.ros, self.start_ns, self.x = ros, start_ns, x
        self.origin = np.array([2.0, -1.0, 3.0])
        create = ros.node.create_publisher
        self.images = create(Image, f'{namespace}/{image_topic}', image_qos)
        self.odometry = create(Odometry, f'{namespace}/odom', RELIABLE)
        self.initialpose = create(PoseWithCovarianceStamped, f'{namespace}/initialpose', 10)

    def wait_for_listeners(self, count=1):
        publishers = (self.images, self.odometry)
        self.ros.spin_until(lambda: all(p.get_subscription_count() >= count for p in publishers))

    def stamp_ns(self, seconds):
        return self.start_ns + round(seconds * SECOND)

    def pose(self, seconds):
        return straight_reference(seconds) + np.array([self.x, 0.0, 0.0])

    def odometry_pose(self, seconds):
        return se2.compose(self.origin, straight_reference(seconds))

    def send_odometry(self, seconds, frame_id='odom', pose=None, speed=0.0):
        pose = self.odometry_pose(seconds) if pose is None else pose
        stamp_ns = self.stamp_ns(seconds)
        message = conversions.odometry_message(stamp_ns, pose, frame_id, 'base_footprint')
        message.twist.twist.linear.x = speed
        self.odometry.publish(message)

    def send_image(self, seconds, image=None):
        image = wall_image(self.pose(seconds)[0]) if image is None else image
        self.images.publish(conversions.image_message(image, self.stamp_ns(seconds), 'camera'))

    def stand(self, seconds, at):
        """Send odometry and image of the place of time `at` under a later stamp."""
        self.send_odometry(seconds, pose=self.odometry_pose(at))
        self.send_image(seconds, wall_image(self.pose(at)[0]))

    def drive(self, start, end, image_every=0.4, pace=0.01):
        """Send odometry at 20 Hz and images in between, `pace` seconds of real time per step."""
        for tick in range(round(start * 20), round(end * 20) + 1):
            seconds = tick / 20
            self.send_odometry(seconds)
            if tick % round(image_every * 20) == 0:
                self.send_image(seconds)
            self.ros.spin(pace)

    def drive_until(self, says, clock=0.0, timeout=PATIENCE):
        """
        Drive in real time until a condition holds.

        `clock`: seconds by which the odometry's clock is ahead of the camera's.
        """
        started, sent = time.monotonic(), 0

        def holds():
            nonlocal sent
            while started + sent / 20 <= time.monotonic():
                self.send_odometry(sent / 20 + clock, pose=self.odometry_pose(sent / 20))
                if sent % 4 == 0:
                    self.send_image(sent / 20)
                sent += 1
            self.ros.spin(0.02)
            return says()

        self.ros.spin_until(holds, timeout)

    def send_initial_pose(self, seconds, pose, frame_id='map', spread=0.1):
        self.ros.spin_until(self.initialpose.get_subscription_count)
        covariance = np.diag([spread**2, spread**2, spread**2])
        stamp_ns = 0 if seconds is None else self.stamp_ns(seconds)
        self.initialpose.publish(
            conversions.pose_with_covariance(stamp_ns, frame_id, np.asarray(pose), covariance)
        )
