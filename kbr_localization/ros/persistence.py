"""The last pose on disk, so that a restarted node goes on where it was. No rclpy here."""

from __future__ import annotations

from dataclasses import dataclass
import json
import math
import os
from pathlib import Path

from kbr_localization import se2
from kbr_localization.errors import RosError
from kbr_localization.files import write_text
from kbr_localization.ros.odometry_buffer import begins_anew, MAX_SPEED
import numpy as np

FORMAT = 1


@dataclass(frozen=True)
class SavedPose:
    """
    A pose (3,) with its covariance (3, 3), stamp, map, and the odometry pose (3,) at the stamp.

    `map_id` tells maps apart: a pose on another map means nothing. `map_name`: which of several
    maps the robot was on.
    """

    stamp_ns: int
    pose: se2.FloatArray
    covariance: se2.FloatArray
    odometry: se2.FloatArray
    map_id: str
    map_name: str = ''

    def resumed(
        self,
        stamp_ns: int,
        odometry: se2.FloatArray,
        max_age: float,
        max_speed: float = MAX_SPEED,
    ) -> se2.FloatArray | None:
        """
        Pose (3,) at a later stamp, carried forward by the odometry (3,) there, or None.

        None when the stamp is earlier than that of the pose, or later by more than `max_age`
        seconds. An odometry that has moved faster than `max_speed` since, or begins anew, was
        reset: then the pose is taken as it is.
        """
        age = (stamp_ns - self.stamp_ns) * 1e-9
        if not 0.0 <= age <= max_age:
            return None
        step = se2.between(self.odometry, odometry)
        jumped = math.hypot(step[0], step[1]) > max_speed * age + 0.5
        if jumped or begins_anew(self.odometry, odometry):
            return self.pose
        return se2.compose(self.pose, step)


def default_pose_file(node_name: str) -> Path:
    """Return the file for a node of a fully qualified name."""
    return own_folder() / f'{node_name.strip("/").replace("/", ".")}.pose.json'


def own_folder() -> Path:
    """Return the package's folder in ROS_HOME or ~/.ros."""
    return Path(os.environ.get('ROS_HOME') or Path.home() / '.ros') / 'kbr_localization'


def save_pose(path: Path, saved: SavedPose) -> None:
    """Write a pose atomically; raises RosError when the file cannot be written."""
    values = {
        'format': FORMAT,
        'stamp_ns': saved.stamp_ns,
        'pose': saved.pose.tolist(),
        'covariance': saved.covariance.tolist(),
        'odometry': saved.odometry.tolist(),
        'map_id': saved.map_id,
        'map_name': saved.map_name,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(values), sync=True)
    except OSError as error:
        raise RosError(
            f'cannot save the pose to {path}: {error.strerror}: set pose_file to a writable file, '
            'or save_pose_rate to 0'
        ) from error


def load_pose(path: Path) -> SavedPose | None:
    """
    Read a pose, or None when there is no file.

    Raises RosError when the file is damaged or of another format.
    """
    try:
        values = json.loads(path.read_text(encoding='utf-8'))
        saved = SavedPose(
            stamp_ns=int(values['stamp_ns']),
            pose=_array(values['pose'], (3,)),
            covariance=_array(values['covariance'], (3, 3)),
            odometry=_array(values['odometry'], (3,)),
            map_id=str(values['map_id']),
            map_name=str(values.get('map_name', '')),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RosError(
            f'cannot use the saved pose in {path} ({error}): delete the file'
        ) from error
    if values.get('format') != FORMAT:
        raise RosError(
            f'the saved pose in {path} has format {values.get("format")}, expected {FORMAT}: '
            'delete the file'
        )
    return saved


def _array(values: object, shape: tuple[int, ...]) -> se2.FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != shape or not np.all(np.isfinite(array)):
        raise ValueError(f'expected {shape} finite numbers, got {values}')
    return array
