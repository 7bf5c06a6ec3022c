"""Messages with anything in them: arrays or the package's own errors come out."""

import array
from contextlib import suppress
import math

from fuzzing import budget, damaged
from geometry_msgs.msg import Pose
from helpers import START_NS, tiny_frames
from hypothesis import given
from hypothesis import strategies as st
from kbr_localization.datasets.images import encode_jpeg, ENCODINGS
from kbr_localization.errors import KbrError
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.registry import make_localizer
from kbr_localization.localization.pipeline import Tracker
from kbr_localization.ros.common import conversions
from kbr_localization.ros.inputs.cameras import MessageImage
from kbr_localization.ros.session.answer import GivenPose, InitialPoseSources
from kbr_localization.ros.session.session import Session
import numpy as np
import pytest
from sensor_msgs.msg import CompressedImage, Image

pytestmark = pytest.mark.ros
NUMBER = st.floats(width=64) | st.floats(-1.0, 1.0)
UINT32 = st.integers(0, 2**32 - 1)
FRAME = tiny_frames(1)[0].image
JPEG = encode_jpeg(FRAME, 'test')
SOME_ENCODINGS = [*ENCODINGS, '', '16UC1', '32FC1', 'bayer_rggb16', 'nv12', 'RGB8']


def pose_message(numbers):
    message = Pose()
    message.position.x, message.position.y, message.position.z = numbers[:3]
    q = message.orientation
    q.x, q.y, q.z, q.w = numbers[3:]
    return message


@budget(300)
@given(st.tuples(*[NUMBER] * 7))
def test_poses(numbers):
    with suppress(KbrError):
        pose = conversions.pose_from_message(pose_message(numbers))
        assert np.isfinite(pose).all() and abs(pose[2]) <= math.pi


@pytest.mark.parametrize('place', range(7))
@pytest.mark.parametrize('number', [math.nan, math.inf, -math.inf])
def test_a_pose_with_one_number_that_is_not_finite_is_refused(place, number):
    numbers = [1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    numbers[place] = number
    message = pose_message(numbers)
    if place == 2:
        assert conversions.pose_from_message(message).tolist() == [1.0, 2.0, 0.0]
        return
    with pytest.raises(KbrError, match='expected a finite'):
        conversions.pose_from_message(message)


@budget(100)
@given(st.lists(NUMBER, min_size=36, max_size=36))
def test_covariances(numbers):
    with suppress(KbrError):
        covariance = conversions.covariance_from_message(np.array(numbers))
        assert np.isfinite(covariance).all() and np.all(np.diag(covariance) >= 0)


@budget(200)
@given(
    st.text(max_size=8) | st.sampled_from(SOME_ENCODINGS),
    *[UINT32 | st.integers(0, 20)] * 2,
    UINT32 | st.integers(0, 60),
    st.binary(max_size=1500),
)
def test_raw_images_of_any_numbers(encoding, height, width, step, data):
    check(MessageImage(raw(encoding, height, width, step, data)))


@pytest.mark.parametrize('encoding', SOME_ENCODINGS)
@budget(25)
@given(data=st.data())
def test_raw_images_whose_size_step_and_data_nearly_agree(encoding, data):
    height, width = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
    layout = ENCODINGS.get(encoding, ENCODINGS['mono16'])
    row = width * layout.channels * layout.depth
    step = max(0, row + data.draw(st.integers(-2, 3)))
    size = max(0, step * height + data.draw(st.integers(-3, 3)))
    check(MessageImage(raw(encoding, height, width, step, bytes(size))))


def raw(encoding, height, width, step, data):
    message = Image(encoding=encoding, height=height, width=width, step=step)
    message.data = array.array('B', data)
    return message


@budget(200)
@given(data=st.data(), kind=st.sampled_from(['jpeg', 'png', 'rgb8; jpeg compressed bgr8', '']))
def test_compressed_images(data, kind):
    content = damaged(JPEG, data.draw) if data.draw(st.booleans()) else data.draw(st.binary())
    check(MessageImage(CompressedImage(format=kind, data=array.array('B', content))))


def check(image):
    for result in (image, lambda: image.as_file(90)):
        try:
            result()
        except KbrError as error:
            assert '\n' not in str(error)


@pytest.fixture(scope='module')
def tiny_map(tiny_world):
    return KernelMap.load(tiny_world.map_file)


SECONDS = st.floats(-1e9, 1e9) | st.floats(0.0, 30.0) | st.integers(0, 30).map(float)
POSES = st.tuples(*[st.floats(-1e7, 1e7) | st.floats(-5.0, 5.0)] * 2, st.floats(-3.0, 3.0))
EVENTS = st.one_of(
    st.tuples(st.just('odometry'), SECONDS, POSES),
    st.tuples(st.just('image'), SECONDS, st.just(None)),
    st.tuples(st.just('given'), SECONDS, POSES),
    st.tuples(st.sampled_from(['globally', 'reset', 'update']), st.just(0.0), st.just(None)),
)


@budget(60)
@given(events=st.lists(EVENTS, min_size=5, max_size=40))
def test_a_session_takes_messages_in_any_order_with_any_stamps(tiny_map, events):
    """What it answers is finite, and nothing but the package's errors leaves it."""

    def make():
        return Tracker(tiny_map, make_localizer('kbr', tiny_map, 0))

    session = Session(make, InitialPoseSources(), lambda *_: None)
    for kind, seconds, pose in events:
        stamp_ns = max(0, START_NS + round(seconds * 1e9))
        hand_in(session, kind, stamp_ns, pose)
        for _ in range(2):
            answer = session.work(0.0)
            if answer is not None:
                assert np.isfinite(answer.odom_in_map).all()
                assert np.isfinite(answer.estimate.covariance).all()


def hand_in(session, kind, stamp_ns, pose):
    if kind == 'odometry':
        session.add_odometry(stamp_ns, np.array(pose))
    elif kind == 'image':
        session.add_image(stamp_ns, lambda: FRAME)
    elif kind == 'given':
        session.give_pose(GivenPose(np.array(pose), 0.1 * np.eye(3), stamp_ns))
    elif kind == 'globally':
        session.initialize_globally()
    elif kind == 'reset':
        session.reset('a test')
    else:
        session.request(session.tracking.request_update)
