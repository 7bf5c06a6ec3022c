"""The last pose on disk, so that a restarted node goes on where it was. No rclpy here."""

from __future__ import annotations

from dataclasses import dataclass
import json
import math
from pathlib import Path

from kbr_localization import se2
from kbr_localization.datasets.odometry_jumps import begins_anew, MAX_SPEED
from kbr_localization.errors import RosError
from kbr_localization.files import read_file, write_text
from kbr_localization.localization.calibration import Calibration, NAMES, SIZE
from kbr_localization.localization.localizer import is_covariance
from kbr_localization.localization.map.file import FARTHEST
from kbr_localization.ros.common.defaults import own_folder
import numpy as np

FORMAT = 1
LARGEST_FILE = 1 << 16
NEEDED = ('stamp_ns', 'pose', 'covariance', 'odometry', 'map_id')


@dataclass(frozen=True)
class SavedPose:
    """
    A pose (3,) with its covariance (3, 3), stamp, map, and the odometry pose (3,) at the stamp.

    `map_id` tells maps apart: a pose on another map means nothing. `map_name`: which of several
    maps the robot was on. `clock`: whose time the stamp is, as `ClockSource` says. `learnt`: the
    systematic errors of the odometry, None where nothing was learnt of them.
    """

    stamp_ns: int
    pose: se2.FloatArray
    covariance: se2.FloatArray
    odometry: se2.FloatArray
    map_id: str
    map_name: str = ''
    clock: str = ''
    learnt: Calibration | None = None

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


def too_old(age: float, most: float) -> str:
    """Say that a pose of some seconds ago, or of later than now, is not used."""
    return (
        f'saved pose not used: it is {age:.0f} s old, expected 0 to {most:g} s: raise '
        'saved_pose_max_age, or give a pose'
    )


def default_pose_file(node_name: str) -> Path:
    """Return the file for a node of a fully qualified name."""
    return own_folder() / f'{node_name.strip("/").replace("/", ".")}.pose.json'


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
        'clock': saved.clock,
        'learnt': None if saved.learnt is None else _written(saved.learnt),
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
        values = json.loads(read_file(path, LARGEST_FILE).decode())
        _check_names(values)
        saved = SavedPose(
            stamp_ns=_stamp(values['stamp_ns']),
            pose=_pose(values['pose']),
            covariance=_covariance(values['covariance']),
            odometry=_pose(values['odometry']),
            map_id=_text(values['map_id']),
            map_name=_text(values.get('map_name', '')),
            clock=_text(values.get('clock', '')),
            learnt=_learnt(values.get('learnt')),
        )
    except FileNotFoundError:
        return None
    # a number may be too large for any type, and lists may be nested deeper than Python goes
    except (OSError, ValueError, ArithmeticError, RecursionError) as error:
        detail = ' '.join(str(error).split())[:200]
        raise RosError(
            f'cannot use the saved pose in {path} ({detail}): delete the file'
        ) from error
    if values.get('format') != FORMAT:
        raise RosError(
            f'the saved pose in {path} has format {values.get("format")}, expected {FORMAT}: '
            'delete the file'
        )
    return saved


def _check_names(values: object) -> None:
    if not isinstance(values, dict):
        raise ValueError(f'expected an object of names and values, got {values}')
    missing = [name for name in NEEDED if name not in values]
    if missing:
        raise ValueError(f'expected values of {", ".join(NEEDED)}, got none of {missing[0]}')


def _stamp(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f'expected a stamp in nanoseconds, got {value}')
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f'expected a text, got {value}')
    return value


def _written(learnt: Calibration) -> dict[str, object]:
    return {
        'names': list(NAMES),
        'values': learnt.values.tolist(),
        'covariance': learnt.covariance.tolist(),
    }


def _learnt(values: object) -> Calibration | None:
    """Errors of the odometry that were saved; None of those of a package that had others."""
    if not isinstance(values, dict) or values.get('names') != list(NAMES):
        return None
    covariance = _covariance(values.get('covariance'), SIZE)
    return Calibration(_array(values.get('values'), (SIZE,), FARTHEST), covariance)


def _pose(values: object) -> se2.FloatArray:
    return _array(values, (3,), FARTHEST)


def _covariance(values: object, size: int = 3) -> se2.FloatArray:
    covariance = _array(values, (size, size), FARTHEST**2)
    if not is_covariance(covariance):
        raise ValueError(f'expected a covariance, got {covariance.tolist()}')
    return covariance


def _array(values: object, shape: tuple[int, ...], most: float) -> se2.FloatArray:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        array = np.empty(0)  # texts, nothing, lists of different lengths, numbers too large
    if array.shape != shape or not np.all(np.abs(array) <= most):
        raise ValueError(f'expected {shape} numbers of up to {most:.0e}, got {values}')
    return array
