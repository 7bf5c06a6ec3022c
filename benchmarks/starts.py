"""
How long a start takes: `python -m benchmarks.starts`.

Every case is driven from a global start. The start lasts until the first answer that is called
localized: so many images that were taken in, and so many metres of way.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from benchmarks import cases, results
from benchmarks.cases import Case
from benchmarks.place_recognition import statuses_at
from joblib import delayed, Parallel
from kbr_localization.evaluation import reference_trajectory, run_errors
from kbr_localization.localization.pipeline import localize
import numpy as np
from threadpoolctl import threadpool_limits

Start = tuple[float, float, bool]
"""Images, metres, and whether the answer is wrong; endless where nothing is called localized."""


def measured(case: Case, seed: int) -> Start:
    """Drive a case, and see when it is first called localized."""
    threadpool_limits(1, 'blas')
    trajectory = localize(case.kernel_map, case.run, 'kbr', seed=seed)
    errors = run_errors(reference_trajectory(case.run), trajectory)
    said = np.flatnonzero(statuses_at(errors, trajectory) == 'localized')
    if not said.size:
        return np.inf, np.inf, False
    first = said[0]
    wrong = bool(errors.position_m[first] > case.right_m)
    assert trajectory.updated is not None
    stop = errors.estimate[first] + 1
    return float(trajectory.updated[:stop].sum()), float(errors.travel_m[first]), wrong


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all cases; print the table, and put it into the page when one is named."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    cases.add_options(parser)
    parser.add_argument('--seeds', type=int, default=3, help='drives of every case')
    parser.add_argument('--jobs', type=int, default=1)
    parser.add_argument('--section', help='name of the section of benchmarks/README.md to replace')
    options = parser.parse_args(arguments)
    tasks = [(case, seed) for case in cases.given(options) for seed in range(options.seeds)]
    found = Parallel(n_jobs=options.jobs, verbose=5)(delayed(measured)(*task) for task in tasks)
    groups: dict[str, list[Start]] = {}
    for (case, _), start in zip(tasks, found, strict=True):
        groups.setdefault(case.group, []).append(start)
    results.publish(described(groups), options.section)


def described(groups: Mapping[str, Sequence[Start]]) -> str:
    """Lay the table out."""
    rows = []
    for group, starts in groups.items():
        images, metres, wrong = np.array(starts).T
        medians = ('–' if np.isinf(each) else each for each in np.median([images, metres], axis=1))
        never = int(np.isinf(images).sum())
        rows.append([group, len(starts), *medians, int(wrong.sum()), never])
    header = ['run', 'drives', 'images', 'metres', 'wrong', 'never']
    return (
        '### Until a start is called localized\n\nMedians over drives from a global start; of how '
        'many drives the first such answer is *wrong*, and how many have none.\n\n'
        f'{results.table(header, rows)}'
    )


if __name__ == '__main__':
    main()
