"""Two cameras from topics to poses: node, recorder and player as processes that talk DDS."""

import itertools
import signal

from geometry_msgs.msg import PoseWithCovarianceStamped
from helpers import START_NS, straight_reference, wall_image
from kbr_localization.datasets import open_dataset
from kbr_localization.localization.map.build import build_map
from kbr_localization.ros import conversions
import numpy as np
import pytest
from ros_helpers import RELIABLE
from ros_robot import (
    by_stamp,
    diagnostics,
    node_at_hand,
    off_by,
    Recorded,
    Robot,
    start_node,
    VISION,
)
from sensor_msgs.msg import Image
from two_cameras import mirrored

pytestmark = pytest.mark.ros
TWO = {'image_topics': ['front/image', 'rear/image']}


class TwoCameraRobot(Robot):
    """A robot whose rear camera sends the mirror image, `delay` seconds later."""

    def __init__(self, ros, delay=0.004):
        super().__init__(ros, image_topic='front/image')
        self.rear = ros.node.create_publisher(Image, 'rear/image', RELIABLE)
        self.delay, self.dead = delay, set()

    def wait_for_listeners(self):
        super().wait_for_listeners()
        self.ros.spin_until(self.rear.get_subscription_count)

    def send_image(self, seconds, image=None):
        image = wall_image(self.pose(seconds)[0]) if image is None else image
        if 'front' not in self.dead:
            super().send_image(seconds, image)
        if 'rear' not in self.dead:
            stamp_ns = self.stamp_ns(seconds + self.delay)
            message = conversions.image_message(mirrored(image), stamp_ns, 'rear')
            self.rear.publish(message)


def test_what_the_player_sends_of_two_cameras_is_localized(ros, two_camera_world):
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    node = start_node(ros, two_camera_world, image_transport='compressed', **TWO)
    values = {'run': two_camera_world.run, 'image_transport': 'compressed', 'rate': 8.0}
    player = ros.start_node('player', **values)
    assert player.wait() == 0, player.output
    assert '80 images' in player.output
    end_ns = START_NS + 39 * 400_000_000
    ros.spin_until(lambda: end_ns in by_stamp(poses))
    pose = conversions.pose_from_message(by_stamp(poses)[end_ns].pose)
    assert off_by(pose, straight_reference(39 * 0.4)) < 0.3
    assert node.stop(signal.SIGHUP) == 0 and 'Traceback' not in node.output


def test_cameras_that_never_agree_and_one_that_dies_are_told(ros, two_camera_world):
    with node_at_hand(ros, map_file=two_camera_world.map_file, sync_tolerance=0.01, **TWO):
        robot, starts = TwoCameraRobot(ros, delay=0.1), itertools.count(0.0, 0.4)
        robot.wait_for_listeners()

        def drive():
            start = next(starts)
            robot.drive(start, start + 0.35, image_every=0.2)
            return diagnostics(robot.reports, ': input')

        dropped = 'images dropped: front: no image of rear near'
        ros.spin_until(lambda: int(drive()[1].get(dropped, 0)) > 2)
        robot.delay = 0.004
        ros.spin_until(lambda: drive() and robot.poses)
        robot.dead.add('front')
        ros.spin_until(lambda: 'no images of front: using rear alone' in drive()[0])
        robot.poses.clear()
        ros.spin_until(lambda: 'using rear alone' in drive()[0] and robot.poses)
        (stamp_ns, posed), *_ = by_stamp(robot.poses).items()
        pose = conversions.pose_from_message(posed.pose)
        assert off_by(pose, robot.pose((stamp_ns - robot.start_ns) * 1e-9)) < 0.4
        robot.dead.clear()
        ros.spin_until(lambda: 'using rear' not in drive()[0])


def test_two_cameras_are_recorded_and_make_a_map(ros):
    recorded = Recorded(ros, TwoCameraRobot(ros), **TWO)
    recorder = recorded.start()
    recorded.drive_on(12)
    assert recorder.stop() == 0 and 'Traceback' not in recorder.output
    run = open_dataset(recorded.out)
    assert run.cameras == ('front', 'rear') and len(run) >= 12
    front, rear = run[10].load_image()
    assert np.abs(mirrored(front).astype(int) - rear).max() < 40
    kernel_map = build_map([run], VISION)
    assert kernel_map.cameras == ('front', 'rear') and len(kernel_map) == len(run)
