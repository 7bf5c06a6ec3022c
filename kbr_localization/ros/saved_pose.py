"""The last pose on disk, from which a restarted node continues."""

from dataclasses import dataclass
import json
import math
import os
from pathlib import Path
import time
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets.tracks import restarts_at_origin
from kbr_localization.errors import RosError
from kbr_localization.files import expanded, read_file, write_text
from kbr_localization.localization.calibration import Calibration, NAMES, SIZE
from kbr_localization.localization.localizer import is_covariance
from kbr_localization.ros.buffers import Log
from kbr_localization.ros.config import NodeConfig
import numpy as np

FORMAT = 1


@dataclass(frozen=True)
class SavedPose:
    """
    A pose (3,) with its covariance (3, 3), and the odometry pose (3,) at its stamp.

    `map_id`: hash of the map. `map_name`: its name in `map_files`, or its path. `learnt`:
    systematic errors of the odometry, if known.
    """

    stamp_ns: int
    pose: se2.FloatArray
    covariance: se2.FloatArray
    odometry: se2.FloatArray
    map_id: str
    map_name: str = ''
    learnt: Calibration | None = None

    def resumed(
        self, stamp_ns: int, odometry: se2.FloatArray, config: NodeConfig
    ) -> se2.FloatArray:
        """
        Return the pose (3,) at a later stamp with odometry (3,); raises RosError if it is too old.

        The pose moves with the odometry, unless that was reset (it moved faster than `max_speed`,
        or restarted at the origin) or the pose is old and `initialize_at_saved_pose` allows it.
        """
        age = (stamp_ns - self.stamp_ns) * 1e-9
        check_age(age, config)
        old = not 0.0 <= age <= config.saved_pose_max_age
        step = se2.between(self.odometry, odometry)
        jumped = math.hypot(step[0], step[1]) > config.max_speed * age + 0.5
        if old or jumped or restarts_at_origin(self.odometry, odometry):
            return self.pose
        return se2.compose(self.pose, step)


def pose_file(config: NodeConfig, node_name: str) -> Path:
    """Return the file of the saved pose; `node_name`: fully qualified."""
    if config.pose_file:
        return expanded(config.pose_file)
    if config.saved_pose_filepath:
        # nav2_amcl writes a file of another format under that name
        return expanded(f'{config.saved_pose_filepath}.json')
    ros_home = Path(os.environ.get('ROS_HOME') or Path.home() / '.ros')
    return ros_home / 'kbr_localization' / f'{node_name.strip("/").replace("/", ".")}.pose.json'


def save_pose(path: Path, saved: SavedPose, log: Log) -> None:
    """Write a pose atomically; only log an error."""
    learnt = saved.learnt and {
        'names': NAMES,
        'values': saved.learnt.values,
        'covariance': saved.learnt.covariance,
    }
    values = {**vars(saved), 'format': FORMAT, 'learnt': learnt}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(values, default=np.ndarray.tolist), sync=True)
    except OSError as error:
        remedy = 'set pose_file to a writable file, or save_pose_rate to 0'
        log('warning', f'cannot save the pose to {path}: {error.strerror}: {remedy}')


def load_pose(path: Path) -> SavedPose | None:
    """Read a pose; None without a file; raises RosError if the file cannot be used."""
    try:
        return _parsed(json.loads(read_file(path, most=1 << 16)))
    except FileNotFoundError:
        return None
    except (OSError, LookupError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        detail = ' '.join(f'{type(error).__name__}: {error}'.split())[:200]
        raise RosError(
            f'cannot use the saved pose in {path} ({detail}): delete the file'
        ) from error


def recent_pose(path: Path, config: NodeConfig, log: Log) -> SavedPose | None:
    """Return the saved pose unless its file is too old, by the time of its last change."""
    level = 'warning'
    try:
        saved = load_pose(path)
        if saved is not None:
            age, level = max(time.time() - path.stat().st_mtime, 0.0), 'info'
            check_age(age, config)
        return saved
    except (RosError, OSError) as error:
        log(level, str(error))
    return None


def check_age(age: float, config: NodeConfig) -> None:
    """Raise RosError if the parameters do not allow a pose of this age in seconds."""
    if not (config.initialize_at_saved_pose or 0.0 <= age <= config.saved_pose_max_age):
        raise RosError(
            f'saved pose not used: it is {age:.0f} s old, expected 0 to '
            f'{config.saved_pose_max_age:g} s: raise saved_pose_max_age, or give a pose'
        )


def _parsed(values: Any) -> SavedPose:
    stamp_ns, texts = values['stamp_ns'], (values['map_id'], values['map_name'])
    whole = values['format'] == FORMAT and isinstance(stamp_ns, int) and 0 <= stamp_ns < 2**63
    if not whole or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f'expected format {FORMAT}, a stamp in nanoseconds and names of a map, '
            f'got {values["format"]}, {stamp_ns}, {texts}'
        )
    given, learnt = values['learnt'], None
    # another version of the package may have learnt other errors
    if given and given['names'] == list(NAMES):
        learnt = Calibration(*_gaussian(given['values'], given['covariance'], SIZE))
    pose, covariance = _gaussian(values['pose'], values['covariance'], 3)
    odometry, _ = _gaussian(values['odometry'], values['covariance'], 3)
    return SavedPose(stamp_ns, pose, covariance, odometry, *texts, learnt)


def _gaussian(mean: Any, covariance: Any, size: int) -> tuple[se2.FloatArray, se2.FloatArray]:
    mean, covariance = np.array(mean, dtype=np.float64), np.array(covariance, dtype=np.float64)
    if mean.shape != (size,) or not np.all(np.abs(mean) <= 1e7):
        raise ValueError(f'expected {size} numbers of up to 1e7, got {mean}')
    known = covariance.shape == (size, size) and np.all(np.abs(covariance) <= 1e14)
    if not (known and is_covariance(covariance)):
        raise ValueError(f'expected a covariance, got {covariance}')
    return mean, covariance
