"""
Maps from odometry against maps of true poses: `python -m benchmarks.mapping`.

Rendered buildings with similar corridors are mapped by two tours of a robot with random odometry
and camera parameters, once with the true poses and once from odometry and images only. Another
random robot is localized at night on both maps. `--train RUN RUN --test RUN` uses given runs with
true poses instead.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
import sys
from typing import Any

from benchmarks import results
from benchmarks.acceptance_places import render_office
from kbr_localization.datasets import Dataset, open_dataset
from kbr_localization.evaluation.comparison import describe_run
from kbr_localization.evaluation.metrics import reference_trajectory, run_errors, run_metrics
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.mapping.align import fit_motion, move_map
from kbr_localization.localization.mapping.build import map_described
from kbr_localization.localization.pipeline import localize
from kbr_localization.simulation.robot import random_robot
import numpy as np
from threadpoolctl import threadpool_limits

HEADER = [
    'building', 'odometry m', 'map m', 'scale', 'map, scaled m', 'closures', 'farthest m',
    'night, true poses m', 'night, this map m',
]  # fmt: skip


def cases(options: argparse.Namespace) -> Iterator[tuple[str, list[Dataset], Dataset]]:
    """Yield name, map runs and test run of each building."""
    if options.train and options.test:
        training = [open_dataset(path) for path in options.train]
        yield options.train[0].parent.name, training, open_dataset(options.test)
        return
    for seed in range(options.first, options.first + 2 * options.buildings, 2):
        training, night = render_office(seed, random_robot(seed), random_robot([seed, 1]))
        yield str(seed), training, night


def measure(name: str, training: Sequence[Dataset], test: Dataset, seeds: int) -> list[Any]:
    """Return the table row of a building."""
    by_truth = build_map(training, seed=0)
    at = {int(frame.stamp_ns): frame.odometry for run in training for frame in run}
    odometry = np.array([at[int(stamp)] for stamp in by_truth.stamps_ns])
    described = replace(by_truth, poses=odometry)
    mapped, _ = map_described(described, training)
    place = {int(stamp): number for number, stamp in enumerate(by_truth.stamps_ns)}
    truth = by_truth.poses[[place[int(stamp)] for stamp in mapped.stamps_ns]]
    rigid, scaled = (fit_motion(mapped.poses, truth, free) for free in (False, True))
    ours = move_map(mapped, rigid.motion)
    record = mapped.mapping
    assert record is not None
    ends = record.closures[record.kept == 1]
    apart = np.hypot(*(truth[ends[:, 0]] - truth[ends[:, 1]])[:, :2].T)
    drift = np.mean([drift_error(run) for run in training])
    nights = [night_error(kernel_map, test, seeds) for kernel_map in (by_truth, ours)]
    errors = [drift, rigid.rms, scaled.scale, scaled.rms]
    return [name, *errors, len(ends), apart.max(initial=0.0), *nights]


def drift_error(run: Dataset) -> float:
    """Return the RMS distance of the odometry of a run from the truth, after alignment."""
    frames = [frame for frame in run if frame.reference is not None]
    odometry = np.array([frame.odometry for frame in frames])
    truth = np.array([frame.reference for frame in frames])
    return fit_motion(odometry, truth).rms


def night_error(kernel_map: KernelMap, test: Dataset, seeds: int) -> float:
    """Return the mean RMSE after localizing over several seeds, NaN if none localizes."""
    run = describe_run(kernel_map.describer, test)
    reference = reference_trajectory(run)
    trajectories = [localize(kernel_map, run, seed=seed) for seed in range(seeds)]
    found = [run_metrics(run_errors(reference, one)) for one in trajectories]
    errors = [one['rmse_once_below_1m_m'] for one in found]
    return float(np.mean([error for error in errors if error is not None] or [np.nan]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = results.parser_of(__doc__)
    add = parser.add_argument
    add('--first', type=int, default=301, help='seed of the first building; every other is used')
    add('--buildings', type=int, default=8)
    add('--train', nargs='+', type=Path, help='runs of the map')
    add('--test', type=Path, help='test run')
    add('--nights', type=int, default=3, help='seeds of the localizer')
    options = parser.parse_args(arguments)
    threadpool_limits(1, 'blas')
    rows = []
    for case in cases(options):
        rows.append(measure(*case, options.nights))
        print(*rows[-1], file=sys.stderr, flush=True)
    print(results.table(HEADER, rows))


if __name__ == '__main__':
    main()
