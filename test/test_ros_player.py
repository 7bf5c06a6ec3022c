"""The player as a process, by node and by `kbr play`, seen over DDS."""

import re
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
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image

pytestmark = pytest.mark.ros


@pytest.fixture
def folder(tmp_path):
    return write_tiny_cold_run(tmp_path / 'run', frames=4, colour=True)


@pytest.fixture
def run(folder):
    return open_dataset(folder)


def stamps(messages):
    return [conversions.stamp_to_ns(message.header.stamp) for message in messages]


def test_the_schedule_is_in_order_of_time_and_can_be_cut(run):
    events = schedule(run, 0.0, 0.0)
    assert [ns for ns, _, _ in events] == sorted(ns for ns, _, _ in events)
    assert sum(is_image for _, is_image, _ in events) == 4
    assert [place for _, is_image, place in schedule(run, 0.8, 0.6) if is_image] == [1, 2]
    for start, duration in ((1000.0, 0.0), (0.01, 0.02)):
        with pytest.raises(DatasetError, match=f"'run' .* {start:g} s on .* the run has 2.2 s"):
            schedule(run, start, duration)


def test_it_waits_for_its_subscribers_then_sends_everything_in_time(ros, run, folder):
    player = ros.start_node('player', run=folder, rate=2.0)
    ros.spin_until(lambda: 'waiting for subscribers on /image' in player.output)
    clock = ros.collect(Clock, '/clock')
    references = ros.collect(PoseWithCovarianceStamped, 'reference_pose')
    images, odometry = ros.collect(Image, 'image'), ros.collect(Odometry, 'odom')
    ros.spin_until(lambda: player.poll() is not None and len(odometry) >= 45)
    assert player.wait() == 0
    sent = '45 odometry messages, 4 reference poses, 4 images in '
    assert f'published {sent}' in player.output
    assert stamps(images) == stamps(references) == run.stamps_ns.tolist()
    assert stamps(odometry) == run.odometry.stamps_ns.tolist()
    for frame, message, reference in zip(run, images, references, strict=True):
        pixels = frame.load_image()
        assert message.encoding == 'bgr8'
        received = np.frombuffer(message.data, np.uint8).reshape(message.height, message.step)
        np.testing.assert_array_equal(received.reshape(pixels.shape), pixels)
        pose = conversions.pose_from_message(reference.pose.pose)
        np.testing.assert_allclose(pose, frame.reference, atol=1e-12)
    # a machine that is slow sends later, never sooner than the clock has it
    length = (run.odometry.stamps_ns[-1] - run.odometry.stamps_ns[0]) * 1e-9
    assert float(re.search(rf'{sent}(\S+) s', player.output)[1]) >= length / 2.0
    ticks = [conversions.stamp_to_ns(message.clock) for message in clock]
    assert ticks == sorted(ticks) and ticks[-1] == run.odometry.stamps_ns[-1]


def test_stamps_of_now_need_no_clock_and_a_broken_image_is_counted(ros, folder):
    sorted((folder / 'std_cam').iterdir())[1].write_bytes(b'\xff\xd8 no image')
    images, _ = ros.collect(Image, 'image'), ros.collect(Odometry, 'odom')
    clock, started_ns = ros.collect(Clock, '/clock'), ros.node.get_clock().now().nanoseconds
    player = ros.start_node('player', run=folder, rate=10, stamps='now')
    ros.spin_until(lambda: len(images) == 3)
    assert started_ns < min(stamps(images)) and not clock
    assert player.wait() == 0 and 'left out: 1 broken image' in player.output


def test_the_command_publishes_the_bytes_of_the_files_over_and_over_until_ctrl_c(ros, run, folder):
    images, _ = ros.collect(CompressedImage, 'image/compressed'), ros.collect(Odometry, 'odom')
    arguments = ('--rate', 10, '--compressed', '--loop')
    player = ros.start('kbr_localization', 'play', folder, *arguments)
    ros.spin_until(lambda: len(images) >= 8)
    assert stamps(images[:4]) == stamps(images[4:8]) == run.stamps_ns.tolist()
    files = sorted((folder / 'std_cam').iterdir())
    assert [bytes(m.data) for m in images[:4]] == [file.read_bytes() for file in files]
    assert player.stop(signal.SIGINT) == 0
    assert 'stopped after' in player.output and 'Traceback' not in player.output
