"""
Real and rendered runs together, on which a number of the filter is chosen or tried.

Photographs, runs in any format, rendered buildings at night with the map's robot or with one that
is drawn at random: a case is a map and a run on it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import workload
from benchmarks.photographs import GARDENS_POINT, Pair, pairs, RIGHT_FRAMES
from kbr_localization.datasets import Dataset, open_dataset
from kbr_localization.evaluation.described import DescribedRun, on_described_run
from kbr_localization.evaluation.protocol import random_map, Task
from kbr_localization.localization.localizer import LOST_M
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.simulation import random_robot
from threadpoolctl import threadpool_limits

SPACINGS = (1.0, 0.3)


@dataclass(frozen=True)
class Case:
    """A map, a run on it, and the metres within which an answer is right; `group`: like cases."""

    group: str
    kernel_map: KernelMap
    run: DescribedRun
    right_m: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let the command line say which cases there are."""
    add = parser.add_argument
    add('--photographs', type=Path, help='as DATA of benchmarks.photographs')
    add('--train', nargs='+', type=Path, default=[], help='runs of a map')
    add('--test', nargs='+', type=Path, default=[], help='runs on it')
    add('--pair', nargs=2, type=Path, action='append', default=[], metavar=('MAP', 'TEST'))
    add('--buildings', nargs='+', type=int, default=[], help='seeds of rendered buildings')
    add('--robots', nargs='+', type=int, default=[], help='the same, with robots drawn at random')
    add('--sizes', default='100,400', help='images of the random maps')


def given(options: argparse.Namespace) -> list[Case]:
    """Make the cases of a command line; linear algebra has one thread from here on."""
    threadpool_limits(1, 'blas')
    found = list(_given(options))
    if not found:
        names = '--photographs, --train and --test, --pair, --buildings or --robots'
        raise SystemExit(f'expected {names}, got none of them')
    return found


def _given(options: argparse.Namespace) -> Iterator[Case]:
    sizes = [int(size) for size in options.sizes.split(',')]
    for mapped, test in GARDENS_POINT if options.photographs else ():
        for pair in pairs(options.photographs / mapped, options.photographs / test, SPACINGS):
            yield _photographs(pair)
    posed = [([mapped], [test]) for mapped, test in options.pair]
    if options.train and options.test:
        posed.append((options.train, options.test))
    for paths in posed:
        runs = [[open_dataset(path) for path in side] for side in paths]
        yield from _on_random_maps(runs[0], runs[1], sizes)
    for seed in options.buildings:
        training, test_runs, _ = workload.rendered('office', seed)
        yield from _on_random_maps(training, test_runs, sizes, 'buildings')
    for seed in options.robots:
        training, test_runs, _ = workload.rendered('office', seed, random_robot(seed))
        yield from _on_random_maps(training, test_runs, sizes, 'buildings, robots drawn')


def _photographs(pair: Pair) -> Case:
    known = on_described_run(pair.kernel_map, pair.test)
    group = f'{pair.name}, {pair.frame_m:g} m'
    return Case(group, known, pair.test, RIGHT_FRAMES * pair.frame_m)


def _on_random_maps(
    training: Sequence[Dataset], test: Sequence[Dataset], sizes: Sequence[int], group: str = ''
) -> Iterator[Case]:
    """One random map of each size that there is, the same for every run."""
    kernel_map, runs = workload.described(training, test, 0)
    for run in runs:
        known = on_described_run(kernel_map, run)
        for size in sizes:
            if size <= len(known):
                small = random_map(known, Task('kbr', size, 0), 0)
                yield Case(f'{group or run.name}, {size} images', small, run, LOST_M)
