"""Poses in space become poses on the floor, by the axes that a format has."""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization.datasets.frame import FARTHEST_M, OdometryTrack
from kbr_localization.datasets.selection import make_track
from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray, StampArray
import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.transform import Rotation

Axis = tuple[float, float, float]


@dataclass(frozen=True)
class Floor:
    """
    Axes by which a pose in space is projected on the floor.

    `ahead` and `left`: the directions of the world that become x and y of the map. `forward`: the
    direction of the body, in its own axes, whose projection is the heading.
    """

    ahead: Axis
    left: Axis
    forward: Axis

    def poses(self, rotations: FloatArray, positions: FloatArray) -> FloatArray:
        """
        Project body-to-world poses: rotations (n, 3, 3) and positions (n, 3) -> (n, 3).

        Height, roll and pitch are dropped.
        """
        plane = np.array([self.ahead, self.left])
        facing = rotations @ np.array(self.forward) @ plane.T
        heading = np.arctan2(facing[:, 1], facing[:, 0])
        return np.column_stack([positions @ plane.T, heading])


_X, _Y, _Z = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
BASE_Z_UP = Floor(_X, _Y, _X)
"""World with z up, a body that looks along its x: a robot's base, as in ROS."""
CAMERA_Z_UP = Floor(_X, _Y, _Z)
"""World with z up, a camera that looks along its z."""
CAMERA_Y_DOWN = Floor(_Z, (-1.0, 0.0, 0.0), _Z)
"""World with the axes of a level camera: x to the right, y down, z ahead."""


def rotations_of(quaternions: ArrayLike) -> FloatArray:
    """Rotation matrices (n, 3, 3) of quaternions (n, 4) in the order x, y, z, w."""
    return np.asarray(Rotation.from_quat(np.asarray(quaternions)).as_matrix(), dtype=np.float64)


def planar_track(
    where: str, stamps_ns: StampArray, rotations: FloatArray, positions: FloatArray, floor: Floor
) -> tuple[OdometryTrack, dict[str, int]]:
    """
    Track of stamped poses on the floor, with what was left out by reason.

    Poses with numbers that are not finite, or beyond `FARTHEST_M`, are left out; raises
    DatasetError when none remains.
    """
    known = (np.abs(positions) < FARTHEST_M).all(axis=1) & (np.abs(rotations) < 2.0).all((1, 2))
    poses = np.full((len(stamps_ns), 3), np.nan)
    poses[known] = floor.poses(rotations[known], positions[known])
    good = np.isfinite(poses).all(axis=1)
    if not good.any():
        raise DatasetError(f'{where}: expected poses of finite numbers, got none')
    track, repeated = make_track(stamps_ns[good].tolist(), list(poses[good]))
    counts = {'pose that is not finite': int(np.sum(~good)), 'pose of a repeated stamp': repeated}
    return track, {reason: count for reason, count in counts.items() if count}
