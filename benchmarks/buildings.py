"""
Rendered buildings that nothing was tuned on: `python -m benchmarks.buildings`.

Every building is mapped by day and tested at night, by `kbr` and by the runner-up of the
comparisons, the particle filter of nearest neighbours. Then how far the stated covariance can be
trusted from building to building: the factor on it that would put 95% of a building's truths
inside of 2 sigma, and the factor by which it may be wrong before less than 90% or more than 99%
are.

With `--robots` the test robot of every building, its camera and its odometry, is drawn at random
(`random_robot`), with `--map-robots` that of the map as well. Buildings of even seeds are for
choosing defaults, those of odd seeds for reporting: `--robots` takes the odd ones alone unless
`--step 1` is given.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
import sys
from typing import Any

from benchmarks import results, workload
from kbr_localization.evaluation import reference_trajectory, run_errors
from kbr_localization.evaluation.described import DescribedRun
from kbr_localization.evaluation.protocol import comparison_rows, ComparisonPlan, Done, run_tasks
from kbr_localization.localization.localizer import sigma_region
from kbr_localization.se2 import FloatArray
from kbr_localization.simulation import random_robot, Robot
from kbr_localization.workers import open_workers, Workers
import numpy as np

METHODS = ('kbr', 'knn-particle')
LOWEST, NOMINAL, HIGHEST = 0.90, 0.95, 0.99
_RIM = sigma_region(2.0, 2)


@dataclass(frozen=True)
class Cell:
    """A building and a size of its map: rows of the comparison, and `kbr`'s squared distances."""

    building: int
    size: int
    rows: dict[str, dict[str, Any]]
    surprises: FloatArray

    @property
    def coverage(self) -> float:
        """Fraction of the truths inside of 2 sigma."""
        return float(np.mean(self.surprises <= _RIM))

    def factor(self, fraction: float) -> float:
        """Return the factor on the covariance that puts such a fraction inside of 2 sigma."""
        return float(np.quantile(self.surprises, fraction)) / _RIM


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all buildings; print the tables, into the page too when a section is named."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument('--first', type=int, default=101, help='seed of the first building')
    parser.add_argument('--buildings', type=int, default=8)
    parser.add_argument('--step', type=int, help='between the seeds (default: 1, with --robots 2)')
    parser.add_argument(
        '--robots',
        action='store_true',
        help='draw the test robots; even seeds are for choosing defaults, odd ones for reporting',
    )
    parser.add_argument(
        '--map-robots', action='store_true', help='draw the robots of the maps too'
    )
    parser.add_argument('--sizes', default='100,200,400,800', help='images of the random maps')
    parser.add_argument('--trials', type=int, default=3, help='random maps of every size')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--section', help='name of the section of benchmarks/README.md to replace')
    options = parser.parse_args(arguments)
    sizes = tuple(int(size) for size in options.sizes.split(','))
    plan = ComparisonPlan(sizes, options.trials, METHODS, options.seed)
    cells: list[Cell] = []
    with open_workers(None) as workers:
        for building in seeds(options):
            robots = drawn(building, options.robots, options.map_robots)
            cells += measure(building, plan, workers, robots)
            print(f'building {building}: measured', file=sys.stderr, flush=True)
    text = described(cells, plan, about_robots(options.robots, options.map_robots))
    results.publish(text, options.section)


def seeds(options: argparse.Namespace) -> range:
    """Seeds of the buildings that the command line asks for."""
    step = options.step or (2 if options.robots or options.map_robots else 1)
    return range(options.first, options.first + step * options.buildings, step)


def drawn(building: int, test: bool, mapping: bool) -> tuple[Robot | None, Robot | None]:
    """Robots of the test run and of the map of a building, None for the usual one."""
    return (
        random_robot(building) if test else None,
        random_robot([building, 1]) if mapping else None,
    )


def about_robots(test: bool, mapping: bool) -> str:
    """Say which robots are drawn."""
    which = [name for name, chosen in (('test', test), ('map', mapping)) if chosen]
    return f', {" and ".join(which)} robots drawn at random' if which else ''


def measure(
    building: int,
    plan: ComparisonPlan,
    workers: Workers,
    robots: tuple[Robot | None, Robot | None] = (None, None),
) -> list[Cell]:
    """Compare the methods in a building, at every size, with a robot for the test and the map."""
    training, test, _ = workload.rendered('office', building, *robots)
    kernel_map, runs = workload.described(training, test, plan.seed)
    done = list(run_tasks(kernel_map, runs, plan.tasks(), plan.seed, workers))
    rows = comparison_rows(plan, [one.outcome for one in done])
    found = []
    for size in plan.sizes:
        by_method = {row['method']: row for row in rows if row['size'] == size}
        ours = [
            one
            for one in done
            if (one.outcome.task.method, one.outcome.task.size) == (METHODS[0], size)
        ]
        found.append(Cell(building, size, by_method, surprises(ours, runs)))
    return found


def surprises(done: Sequence[Done], runs: Sequence[DescribedRun]) -> FloatArray:
    """Squared distances (n,) of the truths under the stated covariances of all trials."""
    found = [
        run_errors(reference_trajectory(run), trajectory).position_surprise
        for one in done
        for run, trajectory in zip(runs, one.trajectories, strict=True)
    ]
    together = np.concatenate(found)
    return together[np.isfinite(together)]


def described(cells: Sequence[Cell], plan: ComparisonPlan, robots: str = '') -> str:
    """Tables of all buildings and of the covariance, with what they say of each other."""
    header = ['building', 'images', *(f'RMSE {name}' for name in METHODS), 'lost after', '2 sigma']
    header += ['stated / error']
    rows = [
        [
            cell.building,
            cell.size,
            *(cell.rows[name]['position_rmse_m_mean'] for name in METHODS),
            cell.rows[METHODS[0]]['lost_fraction'],
            cell.coverage,
            cell.rows[METHODS[0]]['sharpness'],
        ]
        for cell in cells
    ]
    return (
        f'### Buildings that nothing was tuned on{robots}\n\n'
        f'Means over {plan.trials} random maps of each size, from a global start at night; '
        'metres. *Lost after*: fraction of the frames after localizing; *2 sigma*: fraction of '
        'the truths inside; *stated / error*: mean stated deviation over the mean error, 1.1 to '
        f'1.25 for a covariance that is right; all three of `{METHODS[0]}`.\n\n'
        f'{results.table(header, rows)}\n\n'
        f'{_of_all(cells)}\n\n'
        'The covariance from building to building: the factor on it that puts 95% inside of 2 '
        'sigma, its largest over its smallest, and the factor by which it may be wrong before '
        'less than 90% or more than 99% are inside (mean of the buildings).\n\n'
        f'{results.table(*_of_the_covariance(cells, plan))}'
    )


def _of_all(cells: Sequence[Cell]) -> str:
    ours, theirs = (
        np.array([cell.rows[name]['position_rmse_m_mean'] for cell in cells]) for name in METHODS
    )
    covered = [cell.coverage for cell in cells]
    return (
        f'Of all {len(cells)} rows: mean RMSE {ours.mean():.2f} m, that of `{METHODS[1]}` '
        f'{theirs.mean():.2f} m, which is less in {np.sum(theirs < ours)} of them; 2 sigma '
        f'between {min(covered):.3f} and {max(covered):.3f}.'
    )


def _of_the_covariance(
    cells: Sequence[Cell], plan: ComparisonPlan
) -> tuple[list[str], list[list[Any]]]:
    header = ['images', 'within 90 to 99%', 'mean 2 sigma', 'smallest', 'largest']
    header += ['largest over smallest', 'room']
    rows: list[list[Any]] = []
    for size in plan.sizes:
        here = [cell for cell in cells if cell.size == size]
        covered = np.array([cell.coverage for cell in here])
        factors = [cell.factor(NOMINAL) for cell in here]
        room = [cell.factor(HIGHEST) / cell.factor(LOWEST) for cell in here]
        inside = int(np.sum((covered >= LOWEST) & (covered <= HIGHEST)))
        rows.append(
            [
                size,
                f'{inside} of {len(here)}',
                float(covered.mean()),
                min(factors),
                max(factors),
                max(factors) / min(factors),
                float(np.exp(np.mean(np.log(room)))),
            ]
        )
    return header, rows


if __name__ == '__main__':
    main()
