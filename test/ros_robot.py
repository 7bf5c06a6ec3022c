"""A small robot for node tests: runs past a textured wall, their map, and the node on it."""

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseArray, PoseWithCovarianceStamped
from helpers import START_NS, straight_reference, wall_image
from kbr_localization import se2
from kbr_localization.datasets import open_dataset
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.map.build import build_map
from kbr_localization.ros import conversions
from kbr_localization.ros.node import LocalizationNode
from kbr_localization.vision import VisionConfig
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from nav_msgs.msg import Odometry
import numpy as np
from ros_helpers import call, LATCHED, parameter_arguments, RELIABLE
from sensor_msgs.msg import Image

SECOND = 1_000_000_000
VISION = VisionConfig(words=60, vocabulary_samples=4000, scale_up=False)
EVERY_IMAGE = {'image_queue': 200, 'image_backlog': 200}
"""A machine that is slow answers later, and from the same images."""


@dataclass(frozen=True)
class TinyWorld:
    """A run of 8 m on disk and the map made from it, with its statistics as `kbr` saves it."""

    run: Path
    map_file: Path


def make_tiny_world(folder, write_run):
    run = write_run(folder / 'run', frames=40)
    kernel_map = build_map([open_dataset(run)], VISION)
    with_statistics(kernel_map).save(folder / 'map.h5')
    return TinyWorld(run, folder / 'map.h5')


class Robot:
    """Sends odometry and images of a drive along the wall as a test asks; hears the answers."""

    start_ns = START_NS

    def __init__(self, ros, image_topic='image'):
        self.ros, create = ros, ros.node.create_publisher
        self.images = create(Image, image_topic, RELIABLE)
        self.odometry = create(Odometry, 'odom', RELIABLE)
        self.initialpose = create(PoseWithCovarianceStamped, 'initialpose', 10)
        self.poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
        self.reports = ros.collect(DiagnosticArray, '/diagnostics')

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

    def drive(self, start, end, image_every=0.4):
        """Send odometry at 20 Hz and images in between, five times as fast as stamped."""
        for tick in range(round(start * 20), round(end * 20) + 1):
            seconds = tick / 20
            self.send_odometry(seconds)
            if tick % round(image_every * 20) == 0:
                self.send_image(seconds)
            self.ros.spin(0.01)

    def arrive(self, start, end):
        """Drive, and return how far off the pose of the last image is."""
        self.drive(start, end)
        return off_by(self.answer(end), self.pose(end))

    def answer(self, seconds):
        """Wait until the image of that time is answered; give the pose of the answer."""
        stamp_ns = self.stamp_ns(seconds)
        self.ros.spin_until(lambda: stamp_ns in by_stamp(self.poses))
        return conversions.pose_from_message(by_stamp(self.poses)[stamp_ns].pose)

    def hears(self, text, part=': input'):
        """Wait until the newest report of a part of the node says a text."""
        self.ros.spin_until(lambda: text in diagnostics(self.reports, part)[0])

    def send_initial_pose(self, pose, frame_id='map'):
        self.ros.spin_until(self.initialpose.get_subscription_count)
        message = conversions.pose_with_covariance(0, frame_id, pose, 0.01 * np.eye(3))
        self.initialpose.publish(message)


def start_node(ros, world, **values):
    """Start the localization node, and wait until a manager can lead it."""
    own = {'map_file': world.map_file, 'pose_file': ros.folder / 'pose.json', **EVERY_IMAGE}
    node = ros.start_node('node', autostart=False, **own, **values)
    for transition in (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE):
        request = ChangeState.Request(transition=Transition(id=transition))
        assert call(ros, ChangeState, '/localization/change_state', request).success
    return node


@contextmanager
def node_at_hand(ros, **values):
    """Give a node that is active in the process of the test, whose parts can be reached."""
    values = {'pose_file': ros.folder / 'pose.json', **EVERY_IMAGE, **values}
    node = LocalizationNode(context=ros.context, cli_args=parameter_arguments(values))
    ros.executor.add_node(node)
    node.trigger_configure()
    node.trigger_activate()
    try:
        yield node
    finally:
        ros.executor.remove_node(node)
        node.clean_up()
        node.destroy_node()


def by_stamp(messages):
    """Poses with covariance by stamp in nanoseconds."""
    return {conversions.stamp_to_ns(message.header.stamp): message.pose for message in messages}


def diagnostics(messages, part):
    """Newest status of a part of the node: its message and its values."""
    for message in reversed(messages):
        for status in message.status:
            if status.name.endswith(part):
                return status.message, {pair.key: pair.value for pair in status.values}
    return '', {}


def off_by(pose, expected):
    """Metres from one pose (3,) to another."""
    return float(np.hypot(*(pose - expected)[:2]))


class Recorded:
    """A recorder's process, and a robot whose pose is known."""

    def __init__(self, ros, robot=None, **values):
        self.ros, self.out = ros, ros.folder / 'run'
        self.shown = ros.collect(PoseArray, 'recorder/recorded_poses', LATCHED)
        self.poses = ros.node.create_publisher(PoseWithCovarianceStamped, 'pose', RELIABLE)
        self.robot, self.seconds, self.values = robot or Robot(ros), 0.0, values

    def start(self, says='recording into'):
        node = self.ros.start_node('recorder', out=self.out, **self.values)
        self.ros.spin_until(lambda: says in node.output)
        self.robot.wait_for_listeners()
        return node

    def drive_on(self, count):
        """Drive until so many images are shown as recorded."""
        while not self.shown or len(self.shown[-1].poses) < count:
            robot, at = self.robot, self.seconds
            known = (robot.stamp_ns(at), 'map', robot.pose(at), 0.01 * np.eye(3))
            self.poses.publish(conversions.pose_with_covariance(*known))
            robot.drive(at, at + 0.35)
            self.seconds += 0.4
            assert at < 500.0, 'nothing is recorded'
