"""
Cost against the size of the map: python -m benchmarks.scale_bench [--folder FOLDER].

A tracking step (predict, update, estimate) on 1,000 and on 1,000,000 images, in turn; the memory
and the opening of the large map in a separate process; and global starts.
A million images take about 7 GB of disk while they are drawn and written, 3.3 GB in the end;
without --folder they are deleted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import json
from pathlib import Path
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks import results
from benchmarks.synthetic_map import Corridors, drive, SPACING, synthetic_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.registry import make_localizer
import numpy as np
from threadpoolctl import threadpool_limits

START = np.diag([0.1, 0.1, 0.05]) ** 2
SMALL, LARGE, MIDDLE = 1000, 1_000_000, 100_000
"""Images of the maps."""
STEPS = 60
Frames = list[tuple[np.ndarray, np.ndarray, np.ndarray]]


def open_map(folder: Path, images: int) -> tuple[KernelMap, Corridors]:
    """Open a map of the folder; draw and save it where there is none."""
    path = folder / f'map_{images}.h5'
    if not path.exists():
        synthetic_map(images, folder)[0].save(path)
        (folder / f'descriptors_{images}.npy').unlink()
    return KernelMap.load(path), building_of(images)


def building_of(images: int) -> Corridors:
    """Return the building of a map of so many images."""
    return Corridors(images // 2 * SPACING)


def frames_of(building: Corridors, steps: int, fraction: float = 0.5, seed: int = 0) -> Frames:
    """Frames of a drive that begins at a fraction of the way, 0.4 m apart."""
    start, rng = fraction * building.length, np.random.default_rng(seed)
    return list(drive(building, start, 0.4 * steps, rng))[:steps]


def stepper(localizer: Any, frames: Frames) -> Callable[[], None]:
    """Make a function that takes in the next frame at each call, round and round."""
    position = 0

    def step() -> None:
        nonlocal position
        if position % len(frames) == 0:
            localizer.initialize(frames[0][0], START)
        _step(localizer, frames[position % len(frames)])
        position += 1

    return step


def tracking(folder: Path) -> dict[str, float]:
    """Measure the tracking step on two sizes of map side by side, and what the large one takes."""
    functions = {}
    for images in (SMALL, LARGE):
        kernel_map, building = open_map(folder, images)
        localizer = make_localizer('kbr', kernel_map)
        functions[str(images)] = stepper(localizer, frames_of(building, STEPS, 0.3))
    times = results.interleaved(functions, 3 * STEPS, time.thread_time)
    command = [sys.executable, '-m', 'benchmarks.scale_bench', '--memory', '--folder', str(folder)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return {
        'ratio': results.ratio(times, str(LARGE), str(SMALL)),
        'small_ms': results.median_ms(times[str(SMALL)]),
        'large_ms': results.median_ms(times[str(LARGE)]),
        **json.loads(found.stdout.splitlines()[-1]),
    }


def memory(folder: Path) -> dict[str, float]:
    """Open the large map, localize globally, track: seconds, and bytes beside mapped pages."""
    frames = frames_of(building_of(LARGE), STEPS)
    before = _anonymous_bytes()
    start = time.perf_counter()
    kernel_map = KernelMap.load(folder / f'map_{LARGE}.h5')
    opened = time.perf_counter() - start
    localizer = make_localizer('kbr', kernel_map)
    localizer.initialize_globally()
    errors = _follow(localizer, frames)
    # the sketches are mapped too, but a global start reads all of them: they count
    resident = _anonymous_bytes() - before + kernel_map.search_index.codes.nbytes
    return {
        'open_s': opened,
        'bytes_per_image': resident / LARGE,
        'error_m': float(np.median(errors[5:])),
    }


def relocalization(folder: Path, images: int, starts: int = 10) -> list[tuple[str, float, str]]:
    """Measure global starts on a large map, and how soon a carried robot is found."""
    kernel_map, building = open_map(folder, images)
    rng = np.random.default_rng(7)
    localizer = make_localizer('kbr', kernel_map)
    seconds, errors = [], []
    for way in rng.uniform(5.0, building.length - 20.0, starts):
        frames = list(drive(building, way, 4.0, rng))
        localizer.initialize_globally()
        start = time.perf_counter()
        localizer.update(frames[0][2])
        localizer.estimate()
        seconds.append(time.perf_counter() - start)
        errors.append(_follow(localizer, frames[1:])[-1])
    localizer.initialize(frames_of(building, 1, 0.3)[0][0], START)
    _follow(localizer, frames_of(building, 10, 0.3))
    carried = _follow(localizer, frames_of(building, 40, 0.7))
    return [
        (f'global start, {images:,} images', float(np.median(seconds)), 's'),
        ('global starts that are right after 4 m', float(np.mean(np.array(errors) < 0.5)), ''),
        (
            'steps of 0.4 m until a carried robot is found',
            float(np.flatnonzero(carried > 0.5)[-1] + 1),
            '',
        ),
    ]


def _step(localizer: Any, frame: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    localizer.predict(frame[1])
    localizer.update(frame[2])
    return np.asarray(localizer.estimate().pose)


def _follow(localizer: Any, frames: Frames) -> np.ndarray:
    return np.array([np.hypot(*(_step(localizer, frame) - frame[0])[:2]) for frame in frames])


def _anonymous_bytes() -> int:
    lines = Path('/proc/self/status').read_text(encoding='utf-8').splitlines()
    return 1024 * int(next(line for line in lines if line.startswith('RssAnon')).split()[1])


def report(folder: Path) -> None:
    """Measure everything, print it and write the figures and a section of the page."""
    with threadpool_limits(1, 'blas'):  # as in the node and in the commands
        middle = relocalization(folder, MIDDLE)
        large = tracking(folder)
        million = relocalization(folder, LARGE, 3)
    figures = {
        'tracking_1m_over_1k': large['ratio'],
        'relocalize_100k_s': middle[0][1],
        'bytes_per_image_1m': large['bytes_per_image'],
    }
    results.merge_figures(figures)
    rows = [
        ('tracking step, 1000 images', large['small_ms'], 'ms'),
        ('tracking step, 1,000,000 images', large['large_ms'], 'ms'),
        ('their ratio (median of pairs)', large['ratio'], ''),
        ('opening 1,000,000 images', large['open_s'], 's'),
        ('resident bytes per image', large['bytes_per_image'], ''),
        ('error while tracking, 1,000,000 images', large['error_m'], 'm'),
        *middle,
        *million,
    ]
    text = (
        '## Cost against the size of the map\n\nMaps are drawn, not rendered '
        '(`synthetic_map.py`). Steps are measured in processor time, linear algebra has one '
        f'thread. {results.machine()}.\n\n'
        f'{results.table(["", "measured", "unit"], rows)}'
    )
    results.publish(text, 'scale')


def main() -> None:
    """Run the benchmark, or the part of it that needs a process of its own."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument('--folder', type=Path, help='where the maps are kept')
    parser.add_argument('--memory', action='store_true', help='only open and track the large map')
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(memory(options.folder)))
    elif options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
        report(options.folder)
    else:
        with tempfile.TemporaryDirectory() as folder:
            report(Path(folder))


if __name__ == '__main__':
    main()
