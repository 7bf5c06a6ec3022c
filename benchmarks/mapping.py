"""
Maps without known poses against maps of true poses: `python -m benchmarks.mapping`.

Rendered buildings with look-alike corridors are mapped by two tours of a robot whose odometry and
camera are drawn at random (`random_robot`), once with the true poses and once from odometry and
images alone; another random robot is localized at night on both. Buildings of even seeds are for
choosing constants, those of odd seeds for reporting. `--train RUN RUN --test RUN` measures runs
with true poses instead, `--walk FOLDER FOLDER` two traverses of the same places by their closures
alone: image i of each shows place i.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
import sys
from typing import Any

from benchmarks import results, workload
from kbr_localization import se2
from kbr_localization.datasets import Dataset, open_dataset
from kbr_localization.evaluation import reference_trajectory, run_errors
from kbr_localization.evaluation.described import describe_run, on_described_run
from kbr_localization.localization.kbr.leave_out import with_statistics
from kbr_localization.localization.localizer import sigma_region
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.mapping.align import fit, move_map, moved
from kbr_localization.localization.mapping.base_frame import at_base
from kbr_localization.localization.mapping.build import map_described, map_from_odometry
from kbr_localization.localization.mapping.headings import watch
from kbr_localization.localization.pipeline import localize
from kbr_localization.se2 import FloatArray
from kbr_localization.simulation import random_robot
import numpy as np
from threadpoolctl import threadpool_limits

HEADER = [
    'building', 'odometry m', 'map m', 'of the base m', 'scale', 'map, scaled m', 'closures',
    'farthest m', 'night, true poses m', 'night m', 'limit m', 'night, scaled m',
    '2 sigma, true poses', '2 sigma', 'localized, true poses', 'localized',
]  # fmt: skip
_FACTOR, _ROOM = 1.5, 0.1  # of the error by night on true poses, and metres: the limit
_RIM = sigma_region(2.0, 2)


@dataclass(frozen=True)
class Night:
    """How a run is localized on a map: error in metres, coverage and fraction of *localized*."""

    error: float
    covered: float
    localized: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure; print the table, into the page too when a section is named."""
    options = _parser().parse_args(arguments)
    threadpool_limits(1, 'blas')
    if options.walk:
        print(walked(*(open_dataset(path, spacing=options.spacing) for path in options.walk)))
        return
    rows = []
    for name, training, test, point in _cases(options):
        rows.append(measured(name, training, test, options.nights, point))
        print(*rows[-1], file=sys.stderr, flush=True)
    text = described_rows(rows, options.nights)
    results.publish(text, options.section)


def _parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument('--first', type=int, default=301, help='seed of the first building')
    parser.add_argument('--buildings', type=int, default=8)
    parser.add_argument('--train', nargs='+', type=Path, help='runs of the map')
    parser.add_argument('--test', type=Path, help='test run')
    parser.add_argument('--nights', type=int, default=3, help='seeds of the localizer, 0: none')
    parser.add_argument('--walk', nargs=2, type=Path, help='two traverses of the same places')
    parser.add_argument('--spacing', type=float, default=1.0, help='metres between their images')
    parser.add_argument('--section', help='name of the section of benchmarks/README.md to replace')
    return parser


def _cases(options: argparse.Namespace) -> Any:
    if options.train and options.test:
        yield (
            options.train[0].parent.name,
            [open_dataset(p) for p in options.train],
            open_dataset(options.test),
            np.zeros(3),
        )
        return
    for seed in range(options.first, options.first + 2 * options.buildings, 2):
        robots = random_robot(seed), random_robot([seed, 1])
        training, test, _ = workload.rendered('office', seed, *robots)
        wheels = robots[1].odometry  # of the map
        yield str(seed), training, test[0], np.array([wheels.offset_x, wheels.offset_y, 0.0])


def measured(
    name: str, training: Sequence[Dataset], test: Dataset, seeds: int, point: FloatArray
) -> list[Any]:
    """Return the row of a building, the odometry's point (3,) beside the camera."""
    by_truth = build_map(training, seed=0)
    at = {int(frame.stamp_ns): frame.odometry for run in training for frame in run}
    odometry = np.array([at[int(stamp)] for stamp in by_truth.stamps_ns])
    described = replace(by_truth, poses=odometry)
    watched = watch(training, described)
    mapped = map_described(described, [run.odometry for run in training], watched)
    place = {int(stamp): n for n, stamp in enumerate(by_truth.stamps_ns)}
    truth = by_truth.poses[[place[int(stamp)] for stamp in mapped.kernel_map.stamps_ns]]
    record = mapped.kernel_map.mapping
    assert record is not None
    ours, scaled = (
        move_map(mapped.kernel_map, *fit(mapped.kernel_map.poses, truth, free))
        for free in (False, True)
    )
    of_base, base_truth = at_base(mapped.kernel_map).poses, se2.compose(truth, point)
    ends = record.closures[record.kept == 1]
    apart = np.hypot(*(truth[ends[:, 0]] - truth[ends[:, 1]])[:, :2].T)
    nowhere = Night(*[float('nan')] * 3)
    by_night = [
        night(with_statistics(kernel_map), test, seeds) if seeds else nowhere
        for kernel_map in (by_truth, ours, scaled)
    ]
    known, free, right = by_night
    return [
        name,
        np.mean([drift_error(run) for run in training]),
        error_between(ours.poses, truth),
        error_between(moved(of_base, fit(of_base, base_truth)[0]), base_truth),
        fit(mapped.kernel_map.poses, truth, True)[1],
        error_between(scaled.poses, truth),
        len(ends),
        float(apart.max(initial=0.0)),
        *(known.error, free.error, _FACTOR * known.error + _ROOM, right.error),
        *(known.covered, free.covered, known.localized, free.localized),
    ]


def drift_error(run: Dataset) -> float:
    """Root mean square distance of a run's odometry from the truth, after alignment."""
    frames = [frame for frame in run if frame.reference is not None]
    odometry = np.array([frame.odometry for frame in frames])
    truth = np.array([frame.reference for frame in frames])
    return error_between(moved(odometry, fit(odometry, truth)[0]), truth)


def error_between(poses: FloatArray, truth: FloatArray) -> float:
    """Root mean square distance of positions."""
    return float(np.sqrt(np.mean(np.sum((poses - truth)[:, :2] ** 2, axis=1))))


def night(kernel_map: KernelMap, test: Dataset, seeds: int) -> Night:
    """Localize a test run from a global start with several seeds: after localizing first."""
    run = describe_run(kernel_map.describer, test)
    known, reference = on_described_run(kernel_map, run), reference_trajectory(run)
    errors, inside, said = [], [], []
    for seed in range(seeds):
        trajectory = localize(known, run, seed=seed)
        found = run_errors(reference, trajectory)
        status = np.array([word == 'localized' for word in trajectory.statuses])
        begin = int(np.argmax(status)) if status.any() else len(status)
        errors.append(found.position_m[begin:])
        inside.append(found.position_surprise[begin:][status[begin:]] <= _RIM)
        said.append(status.mean())
    together = np.concatenate(errors)
    return Night(
        float(np.sqrt(np.mean(together**2))) if together.size else float('nan'),
        float(np.mean(np.concatenate(inside))) if together.size else float('nan'),
        float(np.mean(said)),
    )


def walked(first: Dataset, second: Dataset) -> str:
    """Say how many of the closures of two traverses are right within three frames."""
    record = map_from_odometry([first, second], seed=0).kernel_map.mapping
    assert record is not None
    ends = record.closures[record.kept == 1]
    place = np.where(np.arange(len(record.odometry)) < len(first), 0, len(first))
    frames = np.abs(np.diff(ends - place[ends], axis=1))[:, 0]
    return (
        f'{len(ends)} closures, {np.mean(frames <= 3):.1%} of them right within 3 frames, '
        f'{np.mean(frames <= 1):.1%} within 1, {int(frames.max(initial=0))} frames at most'
    )


def described_rows(rows: Sequence[Sequence[Any]], seeds: int) -> str:
    """Lay the figures out as a section of the page."""
    error = np.array([row[2] for row in rows])
    return (
        '## Maps without known poses\n\n`python -m benchmarks.mapping`. Two tours of a building '
        'by a robot drawn at random, mapped by their odometry and images alone. *Odometry*: its '
        'error after rigid alignment, *map*: that of the map (root mean squares of the distance '
        'of all images), *of the base*: with `--pose-frame base`. *Closures* that were used, and '
        'how far the places of the worst lie apart. *Scale*: true metres for each of the map, '
        'which are those of the odometry; *scaled*: the errors without it (`kbr map align '
        '--scale`). *Night*: error of '
        'another random robot by night after it was localized first, on the map of true poses and '
        f'on this one; {seeds} seeds. *Limit*: 1.5 times the error on true poses and 0.1 m. '
        f'*2 sigma*: truths inside where localized was said.\n\n{results.table(HEADER, rows)}\n\n'
        f'Error of the maps: median {np.median(error):.2f} m, worst {error.max():.2f} m.'
    )


if __name__ == '__main__':
    main()
