"""
Which filter is better: `python -m benchmarks.acceptance`.

Every method drives the same runs on the same maps, a row a group of like drives. The images are
described once and kept in a folder (`--cache`); what a method measures of a map is measured anew.
Half of the drives are for choosing, the others for reporting. `--compare A.json B.json` prints
two results beside each other; several files of one result are joined by commas.

*RMSE*: of the position over the whole run and from where it is localized, right for 5 m or half of
the run. *found m*: metres up to there, from the event on for a kidnap. *first m*: up to the first
frame called localized, rightly so after a kidnap. *right*: of the frames; *said*: called
localized, of these. *wrong*: not right, of those called localized, after 5 m, or after 3 m from an
event on. *2 sigma*: of those called localized, truths inside. *stated*: the stated deviation over
the error, root mean squares over those right and called localized. *ms*: of one thread an update;
*s*: of all drives. Where the map is half of the place, all but *wrong* counts frames at places
that are mapped; on foreign maps *wrong* is of all frames.
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
from kbr_localization.evaluation import reference_trajectory, run_errors
from kbr_localization.files import write_text
from kbr_localization.localization.localizer import Localizer, PoseEstimate, sigma_region
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.registry import make_localizer
from kbr_localization.localization.pipeline import localize
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

START_M, EVENT_M, HOLD_M, FOUND_M = 5.0, 3.0, 5.0, 5.0
GIVEN = np.diag([0.25, 0.25, 0.05])
"""Covariance that comes with a wrong pose."""
Row = dict[str, Any]
SUMS = {
    'wrong': ('wrong_said', 'late_said'),
    '2 sigma': ('covered', 'known'),
    'stated': ('stated_square', 'error_square'),
}
"""Columns that are quotients of sums over the drives."""
COLUMNS = (
    'RMSE m', 'after m', 'found m', 'first m', 'right', 'said', 'wrong', 'found 5 m',
    '2 sigma', 'stated', 'ms',
)  # fmt: skip


def driven(case: Case, drive: Drive, kernel_map: KernelMap, method: str, seed: int) -> Row:
    """Drive a case: its numbers by column, and the sums of `SUMS`; None where there is none."""
    run = drive.run.dataset(case.run)
    make_localizer(method, kernel_map, seed)  # what it measures of the map is no part of a drive
    begun = time.thread_time()
    given = [] if isinstance(drive.start, str) else [drive.start]
    init = drive.start if isinstance(drive.start, str) else 'global'

    def give(localizer: Localizer, _: PoseEstimate) -> None:
        if given:
            localizer.initialize(given.pop(), GIVEN)

    trajectory = localize(kernel_map, run, method, init, seed, observe=give)
    seconds = time.thread_time() - begun
    errors = run_errors(reference_trajectory(run), trajectory)
    statuses = np.array([*trajectory.statuses, ''])[errors.estimate]
    frame, said, error = np.arange(len(run)), statuses == 'localized', errors.position_m
    late, right = _late(drive), (error <= case.right_m) & (case.kind != FOREIGN)
    counted = np.ones(len(run), dtype=bool) if drive.mapped is None else drive.mapped
    first = (drive.since or 0) if case.kind == KIDNAPPED else int(np.argmax(counted))
    settled = settled_from(errors.travel_m, right, counted, first, case.kind == KIDNAPPED)
    speaks = said & (frame >= first) & (right | (case.kind != KIDNAPPED))
    way = errors.travel_m - errors.travel_m[first]
    found = float(way[-1] if settled is None else way[settled])
    stated = said & counted & np.isfinite(errors.position_nees)
    row: Row = {
        'RMSE m': _rms(error[counted]),
        'after m': None if settled is None else _rms(error[counted & (frame >= settled)]),
        'found m': found,
        'first m': float(way[np.argmax(speaks) if speaks.any() else -1]),
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
    way: FloatArray,
    right: NDArray[np.bool_],
    counted: NDArray[np.bool_],
    first: int,
    kidnapped: bool,
) -> int | None:
    """
    First frame that counts from which all that count are right for 5 m or half of the way.

    After a kidnap to the end of the run. None if there is none.
    """
    wrong = ~right & counted
    losses = np.concatenate([[0], np.cumsum(wrong)])
    end = np.full(len(way), way[-1]) if kidnapped else way + min(HOLD_M, way[-1] / 2)
    until = np.searchsorted(way, end, side='right')
    held = (losses[until] == losses[: len(way)]) & (end <= way[-1] + 1e-6) & counted
    held[:first] = False
    return int(np.argmax(held)) if held.any() else None


def _late(drive: Drive) -> NDArray[np.bool_]:
    """Return the frames (n,) in which being wrong counts."""
    way = drive.way
    if drive.since is None:
        return np.asarray(way > min(START_M, 0.5 * way[-1]))
    after = way - way[drive.since] > EVENT_M
    return np.asarray(after & (np.arange(len(way)) >= drive.since))


def _mean(values: NDArray[Any]) -> float | None:
    return float(np.mean(values)) if values.size else None


def _rms(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(known**2))) if known.size else None


def drive_all(
    on: MapOf, chosen: Sequence[tuple[int, Case]], cache: Path, method: str, seeds: Sequence[int]
) -> list[Row]:
    """Drive all cases on one map."""
    threadpool_limits(1, 'blas')
    place = Place(cache / on.place)
    kernel_map = on.of(place)
    rows = []
    for (number, case), seed in itertools.product(chosen, seeds):
        row = driven(case, case.drive(place, kernel_map, seed), kernel_map, method, seed)
        rows.append({'number': number, 'seed': seed, **asdict(case), **row})
    return rows


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Numbers of a group by column, None where there is none."""
    found: dict[str, Any] = {'drives': len(rows)}
    for name in COLUMNS:
        if name in SUMS:
            over, under = (sum(row[part] for row in rows) for part in SUMS[name])
            value = over / under if under else None
            found[name] = value if name != 'stated' or value is None else float(np.sqrt(value))
        else:
            known = [row[name] for row in rows if row.get(name) is not None]
            found[name] = float(np.mean(known)) if known else None
    return found | {'s': sum(row['seconds'] for row in rows)}


def by_group(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Collect the rows of each group, in the order of the cases."""
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row['number'], row['seed'])):
        groups.setdefault(row['group'], []).append(row)
    return groups


def described(rows: Sequence[Row]) -> str:
    """Lay the table of one result out."""
    found = {group: summary(part) for group, part in by_group(rows).items()}
    names = ('drives', *COLUMNS, 's')
    body = [[group, *(_cell(n, one[n]) for n in names)] for group, one in found.items()]
    means = mean_of(found.values())
    body.append(['mean of the groups', '', *(_cell(name, means[name]) for name in COLUMNS), ''])
    return table(['group', *names], body)


def compared(one: Sequence[Row], other: Sequence[Row]) -> str:
    """Lay two results out beside each other, over the drives that both have."""

    def of(row: Row) -> tuple[str, int, int]:
        return row['group'], row['number'], row['seed']

    both = {of(row) for row in one} & {of(row) for row in other}
    sides = [
        {g: summary(part) for g, part in by_group(r for r in rows if of(r) in both).items()}
        for rows in (one, other)
    ]
    body = [
        [group, sides[0][group]['drives'], *_beside(*(side[group] for side in sides))]
        for group in sides[0]
    ]
    body.append(['mean of the groups', '', *_beside(*(mean_of(side.values()) for side in sides))])
    return table(['group', 'drives', *COLUMNS], body)


def mean_of(groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean over the groups that have a number."""
    known = {name: [one[name] for one in groups if one[name] is not None] for name in COLUMNS}
    return {name: float(np.mean(found)) if found else None for name, found in known.items()}


def _beside(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
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
    add('--seeds', type=int, nargs='+', default=[0], help='of each drive')
    add('--jobs', type=int, default=2)
    add('--cache', type=Path, default=Path('~/.cache/kbr_acceptance').expanduser())
    add('--data', type=Path, default=Path('../shared/data'))
    add('--mrclam', type=Path, help='folder of MRCLAM_Dataset6 and MRCLAM_Dataset7')
    add('--corridor', help='name of the files of TUC, without _GT.txt and _Input.txt')
    add('--json', type=Path, help='file of the numbers of all drives')
    add('--compare', nargs=2, metavar=('A', 'B'), help='print two results, drive nothing')
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Drive the cases that are asked for and print the table."""
    options = _parser().parse_args(arguments)
    if options.compare:
        print(compared(*(_read(paths) for paths in options.compare)))
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
        print(f'{group}: {count} drives are left out, their data are not given', file=sys.stderr)
    # the long ones first, that no worker waits for the last
    order = sorted(tasks.items(), key=lambda task: -len(task[1]) * (task[0].size or 1000))
    calls = [
        delayed(drive_all)(on, chosen, options.cache, options.method, options.seeds)
        for on, chosen in order
    ]
    parallel = Parallel(n_jobs=options.jobs, return_as='generator_unordered')
    rows: list[Row] = []
    for part in parallel(calls):
        rows += part
        print(f'{len(rows)} drives', file=sys.stderr, flush=True)
        if options.json:  # what is done may be looked at
            rows.sort(key=lambda row: (row['number'], row['seed']))
            result = {'method': options.method, 'seeds': options.seeds, 'drives': rows}
            write_text(options.json, json.dumps(result, indent=1))
    if not rows:
        raise SystemExit(f'acceptance: no group matches {options.groups!r}')
    print(described(rows))


if __name__ == '__main__':
    main()
