"""
Time from an image's stamp to its pose on the topic: python -m benchmarks.latency.

Node and camera are processes that talk DDS on this machine, the camera at 30 Hz with raw 640x480
colour images of a rendered building. What is measured by this third process, for maps of several
sizes, and with and without everything that RViz listens to: percentiles of the latency, its slope
over the run, images without a pose, the node's memory and processor, and how long the node's
callbacks took while poses are saved and `~/load_map` is called. `--seconds 300` is the full thing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, ExitStack
from dataclasses import dataclass, field
import os
from pathlib import Path
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from benchmarks.results import machine, merge_figures, table, write_section
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseArray, PoseWithCovarianceStamped
from kbr_localization.datasets import open_dataset
from kbr_localization.demo.dds_domain import own_domain
from kbr_localization.localization.map.build import build_map
from kbr_localization.resources import profile_variable, shared_file
from kbr_localization.ros import conversions
from kbr_localization.ros.running import ros_context
from kbr_localization.simulation import RunConfig, write_building
import numpy as np
import psutil
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, qos_profile_sensor_data, QoSProfile
from sensor_msgs.msg import CompressedImage
from std_srvs.srv import Trigger
from visualization_msgs.msg import MarkerArray

RUNS = (
    RunConfig('first', route='tour', seed=1),
    RunConfig('second', route='tour', seed=2),
    RunConfig('drive', seconds=320.0, seed=3),
)
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
WARM_UP = 5.0
"""Seconds at the beginning that do not count: the first images of a process are slow."""


@dataclass
class Measured:
    """What was seen of a node."""

    times: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    callbacks: list[tuple[float, float]] = field(default_factory=list)
    diagnostics: dict[str, str] = field(default_factory=dict)
    loads: int = 0
    processor: float = 0.0

    def summary(self, rate: float) -> dict[str, float]:
        """Figures of the run: milliseconds, images, MB."""
        times, latencies = np.array(self.times), 1e3 * np.array(self.latencies)
        counts = times - times[0] > WARM_UP
        p50, p95, p99 = np.percentile(latencies[counts], [50, 95, 99])
        slope = 60.0 * np.polyfit(times[counts], latencies[counts], 1)[0]
        memory = np.array([m for _, m in self.memory])
        half = len(memory) // 2
        callbacks = np.array(self.callbacks)
        return {
            'p50 ms': p50,
            'p95 ms': p95,
            'p99 ms': p99,
            'slope ms/min': slope,
            'poses': len(times),
            'without pose': round((times[-1] - times[0]) * rate) + 1 - len(times),
            'RSS MB': float(memory[-1]),
            'RSS growth, 2nd half %': 100.0 * (memory[-1] / memory[half] - 1.0),
            'CPU %': self.processor,
            'callbacks p99 ms': float(np.percentile(callbacks[:, 0], 95)),
            'callbacks max ms': float(callbacks[:, 1].max()),
        }


class Observer:
    """Listens to a node, as RViz would if `watching`; asks it to load its map if `loading`."""

    def __init__(self, process: int, watching: bool, loading: bool) -> None:
        self.measured = Measured()
        self._process, self._loading = psutil.Process(process), loading
        self._process.cpu_percent()
        self.node = Node('observer')
        listen = self.node.create_subscription
        listen(PoseWithCovarianceStamped, 'amcl_pose', self._take, 50)
        listen(DiagnosticArray, '/diagnostics', self._take_report, 10)
        if watching:
            sensor = qos_profile_sensor_data
            listen(PoseArray, 'particle_cloud', lambda _: None, sensor)
            listen(MarkerArray, 'localization/map_poses', lambda _: None, LATCHED)
            listen(CompressedImage, 'localization/best_match', lambda _: None, sensor)
        self._client: Any = self.node.create_client(Trigger, '/localization/load_map')
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)

    def _take(self, message: PoseWithCovarianceStamped) -> None:
        now = time.time()
        measured = self.measured
        measured.times.append(now)
        measured.latencies.append(now - 1e-9 * conversions.stamp_to_ns(message.header.stamp))

    def _take_report(self, message: DiagnosticArray) -> None:
        measured, now = self.measured, time.time()
        for status in message.status:
            measured.diagnostics |= {pair.key: pair.value for pair in status.values}
        measured.memory.append((now, self._process.memory_info().rss / 1e6))
        known = measured.diagnostics
        if 'callbacks max [ms]' in known:
            taken = (float(known['callbacks p95 [ms]']), float(known['callbacks max [ms]']))
            measured.callbacks.append(taken)
        if self._loading and measured.times and len(measured.memory) % 10 == 0:
            self._client.call_async(Trigger.Request())
            measured.loads += 1

    def watch(self, camera: subprocess.Popen[str], stop: threading.Event) -> Measured:
        """Listen until the camera has ended."""
        while camera.poll() is None:
            if stop.is_set():
                sys.exit('stopped')
            self.executor.spin_once(timeout_sec=0.2)
        self.measured.processor = self._process.cpu_percent()
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            self.executor.spin_once(timeout_sec=0.1)
        self.node.destroy_node()
        return self.measured


def prepare(folder: Path, sizes: Sequence[int]) -> None:
    """Render the building and make the maps, where they are not there yet."""
    if not (folder / 'building').is_dir():
        write_building(folder / 'building', runs=RUNS)
    runs = [open_dataset(folder / 'building' / name) for name in ('first', 'second')]
    for size in sizes:
        path = folder / f'map{size}.h5'
        if not path.is_file():
            kernel_map = build_map(runs, max_images=size)
            kernel_map.save(path)
            print(f'map of {len(kernel_map)} images', file=sys.stderr)


@contextmanager
def program(arguments: Sequence[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a module as a program with its output in a file; stop it at the end."""
    with (
        log.open('w') as out,
        subprocess.Popen(
            [sys.executable, '-m', *arguments], stdout=out, stderr=out, text=True
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait(20)


def measure(
    folder: Path, size: int, options: Any, watching: bool, loading: bool, stop: threading.Event
) -> Measured:
    """Run node and camera once."""
    values: dict[str, Any] = {'map_file': folder / f'map{size}.h5'}
    values['pose_file'] = folder / 'pose.json'
    if loading:
        values['save_pose_rate'] = 5.0
    arguments = [part for key, value in values.items() for part in ('-p', f'{key}:={value}')]
    node_program = ['kbr_localization.ros.node', '--ros-args', *arguments]
    run = str(folder / 'building' / 'drive')
    camera_program = ['benchmarks.camera', run, str(options.rate), str(options.seconds)]
    (folder / 'pose.json').unlink(missing_ok=True)
    with ExitStack() as stack:
        node = stack.enter_context(program(node_program, folder / 'node.log'))
        observer = Observer(node.pid, watching, loading)
        camera = stack.enter_context(program(camera_program, folder / 'camera.log'))
        measured = observer.watch(camera, stop)
    if not measured.times:
        sys.exit(f'no pose came: see {folder}/node.log and camera.log')
    return measured


def scenarios(sizes: Sequence[int]) -> list[tuple[str, int, bool, bool]]:
    """Name, map size, whether somebody watches, whether maps are loaded."""
    largest = max(sizes)
    plain = [(f'{size} images', size, False, False) for size in sizes]
    watched = (f'{largest} images, watched', largest, True, False)
    return [*plain, watched, (f'{largest} images, load_map and saving', largest, False, True)]


def arguments() -> Any:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--seconds', type=float, default=60.0, help='length of each measurement')
    parser.add_argument('--rate', type=float, default=30.0, help='images per second')
    parser.add_argument('--sizes', type=int, nargs='+', default=[100, 1000], help='map sizes')
    parser.add_argument('--only', default='', help='only measurements whose name holds this')
    parser.add_argument('--folder', type=Path, help='keep runs, maps and logs here')
    parser.add_argument('--write', action='store_true', help='put the figures into the page')
    return parser.parse_args()


def main() -> None:
    """Measure, print, and write the page."""
    options = arguments()
    rows, figures = [], {}
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder, options.sizes)
        os.environ['ROS_DOMAIN_ID'] = str(stack.enter_context(own_domain()))
        os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
        os.environ.setdefault(profile_variable(), str(shared_file('config/fastdds.xml')))
        for name, size, watching, loading in scenarios(options.sizes):
            if options.only not in name:
                continue
            load = os.getloadavg()[0]
            with ros_context([]) as stop:
                measured = measure(folder, size, options, watching, loading, stop)
            summary = measured.summary(options.rate)
            summary['load before'] = load
            rows.append([name, *summary.values()])
            figures[f'latency_p95_ms {name}'] = summary['p95 ms']
            print(name, {key: round(float(value), 2) for key, value in summary.items()})
    if options.write:
        merge_figures(figures)
        write_section('latency', page(options, rows, list(summary)))


def page(options: Any, rows: list[list[Any]], names: list[str]) -> str:
    """Lay out the section."""
    return (
        f'## Latency over DDS\n\n{options.rate:.0f} Hz, raw 640x480 colour images, '
        f'{options.seconds:.0f} s each, node, camera and observer as processes. {machine()}\n\n'
        + table(['', *names], rows)
    )


if __name__ == '__main__':
    main()
