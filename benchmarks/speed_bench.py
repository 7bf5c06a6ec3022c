"""
Speed of a frame and of a map's build: python -m benchmarks.speed_bench.

Everything runs on a rendered building of look-alike corridors, 640x480, map of 1000 images, while
the filter tracks a drive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks import results
from kbr_localization import se2
from kbr_localization.datasets import Frame, open_dataset
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.registry import make_localizer
from kbr_localization.localization.pipeline import Tracker
from kbr_localization.progress import terminal_progress
from kbr_localization.simulation import RunConfig, write_building
from kbr_localization.workers import open_workers
import numpy as np
from threadpoolctl import threadpool_limits

IMAGES, SEED, ROUNDS = 1000, 11, 3
RUNS = (
    RunConfig('tour_cloudy', route='tour', seed=1),
    RunConfig('tour_sunny', route='tour', light='sunny', seed=2),
    RunConfig('walk', seconds=100.0, seed=3),
)
START = np.diag([0.1, 0.1, 0.05]) ** 2
REPEATED = 9
"""Times that the runs are given to the build of a map."""
COMMAND = """
import atexit
from kbr_localization.cli import main
status = '/proc/self/status'
atexit.register(lambda: print([line for line in open(status) if line.startswith('VmHWM')][0]))
main()
"""
"""`kbr`, then its own peak memory: that of a child as its parent sees it includes the parent's."""
Times = dict[str, list[float]]


@dataclass(frozen=True)
class Scene:
    """A map of `IMAGES` images of 640x480, and a drive with its images in memory."""

    training: Sequence[Path]
    kernel_map: KernelMap
    frames: Sequence[Frame]
    images: Sequence[np.ndarray]

    @property
    def start(self) -> se2.FloatArray:
        """Return the true pose (3,) of the first frame."""
        pose = self.frames[0].reference
        assert pose is not None
        return pose

    def increments(self) -> list[se2.FloatArray]:
        """Return the odometry increment (3,) to each frame, zero for the first."""
        odometry = np.array([frame.odometry for frame in self.frames])
        return [np.zeros(3), *se2.between(odometry[:-1], odometry[1:])]


def make_scene(folder: Path, progress: Any) -> Scene:
    """Render the runs into a folder, build the map."""
    *training, walk = write_building(folder / 'building', SEED, RUNS, progress=progress)
    with open_workers(None) as workers:
        datasets = [open_dataset(path) for path in training]
        kernel_map = build_map(datasets, max_images=IMAGES, progress=progress, workers=workers)
    frames = tuple(open_dataset(walk))
    return Scene(training, kernel_map, frames, [frame.load_image() for frame in frames])


def stage_times(scene: Scene) -> Times:
    """Track the drive once; seconds of every stage, of all frames or of those with an update."""
    seconds: Times = {}

    def timed(stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        result = function(*arguments)
        seconds.setdefault(stage, []).append(time.perf_counter() - start)
        return result

    localizer = make_localizer('kbr', scene.kernel_map)
    localizer.initialize(scene.start, START)
    for image, increment in zip(scene.images, scene.increments(), strict=True):
        timed('predict', localizer.predict, increment)
        if localizer.wants_image():
            descriptor = timed('describe', scene.kernel_map.describer.describe, image)
            timed('kernel vector alone', scene.kernel_map.compare, descriptor)
            timed('update, with kernel vector', localizer.update, descriptor)
        timed('estimate', localizer.estimate)
    return seconds


def frame_times(scene: Scene) -> Times:
    """Track the drive once; seconds from image to estimate of frames with and without update."""
    tracker = Tracker(scene.kernel_map, make_localizer('kbr', scene.kernel_map))
    tracker.initialize(scene.start, START)
    found: Times = {'whole frame': [], 'whole frame without update': []}
    for frame, image in zip(scene.frames, scene.images, strict=True):
        start = time.perf_counter()
        estimate = tracker.process(frame.stamp_ns, image, frame.odometry)
        name = 'whole frame' if estimate.updated else 'whole frame without update'
        found[name].append(time.perf_counter() - start)
    return found


def together(measure: Callable[[Scene], Times], scene: Scene) -> Times:
    """Join the times of `ROUNDS` rounds."""
    rounds = [measure(scene) for _ in range(ROUNDS)]
    return {name: [one for times in rounds for one in times[name]] for name in rounds[0]}


def build(scene: Scene, folder: Path, jobs: int) -> tuple[float, float]:
    """Run `kbr map build` on the runs, several times each: seconds, and peak megabytes."""
    runs = [str(run) for run in scene.training] * REPEATED
    command = [sys.executable, '-c', COMMAND, 'map', 'build', *runs]
    command += ['--out', str(folder / 'map.h5'), '--jobs', str(jobs)]
    start = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - start, float(done.stdout.split()[-2]) / 1024.0


def measure_builds(scene: Scene, folder: Path) -> tuple[str, float]:
    """Build and open maps: the section of the page, and what a second process is worth."""
    (two, _), (one, peak) = (build(scene, folder, jobs) for jobs in (2, 1))
    path = folder / 'map.h5'
    images = len(KernelMap.load(path))
    opening = results.interleaved({'load': lambda: KernelMap.load(path)}, 5)
    rows: list[list[Any]] = [
        ['map build, one process', f'{one:.2f} s'],
        ['map build, two processes', f'{two:.2f} s'],
        ['one over two', one / two],
        ['peak memory of the build', f'{peak:.0f} MB'],
        ['opening the map', f'{results.median_ms(opening["load"]):.0f} ms'],
        ['file', f'{path.stat().st_size / images:.0f} bytes an image'],
    ]
    text = (
        f'## Building a map\n\n`kbr map build --jobs 1` against `--jobs 2`, {images} images of '
        '640x480, whole commands with the start of Python. Every process uses one thread.\n\n'
        f'{results.table(["", ""], rows)}'
    )
    return text, one / two


def main() -> dict[str, Any]:
    """Measure, print and write the page and the figures."""
    with tempfile.TemporaryDirectory() as name, terminal_progress() as progress:
        scene = make_scene(Path(name), progress)
        with threadpool_limits(1, 'blas'):  # as in the node and in the commands
            frame = {**together(stage_times, scene), **together(frame_times, scene)}
        builds, speedup = measure_builds(scene, Path(name))
    times = {name: results.median_ms(found) for name, found in frame.items()}
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    text = (
        f'## A frame while tracking\n\n{results.machine()}. Map of {IMAGES} images, 640x480. '
        f'Linear algebra has one thread, as in the node. Peak memory {peak_mb:.0f} MB.\n\n'
        f'{results.table(["stage", "median ms"], [list(row) for row in times.items()])}'
    )
    results.write_section('frame', text)
    results.write_section('map_build', builds)
    print(text, builds, sep='\n\n')
    figures = {
        'frame_ms': times['whole frame'],
        'update_ms': times['update, with kernel vector'],
        'build_speedup_2p': speedup,
    }
    return results.merge_figures(figures)


if __name__ == '__main__':
    results.take_no_options(__doc__)
    main()
