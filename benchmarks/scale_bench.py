"""
Cost against the size of the map: python -m benchmarks.scale_bench.

Measures tracking steps (predict, update, estimate) on maps of 1,000 and 1,000,000 images in
alternation, memory and opening of the large map in a separate process, and global starts.
A million images need about 7 GB of disk space temporarily.
"""

from collections.abc import Callable
from itertools import cycle
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
SMALL, MIDDLE, LARGE = 1000, 100_000, 1_000_000
"""Images of the maps."""
STEPS = 60
Frame = tuple[np.ndarray, np.ndarray, np.ndarray]


def open_map(folder: Path, images: int) -> tuple[KernelMap, Corridors]:
    """Open a map of the folder; generate and save it first if there is none."""
    path = folder / f'map_{images}.h5'
    if not path.exists():
        synthetic_map(images, folder)[0].save(path)
        (folder / f'descriptors_{images}.npy').unlink()
    return KernelMap.load(path), Corridors(images // 2 * SPACING)


def frames_of(building: Corridors, steps: int, fraction: float) -> list[Frame]:
    """Return frames, 0.4 m apart, of a drive that starts at a fraction of the path."""
    start, rng = fraction * building.length, np.random.default_rng(0)
    return list(drive(building, start, 0.4 * steps, rng))[:steps]


def track(localizer: Any, frames: list[Frame]) -> np.ndarray:
    """Process frames; return position errors (m,) in metres."""
    errors = []
    for pose, increment, descriptor in frames:
        localizer.predict(increment)
        localizer.update(descriptor)
        errors.append(np.hypot(*(localizer.estimate().pose - pose)[:2]))
    return np.array(errors)


def stepper(kernel_map: KernelMap, frames: list[Frame]) -> Callable[[], None]:
    """Return a function that processes the next frame at each call, cyclically."""
    localizer, endless = make_localizer('kbr', kernel_map), cycle(range(len(frames)))

    def step() -> None:
        position = next(endless)
        if position == 0:
            localizer.initialize(frames[0][0], START)
        track(localizer, [frames[position]])

    return step


def tracking(folder: Path) -> list[list[Any]]:
    """Return rows of tracking steps on both maps, and of memory and opening of the large one."""
    functions = {}
    for images in (SMALL, LARGE):
        kernel_map, building = open_map(folder, images)
        functions[images] = stepper(kernel_map, frames_of(building, STEPS, 0.3))
    times = results.interleaved(functions, 3 * STEPS, time.thread_time)
    command = [sys.executable, '-m', 'benchmarks.scale_bench', '--memory', str(folder)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    ratio = float(np.median(np.divide(times[LARGE], times[SMALL])))
    return [
        *([f'tracking step, {n:,} images', results.median_ms(times[n]), 'ms'] for n in times),
        ['their ratio (median of pairs)', ratio, ''],
        *json.loads(found.stdout.splitlines()[-1]),
    ]


def memory(folder: Path) -> list[list[Any]]:
    """Open the large map, localize, track: return rows of time, anonymous memory and error."""
    frames = frames_of(Corridors(LARGE // 2 * SPACING), STEPS, 0.5)
    before, start = _anonymous_bytes(), time.perf_counter()
    kernel_map = KernelMap.load(folder / f'map_{LARGE}.h5')
    opened = time.perf_counter() - start
    localizer = make_localizer('kbr', kernel_map)
    localizer.initialize_globally()
    error = float(np.median(track(localizer, frames)[5:]))
    # add the memory-mapped sketches of the index, as a global start reads all of them
    resident = _anonymous_bytes() - before + kernel_map.search_index.codes.nbytes
    return [
        [f'opening {LARGE:,} images', opened, 's'],
        ['resident bytes per image', resident / LARGE, ''],
        [f'error while tracking, {LARGE:,} images', error, 'm'],
    ]


def relocalization(folder: Path, images: int, starts: int) -> list[list[Any]]:
    """Return rows of global starts on a large map, and of steps until a carried robot is found."""
    kernel_map, building = open_map(folder, images)
    rng, localizer = np.random.default_rng(7), make_localizer('kbr', kernel_map)
    seconds, errors = [], []
    for position in rng.uniform(5.0, building.length - 20.0, starts):
        frames = list(drive(building, position, 4.0, rng))
        localizer.initialize_globally()
        start = time.perf_counter()
        localizer.update(frames[0][2])
        localizer.estimate()
        seconds.append(time.perf_counter() - start)
        errors.append(track(localizer, frames[1:])[-1])
    frames = frames_of(building, 10, 0.3)
    localizer.initialize(frames[0][0], START)
    track(localizer, frames)
    lost = track(localizer, frames_of(building, 40, 0.7)) > 0.5
    return [
        [f'global start, {images:,} images', float(np.median(seconds)), 's'],
        ['global starts that are right after 4 m', float(np.mean(np.array(errors) < 0.5)), ''],
        ['steps of 0.4 m until a carried robot is found', int(np.flatnonzero(lost)[-1]) + 1, ''],
    ]


def _anonymous_bytes() -> int:
    lines = Path('/proc/self/status').read_text(encoding='utf-8').splitlines()
    return 1024 * int(next(line for line in lines if line.startswith('RssAnon')).split()[1])


def main() -> None:
    """Measure everything and write a section, or with `--memory` measure memory and print it."""
    parser = results.parser_of(__doc__)
    parser.add_argument('--memory', type=Path, metavar='FOLDER', help='only measure memory')
    folder = parser.parse_args().memory
    if folder:
        print(json.dumps(memory(folder)))
        return
    with tempfile.TemporaryDirectory() as name, threadpool_limits(1, 'blas'):  # as in the node
        folder = Path(name)
        rows = tracking(folder)
        rows += relocalization(folder, MIDDLE, 10) + relocalization(folder, LARGE, 3)
    results.publish(
        '## Cost against the size of the map\n\nMaps are drawn, not rendered '
        '(`synthetic_map.py`). Steps are measured in processor time, linear algebra has one '
        f'thread. {results.machine()}.\n\n{results.table(["", "measured", "unit"], rows)}',
        'scale',
    )


if __name__ == '__main__':
    main()
