"""Two cameras from topics to poses: node, recorder and player as processes that talk DDS."""

import array
import itertools

import cv2
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseWithCovarianceStamped
from helpers import START_NS, straight_reference, wall_image
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.images import MessageImage
from kbr_localization.errors import DatasetError
from kbr_localization.localization.map.build import build_map
from kbr_localization.ros import conversions
import numpy as np
import pytest
from ros_helpers import RELIABLE
from ros_robot import (
    diagnostics,
    node_at_hand,
    off_by,
    Recorded,
    Robot,
    start_node,
    start_player,
    VISION,
    wait_for_answer,
)
from sensor_msgs.msg import CompressedImage, Image
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
    player = start_player(ros, two_camera_world, image_transport='compressed', rate=8.0)
    assert player.wait() == 0, player.output
    assert '80 images' in player.output
    pose = wait_for_answer(ros, poses, START_NS + 39 * 400_000_000)
    assert off_by(pose, straight_reference(39 * 0.4)) < 0.3
    assert node.stop() == 0 and 'Traceback' not in node.output


def test_a_camera_that_dies_is_told_and_the_other_goes_on(ros, two_camera_world):
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    with node_at_hand(ros, map_file=two_camera_world.map_file, **TWO):
        robot = TwoCameraRobot(ros)
        robot.wait_for_listeners()
        robot.drive(0.0, 4.0)
        robot.dead.add('front')
        robot.drive(4.05, 10.0, image_every=0.2)
        pose = wait_for_answer(ros, poses, robot.stamp_ns(9.8 + robot.delay))
        assert off_by(pose, robot.pose(9.8)) < 0.4
        going_on = 'no images of front: going on with rear alone'
        ros.spin_until(lambda: going_on in diagnostics(reports, ': input')[0])
        robot.dead.clear()
        robot.drive(10.05, 12.0, image_every=0.2)
        ros.spin_until(lambda: going_on not in diagnostics(reports, ': input')[0])


def test_cameras_that_never_agree_are_explained(ros, two_camera_world):
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    with node_at_hand(ros, map_file=two_camera_world.map_file, sync_tolerance=0.01, **TWO):
        robot, starts = TwoCameraRobot(ros, delay=0.1), itertools.count(0.0, 0.4)
        robot.wait_for_listeners()

        def says_so():
            start = next(starts)
            robot.drive(start, start + 0.35, image_every=0.2)
            message, values = diagnostics(reports, ': input')
            dropped = values.get('images dropped: front: no image of rear near', 0)
            return 'raise sync_tolerance' in message and int(dropped) > 2

        ros.spin_until(says_so)


def test_two_cameras_are_recorded_and_make_a_map(ros):
    recorded = Recorded(ros, TwoCameraRobot(ros), **TWO)
    recorder = recorded.start()
    recorded.drive_until(lambda: recorded.images() >= 12)
    assert recorder.stop() == 0 and 'Traceback' not in recorder.output
    run = open_dataset(recorded.out)
    assert run.cameras == ('front', 'rear') and len(run) >= 12
    front, rear = run[10].load_image()
    assert np.abs(mirrored(front).astype(int) - rear).max() < 40
    kernel_map = build_map([run], VISION)
    assert kernel_map.cameras == ('front', 'rear') and len(kernel_map) == len(run)


def test_compressed_depth_is_refused_as_raw_depth_is():
    values = np.full((8, 8), 3000, np.uint16)
    data = array.array('B', cv2.imencode('.png', values)[1].tobytes())
    depth = MessageImage(CompressedImage(format='16UC1; png compressed ', data=data))
    for read in (depth, lambda: depth.encoded(95)):
        with pytest.raises(DatasetError, match="'16UC1' is of measurements, as depth"):
            read()
    brightness = MessageImage(CompressedImage(format='mono16; png compressed ', data=data))
    np.testing.assert_array_equal(brightness(), values >> 8)
