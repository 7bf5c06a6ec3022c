"""
The data on which the filter's steps and its recovery are measured.

Runs that are given, or else a building that is rendered: two tours for the map, one by sun and
one by clouds, and a walk at night.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kbr_localization.datasets import Dataset, open_dataset
from kbr_localization.evaluation.described import describe_run, DescribedRun
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.simulation import (
    BuildingConfig,
    DEMO_RUNS,
    Robot,
    SyntheticBuilding,
    SyntheticRun,
    with_robots,
)
from threadpoolctl import threadpool_limits

_TEST_SECONDS = 200.0


def parser(what: str) -> argparse.ArgumentParser:
    """Make the command line that the measurements share."""
    made = argparse.ArgumentParser(description=what)
    made.add_argument('--train', nargs='+', type=Path, help='runs of the map (default: rendered)')
    made.add_argument('--test', nargs='+', type=Path, help='test runs')
    made.add_argument('--building', type=int, default=21, help='seed of the rendered building')
    made.add_argument('--kind', default='office', help='office, rooms or hall')
    made.add_argument('--seed', type=int, default=0)
    made.add_argument('--section', help='name of the section of benchmarks/README.md to replace')
    return made


def measured_on(options: argparse.Namespace) -> tuple[KernelMap, list[DescribedRun], str]:
    """
    Build the map of the training runs and describe the test runs, images once for all.

    From here on linear algebra has one thread, as in the node and in the commands.
    """
    training, test, name = _runs(options)
    return *described(training, test, options.seed), name


def described(
    training: Sequence[Dataset], test: Sequence[Dataset], seed: int
) -> tuple[KernelMap, list[DescribedRun]]:
    """Do the same with runs; linear algebra has one thread from here on, too."""
    threadpool_limits(1, 'blas')
    kernel_map = build_map(training, seed=seed)
    return kernel_map, [describe_run(kernel_map.describer, run) for run in test]


def rendered(
    kind: str, seed: int, test_robot: Robot | None = None, map_robot: Robot | None = None
) -> tuple[list[Dataset], list[Dataset], str]:
    """
    Render a building: the runs of the map by day, the test run at night, and its name.

    The robots are the usual one unless they are given.
    """
    building = SyntheticBuilding(BuildingConfig(kind=kind, seed=seed))
    *by_day, night = with_robots(DEMO_RUNS, test_robot, map_robot)
    training: list[Dataset] = [SyntheticRun(building, run) for run in by_day]
    test = SyntheticRun(building, replace(night, seconds=_TEST_SECONDS))
    return training, [test], f'rendered {kind} {seed} at night'


def _runs(options: argparse.Namespace) -> tuple[list[Dataset], list[Dataset], str]:
    if options.train and options.test:
        given = [[open_dataset(path) for path in paths] for paths in (options.train, options.test)]
        return given[0], given[1], ', '.join(path.name for path in options.test)
    return rendered(options.kind, options.building)
