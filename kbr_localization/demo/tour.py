"""
The tour, from nothing to a table and a picture: a run is localized by the real node.

Node and player are processes of their own; an observer collects the poses that the node publishes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, ExitStack
import ctypes
from datetime import datetime
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
from kbr_localization.datasets import open_dataset
from kbr_localization.errors import KbrError, RosError
from kbr_localization.evaluation import reference_trajectory, run_errors, run_metrics, write_tum
from kbr_localization.evaluation.figures import run_figure, save_figure
from kbr_localization.evaluation.metrics import Metrics
from kbr_localization.evaluation.report import best_match
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.pipeline import localize
from kbr_localization.progress import Progress
from kbr_localization.resources import profile_variable, shared_file
from kbr_localization.ros import conversions
from kbr_localization.ros.diagnostics import LEVELS
from kbr_localization.simulation import write_building
from kbr_localization.trajectory import Trajectory
import numpy as np
import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

NODE = 'kbr (node over DDS)'
BASELINES = {'nearest': 'nearest image', 'dead-reckoning': 'odometry from the true start'}
COLUMNS = (
    'localized_after_s',
    'localized_after_m',
    'below_1m_after_s',
    'below_1m_after_m',
    'rmse_once_below_1m_m',
    'lost_fraction_once_below_1m',
    'wrong_called_localized',
    'position_rmse_m',
)
"""Metrics that the demo shows."""
START_S = 60.0
DOMAINS = range(1, 101)
"""Beyond 101 the ports of a domain reach into those that Linux gives to anybody."""


def run_demo(parent: Path, progress: Progress) -> tuple[Path, dict[str, Metrics]]:
    """Render a building into a new folder in `parent` and take the tour; return both results."""
    folder = parent / datetime.now().strftime('%Y-%m-%d_%H-%M-%S')
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise KbrError(f'cannot make the new folder {folder}: {error.strerror}') from error
    *training, test = write_building(folder / 'building', progress=progress)
    return folder, take_tour(folder, training, test, 1.0, progress)


def take_tour(
    folder: Path, training: Sequence[Path], test: Path, rate: float, progress: Progress
) -> dict[str, Metrics]:
    """
    Build a map of the training runs, localize the test run with the node, compare with baselines.

    Returns the metrics of each method. The map, the node's trajectory as a TUM file, the programs'
    logs and a picture go to `folder`. `rate`: speed of the replay.
    """
    kernel_map = build_map([open_dataset(run) for run in training], progress=progress)
    with_statistics(kernel_map).save(folder / 'map.h5')
    dataset = open_dataset(test)
    answers = {
        NODE: localize_over_ros(folder / 'map.h5', test, len(dataset), folder, rate, progress)
    }
    write_tum(folder / 'trajectory.tum', answers[NODE])
    for method, name in BASELINES.items():
        init = 'reference' if method == 'dead-reckoning' else 'global'
        answers[name] = localize(kernel_map, dataset, method=method, init=init, progress=progress)
    reference = reference_trajectory(dataset)
    errors = {name: run_errors(reference, answer) for name, answer in answers.items()}
    title = f'{dataset.name}: {len(kernel_map)} map images, {len(dataset)} frames'
    # four moments, spread over the run
    moments = (np.linspace(0.1, 0.9, 4) * len(dataset)).astype(int)
    pairs = [best_match(kernel_map, dataset[moment]) for moment in moments.tolist()]
    picture = run_figure(title, kernel_map.poses, reference, answers, errors, pairs)
    save_figure(picture, folder / 'trajectory.png')
    return {name: run_metrics(run) for name, run in errors.items()}


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
        env = {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST', 'PYTHONUNBUFFERED': '1', **os.environ}
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
        while player.poll() is None or (
            len(poses) < frames and time.monotonic() - observer.last < 5.0
        ):
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
        self.status, self.last = 'not localized', time.monotonic()
        kind = PoseWithCovarianceStamped
        self.topic = self.create_subscription(kind, 'amcl_pose', self._take_pose, 1000).topic_name
        self.create_subscription(DiagnosticArray, '/diagnostics', self._take_status, 1000)

    def _take_status(self, message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name.endswith(': localization'):
                words = [word for word in LEVELS if status.message.lower().startswith(word)]
                is_stale = status.level == DiagnosticStatus.STALE
                self.status = 'not localized' if is_stale or not words else words[0]

    def _take_pose(self, message: PoseWithCovarianceStamped) -> None:
        self.last = time.monotonic()
        self.poses[conversions.stamp_to_ns(message.header.stamp)] = (
            conversions.pose_from_message(message.pose.pose),
            conversions.covariance_from_message(message.pose.covariance),
            self.status,
        )


@contextmanager
def _program(
    name: str, parameters: dict[str, Any], logs: Path, env: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program of the room `ros`; at the end stop it, then kill it."""
    arguments = [part for key, value in parameters.items() for part in ('-p', f'{key}:={value}')]
    program = [sys.executable, '-m', f'kbr_localization.ros.{name}', '--ros-args', *arguments]

    def end_with_parent() -> None:
        ctypes.CDLL(None).prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG: also where that is killed

    with (
        (logs / f'{name}.log').open('wb') as log,
        subprocess.Popen(
            program,
            env=env,
            stdout=log,
            stderr=log,
            preexec_fn=end_with_parent,  # noqa: PLW1509
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
