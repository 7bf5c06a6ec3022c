"""
A robot that drives where its map shows nothing, too: `python -m benchmarks.half_mapped`.

The map of every case is halved four times, along its longer and its shorter axis, and the run is
driven from a global start on each half. `--alike` tries other lengths than those that the filter
has: metres off the map after which it looks like a place of the map, and for which it does.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from unittest.mock import patch

from benchmarks import cases, results
from benchmarks.cases import Case
from benchmarks.place_recognition import mean_of, statuses_at
from joblib import delayed, Parallel
from kbr_localization.evaluation import reference_trajectory, run_errors
from kbr_localization.localization.kbr import cohorts
from kbr_localization.localization.kbr.leave_out import with_statistics
from kbr_localization.localization.pipeline import localize
import numpy as np
from scipy.spatial import cKDTree
from threadpoolctl import threadpool_limits

Cells = dict[tuple[str, bool, tuple[float, float]], list[dict[str, float]]]


def halves(case: Case) -> Iterator[Case]:
    """Take half of the images of a map, to each side of the middle of both axes."""
    centred = case.kernel_map.poses[:, :2] - case.kernel_map.poses[:, :2].mean(axis=0)
    for axis in np.linalg.svd(centred, full_matrices=False)[2]:
        position = centred @ axis
        for side in (position > np.median(position), position <= np.median(position)):
            if side.any() and not side.all():
                half = replace(case.kernel_map.subset(np.flatnonzero(side)), statistics=None)
                yield replace(case, kernel_map=half)


def measured(case: Case, seed: int, alike: tuple[float, float]) -> tuple[bool, dict[str, float]]:
    """Drive a case: whether the map shows where it begins, and the figures of `described`."""
    threadpool_limits(1, 'blas')
    reference = reference_trajectory(case.run)
    with patch.multiple(cohorts, _ALIKE_EVERY=alike[0], _ALIKE_FOR=alike[1]):
        trajectory = localize(with_statistics(case.kernel_map), case.run, 'kbr', seed=seed)
    errors = run_errors(reference, trajectory)
    said = statuses_at(errors, trajectory) == 'localized'
    right = errors.position_m <= case.right_m
    metres, _ = cKDTree(case.kernel_map.poses[:, :2]).query(reference.poses[:, :2])
    shown, unknown = metres <= 0.5 * case.right_m, metres > 2.0 * case.right_m
    figures = {
        'said': said[shown & right].sum() / max(shown.sum(), 1),
        'misled': said[shown & ~right].sum() / max(shown.sum(), 1),
        'misled, unmapped': said[unknown & ~right].sum() / max(unknown.sum(), 1),
    }
    return bool(shown[0]), {name: float(value) for name, value in figures.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all halves; print the table, and put it into the page when one is named."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    cases.add_options(parser)
    parser.add_argument('--seeds', type=int, default=1, help='drives of every half')
    usual = [cohorts._ALIKE_EVERY, cohorts._ALIKE_FOR]
    name = ('EVERY', 'FOR')
    parser.add_argument('--alike', nargs=2, type=float, action='append', default=[], metavar=name)
    parser.add_argument('--jobs', type=int, default=1)
    parser.add_argument('--section', help='name of the section of benchmarks/README.md to replace')
    options = parser.parse_args(arguments)
    given = cases.given(options)
    tasks = [
        (half, seed, tuple(alike))
        for alike in options.alike or [usual]
        for case in given
        for half in halves(case)
        for seed in range(options.seeds)
    ]
    found = Parallel(n_jobs=options.jobs, verbose=5)(delayed(measured)(*task) for task in tasks)
    cells: Cells = {}
    for (case, _, alike), (begins, figures) in zip(tasks, found, strict=True):
        cells.setdefault((case.group, begins, alike), []).append(figures)
    results.publish(described(cells), options.section)


def described(cells: Cells) -> str:
    """Lay the table out."""
    rows = []
    for (group, begins, alike), kept in sorted(cells.items()):
        lengths = '{:g} / {:g}'.format(*alike)
        side = 'mapped' if begins else 'unmapped'
        rows.append([group, side, lengths, len(kept), *mean_of(kept).values()])
    figures = mean_of(next(iter(cells.values())))
    header = ['run', 'begins where it is', 'alike every / for m', 'drives', *figures]
    return (
        '### Half of a building mapped\n\nMeans over drives from a global start. *said*: '
        'of the frames at an image of the map, called localized and right; *misled*: of these, '
        'called localized and wrong; *misled, unmapped*: the same of the frames far from all of '
        'its images.\n\n'
        f'{results.table(header, rows)}'
    )


if __name__ == '__main__':
    main()
