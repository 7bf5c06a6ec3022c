"""
Time per frame and time to build a map: python -m benchmarks.speed_bench.

The filter tracks a drive through a rendered building with similar corridors, on a map of 1000
images of 640x480 pixels.
"""

from collections.abc import Callable, Sequence
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
from kbr_localization.simulation.run import BuildingConfig, RunConfig, write_building
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
COMMAND = """
import atexit
from kbr_localization.cli import main
status = '/proc/self/status'
atexit.register(lambda: print([line for line in open(status) if line.startswith('VmHWM')][0]))
main()
"""
"""Run `kbr` and print its peak memory; measured by the parent it would include the parent's."""


def frame_times(kernel_map: KernelMap, frames: Sequence[Frame]) -> dict[str, list[float]]:
    """Track a drive; return seconds of each stage, and of frames with and without an update."""
    seconds: dict[str, list[float]] = {}

    def timed(stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        result = function(*arguments)
        seconds.setdefault(stage, []).append(time.perf_counter() - start)
        return result

    images, first = [frame.load_image() for frame in frames], frames[0].reference
    assert first is not None
    odometry = np.array([frame.odometry for frame in frames])
    increments = [np.zeros(3), *se2.between(odometry[:-1], odometry[1:])]
    for _ in range(ROUNDS):
        localizer = make_localizer('kbr', kernel_map)
        tracker = Tracker(kernel_map, make_localizer('kbr', kernel_map))
        localizer.initialize(first, START)
        tracker.initialize(first, START)
        for image, increment in zip(images, increments, strict=True):
            timed('predict', localizer.predict, increment)
            if localizer.wants_image():
                descriptor = timed('describe', kernel_map.describer.describe, image)
                timed('kernel vector alone', kernel_map.compare, descriptor)
                timed('update, with kernel vector', localizer.update, descriptor)
            timed('estimate', localizer.estimate)
        for frame, image in zip(frames, images, strict=True):
            whole = 'whole frame', tracker.process, frame.stamp_ns, image, frame.odometry
            if not timed(*whole).updated:
                without = seconds.setdefault('whole frame without update', [])
                without.append(seconds['whole frame'].pop())
    return seconds


def build(training: Sequence[Path], path: Path, jobs: int) -> tuple[float, float]:
    """Run `kbr map build` on each run nine times over; return seconds and peak megabytes."""
    runs = [str(run) for run in training] * 9
    command = [sys.executable, '-c', COMMAND, 'map', 'build', *runs]
    command += ['--out', str(path), '--jobs', str(jobs)]
    start = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - start, float(done.stdout.split()[-2]) / 1024.0


def measure_builds(training: Sequence[Path], path: Path) -> str:
    """Build and open maps; return the section of the page."""
    (two, _), (one, peak) = (build(training, path, jobs) for jobs in (2, 1))
    images = len(KernelMap.load(path))
    opening = results.interleaved({'load': lambda: KernelMap.load(path)}, 5)['load']
    rows = {
        'map build, one process': f'{one:.2f} s',
        'map build, two processes': f'{two:.2f} s',
        'one over two': one / two,
        'peak memory of the build': f'{peak:.0f} MB',
        'opening the map': f'{results.median_ms(opening):.0f} ms',
        'file': f'{path.stat().st_size / images:.0f} bytes an image',
    }
    return (
        f'## Building a map\n\n`kbr map build --jobs 1` against `--jobs 2`, {images} images of '
        '640x480, whole commands with the start of Python. Every process uses one thread.\n\n'
        f'{results.table(["", ""], list(rows.items()))}'
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        *training, walk = write_building(Path(name) / 'building', RUNS, BuildingConfig(seed=SEED))
        with open_workers(None):
            datasets = [open_dataset(path) for path in training]
            kernel_map = build_map(datasets, max_images=IMAGES)
        with threadpool_limits(1, 'blas'):  # as in the node and in the commands
            seconds = frame_times(kernel_map, list(open_dataset(walk)))
        builds = measure_builds(training, Path(name) / 'map.h5')
    rows = [[stage, results.median_ms(found)] for stage, found in seconds.items()]
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    text = (
        f'## A frame while tracking\n\n{results.machine()}. Map of {IMAGES} images, 640x480. '
        f'Linear algebra has one thread, as in the node. Peak memory {peak_mb:.0f} MB.\n\n'
        f'{results.table(["stage", "median ms"], rows)}'
    )
    results.publish(text, 'frame')
    results.publish(builds, 'map_build')


if __name__ == '__main__':
    results.parser_of(__doc__).parse_args()
    main()
