"""Localize a run with the real node: node and player are processes, an observer collects poses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, ExitStack
import ctypes
import os
from pathlib import Path
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization.errors import RosError
from kbr_localization.progress import Progress
from kbr_localization.resources import profile_variable, shared_file
from kbr_localization.ros import conversions
from kbr_localization.ros.diagnostics import LEVELS
from kbr_localization.trajectory import Trajectory
import numpy as np
import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

START_S = 60.0
DOMAINS = range(1, 101)
"""Beyond 101 the ports of a domain reach into those that Linux gives to anybody."""


@contextmanager
def own_domain() -> Iterator[int]:
    """
    Keep a DDS domain that nobody else on this machine uses, as far as they ask here.

    Raises RosError when all are taken.
    """
    for step in DOMAINS:
        domain = DOMAINS[(os.getpid() * 7 + step) % len(DOMAINS)]
        with socket.socket() as claim:
            try:
                # whoever listens there has the domain; the port falls free with the process
                claim.bind(('127.0.0.1', 17_400 + domain))
                claim.listen()
            except OSError:
                continue
            yield domain
            return
    raise RosError(f'all {len(DOMAINS)} DDS domains are taken: end the processes that use them')


def localize_over_ros(
    map_file: Path, run: Path, frames: int, logs: Path, rate: float, progress: Progress
) -> Trajectory:
    """
    Play a run of `frames` images to the localization node and collect the poses it publishes.

    Writes the programs' output to `logs`. Raises RosError when a program fails or no pose comes.
    """
    with ExitStack() as stack:
        env = {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST', **os.environ}
        if 'ROS_DOMAIN_ID' not in env:
            env['ROS_DOMAIN_ID'] = str(stack.enter_context(own_domain()))
        # without the profile raw images get lost
        env.setdefault(profile_variable(), str(shared_file('config/fastdds.xml') or ''))
        context, programs = Context(), dict[str, subprocess.Popen[bytes]]()
        rclpy.init(args=[], context=context, domain_id=int(env['ROS_DOMAIN_ID']))
        stack.callback(rclpy.try_shutdown, context=context)
        observer, executor = _Observer(context), SingleThreadedExecutor(context=context)
        stack.callback(observer.destroy_node)
        executor.add_node(observer)

        def start(name: str, **parameters: Any) -> None:
            programs[name] = stack.enter_context(_program(name, parameters, logs, env))

        def spin() -> None:
            executor.spin_once(timeout_sec=0.1)
            for name, process in programs.items():
                code = process.poll()
                if code or (code == 0 and name == 'node'):  # the player ends with its run
                    raise RosError(f'the {name} failed: see {logs / name}.log')

        # no pose that an earlier run saved
        start('node', map_file=map_file, use_sim_time='true', pose_file=logs / 'last_pose')
        deadline = time.monotonic() + START_S
        while not observer.count_publishers(observer.topic):
            spin()
            if time.monotonic() > deadline:
                raise RosError(f'no node after {START_S:.0f} s: see {logs / "node.log"}')
        start('player', run=run, rate=rate)
        # until the player is done and every frame has its pose, or none comes any more
        poses, player = observer.poses, programs['player']
        while player.poll() is None or (len(poses) < frames and observer.silence() < 5.0):
            spin()
            progress('localizing over DDS', min(len(poses), frames), frames)
        progress('localizing over DDS', frames, frames)
    if not poses:
        raise RosError(f'the node published no pose: see the logs in {logs}')
    stamps = sorted(poses)
    estimates, covariances, statuses = zip(*(poses[stamp] for stamp in stamps), strict=True)
    return Trajectory(
        np.array(stamps, dtype=np.int64),
        np.array(estimates),
        covariances=np.array(covariances),
        statuses=statuses,
    )


class _Observer(Node):
    """Poses of `amcl_pose` by stamp, each with the last status on /diagnostics."""

    def __init__(self, context: Context) -> None:
        super().__init__('observer', context=context)
        self.poses: dict[int, tuple[np.ndarray, np.ndarray, str]] = {}
        self._status, self._last = 'not localized', time.monotonic()
        kind = PoseWithCovarianceStamped
        self.topic = self.create_subscription(kind, 'amcl_pose', self._take_pose, 1000).topic_name
        self.create_subscription(DiagnosticArray, '/diagnostics', self._take_status, 1000)

    def silence(self) -> float:
        return time.monotonic() - self._last

    def _take_status(self, message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name.endswith(': localization'):
                words = [word for word in LEVELS if status.message.lower().startswith(word)]
                is_stale = status.level == DiagnosticStatus.STALE
                self._status = 'not localized' if is_stale or not words else words[0]

    def _take_pose(self, message: PoseWithCovarianceStamped) -> None:
        pose = conversions.pose_from_message(message.pose.pose)
        covariance = conversions.covariance_from_message(message.pose.covariance)
        stamp_ns = conversions.stamp_to_ns(message.header.stamp)
        self.poses[stamp_ns] = (pose, covariance, self._status)
        self._last = time.monotonic()


@contextmanager
def _program(
    name: str, parameters: dict[str, Any], logs: Path, env: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program of the room `ros`; at the end stop it, then kill it."""
    arguments = [part for key, value in parameters.items() for part in ('-p', f'{key}:={value}')]
    program = [sys.executable, '-m', f'kbr_localization.ros.{name}', '--ros-args', *arguments]
    with (
        (logs / f'{name}.log').open('wb') as log,
        subprocess.Popen(
            program,
            env=env | {'PYTHONUNBUFFERED': '1'},
            stdout=log,
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
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG: also where that one is killed
