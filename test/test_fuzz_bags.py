"""Bags whose messages are well-formed and absurd: what is read of them is finite, or refused."""

import shutil

from fuzzing import budget, read_everything
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

bags = pytest.importorskip('bag_helpers', reason='needs rosbags', exc_type=ImportError)

NUMBER = st.floats(width=64) | st.floats(-5.0, 5.0)
NANOSECONDS = st.integers(0, 2**31 * bags.SECOND - 1) | st.integers(0, 5 * bags.SECOND)
FRAMES = st.sampled_from(['odom', 'map', '', 'base', '/odom', 'o' * 300])
WORDS = st.sampled_from(['mono8', 'bgr8', 'rgba8', 'bayer_rggb8', '16UC1', '', 'x' * 100])


@st.composite
def odometries(draw):
    message = bags.odometry(draw(NANOSECONDS), draw(NUMBER), draw(FRAMES))
    q = message.pose.pose.orientation
    q.x, q.y, q.z, q.w = (draw(NUMBER) for _ in range(4))
    return '/odom', message, draw(NANOSECONDS)


@st.composite
def images(draw):
    message = bags.image(draw(NANOSECONDS), encoding=draw(WORDS))
    for name in draw(st.sets(st.sampled_from(['height', 'width', 'step']))):
        setattr(message, name, draw(st.integers(0, 2**32 - 1) | st.integers(0, 20)))
    message.data = np.frombuffer(draw(st.binary(max_size=200)), np.uint8)
    return '/image', message, draw(NANOSECONDS)


@st.composite
def references(draw):
    message = bags.pose_covariance(draw(NANOSECONDS), draw(NUMBER), draw(NUMBER))
    return '/amcl_pose', message, draw(NANOSECONDS)


MESSAGES = st.lists(odometries() | images() | references(), min_size=1, max_size=12)


@budget(40)
@given(messages=MESSAGES, storage=st.sampled_from(['mcap', 'sqlite3']), whole=st.booleans())
def test_bags_of_absurd_messages(tmp_path, messages, storage, whole):
    path = tmp_path / 'bag'
    shutil.rmtree(path, ignore_errors=True)
    good = [*bags.drive(), *bags.images()] if whole else []
    bags.write_messages(path, [*good, *messages], storage)
    read_everything(path)
