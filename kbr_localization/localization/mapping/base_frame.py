"""
The poses of a map of odometry and images, of the robot's base in place of the camera.

Such a map is solved for the poses of the camera, and the place of the odometry's point (the base:
`base_link`) beside it is one of the unknowns: its pose in the frame of the camera is (offset x,
offset y, mounting), see `calibration`.
"""

from __future__ import annotations

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.calibration import Calibration
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.mapping_record import MappingRecord
from kbr_localization.localization.mapping.wheels import NAMES
from kbr_localization.se2 import FloatArray
import numpy as np

_PLACE = ('offset_x', 'offset_y', 'mounting')
_PARAMETERS = [NAMES.index(name) for name in _PLACE]


def point_of(kernel_map: KernelMap) -> FloatArray:
    """Pose (3,) in metres and radians, in the camera's frame, of the point of the map's poses."""
    return np.zeros(3) if kernel_map.mapping is None else kernel_map.mapping.point


def camera_poses(kernel_map: KernelMap) -> FloatArray:
    """Poses (n, 3) of the camera where the map's images were taken; of known ones those given."""
    return se2.compose(kernel_map.poses, se2.inverse(point_of(kernel_map)))


def at_base(kernel_map: KernelMap) -> KernelMap:
    """
    Return a map of the camera's poses as one of the base's; one of the base's as it is.

    The frame of the map stays. Raises MapError for a map whose poses were known.
    """
    record = kernel_map.mapping
    if record is None:
        raise MapError(
            'the poses of the map were known: they are of the point that they were given for'
        )
    if np.any(record.point):
        return kernel_map
    known = kernel_map.calibration
    point = known.values[: len(_PLACE)].copy()
    return replace(
        kernel_map,
        poses=se2.compose(kernel_map.poses, point),
        next_poses=se2.compose(kernel_map.next_poses, point),
        calibration=_about(known, point),
        mapping=replace(
            record,
            point=point,
            covariances=_carried(record.covariances, kernel_map.poses, point),
            parameters=parameters_about(record.parameters, point),
        ),
        statistics=None,
    )


def parameters_about(parameters: FloatArray, point: FloatArray) -> FloatArray:
    """Return parameters (runs, 6) of odometry for poses of a point (3,) in the camera's frame."""
    found = parameters.copy()
    found[:, _PARAMETERS] -= point
    return found


def _about(known: Calibration, point: FloatArray) -> Calibration:
    """Return the odometry's errors about a point (3,) at its wheels, as uncertain as before."""
    values = known.values.copy()
    values[: len(point)] -= point
    return replace(known, values=values)


def _carried(covariances: FloatArray, poses: FloatArray, point: FloatArray) -> FloatArray:
    """Covariances (n, 3, 3) of a point (3,) on poses (n, 3), by those of the poses."""
    lever = (se2.compose(poses, point) - poses)[:, :2]
    slope = np.tile(np.eye(3), (len(poses), 1, 1))
    slope[:, 0, 2], slope[:, 1, 2] = -lever[:, 1], lever[:, 0]
    return np.asarray(slope @ covariances @ np.swapaxes(slope, 1, 2))


def described_point(record: MappingRecord) -> str:
    """Say whose poses a map of odometry has."""
    ahead, left, _ = record.point
    if not np.any(record.point):
        return 'camera'
    along, across = 'ahead' if ahead >= 0.0 else 'behind', 'left' if left >= 0.0 else 'right'
    return f'base, {abs(ahead):.3f} m {along} and {abs(left):.3f} m to the {across} of the camera'
