"""
Between ROS messages and the package's arrays.

Stamps are integer nanoseconds, poses are (3,) arrays of x, y in metres and heading in radians,
covariances are (3, 3) of x, y, heading.
"""

from __future__ import annotations

import array
import math
from typing import Any

from builtin_interfaces.msg import Time
from geometry_msgs.msg import Pose, PoseWithCovarianceStamped
from kbr_localization.datasets.poses import planar_pose
from kbr_localization.errors import DatasetError, RosError
from kbr_localization.se2 import FloatArray
from nav_msgs.msg import Odometry
import numpy as np
from sensor_msgs.msg import CompressedImage, Image

NANOSECONDS = 1_000_000_000
PNG_START = b'\x89PNG'
LARGEST_VARIANCE = 1e12
"""Square metres or radians; more says nothing else than not to know."""
PLANAR = np.array([0, 1, 5])
"""Rows of x, y and yaw in the 6x6 covariance of a ROS pose."""


def stamp_to_ns(stamp: Time) -> int:
    """Integer nanoseconds of a stamp."""
    return int(stamp.sec) * NANOSECONDS + int(stamp.nanosec)


def ns_to_stamp(stamp_ns: int) -> Time:
    """Stamp of integer nanoseconds."""
    seconds, nanoseconds = divmod(int(stamp_ns), NANOSECONDS)
    return Time(sec=seconds, nanosec=nanoseconds)


def pose_to_message(pose: FloatArray) -> Pose:
    """Pose message in the plane z = 0 of a pose (3,)."""
    message = Pose()
    message.position.x, message.position.y = float(pose[0]), float(pose[1])
    message.orientation.z = math.sin(0.5 * float(pose[2]))
    message.orientation.w = math.cos(0.5 * float(pose[2]))
    return message


def pose_from_message(message: Pose) -> FloatArray:
    """
    Pose (3,) of a message, roll and pitch dropped.

    Raises RosError when a number is not finite or the quaternion has no sensible length.
    """
    try:
        return planar_pose(message)
    except DatasetError as error:
        raise RosError(str(error)) from error


def covariance_to_message(covariance: FloatArray) -> FloatArray:
    """
    Row-major (36,) covariance of x, y, z, roll, pitch, yaw from (3, 3) of x, y, heading.

    z, roll and pitch stay zero, as in nav2_amcl: the robot is taken to move in the plane.
    """
    full = np.zeros((6, 6))
    full[np.ix_(PLANAR, PLANAR)] = covariance
    return full.reshape(36)


def covariance_from_message(covariance: Any) -> FloatArray:
    """Covariance (3, 3) of x, y, heading; raises RosError when it is not a covariance."""
    full = np.asarray(covariance, dtype=np.float64).reshape(6, 6)
    planar = full[np.ix_(PLANAR, PLANAR)]
    variances = np.diag(planar)
    fit = np.all((variances >= 0.0) & (variances <= LARGEST_VARIANCE))
    if not fit or not np.all(np.isfinite(planar)):
        raise RosError(
            f'expected a finite covariance with variances from 0 to {LARGEST_VARIANCE:g}, got '
            f'variances of x, y, yaw {variances.tolist()}: check its sender'
        )
    symmetric = np.asarray(0.5 * planar + 0.5 * planar.T)
    deviations = np.sqrt(variances)
    if np.any(np.abs(symmetric) > 1.000_001 * np.outer(deviations, deviations) + 1e-9):
        raise RosError(
            'expected covariances of x, y, yaw that fit their variances '
            f'{variances.tolist()}, got {symmetric[0, 1]:g}, {symmetric[0, 2]:g} and '
            f'{symmetric[1, 2]:g}: check its sender'
        )
    return symmetric


def pose_with_covariance(
    stamp_ns: int, frame_id: str, pose: FloatArray, covariance: FloatArray
) -> PoseWithCovarianceStamped:
    """Stamped pose message of a pose (3,) and its covariance (3, 3)."""
    message = PoseWithCovarianceStamped()
    message.header.stamp = ns_to_stamp(stamp_ns)
    message.header.frame_id = frame_id
    message.pose.pose = pose_to_message(pose)
    message.pose.covariance = covariance_to_message(covariance)
    return message


def odometry_message(
    stamp_ns: int, pose: FloatArray, frame_id: str, child_frame_id: str
) -> Odometry:
    """Odometry message of a pose (3,) of the base; its velocity is left at zero."""
    message = Odometry()
    message.header.stamp = ns_to_stamp(stamp_ns)
    message.header.frame_id = frame_id
    message.child_frame_id = child_frame_id
    message.pose.pose = pose_to_message(pose)
    return message


def image_message(image: np.ndarray, stamp_ns: int, frame_id: str) -> Image:
    """
    Raw image message, mono8 of (height, width) or bgr8 of (height, width, 3) uint8.

    Raises RosError for an array of another shape or type.
    """
    pixels = _checked_pixels(image)
    message = Image()
    message.header.stamp = ns_to_stamp(stamp_ns)
    message.header.frame_id = frame_id
    message.height, message.width = pixels.shape[:2]
    message.encoding = 'mono8' if pixels.ndim == 2 else 'bgr8'
    message.step = pixels.strides[0]
    # an array('B') is taken over as it is; bytes are checked one by one (62 ms at 640x480)
    message.data = array.array('B', pixels.tobytes())
    return message


def compressed_image_message(encoded: bytes, stamp_ns: int, frame_id: str) -> CompressedImage:
    """Image message of JPEG or PNG bytes."""
    message = CompressedImage()
    message.header.stamp = ns_to_stamp(stamp_ns)
    message.header.frame_id = frame_id
    message.format = 'png' if encoded.startswith(PNG_START) else 'jpeg'
    message.data = array.array('B', encoded)
    return message


def type_name(message_type: type[Any]) -> str:
    """Return the name of a message type as the ROS graph has it."""
    return f'{message_type.__module__.split(".")[0]}/msg/{message_type.__name__}'


def _checked_pixels(image: np.ndarray) -> np.ndarray:
    shaped = image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)
    if image.dtype != np.uint8 or not shaped or image.size == 0:
        raise RosError(
            'expected a uint8 image (height, width) or (height, width, 3), '
            f'got {image.dtype} {image.shape}: convert it first'
        )
    return np.ascontiguousarray(image)
