"""Convert ROS messages to and from arrays: stamps in ns, poses (3,), covariances (3, 3)."""

import array
import importlib
import math
from typing import Any

from builtin_interfaces.msg import Time
from geometry_msgs.msg import Pose, PoseWithCovarianceStamped, TransformStamped
from kbr_localization.datasets.tables import floor_pose
from kbr_localization.errors import RosError
from kbr_localization.localization.localizer import is_covariance
from kbr_localization.ros.buffers import SECOND
from kbr_localization.se2 import FloatArray
from nav_msgs.msg import Odometry
import numpy as np
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

PLANAR = np.ix_([0, 1, 5], [0, 1, 5])
"""Indices of x, y and yaw in the 6x6 covariance of a ROS pose."""


def optional_interface(module: str, name: str) -> Any:
    """Return a type such as `nav2_msgs.msg`, `Particle`; None if it is not installed."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def type_name(message_type: type[Any]) -> str:
    """Return the name of a message type as sensor_msgs/msg/Image."""
    return f'{message_type.__module__.split(".")[0]}/msg/{message_type.__name__}'


def stamp_to_ns(stamp: Time) -> int:
    return int(stamp.sec) * SECOND + int(stamp.nanosec)


def ns_to_stamp(stamp_ns: int) -> Time:
    seconds, nanoseconds = divmod(int(stamp_ns), SECOND)
    return Time(sec=seconds, nanosec=nanoseconds)


def stamped_header(stamp_ns: int, frame_id: str) -> Header:
    return Header(stamp=ns_to_stamp(stamp_ns), frame_id=frame_id)


def pose_to_message(pose: FloatArray) -> Pose:
    """Return the message of a pose (3,), with z, roll and pitch zero."""
    message = Pose()
    message.position.x, message.position.y = float(pose[0]), float(pose[1])
    message.orientation.z = math.sin(0.5 * float(pose[2]))
    message.orientation.w = math.cos(0.5 * float(pose[2]))
    return message


def pose_from_message(message: Pose) -> FloatArray:
    """Return the pose (3,), ignoring z, roll and pitch; raises DatasetError as `floor_pose`."""
    return floor_pose(message.position, message.orientation)


def covariance_from_message(covariance: Any) -> FloatArray:
    """Return the covariance (3, 3) of x, y, heading; raises RosError if it is invalid."""
    planar = np.asarray(covariance, dtype=np.float64).reshape(6, 6)[PLANAR]
    symmetric = np.asarray(0.5 * planar + 0.5 * planar.T)
    if not is_covariance(symmetric) or np.diag(symmetric).max() > 1e12:
        raise RosError(
            'expected a finite covariance of x, y, yaw with variances from 0 to 1e+12, got '
            f'{planar.tolist()}: check its sender'
        )
    return symmetric


def pose_with_covariance(
    stamp_ns: int, frame_id: str, pose: FloatArray, covariance: FloatArray
) -> PoseWithCovarianceStamped:
    """Return the message of a pose (3,) and its covariance (3, 3)."""
    message = PoseWithCovarianceStamped(header=stamped_header(stamp_ns, frame_id))
    message.pose.pose = pose_to_message(pose)
    full = np.zeros((6, 6))
    full[PLANAR] = covariance
    message.pose.covariance = full.reshape(36)
    return message


def transform_message(
    stamp_ns: int, frame_id: str, child_frame_id: str, pose: FloatArray
) -> TransformStamped:
    """Return the transform with the pose (3,) of the child frame in the other."""
    at = pose_to_message(pose)
    header = stamped_header(stamp_ns, frame_id)
    message = TransformStamped(header=header, child_frame_id=child_frame_id)
    message.transform.translation.x = at.position.x
    message.transform.translation.y = at.position.y
    message.transform.rotation = at.orientation
    return message


def pose_from_transform(message: TransformStamped) -> FloatArray:
    """Return the pose (3,) of the child frame; raises DatasetError as `floor_pose`."""
    return floor_pose(message.transform.translation, message.transform.rotation)


def odometry_message(
    stamp_ns: int, pose: FloatArray, frame_id: str, child_frame_id: str
) -> Odometry:
    """Return the message of a pose (3,) of the base, with velocity zero."""
    message = Odometry(header=stamped_header(stamp_ns, frame_id), child_frame_id=child_frame_id)
    message.pose.pose = pose_to_message(pose)
    return message


def image_message(image: np.ndarray, stamp_ns: int, frame_id: str) -> Image:
    """Return a raw image: mono8 of (height, width) or bgr8 of (height, width, 3) uint8."""
    pixels = np.ascontiguousarray(image)
    message = Image(header=stamped_header(stamp_ns, frame_id))
    message.height, message.width = pixels.shape[:2]
    message.encoding = 'mono8' if pixels.ndim == 2 else 'bgr8'
    message.step = pixels.strides[0]
    # rclpy copies an array('B') at once, but checks each item of bytes (62 ms at 640x480)
    message.data = array.array('B', pixels.tobytes())
    return message


def compressed_image_message(encoded: bytes, stamp_ns: int, frame_id: str) -> CompressedImage:
    """Return the message of a JPEG or PNG file."""
    message = CompressedImage(header=stamped_header(stamp_ns, frame_id))
    message.format = 'png' if encoded.startswith(b'\x89PNG') else 'jpeg'
    message.data = array.array('B', encoded)
    return message
