"""The last pose on disk, from which a restarted node goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
import json
import math
import os
from pathlib import Path
import secrets
import threading
import time
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets.tracks import begins_anew, MAX_SPEED
from kbr_localization.errors import RosError
from kbr_localization.files import read_file, write_text
from kbr_localization.localization.calibration import Calibration, NAMES, SIZE
from kbr_localization.localization.localizer import is_covariance
import numpy as np

FORMAT = 1
FARTHEST = 1e7
"""Metres; a saved number beyond it is damaged."""


@dataclass(frozen=True)
class SavedPose:
    """
    A pose (3,) with its covariance (3, 3), and the odometry pose (3,) at its stamp.

    `map_id` tells maps apart: a pose on another map means nothing. `map_name`: which of several
    maps the robot was on. `clock`: whose time the stamp is (`ClockName`). `learnt`: systematic
    errors of the odometry, None where nothing was learnt of them.
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
        Carry the pose to a stamp 0 to `max_age` s later by the odometry (3,) there, else None.

        Odometry that moved faster than `max_speed` since, or begins anew, was reset: then the pose
        is taken as it is.
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
    """Return the text for a saved pose that is too old, or of the future."""
    return (
        f'saved pose not used: it is {age:.0f} s old, expected 0 to {most:g} s: raise '
        'saved_pose_max_age, or give a pose'
    )


def own_folder() -> Path:
    """Return the package's folder in ROS_HOME or ~/.ros."""
    return Path(os.environ.get('ROS_HOME') or Path.home() / '.ros') / 'kbr_localization'


def default_pose_file(node_name: str) -> Path:
    """Return the file for a node of a fully qualified name."""
    return own_folder() / f'{node_name.strip("/").replace("/", ".")}.pose.json'


def save_pose(path: Path, saved: SavedPose) -> None:
    """Write a pose atomically; raises RosError when the file cannot be written."""
    learnt = saved.learnt and {
        'names': list(NAMES),
        'values': saved.learnt.values.tolist(),
        'covariance': saved.learnt.covariance.tolist(),
    }
    values = {
        **vars(saved),
        'format': FORMAT,
        'pose': saved.pose.tolist(),
        'covariance': saved.covariance.tolist(),
        'odometry': saved.odometry.tolist(),
        'learnt': learnt,
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
    """Read a pose, None without a file; raises RosError for a damaged or another format."""
    try:
        return _parsed(json.loads(read_file(path, most=1 << 16)))
    except FileNotFoundError:
        return None
    except KeyError as error:
        detail = f'no value of {error}'
    except (OSError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        detail = ' '.join(str(error).split())[:200]
    raise RosError(f'cannot use the saved pose in {path} ({detail}): delete the file')


def _parsed(values: Any) -> SavedPose:
    if values['format'] != FORMAT:
        raise ValueError(f'format {values["format"]}, expected {FORMAT}')
    stamp_ns = values['stamp_ns']
    if not isinstance(stamp_ns, int) or not 0 <= stamp_ns < 2**63:
        raise ValueError(f'expected a stamp in nanoseconds, got {stamp_ns}')
    map_id, map_name, clock = texts = [
        values['map_id'],
        values.get('map_name', ''),
        values.get('clock', ''),
    ]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f'expected texts, got {texts}')
    learnt = values.get('learnt')
    if learnt and learnt['names'] == list(NAMES):  # other versions of the package learn others
        learnt = Calibration(
            _numbers(learnt['values'], (SIZE,)), _covariance(learnt['covariance'], SIZE)
        )
    else:
        learnt = None
    pose, odometry = (_numbers(values[name], (3,)) for name in ('pose', 'odometry'))
    covariance = _covariance(values['covariance'], 3)
    return SavedPose(stamp_ns, pose, covariance, odometry, map_id, map_name, clock, learnt)


def _covariance(values: Any, size: int) -> se2.FloatArray:
    covariance = _numbers(values, (size, size), FARTHEST**2)
    if not is_covariance(covariance):
        raise ValueError(f'expected a covariance, got {values}')
    return covariance


def _numbers(values: Any, shape: tuple[int, ...], most: float = FARTHEST) -> se2.FloatArray:
    array = np.array(values, dtype=np.float64)
    if array.shape != shape or not np.all(np.abs(array) <= most):
        raise ValueError(f'expected {shape} numbers of up to {most:.0e}, got {values}')
    return array


class ClockName:
    """
    Name the clock of a node: the computer's, or whoever publishes /clock since this boot.

    A simulation that is started again has another publisher, while its stamps may look like those
    of the run before. A publisher that has ended is remembered until another comes.
    """

    def __init__(self, node: Any) -> None:
        self._node = node
        self._last = f'unknown:{secrets.token_hex(8)}'

    def __call__(self) -> str:
        """Return the name of the clock now."""
        if not self._node.get_parameter('use_sim_time').value:
            return 'wall'
        publishers = self._node.get_publishers_info_by_topic('/clock')
        names = sorted(bytes(info.endpoint_gid).hex() for info in publishers)
        if names:
            boot = Path('/proc/sys/kernel/random/boot_id')
            self._last = ':'.join(
                ['sim', boot.read_text().strip() if boot.exists() else '', *names]
            )
        return self._last


class PoseSaver:
    """
    Save poses in a file, `rate()` times a second.

    `offer` belongs to the worker's thread; `background` writes for it. A pose never takes the
    place of a newer one, however long the disk takes.
    """

    def __init__(
        self,
        path: Path,
        rate: Callable[[], float],
        background: Executor,
        log: Callable[[str, str], None],
    ) -> None:
        self._path, self._rate, self._background, self._log = path, rate, background, log
        self._writing = threading.Lock()
        self._newest: SavedPose | None = None
        self._written: SavedPose | None = None
        self._offered = time.monotonic()

    def offer(self, make: Callable[[], SavedPose | None]) -> None:
        """Save the pose that `make` gives if it is time to."""
        if self._rate() > 0.0 and time.monotonic() - self._offered > 1.0 / self._rate():
            self._offered = time.monotonic()
            self._newest = make() or self._newest
            self._background.submit(self._write)

    def save(self, pose: SavedPose | None) -> None:
        """Save a pose now, or else the one that still waits to be written."""
        if self._rate() > 0.0:
            self._newest = pose or self._newest
            self._write()

    def _write(self) -> None:
        with self._writing:
            if self._newest is None or self._newest is self._written:
                return
            newest = self._newest
            try:
                save_pose(self._path, newest)
            except RosError as error:
                self._log('warning', str(error))
            self._written = newest
