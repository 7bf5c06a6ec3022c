"""Poses in space, from files and ROS messages, projected onto the floor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any

from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import ArrayLike

FARTHEST_M = 1e7
"""Coordinates beyond this are broken numbers; UTM coordinates are within."""
X_FORWARD, Z_FORWARD = 0, 2
"""Axis along which a body looks: x for a robot's base as in ROS, z for a camera."""

Vector = Sequence[float] | FloatArray


def z_up(v: Vector) -> tuple[float, float]:
    """Floor coordinates in a world with z up."""
    return v[0], v[1]


def y_down(v: Vector) -> tuple[float, float]:
    """Floor coordinates in a world with the axes of a level camera (x right, y down, z ahead)."""
    return v[2], -v[0]


def project_pose(
    position: Vector,
    rotation: Sequence[Vector] | FloatArray,
    plane: Callable[[Vector], tuple[float, float]] = z_up,
    forward: int = X_FORWARD,
) -> FloatArray:
    """
    Project a body-to-world pose onto the floor: (3,) x, y, heading of the `forward` axis.

    `rotation`: (3, 3). Height, roll and pitch are dropped. Raises DatasetError for coordinates
    that are not finite or beyond `FARTHEST_M`.
    """
    x, y = plane(position)
    if not (abs(x) <= FARTHEST_M and abs(y) <= FARTHEST_M):
        raise DatasetError(f'expected a finite pose, got x {x}, y {y}')
    ahead, left = plane([row[forward] for row in rotation])
    return np.array([x, y, math.atan2(left, ahead)])


def quaternion_rotation(x: float, y: float, z: float, w: float) -> list[list[float]]:
    """Rotation matrix of a quaternion; raises DatasetError for one of no sensible length."""
    length = math.hypot(x, y, z, w)
    if not 1e-3 < length < 1e3:
        raise DatasetError(
            f'expected a finite unit quaternion, got one of length {length:.3g}'
            + (': the sender left it unset' if length == 0 else '')
        )
    x, y, z, w = x / length, y / length, z / length, w / length
    return [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]


def checked_rotation(matrix: ArrayLike) -> FloatArray:
    """Return a rotation matrix (3, 3); raises DatasetError for another matrix."""
    rotation = np.asarray(matrix, dtype=np.float64)
    with np.errstate(all='ignore'):
        deviation = np.abs(rotation @ rotation.T - np.eye(3)).max()
        if not (deviation < 0.05 and np.linalg.det(rotation) > 0):
            raise DatasetError(f'expected a rotation matrix, got {rotation.tolist()}')
    return rotation


def floor_pose(position: Any, orientation: Any) -> FloatArray:
    """Project objects with fields x, y, z and x, y, z, w, as `planar_pose` does."""
    q = orientation
    rotation = quaternion_rotation(q.x, q.y, q.z, q.w)
    return project_pose((position.x, position.y, position.z), rotation)


def planar_pose(pose: Any) -> FloatArray:
    """
    Pose (3,) of an object with the fields of geometry_msgs/Pose; roll and pitch are dropped.

    Raises DatasetError for numbers that are not finite and for a quaternion that is none.
    """
    return floor_pose(pose.position, pose.orientation)
