"""
Localize a run with the real node: node, player and a pose logger as processes that talk DDS.

Nothing of ROS is imported here; the three are programs of the room `ros`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, ExitStack
import ctypes
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
from threading import Event, Thread
import time
from typing import Any

from kbr_localization.demo.dds_domain import own_domain
from kbr_localization.errors import RosError
from kbr_localization.progress import Progress
from kbr_localization.resources import profile_variable, shared_file
from kbr_localization.trajectory import Trajectory
import numpy as np

START_S, STOP_S = 60.0, 10.0


def localize_over_ros(
    map_file: Path, run: Path, frames: int, logs: Path, rate: float, progress: Progress
) -> Trajectory:
    """
    Play a run of `frames` images to the localization node and collect the poses it publishes.

    Writes the programs' output to `logs`. Raises RosError when a program fails or no pose comes.
    """
    node_parameters = {
        'map_file': map_file,
        'use_sim_time': 'true',
        'pose_file': logs / 'last_pose',  # no pose that an earlier run saved
    }
    player_parameters = {'run': run, 'rate': rate, 'wait_for_subscribers': 1}
    with ExitStack() as stack:
        env = _environment(stack)

        def start(name: str, module: str, parameters: dict[str, Any]) -> subprocess.Popen[str]:
            return stack.enter_context(_program(name, module, parameters, logs, env))

        node = start('localization_node', 'node', node_parameters)
        logger = start('pose_logger', 'pose_logger', {})
        poses = _PoseReader(logger)
        _wait_until_listening(poses, node, logger)
        player = start('player', 'player', player_parameters)
        # until the player is done and every frame has its pose, or none comes any more
        while player.poll() is None or not (len(poses.lines) >= frames or poses.silent):
            progress('localizing over DDS', min(len(poses.lines), frames), frames)
            _refuse_failure('localization node', node)
            _refuse_failure('pose logger', logger)
            if player.poll():
                _refuse_failure('player', player)
            time.sleep(0.1)
        progress('localizing over DDS', frames, frames)
    if not poses.lines:
        raise RosError(f'the node published no pose: see the logs in {logs}')
    return _trajectory(poses.lines)


class _PoseReader:
    """The lines of the pose logger, collected by a thread."""

    def __init__(self, logger: subprocess.Popen[str]) -> None:
        self.lines: list[dict[str, Any]] = []
        self.listening = Event()
        self._changed = time.monotonic()
        self._stdout = logger.stdout
        Thread(target=self._read, daemon=True).start()

    @property
    def silent(self) -> bool:
        return time.monotonic() - self._changed > 5.0

    def _read(self) -> None:
        assert self._stdout is not None
        for line in map(json.loads, self._stdout):
            if 'pose' in line:
                self.lines.append(line)
                self._changed = time.monotonic()
            else:
                self.listening.set()


def _wait_until_listening(
    poses: _PoseReader, node: subprocess.Popen[str], logger: subprocess.Popen[str]
) -> None:
    """Return when the logger has found the node: no pose of it will be missed."""
    end = time.monotonic() + START_S
    while not poses.listening.wait(0.1):
        _refuse_failure('localization node', node)
        _refuse_failure('pose logger', logger)
        if time.monotonic() > end:
            raise RosError(f'the localization node is not there after {START_S:.0f} s')


@contextmanager
def _program(
    name: str, module: str, parameters: dict[str, Any], logs: Path, env: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Run a program of the room `ros`; at the end stop it, then kill it."""
    arguments = [part for key, value in parameters.items() for part in ('-p', f'{key}:={value}')]
    options = ['--ros-args', *arguments] if arguments else []
    with (
        (logs / f'{name}.log').open('w', encoding='utf-8') as log,
        subprocess.Popen(
            [sys.executable, '-m', f'kbr_localization.ros.{module}', *options],
            env=env,
            text=True,
            stdout=subprocess.PIPE if name == 'pose_logger' else log,
            stderr=log,
            preexec_fn=_end_with_parent,  # noqa: PLW1509
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG: also where that one is killed


def _environment(stack: ExitStack) -> dict[str, str]:
    """Keep to this machine and to a domain of our own, with room for raw images."""
    env = dict(os.environ)
    env.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    if 'ROS_DOMAIN_ID' not in env:
        env['ROS_DOMAIN_ID'] = str(stack.enter_context(own_domain()))
    profile = shared_file('config/fastdds.xml')
    if profile is not None:
        env.setdefault(profile_variable(), str(profile))
    # keep log lines out of the poses
    return env | {'PYTHONUNBUFFERED': '1', 'RCUTILS_LOGGING_USE_STDOUT': '0'}


def _refuse_failure(name: str, process: subprocess.Popen[str]) -> None:
    code = process.poll()
    if code is not None:
        raise RosError(f'the {name} stopped with exit code {code}: see its log')


def _trajectory(lines: list[dict[str, Any]]) -> Trajectory:
    """Trajectory of the poses by stamp; of a stamp that came twice the last counts."""
    by_stamp = {line['stamp_ns']: line for line in lines}
    stamps = sorted(by_stamp)
    return Trajectory(
        np.array(stamps, dtype=np.int64),
        np.array([by_stamp[stamp]['pose'] for stamp in stamps]),
        covariances=np.array([by_stamp[stamp]['covariance'] for stamp in stamps]),
        statuses=tuple(by_stamp[stamp]['status'] for stamp in stamps),
    )
