"""
Cost against the size of the map: python -m benchmarks.scale_bench [--folder FOLDER].

Functions that others may call (each draws its map into a folder, or finds it there):

- `tracking(folder, small, large)`: one step (predict, update, estimate) on two sizes of map, in
  turn; their ratio, and the memory and the opening of the large map in a process of its own.
- `relocalization(folder, images)`: seconds of a global start, the fraction of the exact search's
  top-10 match scores that the index finds, and steps until a carried robot is found again.
- `against_dense(folder, images)`: the plain dense Algorithm 1 against the filter with local
  systems, and how far that one's positions lie from those of the same filter solved in full.

Figures: tracking_1m_over_1k, relocalize_100k_s, relocalize_100k_recall, dense_over_ours_4k,
bytes_per_image_1m. A million images take about 7 GB of disk while they are drawn and written, 3.3
GB in the end; without --folder they are deleted.
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
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.kbr.likelihood import Likelihood
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.similarity import FullSimilarity
from kbr_localization.localization.methods.adapted import AdaptedAlgorithm1
import numpy as np
from threadpoolctl import threadpool_limits

START = np.diag([0.1, 0.1, 0.05]) ** 2
_TOP = 10
_STEPS = 60
Frames = list[tuple[np.ndarray, np.ndarray, np.ndarray]]


class PlainAlgorithm1(AdaptedAlgorithm1):
    """[MbKSR] Algorithm 1 with the update of [KBR] eq. 13 as printed: all weights, by LU."""

    def update_similarities(self, similarities: np.ndarray) -> None:
        """Update by the kernel vector (n,) of an image."""
        if self._steps:
            self._predict(self._increment)
        assert self._mu is not None
        product = self._mu[:, np.newaxis] * self.kernels.gram_y
        squared = product @ product
        squared.flat[:: len(squared) + 1] += self.config.delta
        observed = self._mu * self.kernels.image_kernel(similarities)
        weights = product @ np.linalg.solve(squared, observed)
        self.alpha = self._mu = weights / weights.sum()


class FilterInFull(KernelBayesFilter):
    """The filter with one system of all images of the map, which every image is compared with."""

    def __init__(self, kernel_map: KernelMap, rng: np.random.Generator) -> None:
        super().__init__(kernel_map, rng=rng)
        self.likelihood = Likelihood(kernel_map, self.config, len(kernel_map))
        self.hypotheses.likelihood = self.likelihood

    def update(self, descriptor: np.ndarray) -> None:
        """Weigh the points by an image's descriptor (d,), compared with all of the map."""
        self.update_similarities(self.kernel_map.similarities(descriptor))


def open_map(folder: Path, images: int) -> tuple[KernelMap, Corridors]:
    """Open a map of the folder; draw and save it where there is none."""
    path = folder / f'map_{images}.h5'
    if not path.exists():
        drawn, _ = synthetic_map(images, folder)
        start = time.perf_counter()
        drawn.save(path)
        print(f'map of {images} images indexed and saved in {time.perf_counter() - start:.0f} s')
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
    localizer.initialize(frames[0][0], START)

    def step() -> None:
        nonlocal position
        if position == len(frames):
            position = 0
            localizer.initialize(frames[0][0], START)
        _, increment, image = frames[position]
        localizer.predict(increment)
        localizer.update(image)
        localizer.estimate()
        position += 1

    return step


def tracking(folder: Path, small: int = 1000, large: int = 1_000_000) -> dict[str, float]:
    """Measure the tracking step on two sizes of map side by side, and what the large one takes."""
    functions = {}
    for images in (small, large):
        kernel_map, building = open_map(folder, images)
        localizer = KernelBayesFilter(kernel_map)
        functions[str(images)] = stepper(localizer, frames_of(building, _STEPS, 0.3))
    times = results.interleaved(functions, 3 * _STEPS, time.thread_time)
    walls = results.interleaved(functions, _STEPS)
    command = [sys.executable, '-m', 'benchmarks.scale_bench', '--memory', str(large)]
    found = subprocess.run(
        [*command, '--folder', str(folder)], check=True, stdout=subprocess.PIPE, text=True
    )
    return {
        'ratio': results.ratio(times, str(large), str(small)),
        'small_ms': results.median_ms(times[str(small)]),
        'large_ms': results.median_ms(times[str(large)]),
        'wall_ratio': results.ratio(walls, str(large), str(small)),
        **json.loads(found.stdout.splitlines()[-1]),
    }


def memory(folder: Path, images: int) -> dict[str, float]:
    """Open a map, localize globally, track: seconds and bytes beside mapped pages of the file."""
    building = building_of(images)
    frames = frames_of(building, _STEPS)
    before = _anonymous_bytes()
    start = time.perf_counter()
    kernel_map = KernelMap.load(folder / f'map_{images}.h5')
    opened = time.perf_counter() - start
    localizer = KernelBayesFilter(kernel_map)
    localizer.initialize_globally()
    errors = _follow(localizer, frames)
    # the sketches are mapped too, but a global start reads all of them: they count
    index = kernel_map.search_index
    resident = _anonymous_bytes() - before + index.codes.nbytes
    return {
        'open_s': opened,
        'bytes_per_image': resident / images,
        'error_m': float(np.median(errors[5:])),
    }


def relocalization(folder: Path, images: int = 100_000, starts: int = 10) -> dict[str, float]:
    """Measure global starts on a large map, and what its index misses."""
    kernel_map, building = open_map(folder, images)
    rng = np.random.default_rng(7)
    quick, thorough, seconds, errors = [], [], [], []
    for way in rng.uniform(5.0, building.length - 20.0, starts):
        frames = list(drive(building, way, 4.0, rng))
        exact = kernel_map.similarities(frames[0][2])
        quick.append(_recall(kernel_map, frames[0][2], exact, False))
        thorough.append(_recall(kernel_map, frames[0][2], exact, True))
        localizer = KernelBayesFilter(kernel_map, rng=np.random.default_rng(starts))
        localizer.initialize_globally()
        start = time.perf_counter()
        localizer.update(frames[0][2])
        localizer.estimate()
        seconds.append(time.perf_counter() - start)
        errors.append(_follow(localizer, frames[1:])[-1])
    return {
        'seconds': float(np.median(seconds)),
        'recall': float(np.mean(thorough)),
        'recall_quick': float(np.mean(quick)),
        'localized': float(np.mean(np.array(errors) < 0.5)),
        **_carried(kernel_map, building),
    }


def against_dense(folder: Path, images: int = 4000, updates: int = 3) -> dict[str, float]:
    """Measure the dense Algorithm 1 against ours, and ours against itself solved in full."""
    kernel_map, building = open_map(folder, images)
    frames = frames_of(building, _STEPS)
    exact = FilterInFull(kernel_map, np.random.default_rng(1))
    local = KernelBayesFilter(kernel_map, rng=np.random.default_rng(1))
    paths = []
    for localizer in (exact, local):
        localizer.initialize(frames[0][0], START)
        paths.append(np.array([_step(localizer, frame)[:2] for frame in frames]))
    dense = {'dense': PlainAlgorithm1(kernel_map), 'careful': AdaptedAlgorithm1(kernel_map)}
    localizers = dense | {'ours': KernelBayesFilter(kernel_map)}
    functions = {name: stepper(localizer, frames) for name, localizer in localizers.items()}
    # of this thread alone: where the dense algorithm computes in several, it is flattered
    times = results.interleaved(functions, updates, time.thread_time)
    belief, image = local.belief, FullSimilarity(kernel_map.similarities(frames[-1][2]))
    seen = kernel_map.centring.of(image)
    assert belief is not None
    full, ours = (
        one.likelihood.match(belief.points, belief.weights, seen) for one in (exact, local)
    )
    return {
        'ratio': results.ratio(times, 'dense', 'ours'),
        'careful_ratio': results.ratio(times, 'careful', 'ours'),
        'dense_ms': results.median_ms(times['dense']),
        'ours_ms': results.median_ms(times['ours']),
        'farthest_from_exact_m': float(np.hypot(*(paths[0] - paths[1]).T).max()),
        'likelihood_error': abs(ours.likelihood_ratio / full.likelihood_ratio - 1.0),
    }


def _step(localizer: Any, frame: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    localizer.predict(frame[1])
    localizer.update(frame[2])
    return np.asarray(localizer.estimate().pose)


def _follow(localizer: Any, frames: Frames) -> np.ndarray:
    return np.array([np.hypot(*(_step(localizer, frame) - frame[0])[:2]) for frame in frames])


def _carried(kernel_map: KernelMap, building: Corridors) -> dict[str, float]:
    """Count the steps of 0.4 m until a robot that was carried elsewhere is found."""
    localizer = KernelBayesFilter(kernel_map)
    localizer.initialize(frames_of(building, 1, 0.3)[0][0], START)
    _follow(localizer, frames_of(building, 10, 0.3))
    errors = _follow(localizer, frames_of(building, 40, 0.7))
    return {'found_after_steps': float(np.flatnonzero(errors > 0.5)[-1] + 1)}


def _recall(kernel_map: KernelMap, image: np.ndarray, exact: np.ndarray, thorough: bool) -> float:
    """Fraction of the match scores of the ten best images that the ten best proposals have."""
    seen = kernel_map.centring.of(FullSimilarity(exact))
    variance = kernel_map.filter_config.image_bandwidth**2
    scores = np.exp((seen.at(seen.candidates) - seen.best) / variance)
    found = kernel_map.compare(image, thorough).candidates
    return float(np.sort(scores[found])[-_TOP:].sum() / np.sort(scores)[-_TOP:].sum())


def _anonymous_bytes() -> int:
    lines = Path('/proc/self/status').read_text(encoding='utf-8').splitlines()
    return 1024 * int(next(line for line in lines if line.startswith('RssAnon')).split()[1])


def report(folder: Path) -> None:
    """Measure everything, print it and write the figures and a section of the page."""
    dense = against_dense(folder)
    with threadpool_limits(1, 'blas'):  # as in the node and in the commands
        small = relocalization(folder)
        large = tracking(folder)
        million = relocalization(folder, 1_000_000, 3)
    figures = {
        'tracking_1m_over_1k': large['ratio'],
        'relocalize_100k_s': small['seconds'],
        'relocalize_100k_recall': small['recall'],
        'dense_over_ours_4k': dense['ratio'],
        'bytes_per_image_1m': large['bytes_per_image'],
    }
    results.merge_figures(figures)
    rows = [
        ['tracking step, 1000 images', large['small_ms'], 'ms'],
        ['tracking step, 1,000,000 images', large['large_ms'], 'ms'],
        ['their ratio (median of pairs)', large['ratio'], ''],
        ['the same by the clock on the wall', large['wall_ratio'], ''],
        ['opening 1,000,000 images', large['open_s'], 's'],
        ['resident bytes per image', large['bytes_per_image'], ''],
        ['error while tracking, 1,000,000 images', large['error_m'], 'm'],
        *_relocalization_rows('100,000', small),
        *_relocalization_rows('1,000,000', million),
        ['dense Algorithm 1, 4000 images', dense['dense_ms'], 'ms'],
        ['this filter, 4000 images', dense['ours_ms'], 'ms'],
        ['their ratio', dense['ratio'], ''],
        ['the same with an Algorithm 1 that skips weights of zero', dense['careful_ratio'], ''],
        ['error of the likelihood ratio of local systems', dense['likelihood_error'], ''],
        [
            'farthest from the same filter solved in full',
            1e3 * dense['farthest_from_exact_m'],
            'mm',
        ],
    ]
    text = results.table(['', 'measured', 'unit'], rows)
    intro = (
        'Maps are drawn, not rendered (`synthetic_map.py`). Steps are measured in processor time.'
        ' Linear algebra has one thread, but for the dense Algorithm 1 and its rival. '
        f'{results.machine()}.'
    )
    results.write_section('scale', f'## Cost against the size of the map\n\n{intro}\n\n{text}')
    print(text)


def _relocalization_rows(size: str, found: dict[str, float]) -> list[list[Any]]:
    return [
        [f'global start, {size} images', found['seconds'], 's'],
        ["fraction of the exact search's top-10 match scores", found['recall'], ''],
        ['the same for the quick search of every update', found['recall_quick'], ''],
        ['global starts that are right after 4 m', found['localized'], ''],
        ['steps of 0.4 m until a carried robot is found', found['found_after_steps'], ''],
    ]


def main() -> None:
    """Run the benchmark, or the part of it that needs a process of its own."""
    parser = argparse.ArgumentParser(description='cost against the size of the map')
    parser.add_argument('--folder', type=Path, help='where the maps are kept')
    parser.add_argument('--memory', type=int, help='only open and track a map of so many images')
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(memory(options.folder, options.memory)))
    elif options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
        report(options.folder)
    else:
        with tempfile.TemporaryDirectory() as folder:
            report(Path(folder))


if __name__ == '__main__':
    main()
