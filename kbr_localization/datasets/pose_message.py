"""Stamps and planar poses of ROS messages, from their plain fields or bytes: no ROS is needed."""

from __future__ import annotations

import math
import struct
from typing import Any

from kbr_localization.datasets.frame import FARTHEST_M
from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray
import numpy as np

UNKNOWN_VARIANCE = 1000.0
"""Square metres; a reference pose that is less certain is no pose (AMCL and we send 9999)."""


def header_stamp_ns(data: bytes) -> int:
    """
    Stamp in nanoseconds of a serialized (CDR) message that begins with a std_msgs/Header.

    Only the first twelve bytes are looked at. Raises DatasetError when there are fewer, and for a
    time before zero, as of a delay that is taken off the first stamps of a simulation.
    """
    if len(data) < 12:
        raise DatasetError(f'expected a message with a header, got {len(data)} bytes')
    seconds, nanoseconds = struct.unpack_from('<iI' if data[1] & 1 else '>iI', data, 4)
    if seconds < 0:
        raise DatasetError(f'expected a stamp of zero seconds or more, got {seconds}')
    return int(seconds) * 10**9 + int(nanoseconds)


def header_frame(data: bytes) -> str:
    """Frame of the same kind of message, without a leading slash; empty where it has none."""
    if len(data) < 16:
        return ''
    (length,) = struct.unpack_from('<I' if data[1] & 1 else '>I', data, 12)
    end = 16 + length
    return data[16:end].rstrip(b'\0').decode(errors='replace').strip('/')


def planar_pose(pose: Any) -> FloatArray:
    """
    Pose (3,) of an object with the fields of geometry_msgs/Pose; roll and pitch are dropped.

    Raises DatasetError for numbers that are not finite and for a quaternion of no sensible length.
    """
    position, q = pose.position, pose.orientation
    numbers = [float(value) for value in (position.x, position.y, q.x, q.y, q.z, q.w)]
    x, y, *quaternion = numbers
    if not all(map(math.isfinite, numbers)) or max(abs(x), abs(y)) > FARTHEST_M:
        raise DatasetError(
            f'expected a finite pose, got x, y, quaternion {numbers}: check its source'
        )
    length = math.hypot(*quaternion)
    if not 1e-3 < length < 1e3:
        raise DatasetError(
            f'expected a unit quaternion, got one of length {length:.3g}: zero means that the '
            'sender left it unset'
        )
    qx, qy, qz, qw = (value / length for value in quaternion)
    return np.array([x, y, math.atan2(2 * (qw * qz + qx * qy), qw**2 + qx**2 - qy**2 - qz**2)])


def odometry_pose(message: Any) -> FloatArray:
    """
    Pose (3,) of an Odometry message; raises DatasetError for one that is not finite.

    Its covariance is not looked at: only increments are used, and it is of the way since the
    start, which senders let grow without end or leave unset.
    """
    return planar_pose(message.pose.pose)


def reference_pose(message: Any) -> FloatArray:
    """
    Pose (3,) of a PoseStamped, PoseWithCovarianceStamped or Odometry message, as a reference.

    Raises DatasetError for a pose that is not finite or whose covariance says that it is unknown.
    """
    if not hasattr(message.pose, 'pose'):
        return planar_pose(message.pose)
    variances = np.asarray(message.pose.covariance, dtype=np.float64)[[0, 7]]
    if not np.all(variances < UNKNOWN_VARIANCE):
        raise DatasetError(f'expected a known pose, got variances of x, y {variances.tolist()}')
    return planar_pose(message.pose.pose)
