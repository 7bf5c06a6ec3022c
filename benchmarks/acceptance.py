"""
Compare localization methods on the acceptance set: `python -m benchmarks.acceptance`.

All methods drive the same runs on the same maps; a row of the table is a group of similar drives.
Image descriptors are cached in a folder (`--cache`); statistics of maps are measured each time.
One half of the drives is for choosing parameters, the other for reports.
`--compare A.json B.json` prints two results side by side; A and B may be lists of files, separated
by commas.

*RMSE m*: position error of the whole run; *after m*: from where the robot is found, that is, from
where its estimates stay right for 5 m or half of the run. *found m*: distance travelled until
then, from the event for a kidnap. *first m*: distance until the first status localized, which must
be right after a kidnap. *right*: fraction of frames with a right position; *said*: fraction of
these with status localized. *wrong*: fraction of frames with status localized that are not right,
after 5 m, or 3 m after an event. *found 5 m*: fraction of kidnapped robots found within 5 m.
*2 sigma*: fraction of frames with status localized whose 2-sigma region contains the true
position. *stated*: stated standard deviation over error, root mean squares of right frames with
status localized. *ms*: CPU time per update; *s*: CPU time of all drives. If the map covers half of
the place, frames elsewhere count for *wrong* only. On foreign maps *wrong* is a fraction of all
frames after 5 m.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
import itertools
import json
from pathlib import Path
import re
import sys
import time
from typing import Any

from benchmarks.acceptance_cases import Case, cases, Drive, FOREIGN, KIDNAPPED, MapOf
from benchmarks.acceptance_places import describe_all, Place
from benchmarks.results import parser_of, table
from joblib import delayed, Parallel
from kbr_localization.evaluation.metrics import reference_trajectory, run_errors, sigma_region
from kbr_localization.files import write_text
from kbr_localization.localization.localizer import Localizer, PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.registry import make_localizer
from kbr_localization.localization.pipeline import localize
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

START_M, EVENT_M, HOLD_M, FOUND_M = 5.0, 3.0, 5.0, 5.0
POSE_COVARIANCE = np.diag([0.25, 0.25, 0.05])
"""Covariance of a wrong initial pose."""
Row = dict[str, Any]
SUMS = {
    'wrong': ('wrong_said', 'late_said'),
    '2 sigma': ('covered', 'known'),
    'stated': ('stated_square', 'error_square'),
}
"""Columns that are ratios of sums over drives: numerator, denominator."""
COLUMNS = (
    'RMSE m', 'after m', 'found m', 'first m', 'right', 'said', 'wrong', 'found 5 m',
    '2 sigma', 'stated', 'ms',
)  # fmt: skip


def run_case(case: Case, drive: Drive, kernel_map: KernelMap, method: str, seed: int) -> Row:
    """Run a case; return its numbers by column and the terms of `SUMS`, None if undefined."""
    run = drive.run.dataset(case.run)
    make_localizer(method, kernel_map, seed)  # exclude the measurement of the map from the time
    start = time.thread_time()
    wrong_poses = [] if isinstance(drive.start, str) else [drive.start]
    init = drive.start if isinstance(drive.start, str) else 'global'

    def set_pose(localizer: Localizer, _: PoseEstimate) -> None:
        if wrong_poses:
            localizer.initialize(wrong_poses.pop(), POSE_COVARIANCE)

    trajectory = localize(kernel_map, run, method, init, seed, observe=set_pose)
    seconds = time.thread_time() - start
    errors = run_errors(reference_trajectory(run), trajectory)
    statuses = np.array([*trajectory.statuses, ''])[errors.estimate]
    frame, said, error = np.arange(len(run)), statuses == 'localized', errors.position_m
    late, right = _late(drive), (error <= case.right_m) & (case.kind != FOREIGN)
    counted = np.ones(len(run), dtype=bool) if drive.mapped is None else drive.mapped
    first = (drive.since or 0) if case.kind == KIDNAPPED else int(np.argmax(counted))
    settled = settled_from(errors.travel_m, right, counted, first, case.kind == KIDNAPPED)
    speaks = said & (frame >= first) & (right | (case.kind != KIDNAPPED))
    travel = errors.travel_m - errors.travel_m[first]
    found = float(travel[-1] if settled is None else travel[settled])
    stated = said & counted & np.isfinite(errors.position_nees)
    row: Row = {
        'RMSE m': _rms(error[counted]),
        'after m': None if settled is None else _rms(error[counted & (frame >= settled)]),
        'found m': found,
        'first m': float(travel[np.argmax(speaks) if speaks.any() else -1]),
        'right': _mean(right[counted]),
        'said': _mean(said[right & counted]),
        'found 5 m': float(settled is not None and found <= FOUND_M),
        'ms': 1e3 * seconds / max(int(np.count_nonzero(np.asarray(trajectory.updated))), 1),
        'wrong_said': int(np.sum(said & ~right & late)),
        'late_said': int(np.sum(late if case.kind == FOREIGN else said & late)),
        'covered': int(np.sum(errors.position_nees[stated] <= sigma_region(2.0, 2))),
        'known': int(np.sum(stated)),
        'stated_square': float(np.sum(errors.stated_m[stated & right] ** 2)),
        'error_square': float(np.sum(error[stated & right] ** 2)),
        'frames': len(run),
        'late': int(np.sum(late)),
        'seconds': seconds,
    }
    if case.kind != KIDNAPPED:
        row['found 5 m'] = None
    if case.kind == FOREIGN:
        row |= dict.fromkeys(('RMSE m', 'after m', 'found m', 'first m', 'right', 'said'))
        row |= dict.fromkeys(('covered', 'known', 'stated_square', 'error_square'), 0)
    return row


def settled_from(
    travel: FloatArray,
    right: NDArray[np.bool_],
    counted: NDArray[np.bool_],
    first: int,
    kidnapped: bool,
) -> int | None:
    """
    Return the first counted frame from which all counted frames are right for 5 m or half the run.

    After a kidnap they must be right to the end of the run. None if there is no such frame.
    """
    wrong = np.concatenate([[0], np.cumsum(~right & counted)])
    end = np.full(len(travel), travel[-1]) if kidnapped else travel + min(HOLD_M, travel[-1] / 2)
    until = np.searchsorted(travel, end, side='right')
    settled = (wrong[until] == wrong[: len(travel)]) & (end <= travel[-1] + 1e-6) & counted
    settled[:first] = False
    return int(np.argmax(settled)) if settled.any() else None


def _late(drive: Drive) -> NDArray[np.bool_]:
    """Return which frames (n,) count for *wrong*."""
    travel = drive.travel
    if drive.since is None:
        return np.asarray(travel > min(START_M, 0.5 * travel[-1]))
    after = travel - travel[drive.since] > EVENT_M
    return np.asarray(after & (np.arange(len(travel)) >= drive.since))


def _mean(values: NDArray[Any]) -> float | None:
    return float(np.mean(values)) if values.size else None


def _rms(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(known**2))) if known.size else None


def run_cases(
    on: MapOf, chosen: Sequence[tuple[int, Case]], cache: Path, method: str, seeds: Sequence[int]
) -> list[Row]:
    """Run all cases on one map."""
    threadpool_limits(1, 'blas')
    place = Place(cache / on.place)
    kernel_map = on.of(place)
    rows = []
    for (number, case), seed in itertools.product(chosen, seeds):
        row = run_case(case, case.drive(place, kernel_map, seed), kernel_map, method, seed)
        rows.append({'number': number, 'seed': seed, **asdict(case), **row})
    return rows


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the numbers of a group by column, None if undefined."""
    found: dict[str, Any] = {'drives': len(rows)}
    for name in COLUMNS:
        if name in SUMS:
            numerator, denominator = (sum(row[part] for row in rows) for part in SUMS[name])
            value = numerator / denominator if denominator else None
            found[name] = value if name != 'stated' or value is None else float(np.sqrt(value))
        else:
            known = [row[name] for row in rows if row.get(name) is not None]
            found[name] = float(np.mean(known)) if known else None
    return found | {'s': sum(row['seconds'] for row in rows)}


def by_group(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of each group, in the order of the cases."""
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row['number'], row['seed'])):
        groups.setdefault(row['group'], []).append(row)
    return groups


def result_table(rows: Sequence[Row]) -> str:
    """Format one result as a table."""
    found = {group: summary(part) for group, part in by_group(rows).items()}
    names = ('drives', *COLUMNS, 's')
    body = [[group, *(_cell(n, one[n]) for n in names)] for group, one in found.items()]
    means = mean_of(found.values())
    body.append(['mean of the groups', '', *(_cell(name, means[name]) for name in COLUMNS), ''])
    return table(['group', *names], body)


def comparison_table(one: Sequence[Row], other: Sequence[Row]) -> str:
    """Format two results side by side, over the drives that both have."""

    def key(row: Row) -> tuple[str, int, int]:
        return row['group'], row['number'], row['seed']

    both = {key(row) for row in one} & {key(row) for row in other}
    sides = [
        {g: summary(part) for g, part in by_group(r for r in rows if key(r) in both).items()}
        for rows in (one, other)
    ]
    body = [
        [group, sides[0][group]['drives'], *_pairs(*(side[group] for side in sides))]
        for group in sides[0]
    ]
    body.append(['mean of the groups', '', *_pairs(*(mean_of(side.values()) for side in sides))])
    return table(['group', 'drives', *COLUMNS], body)


def mean_of(groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of each column over the groups in which it is defined."""
    known = {name: [one[name] for one in groups if one[name] is not None] for name in COLUMNS}
    return {name: float(np.mean(found)) if found else None for name, found in known.items()}


def _pairs(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [f'{_cell(name, one[name])} → {_cell(name, other[name])}' for name in COLUMNS]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return '–'
    digits = {'drives': 0, 's': 0, 'found m': 1, 'first m': 1, 'stated': 2, 'ms': 1}
    return f'{value:.{digits.get(name, 3)}f}'


def _read(paths: str) -> list[Row]:
    files = [json.loads(Path(path).read_text(encoding='utf-8')) for path in paths.split(',')]
    return [row for file in files for row in file['drives']]


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__)
    add = parser.add_argument
    add('--method', default='kbr')
    add('--half', choices=['choose', 'report', 'all'], default='choose')
    add('--groups', default='', metavar='REGEX', help='only groups whose names match')
    add('--seeds', type=int, nargs='+', default=[0], help='seeds of each drive')
    add('--jobs', type=int, default=2)
    add('--cache', type=Path, default=Path('~/.cache/kbr_acceptance').expanduser())
    add('--data', type=Path, default=Path('../shared/data'))
    add('--mrclam', type=Path, help='folder with MRCLAM_Dataset6 and MRCLAM_Dataset7')
    add('--corridor', help='path of the TUC files without the endings _GT.txt and _Input.txt')
    add('--json', type=Path, help='write the numbers of all drives to this file')
    add('--compare', nargs=2, metavar=('A', 'B'), help='compare two results, run nothing')
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the selected cases and print the table."""
    options = _parser().parse_args(arguments)
    if options.compare:
        print(comparison_table(*(_read(paths) for paths in options.compare)))
        return
    describe_all(options.cache, options.data, options.jobs, options.mrclam, options.corridor)
    tasks: dict[MapOf, list[tuple[int, Case]]] = {}
    absent: dict[str, int] = {}
    for number, case in enumerate(cases()):
        wanted = options.half in ('all', case.half) and re.search(options.groups, case.group)
        if wanted and not (options.cache / case.map.place / f'{case.run}.npz').exists():
            absent[case.group] = absent.get(case.group, 0) + 1
        elif wanted:
            tasks.setdefault(case.map, []).append((number, case))
    for group, count in absent.items():
        print(f'{group}: {count} drives skipped, as their data are missing', file=sys.stderr)
    # start the longest tasks first, to balance the workers
    order = sorted(tasks.items(), key=lambda task: -len(task[1]) * (task[0].size or 1000))
    calls = [
        delayed(run_cases)(on, chosen, options.cache, options.method, options.seeds)
        for on, chosen in order
    ]
    parallel = Parallel(n_jobs=options.jobs, return_as='generator_unordered')
    rows: list[Row] = []
    for part in parallel(calls):
        rows += part
        print(f'{len(rows)} drives', file=sys.stderr, flush=True)
        if options.json:  # write intermediate results too
            rows.sort(key=lambda row: (row['number'], row['seed']))
            result = {'method': options.method, 'seeds': options.seeds, 'drives': rows}
            write_text(options.json, json.dumps(result, indent=1))
    if not rows:
        raise SystemExit(f'acceptance: no group matches {options.groups!r}')
    print(result_table(rows))


if __name__ == '__main__':
    main()
