"""Building and opening a map: processes against each other, memory, the size of the file."""

from __future__ import annotations

from collections.abc import Callable
import functools
from pathlib import Path
import subprocess
import sys
from typing import Any

from benchmarks import results
from benchmarks.scene import Scene
from kbr_localization.localization.map.kernel_map import KernelMap
import numpy as np

REPEATED = 9
"""Times that the runs are given: ten thousand images, for a floor or two."""
FEW = 3
"""The same for a small map, where starting Python and learning the words weigh more."""
ROUNDS = 2
LOOP = 60_000_000
TRIES = 12
FREE = 1.7
"""A round counts when a loop that shares nothing is so many times faster in two processes."""
COMMAND = """
import atexit
from kbr_localization.cli import main
status = '/proc/self/status'
atexit.register(lambda: print([line for line in open(status) if line.startswith('VmHWM')][0]))
main()
"""
"""`kbr`, then its own peak memory: that of a child as its parent sees it includes the parent's."""


def share_nothing(processes: int) -> None:
    """Let processes count without sharing anything: as much faster as this machine gets now."""
    command = [sys.executable, '-c', f'for _ in range({LOOP // processes}): pass']
    running = [subprocess.Popen(command) for _ in range(processes)]
    for process in running:
        process.wait()


LOOPS: dict[str, Callable[[], Any]] = {
    f'loop {jobs}': functools.partial(share_nothing, jobs) for jobs in (1, 2)
}


def measure(scene: Scene, folder: Path) -> dict[str, Any]:
    """Run `kbr map build` on one and on two processes in turn; open what came out."""
    few = build_times(scene, folder, FEW)
    times = build_times(scene, folder, REPEATED)
    maps = [KernelMap.load(folder / f'{jobs}.h5') for jobs in (1, 2)]
    assert np.array_equal(maps[0].descriptors, maps[1].descriptors)
    opening = results.interleaved({'load': lambda: KernelMap.load(folder / '1.h5')}, 5)
    return {
        'images': len(maps[0]),
        'seconds': {jobs: float(np.median(found)) for jobs, found in times.items()},
        'speedup': results.ratio(times, '1', '2'),
        'speedup_few': results.ratio(few, '1', '2'),
        'loop_speedup': results.ratio(times, 'loop 1', 'loop 2'),
        'load_ms': results.median_ms(opening['load']),
        'file_bytes_per_image': (folder / '1.h5').stat().st_size / len(maps[0]),
        'memory_mb': build(scene, folder, REPEATED, 1),
    }


def build_times(scene: Scene, folder: Path, repeated: int) -> dict[str, list[float]]:
    """Time builds by the number of processes, and the loops, while two cores are free."""
    run = functools.partial(build, scene, folder, repeated)
    builds: dict[str, Callable[[], Any]] = {
        f'{jobs}': functools.partial(run, jobs) for jobs in (1, 2)
    }
    times: dict[str, list[float]] = {name: [] for name in (*builds, *LOOPS)}
    for _ in range(TRIES):
        loop = results.interleaved(LOOPS, 1, warm_up=False)
        if len(times['1']) < ROUNDS and results.ratio(loop, *LOOPS) >= FREE:
            for name, seconds in (loop | results.interleaved(builds, 1, warm_up=False)).items():
                times[name] += seconds
    if times['1']:
        return times
    print(f'two cores were not free in {TRIES} tries: see the loop', file=sys.stderr)
    return results.interleaved(builds | LOOPS, ROUNDS, warm_up=False)


def build(scene: Scene, folder: Path, repeated: int, jobs: int) -> float:
    """Run the command; returns its peak memory in megabytes."""
    runs = [str(run) for run in scene.training] * repeated
    command = [sys.executable, '-c', COMMAND, 'map', 'build', *runs]
    command += ['--out', str(folder / f'{jobs}.h5'), '--jobs', str(jobs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-2]) / 1024.0


def section(found: dict[str, Any]) -> str:
    """Lay the figures out as a section of the page."""
    seconds, few = found['seconds'], found['images'] * FEW // REPEATED
    rows = [
        ['map build, one process', f'{seconds["1"]:.2f} s'],
        ['map build, two processes', f'{seconds["2"]:.2f} s'],
        ['one over two', f'{found["speedup"]:.2f}'],
        [f'the same of {few} images', f'{found["speedup_few"]:.2f}'],
        ['the same of a loop that shares nothing', f'{found["loop_speedup"]:.2f}'],
        ['peak memory of the build', f'{found["memory_mb"]:.0f} MB'],
        ['opening the map', f'{found["load_ms"]:.0f} ms'],
        ['file', f'{found["file_bytes_per_image"]:.0f} bytes an image'],
    ]
    return (
        '## Building a map\n\n'
        f'`kbr map build --jobs 1` against `--jobs 2`, {found["images"]} images of 640x480, whole '
        'commands with the start of Python. Every process uses one thread. Rounds count while a '
        f'loop that shares nothing is {FREE:g} times faster in two processes, if any.\n\n'
        + results.table(['', ''], rows)
    )
