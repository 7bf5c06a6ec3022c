"""`kbr play` and the pose logger as processes, heard and spoken to by another node."""

import json

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import PoseWithCovarianceStamped
from helpers import write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.ros import conversions
from nav_msgs.msg import Odometry
import numpy as np
import pytest
from ros_helpers import RELIABLE
from sensor_msgs.msg import CompressedImage

pytestmark = pytest.mark.ros


@pytest.mark.parametrize(
    'rules',
    [['image:=camera'], ['image:=elsewhere', 'image/compressed:=camera/compressed']],
)
def test_a_run_is_published_on_remapped_topics(ros, tmp_path, rules):
    run = write_tiny_cold_run(tmp_path / 'run', frames=3)
    images = ros.collect(CompressedImage, 'camera/compressed')
    odometry = ros.collect(Odometry, 'odom')
    options = ['--rate', '5', '--compressed', *(f'--remap={rule}' for rule in rules)]
    player = ros.start('kbr_localization', 'play', run, *options)
    ros.spin_until(lambda: len(images) == 3)
    assert player.wait() == 0
    stamps = [conversions.stamp_to_ns(message.header.stamp) for message in images]
    assert stamps == open_dataset(run).stamps_ns.tolist()
    assert 'published 3 images' in player.output
    assert len(odometry) > 0


def test_a_remapping_that_is_none_is_refused_before_anything_is_read(ros, tmp_path):
    player = ros.start('kbr_localization', 'play', tmp_path, '--remap', 'image')
    assert player.wait() == 2
    (line,) = player.output.splitlines()
    assert line == 'kbr: --remap image: expected FROM:=TO, as image:=/camera/image_raw'


def test_two_topics_that_are_remapped_to_one_are_one_line(ros, tmp_path):
    run = write_tiny_cold_run(tmp_path / 'run', frames=3)
    player = ros.start('kbr_localization', 'play', run, '--remap', 'image:=odom')
    assert player.wait() == 2
    (line,) = player.output.splitlines()
    assert line.startswith("kbr: cannot use 'image' on /odom: the node has messages of another")


def test_without_ros_playing_says_what_is_missing(ros, tmp_path):
    script = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == 'rclpy':
            raise ModuleNotFoundError('gone', name=name)
sys.meta_path.insert(0, Missing())
from kbr_localization.cli import main
main(['play', 'run'])
"""
    (tmp_path / 'no_ros.py').write_text(script)
    player = ros.start('no_ros', PYTHONPATH=str(tmp_path))
    assert player.wait() == 2
    (line,) = player.output.splitlines()
    assert 'needs the Python module rclpy' in line and 'source the setup file' in line


def test_the_pose_logger_prints_one_json_object_a_pose(ros):
    logger = ros.start_node('pose_logger')
    publisher = ros.node.create_publisher(PoseWithCovarianceStamped, 'amcl_pose', RELIABLE)
    ros.spin_until(lambda: 'listening' in logger.output and publisher.get_subscription_count())
    covariance = np.diag([0.01, 0.02, 0.03])
    broken = conversions.pose_with_covariance(1, 'map', np.zeros(3), covariance)
    broken.pose.pose.orientation.w = float('nan')
    publisher.publish(broken)
    stamp_ns = 1_600_000_000_123_456_789
    pose = np.array([1.0, -2.0, 0.5])
    publisher.publish(conversions.pose_with_covariance(stamp_ns, 'map', pose, covariance))
    ros.spin_until(lambda: str(stamp_ns) in logger.output)
    assert logger.stop() == 0
    lines = [json.loads(line) for line in logger.output.splitlines() if line.startswith('{')]
    assert lines[0] == {'listening': '/amcl_pose'}
    (logged,) = lines[1:]
    assert logged['stamp_ns'] == stamp_ns
    np.testing.assert_allclose(logged['pose'], pose, atol=1e-12)
    np.testing.assert_allclose(logged['covariance'], covariance)
    assert logged['status'] == 'not localized'
    assert 'pose left out' in logger.output


@pytest.mark.parametrize(
    'level, said, logged',
    [
        (DiagnosticStatus.ERROR, 'Not on this map: confidence 0.1', 'not on this map'),
        (DiagnosticStatus.STALE, 'Localized, but: nothing comes', 'not localized'),
    ],
)
def test_the_pose_logger_adds_what_the_node_said_of_itself(ros, level, said, logged):
    logger = ros.start_node('pose_logger')
    publisher = ros.node.create_publisher(PoseWithCovarianceStamped, 'amcl_pose', RELIABLE)
    told = ros.node.create_publisher(DiagnosticArray, '/diagnostics', RELIABLE)
    ros.spin_until(lambda: 'listening' in logger.output and told.get_subscription_count())
    status = DiagnosticStatus(name='robot/node: localization', level=level, message=said)
    pose = conversions.pose_with_covariance(1, 'map', np.zeros(3), np.eye(3))

    def last_line():
        told.publish(DiagnosticArray(status=[status]))
        ros.spin(0.3)  # the two topics keep no order between them
        publisher.publish(pose)
        ros.spin(0.3)
        return logger.output.splitlines()[-1]

    ros.spin_until(lambda: '"pose"' in last_line())
    assert f'"status": "{logged}"' in last_line()
    assert logger.stop() == 0
