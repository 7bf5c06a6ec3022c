"""The tour of `kbr demo`: the node, as a process over DDS, localizes a rendered run."""

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
from kbr_localization.datasets import Dataset, open_dataset
from kbr_localization.errors import KbrError, RosError
from kbr_localization.evaluation import reference_trajectory, run_errors, run_metrics, write_tum
from kbr_localization.evaluation.metrics import Metrics
from kbr_localization.evaluation.report import record_run, run_data, write_page
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.pipeline import localize
from kbr_localization.resources import fast_dds_profile
from kbr_localization.ros import conversions
from kbr_localization.ros.config import PlayerConfig
from kbr_localization.ros.diagnostics import LEVELS
from kbr_localization.ros.player import Player
from kbr_localization.ros.running import ros_context, Stop
from kbr_localization.simulation.run import write_building
from kbr_localization.trajectory import Trajectory
import numpy as np
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

NODE = 'kbr (node over DDS)'
BASELINES = {'nearest': 'nearest image', 'dead-reckoning': 'odometry from the true start'}
START_S = 60.0
DOMAINS = range(1, 101)  # ports of domains above 101 overlap the ephemeral ports of Linux


def run_demo(parent: Path) -> tuple[Path, dict[str, Metrics]]:
    """Render a building into a new folder in `parent`; return the folder and the metrics."""
    folder = parent / datetime.now().strftime('%Y-%m-%d_%H-%M-%S')
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise KbrError(f'cannot make the folder {folder}: {error.strerror}') from error
    *training, test = write_building(folder / 'building')
    return folder, take_tour(folder, training, test, 1.0)


def take_tour(
    folder: Path, training: Sequence[Path], test: Path, rate: float
) -> dict[str, Metrics]:
    """
    Build a map of the training runs and localize the test run with the node and baselines.

    Returns the metrics of each method. `folder` gets the map, the node's trajectory as a TUM file,
    its log, and a page about the same filter without ROS. `rate`: speed of the replay.
    """
    kernel_map = with_statistics(build_map([open_dataset(run) for run in training]))
    kernel_map.save(folder / 'map.h5')
    dataset = open_dataset(test)
    answers = {NODE: localize_over_ros(folder, dataset, rate)}
    write_tum(folder / 'trajectory.tum', answers[NODE])
    for method, name in BASELINES.items():
        init = 'reference' if method == 'dead-reckoning' else 'global'
        answers[name] = localize(kernel_map, dataset, method, init)
    reference = reference_trajectory(dataset)
    write_page(folder / 'report.html', run_data(record_run(kernel_map, dataset)))
    return {name: run_metrics(run_errors(reference, run)) for name, run in answers.items()}


@contextmanager
def own_domain() -> Iterator[int]:
    """Reserve a DDS domain among the processes that call this; raises RosError if none is free."""
    for step in DOMAINS:
        domain = DOMAINS[(os.getpid() * 7 + step) % len(DOMAINS)]
        with socket.socket() as claim:
            try:
                # the bound port reserves the domain until the process ends
                claim.bind(('127.0.0.1', 17_400 + domain))
                claim.listen()
            except OSError:
                continue
            yield domain
            return
    raise RosError(f'all {len(DOMAINS)} DDS domains are taken: end the processes that use them')


def localize_over_ros(folder: Path, dataset: Dataset, rate: float) -> Trajectory:
    """Play a run to a node with `map.h5` of a folder; return its poses. Its log goes there."""
    log = folder / 'node.log'
    with ExitStack() as stack:
        os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
        os.environ.update(fast_dds_profile())
        domain = os.environ.get('ROS_DOMAIN_ID') or str(stack.enter_context(own_domain()))
        stack.enter_context(ros_context([], int(domain)))
        observer, executor = _Observer(), SingleThreadedExecutor()
        stack.callback(observer.destroy_node)
        # a new pose_file, so that the node does not start from a saved pose
        files = {'map_file': folder / 'map.h5', 'pose_file': folder / 'last_pose'}
        node = stack.enter_context(_node_process({**files, 'use_sim_time': True}, log, domain))

        def check_node() -> None:
            if node.poll() is not None:
                raise RosError(f'the node failed: see {log}')

        observer.create_timer(0.1, check_node)
        executor.add_node(observer)
        deadline = time.monotonic() + START_S
        while not observer.count_publishers(observer.topic):
            executor.spin_once(timeout_sec=0.1)
            if time.monotonic() > deadline:
                raise RosError(f'the node did not start in {START_S:.0f} s: see {log}')
        Player(observer, dataset, PlayerConfig(rate=rate), Stop()).play()
        # wait until each frame has its pose, or no more poses come
        executor.add_node(observer)
        while len(observer.poses) < len(dataset) and time.monotonic() - observer.last < 5.0:
            executor.spin_once(timeout_sec=0.1)
    if not observer.poses:
        raise RosError(f'the node published no pose: see {log}')
    stamps, found = zip(*sorted(observer.poses.items()), strict=True)
    poses, covariances, statuses = zip(*found, strict=True)
    stated = np.array(covariances)
    return Trajectory(np.array(stamps), np.array(poses), stated, statuses=statuses)


class _Observer(Node):
    """Collects poses of `amcl_pose` by stamp, each with the last status on /diagnostics."""

    def __init__(self) -> None:
        super().__init__('observer')
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
def _node_process(
    parameters: dict[str, Any], log: Path, domain: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the localization node; at the end interrupt it, and kill it after 10 s."""
    arguments = [part for key, value in parameters.items() for part in ('-p', f'{key}:={value}')]
    program = [sys.executable, '-m', 'kbr_localization.ros.node', '--ros-args', *arguments]

    def end_with_parent() -> None:
        ctypes.CDLL(None).prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG

    with (
        log.open('wb') as output,
        subprocess.Popen(
            program,
            env=os.environ | {'ROS_DOMAIN_ID': domain, 'PYTHONUNBUFFERED': '1'},
            stdout=output,
            stderr=output,
            preexec_fn=end_with_parent,  # noqa: PLW1509
        ) as process,
    ):
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
