"""The player as a process of its own, by node and by `kbr play`, seen over DDS."""

import shutil
import signal

from geometry_msgs.msg import PoseWithCovarianceStamped
from helpers import write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.errors import DatasetError
from kbr_localization.ros import conversions
from kbr_localization.ros.player import schedule
from nav_msgs.msg import Odometry
import numpy as np
import pytest
from ros_helpers import RELIABLE
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image

pytestmark = pytest.mark.ros


def stamps(messages):
    return [conversions.stamp_to_ns(message.header.stamp) for message in messages]


def test_the_schedule_is_in_order_of_time_and_can_be_cut(tmp_path):
    run = open_dataset(write_tiny_cold_run(tmp_path / 'run', frames=10))
    events = schedule(run)
    assert [e.stamp_ns for e in events] == sorted(e.stamp_ns for e in events)
    assert sum(e.is_image for e in events) == 10
    cut = schedule(run, start=1.0, duration=1.0)
    assert 2 <= sum(e.is_image for e in cut) <= 3
    with pytest.raises(DatasetError, match=r"in 'run' from 1000 s on: the run has 4.6 s"):
        schedule(run, start=1000.0)
    with pytest.raises(DatasetError, match=r'from 0.01 s for 0.02 s: '):
        schedule(run, start=0.01, duration=0.02)


def test_it_waits_for_its_subscribers_then_sends_everything_in_time(ros, tmp_path):
    run = open_dataset(write_tiny_cold_run(tmp_path / 'run', frames=8))
    player = ros.start_node('player', run=run.path, rate=2.0)
    ros.spin_until(lambda: 'waiting for subscribers on /image' in player.output)
    clock = ros.collect(Clock, '/clock')
    references = ros.collect(PoseWithCovarianceStamped, 'reference_pose')
    odometry = ros.collect(Odometry, 'odom')
    images, now = [], []

    def take(message):
        images.append(message)
        now.append(conversions.stamp_to_ns(clock[-1].clock))

    ros.node.create_subscription(Image, 'image', take, RELIABLE)
    ros.spin_until(lambda: player.popen.poll() is not None and len(odometry) >= 77)
    assert player.wait() == 0
    assert 'published 8 images, 77 odometry messages, 8 reference poses' in player.output
    assert stamps(images) == stamps(references) == run.stamps_ns.tolist()
    assert stamps(odometry) == run.odometry.stamps_ns.tolist()
    for index, message in enumerate(images):
        sent = np.frombuffer(message.data, np.uint8).reshape(message.height, message.step)
        np.testing.assert_array_equal(sent, run[index].load_image())
        pose = conversions.pose_from_message(references[index].pose.pose)
        np.testing.assert_allclose(pose, run[index].reference, atol=1e-12)
    ticks = [conversions.stamp_to_ns(message.clock) for message in clock]
    assert ticks == sorted(ticks) and len(ticks) > 100
    assert np.all(np.abs(np.array(now) - run.stamps_ns) < 100_000_000)


def test_a_loop_jumps_back_and_sigint_ends_it(ros, tmp_path):
    path = write_tiny_cold_run(tmp_path / 'run', frames=3)
    images, _ = ros.collect(Image, 'image'), ros.collect(Odometry, 'odom')
    player = ros.start_node('player', run=path, rate=10, loop=True)
    ros.spin_until(lambda: len(images) >= 7)
    assert stamps(images)[:3] == stamps(images)[3:6]
    assert player.stop(signal.SIGINT) == 0
    assert 'stopped after' in player.output and 'Traceback' not in player.output


def test_stamps_of_now_need_no_clock_and_a_broken_image_is_counted(ros, tmp_path):
    path = write_tiny_cold_run(tmp_path / 'run', frames=4)
    sorted((path / 'std_cam').iterdir())[1].write_bytes(b'\xff\xd8 no image')
    images, _ = ros.collect(Image, 'image'), ros.collect(Odometry, 'odom')
    clock = ros.collect(Clock, '/clock')
    player = ros.start_node('player', run=path, rate=10, stamps='now')
    ros.spin_until(lambda: len(images) == 3)
    age = ros.node.get_clock().now().nanoseconds - np.array(stamps(images))
    assert np.all(np.abs(age) < 5_000_000_000) and not clock
    assert player.wait() == 0 and '1 broken image' in player.output


@pytest.mark.parametrize(
    'rules',
    [['image:=camera'], ['image:=elsewhere', 'image/compressed:=camera/compressed']],
)
def test_the_command_publishes_the_bytes_of_the_files_on_remapped_topics(ros, tmp_path, rules):
    path = write_tiny_cold_run(tmp_path / 'run', frames=3)
    images = ros.collect(CompressedImage, 'camera/compressed')
    odometry = ros.collect(Odometry, 'odom')
    options = ['--rate', '5', '--compressed', *(f'--remap={rule}' for rule in rules)]
    player = ros.start('kbr_localization', 'play', path, *options)
    ros.spin_until(lambda: len(images) == 3)
    assert player.wait() == 0
    assert stamps(images) == open_dataset(path).stamps_ns.tolist()
    files = sorted((path / 'std_cam').iterdir())
    assert [bytes(m.data) for m in images] == [file.read_bytes() for file in files]
    assert 'published 3 images' in player.output and odometry


@pytest.mark.parametrize(
    'values, says',
    [
        ({'run': '/no/such/run'}, 'no such run: /no/such/run'),
        ({}, "parameter 'run' is empty"),
        ({'rate': -1.0}, "parameter 'rate': expected a value in [0.01, 1000.0], got -1.0"),
        ({'rat': 2.0}, "unknown parameter 'rat' = 2.0: did you mean 'rate'?"),
        ({'rate': 'fast'}, "parameter 'rate': expected float, got 'fast'"),
    ],
)
def test_bad_input_ends_in_one_line_and_exit_code_2(ros, values, says):
    player = ros.start_node('player', **values)
    assert player.wait() == 2
    assert says in player.output and 'Traceback' not in player.output
    assert len(player.output.strip().splitlines()) == 1


@pytest.mark.parametrize(
    'rule, says',
    [
        ('image', '--remap image: expected FROM:=TO, as image:=/camera/image_raw'),
        ('image:=odom', "cannot use topic 'image': Failed to create publisher"),
    ],
)
def test_a_bad_remapping_is_one_line(ros, tmp_path, rule, says):
    run = write_tiny_cold_run(tmp_path / 'run', frames=3)
    player = ros.start('kbr_localization', 'play', run, '--remap', rule)
    assert player.wait() == 2
    (line,) = player.output.splitlines()
    assert line.startswith(f'kbr: {says}')


@pytest.mark.parametrize('camera', ['0', 'front-left'])
def test_a_camera_whose_name_is_none_of_a_topic_is_told(ros, tmp_path, camera):
    path = write_tiny_cold_run(tmp_path / 'run', frames=3)
    shutil.copytree(path / 'std_cam', path / 'rear_cam')
    (path / 'std_cam').rename(path / f'{camera}_cam')
    player = ros.start_node('player', run=path)
    assert player.wait() == 2 and 'Traceback' not in player.output
    assert f"cannot use topic '{camera}/image'" in player.output


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
