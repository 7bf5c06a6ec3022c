"""Messages to arrays and back, with the checks against broken senders."""

import math

from hypothesis import given
from hypothesis import strategies as st
from kbr_localization.errors import RosError
from kbr_localization.ros import conversions
import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import Image

pytestmark = pytest.mark.ros


@given(st.integers(0, (2**31 - 1) * 10**9 + 999_999_999))
def test_stamps_survive_the_round_trip(stamp_ns):
    assert conversions.stamp_to_ns(conversions.ns_to_stamp(stamp_ns)) == stamp_ns


@given(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4), st.floats(-math.pi, math.pi))
def test_poses_survive_the_round_trip(x, y, yaw):
    back = conversions.pose_from_message(conversions.pose_to_message(np.array([x, y, yaw])))
    assert back[:2].tolist() == [x, y]
    assert abs(math.remainder(back[2] - yaw, 2 * math.pi)) < 1e-9


def test_covariances_take_the_rows_of_x_y_and_yaw():
    covariance = np.array([[4.0, 1.0, 0.5], [1.0, 9.0, 0.2], [0.5, 0.2, 1.0]])
    flat = conversions.pose_with_covariance(0, 'map', np.zeros(3), covariance).pose.covariance
    assert [flat[0], flat[1], flat[5], flat[7], flat[35]] == [4.0, 1.0, 0.5, 9.0, 1.0]
    np.testing.assert_array_equal(conversions.covariance_from_message(flat), covariance)


@pytest.mark.parametrize(
    'place, value', [(0, -1.0), (7, 1e300), (35, math.nan), (1, math.inf), (5, 3.0)]
)
def test_a_covariance_that_is_none_is_refused(place, value):
    flat = np.eye(6).reshape(36)
    flat[place] = value
    with pytest.raises(RosError, match='variances'):
        conversions.covariance_from_message(flat)


@pytest.mark.parametrize('shape, encoding', [((6, 8), 'mono8'), ((6, 8, 3), 'bgr8')])
def test_images_become_raw_messages_that_survive_the_wire(shape, encoding):
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    message = conversions.image_message(pixels, 12_000_000_034, 'camera')
    back = deserialize_message(serialize_message(message), Image)
    assert (back.encoding, back.height, back.width) == (encoding, 6, 8)
    assert (back.header.stamp.sec, back.header.stamp.nanosec) == (12, 34)
    received = np.frombuffer(back.data, np.uint8).reshape(6, back.step)
    np.testing.assert_array_equal(received.reshape(shape), pixels)
