"""Messages to arrays and back, with the checks against broken senders."""

import array
import math

import cv2
from hypothesis import given
from hypothesis import strategies as st
from kbr_localization.datasets.images import MessageImage
from kbr_localization.errors import DatasetError, RosError
from kbr_localization.ros import conversions
import numpy as np
import pytest
from sensor_msgs.msg import CompressedImage

pytestmark = pytest.mark.ros


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


def test_compressed_depth_is_refused_as_raw_depth_is():
    data = array.array('B', cv2.imencode('.png', np.full((8, 8), 3000, np.uint16))[1].tobytes())
    depth = MessageImage(CompressedImage(format='16UC1; png compressed ', data=data))
    for read in (depth, lambda: depth.encoded(95)):
        with pytest.raises(DatasetError, match="'16UC1' holds measurements such as depth"):
            read()
