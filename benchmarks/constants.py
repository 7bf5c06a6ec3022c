"""
What the constants of the filter are worth: `python -m benchmarks.constants`.

Every number that stands at the top of a module of `localization/kbr/` is halved and doubled (one
below 1: its odds are), one after the other, and so is every parameter of `KbrConfig` that is
measured in numbers (as the maps have it; itself, not its odds). The filter runs again on all that
is given: photographs, runs, rendered buildings. The maps and their statistics are made once, with
the numbers as they are; the statistics again for the numbers of `leave_out`, by which they are
learnt. What makes no difference either way is no tuned constant. How many points and images are
looked at (`BUDGETS`) changes what an update costs; all these change together.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
import importlib
from pathlib import Path
import pkgutil
import re
import sys
from typing import Any

from benchmarks import cases, results
from benchmarks.cases import Case
from benchmarks.place_recognition import answers
from joblib import delayed, Parallel
from kbr_localization.evaluation import reference_trajectory, run_errors
from kbr_localization.localization import kbr
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.leave_out import with_statistics
from kbr_localization.localization.pipeline import localize
import numpy as np
from threadpoolctl import threadpool_limits

FACTORS = (0.5, 2.0)
CAP_M = 3.0
EXACT = {
    'LARGEST_SYSTEM', '_USUAL_SYSTEM', '_CACHED_FACTORS', '_KEPT', '_SAMPLES', '_CELL_NUMBERS',
    '_CELLS_PER_REACH', '_BLOCK', '_MARGIN', '_LARGEST_SPAN', '_FEW', 'SECTORS', '_SMALLEST',
    '_HALVINGS', '_MODE_STARTS', '_MODE_ROUNDS', '_FORWARD', '_TURN', '_MIRRORED',
    'GAUSSIAN_WIDTH', '_GAUSSIAN_RIDGE', '_LATERAL', '_STILL', '_NEGLIGIBLE', '_ROUNDING',
    '_LARGEST', '_SAME',
}  # fmt: skip
"""Numbers that follow from others, or change how fast or how exactly the same is computed."""
BUDGETS = {
    '_START_FACTOR', '_COHORT', '_COHORTS', '_SOUGHT', '_POINTS', '_COUPLED', 'REMEMBERED',
}  # fmt: skip
"""Points and images that are looked at: the more, the nearer to the law that they stand for."""
LEARNT_BY = 'leave_out'
"""The module by whose numbers a map learns its statistics."""
ASKED = {'localized_radius', 'localized_mass', 'covariance_scale'}
"""
Parameters that say what is asked of an answer: with others, other figures are asked for.

The first two also tell places apart, and when one is left for another.
"""
FIGURES = {'rmse': 'RMSE', 'said': 'said', 'wrong': 'wrong', 'covered': '2 sigma'}


def constants() -> dict[str, dict[str, Any]]:
    """Find the constants of the filter that change together: row -> name -> value."""
    found: dict[str, dict[str, Any]] = {'budgets': {}}
    names = [info.name for info in pkgutil.iter_modules(kbr.__path__, f'{kbr.__name__}.')]
    for module in map(importlib.import_module, names):
        source = Path(module.__file__ or '').read_text()
        for name, value in vars(module).items():
            numeric = isinstance(value, (int, float, np.ndarray)) and name.isupper()
            here = re.search(rf'^{name}\b.*=|^\w+, {name} =', source, re.MULTILINE)
            if numeric and here and name not in EXACT:
                row = f'{module.__name__.rpartition(".")[2]}.{name}'
                found.setdefault('budgets' if name in BUDGETS else row, {})[name] = value
    return found


def parameters() -> dict[str, dict[str, float]]:
    """Find the parameters of the filter by which it finds an answer: row -> name -> default."""
    return {
        f'parameter {name}': {name: value}
        for name, value in asdict(KbrConfig()).items()
        if isinstance(value, (int, float)) and name not in ASKED
    }


def with_parameters(case: Case, names: Iterable[str], factor: float) -> Case:
    """Let some parameters of the map of a case be so many times as large."""
    config = case.kernel_map.filter_config
    before = asdict(config)
    values = {name: type(before[name])(factor * before[name]) for name in names}
    changed_map = replace(case.kernel_map, filter_config=replace(config, **values))
    return replace(case, kernel_map=changed_map)


def scaled(value: Any, factor: float) -> Any:
    """Return a number (or an array) times a factor, below 1 its odds; integers stay integers."""
    if isinstance(value, int):
        return max(1, round(value * factor))
    numbers = np.asarray(value, dtype=np.float64)
    below = numbers < 1.0
    odds = np.where(below, numbers / np.where(below, 1.0 - numbers, 1.0), numbers) * factor
    found = np.where(below, odds / (1.0 + odds), odds)
    return found if isinstance(value, np.ndarray) else float(found)


@contextmanager
def changed(before: dict[str, Any], factor: float) -> Iterator[None]:
    """Let constants, by name, be so many times as large in all modules that use them."""
    found = [
        (module, name)
        for key, module in list(sys.modules.items())
        for name, value in before.items()
        if key.startswith('kbr_localization') and getattr(module, name, None) is value
    ]
    for module, name in found:
        setattr(module, name, scaled(before[name], factor))
    try:
        yield
    finally:
        for module, name in found:
            setattr(module, name, before[name])


def measured(runs: Sequence[Case]) -> np.ndarray:
    """Figures (cases, 4) of the filter: RMSE of errors capped at `CAP_M`, said, wrong, covered."""
    rows = []
    for case in runs:
        trajectory = localize(case.kernel_map, case.run, 'kbr', seed=0)
        errors = run_errors(reference_trajectory(case.run), trajectory)
        found = answers(case.run, trajectory, case.right_m)
        capped = np.minimum(errors.position_m, CAP_M)
        rmse = float(np.sqrt(np.mean(capped**2)))
        rows.append([rmse, *(found[name] for name in list(FIGURES)[1:])])
    return np.array(rows)


def tried(runs: Sequence[Case], row: str, factor: float) -> np.ndarray:
    """Measure with the constants, or the parameter, of a row changed."""
    threadpool_limits(1, 'blas')
    if row in parameters():
        return measured([with_parameters(case, parameters()[row], factor) for case in runs])
    with changed(constants()[row], factor):
        return measured([_learnt(case) for case in runs] if row.startswith(LEARNT_BY) else runs)


def _learnt(case: Case) -> Case:
    """Let the map of a case learn its statistics anew."""
    learnt = with_statistics(replace(case.kernel_map, statistics=None))
    return replace(case, kernel_map=learnt)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all constants; print the table, and put it into the page when one is named."""
    options = _parser().parse_args(arguments)
    runs = cases.given(options)
    before = measured(runs)
    everything = constants() | parameters()
    found = {row: kept for row, kept in everything.items() if re.search(options.only, row)}
    tasks = [(row, factor) for row in found for factor in FACTORS]
    after = Parallel(n_jobs=options.jobs, verbose=5)(delayed(tried)(runs, *task) for task in tasks)
    by_task = dict(zip(tasks, after, strict=True))
    rows = [
        [row, _value(kept), *_row(before, [by_task[row, factor] for factor in FACTORS])]
        for row, kept in found.items()
    ]
    text = described(rows, before)
    results.publish(text, options.section)


def _parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    cases.add_options(parser)
    parser.add_argument('--only', default='', metavar='REGEX', help='what to change')
    parser.add_argument('--jobs', type=int, default=1)
    parser.add_argument('--section', help='name of the section of benchmarks/README.md to replace')
    return parser


def _row(before: np.ndarray, after: Sequence[np.ndarray]) -> list[str]:
    cells = [_relative(before[:, 0], one[:, 0]) for one in after]
    for column in range(1, len(FIGURES)):
        cells += [_difference(before[:, column], one[:, column]) for one in after]
    return cells


def _relative(before: np.ndarray, after: np.ndarray) -> str:
    """Mean and standard error over the cases of the change of the logarithm, in per cent."""
    change = 100.0 * np.log(np.maximum(after, 1e-9) / np.maximum(before, 1e-9))
    return _mean_and_error(change)


def _difference(before: np.ndarray, after: np.ndarray) -> str:
    """Return the same of the difference, in per cent."""
    change = 100.0 * (after - before)
    return _mean_and_error(change[np.isfinite(change)])


def _mean_and_error(values: np.ndarray) -> str:
    if not np.any(values):
        return '0' if values.size else '–'
    error = float(np.std(values, ddof=1) / np.sqrt(values.size)) if values.size > 1 else 0.0
    return f'{values.mean():+.1f} ± {error:.1f}'


def _value(kept: dict[str, Any]) -> str:
    return ' '.join(f'{number:g}' for value in kept.values() for number in np.atleast_1d(value))


def described(rows: Sequence[Sequence[str]], before: np.ndarray) -> str:
    """Lay the table out."""
    header = ['constant or parameter', 'value']
    header += [f'{name} {way}' for name in FIGURES.values() for way in ('halved', 'doubled')]
    as_it_is = ', '.join(
        f'{name} {np.mean(known):.3f}'
        if (known := column[np.isfinite(column)]).size
        else f'{name} –'
        for name, column in zip(FIGURES.values(), before.T, strict=True)
    )
    return (
        f'### Constants and parameters of the filter\n\nMeans over {len(before)} runs from a '
        f'global start as they are: {as_it_is} (*RMSE*: metres, errors capped at {CAP_M:g} m; '
        '*said*: of the right frames, called localized; *wrong*: of these after 5 m, not right; '
        '*2 sigma*: truths inside). Below: by how many per cent each changes, mean ± standard '
        'error over the runs, when one of them is halved or doubled.\n\n'
        f'{results.table(header, rows)}'
    )


if __name__ == '__main__':
    main()
