"""
What a robot says on the map of another building: `python -m benchmarks.other_buildings`.

Every building is mapped by day and driven by night, and each night is localized on the map of
another building. Nothing is right there, so whatever is called localized is wrong. With --train
and --test the maps and the runs are those that are given; with --runs each of these is mapped and
driven on the maps of all that are not in the same folder, its images cut to the size of the map's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
import functools
import itertools
from pathlib import Path
from typing import Any

from benchmarks import results, workload
from benchmarks.place_recognition import SETTLED_M, statuses_at
import cv2
from kbr_localization.datasets import Dataset, Frame, open_dataset
from kbr_localization.datasets.opening import needs_spacing
from kbr_localization.evaluation import reference_trajectory, run_errors
from kbr_localization.evaluation.described import DescribedRun, on_described_run
from kbr_localization.evaluation.protocol import random_map, Task
from kbr_localization.localization.kbr.leave_out import with_statistics
from kbr_localization.localization.localizer import NOT_ON_THIS_MAP
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.pipeline import localize
from kbr_localization.workers import open_workers
import numpy as np

COLUMNS = ['map', 'driven', 'images', 'localized', 'not on this map']


@dataclass(frozen=True)
class Stay:
    """A run on the map of another building: fractions of the frames after `SETTLED_M`."""

    mapped: str
    driven: str
    images: int
    localized: float
    refuted: float

    def row(self) -> list[Any]:
        """Return a row of the table."""
        return [self.mapped, self.driven, self.images, self.localized, self.refuted]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all pairs and print the table, into the page too when a section is named."""
    options = _parser().parse_args(arguments)
    sizes = [int(size) for size in options.sizes.split(',')]
    if options.train and options.test:
        training = [open_dataset(path) for path in options.train]
        driven = [open_dataset(path) for path in options.test]
        given = workload.described(training, driven, 0)
        stays = list(stays_on('given', *given, sizes, options.trials))
    elif options.runs:
        runs = [spaced for path in options.runs for spaced in _spaced(path, options.spacing)]
        tasks = [(run, runs, sizes, options.trials) for run in runs]
        with open_workers(None) as workers:
            stays = [stay for _, part in workers.run(of_run, tasks) for stay in part]
    else:
        seeds = [options.first + options.step * number for number in range(options.buildings)]
        pairs = [(seed, seeds[(place + 1) % len(seeds)]) for place, seed in enumerate(seeds)]
        with open_workers(None) as workers:
            found = workers.run(of_building, [(*pair, sizes, options.trials) for pair in pairs])
            stays = sorted((s for _, part in found for s in part), key=lambda s: s.images)
    text = described(stays)
    results.publish(text, options.section)


def _parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    add = parser.add_argument
    add('--train', nargs='+', type=Path, help='runs of a map (default: rendered buildings)')
    add('--test', nargs='+', type=Path, help='runs in another building')
    add('--runs', nargs='+', type=Path, help='runs of several places, of a place in one folder')
    add('--spacing', nargs='+', type=float, default=[1.0, 0.3], help='m, of runs without poses')
    add('--first', type=int, default=302, help='seed of the first building')
    add('--buildings', type=int, default=6)
    add('--step', type=int, default=2, help='between the seeds; even ones are for choosing')
    add('--sizes', default='100,400,1000', help='images of the random maps')
    add('--trials', type=int, default=1, help='random maps of each size')
    add('--section', help='name of the section of benchmarks/README.md to replace')
    return parser


def of_building(work: tuple[int, int, Sequence[int], int]) -> list[Stay]:
    """Localize the night of one building on maps of another one."""
    mapped, driven, sizes, trials = work
    training, _, _ = workload.rendered('office', mapped)
    _, nights, _ = workload.rendered('office', driven)
    found = stays_on(str(mapped), *workload.described(training, nights, 0), sizes, trials)
    return [replace(stay, driven=str(driven)) for stay in found]


Spaced = tuple[Path, float | None]
"""A run and the metres between its places where it has no poses."""


def _spaced(path: Path, spacings: Sequence[float]) -> list[Spaced]:
    return [(path, spacing) for spacing in (spacings if needs_spacing(path) else (None,))]


def of_run(work: tuple[Spaced, Sequence[Spaced], Sequence[int], int]) -> list[Stay]:
    """Localize the runs of other folders on the map of one run, and on random maps of it."""
    (path, spacing), runs, sizes, trials = work
    mapped = open_dataset(path, spacing=spacing)
    shape = next(iter(mapped)).load_image().shape[:2]
    driven = [
        Fitted(open_dataset(other, spacing=metres), shape, _name(other, metres))
        for other, metres in runs
        if other.parent != path.parent
    ]
    kernel_map, described_runs = workload.described([mapped], driven, 0)
    every = [*sizes, len(kernel_map)]
    return list(stays_on(_name(path, spacing), kernel_map, described_runs, every, trials))


def _name(path: Path, spacing: float | None) -> str:
    return f'{path.parent.name}/{path.name}' + ('' if spacing is None else f', {spacing:g} m')


class Fitted(Dataset):
    """A run whose images are cut and scaled to a shape (height, width)."""

    def __init__(self, run: Dataset, shape: Sequence[int], name: str) -> None:
        self._run, self._shape = run, shape
        self.name, self.skipped, self.odometry = name, run.skipped, run.odometry

    def __len__(self) -> int:
        return len(self._run)

    def __getitem__(self, index: int) -> Frame:
        frame = self._run[index]
        return replace(frame, image=functools.partial(self._image, frame))

    def _image(self, frame: Frame) -> np.ndarray:
        image, (height, width) = np.asarray(frame.load_image()), self._shape
        rows, columns = image.shape[:2]
        size = min(columns, rows * width // height), min(rows, columns * height // width)
        middle = (0.5 * (columns - 1), 0.5 * (rows - 1))
        cut = cv2.getRectSubPix(image, size, middle)
        return cv2.resize(cut, (width, height), interpolation=cv2.INTER_AREA)


def stays_on(
    name: str,
    kernel_map: KernelMap,
    runs: Sequence[DescribedRun],
    sizes: Sequence[int],
    trials: int,
) -> Iterator[Stay]:
    """Localize runs on random maps, of each size that there is, of one building."""
    for size, trial in itertools.product(sizes, range(trials)):
        if size <= len(kernel_map):
            small = with_statistics(random_map(kernel_map, Task('kbr', size, trial), 0))
            for run in runs:
                yield _stay(name, small, run)


def _stay(name: str, kernel_map: KernelMap, run: DescribedRun) -> Stay:
    trajectory = localize(on_described_run(kernel_map, run), run, 'kbr', seed=0)
    errors = run_errors(reference_trajectory(run), trajectory)
    statuses = statuses_at(errors, trajectory)
    late = statuses[errors.travel_m > min(SETTLED_M, 0.5 * errors.travel_m[-1])]
    said, refuted = (float(np.mean(late == one)) for one in ('localized', NOT_ON_THIS_MAP))
    return Stay(name, run.name, len(kernel_map), said, refuted)


def described(stays: Sequence[Stay]) -> str:
    """Lay the table out."""
    lines = []
    for size in sorted({stay.images for stay in stays}):
        said = np.array([stay.localized for stay in stays if stay.images == size])
        lines.append(
            f'{size} images: localized in {said.mean():.3f} of the frames, in more than 1% of '
            f'those of {np.sum(said > 0.01)} of {said.size} drives.'
        )
    return (
        '### Maps of another building\n\nFractions of the frames after the first '
        f'{SETTLED_M:g} m that `kbr` calls localized, all of them wrong, and not on this map.\n\n'
        f'{results.table(COLUMNS, [stay.row() for stay in stays])}\n\n' + '\n'.join(lines)
    )


if __name__ == '__main__':
    main()
