"""
Define experiments, run them, and write their tables and figures.

An experiment has a trial, which computes the numbers of one seed and cell, and a judge, which
turns the numbers of all trials into table rows, claims and a figure. Verdicts are computed, never
edited.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import csv
from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any

from experiments import report
from experiments.claims import Claim, verdict
from experiments.records import Records, run_tasks, SEEDS, Size, stored, tasks_of, Trial
import matplotlib
from matplotlib import pyplot
import numpy as np

HERE = Path(__file__).parent
SIZES = ('tiny', 'reduced', 'full')
UKF_SPREADS = (1e-3, 1.0)
"""Values of α of the unscented transform that are compared: near and distant sigma points."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """
    Result of an experiment.

    `rows`: rows of the CSV file, all with the same keys; `ours`: our values in one line; `claims`:
    the tested claims of the paper; `draw`: function that returns the figure.
    """

    rows: list[Row]
    ours: str
    claims: list[Claim]
    draw: Callable[[], Any]


@dataclass(frozen=True)
class Experiment:
    """
    One figure or table of a paper.

    `source`: e.g. '[KBR] Fig. 2'; `paper`: values or findings of the paper; `settings`: choices
    that the paper leaves open; `sizes`: tiny, reduced and full; `trial(rng, **cell, **fixed)`
    returns the numbers of one task; `judge(records, size)` evaluates them; `unavailable(size)`
    returns the reason why the experiment cannot be run, if any.
    """

    name: str
    source: str
    paper: str
    settings: str
    sizes: Mapping[str, Size]
    trial: Trial
    judge: Callable[[Records, Size], Outcome]
    unavailable: Callable[[Size], str] = lambda size: ''


def run(experiment: Experiment, options: argparse.Namespace) -> Outcome | None:
    """Run an experiment with the options of `parser`; write and print the outcome."""
    size = experiment.sizes[options.size]
    reason = '' if options.judge else experiment.unavailable(size)
    if reason:
        print(f'{experiment.source}: skipped, {reason}')
        return None
    results, tasks = options.out / 'results', tasks_of(size, options.seeds)
    path = results / 'records' / f'{experiment.name}_{options.size}.json'
    if options.judge:
        records = stored(path, tasks)
    else:
        trial = experiment.trial
        records = run_tasks(trial, size.fixed, tasks, path, options.resume, options.jobs)
    if not records.done:
        print(f'{experiment.source}: nothing is stored of the {options.size} size')
        return None
    done = report.completed(records, tasks)
    outcome = experiment.judge(records, size)
    write(results, experiment, outcome, done, options.size)
    print(
        f'{experiment.source}, {options.size}: {outcome.ours}. {verdict(outcome.claims)} ({done})'
    )
    report.write_page(options.out)
    return outcome


def parser(description: str) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=description)
    add = result.add_argument
    add('--size', choices=SIZES, default='reduced', help='tiny is for tests')
    add('--full', dest='size', action='store_const', const='full', help="the paper's sizes")
    add('--out', type=Path, default=HERE, help='folder for README.md and results/')
    add('--seeds', type=_numbers, default=SEEDS, help='separated by commas')
    add('--resume', action='store_true', help='run only tasks that are not stored yet')
    add('--judge', action='store_true', help='run nothing, evaluate the stored numbers')
    add('--jobs', type=int, default=1, help='number of processes, -1 for one per core')
    return result


def write(folder: Path, experiment: Experiment, outcome: Outcome, done: str, size: str) -> None:
    """Write the rows (CSV), the figure (PNG), and the claims with the settings (JSON)."""
    name = f'{experiment.name}_full' if size == 'full' else experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / f'{name}.csv', outcome.rows)
    write_figure(folder / f'{name}.png', outcome.draw)
    line = {
        'name': experiment.name,
        'source': experiment.source,
        'paper': experiment.paper,
        'ours': outcome.ours,
        'settings': experiment.settings,
        'claims': [vars(one) for one in outcome.claims],
        'size': size,
        'completed': done,
    }
    text = json.dumps(line, indent=1, ensure_ascii=False)
    (folder / f'{name}.json').write_text(text + '\n', encoding='utf-8')


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as CSV, floats with six digits."""
    with path.open('w', newline='', encoding='utf-8') as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator='\n')
        writer.writeheader()
        for row in rows:
            writer.writerow({key: _printed(value) for key, value in row.items()})


def write_figure(path: Path, draw: Callable[[], Any]) -> None:
    """Draw without a display and write a small PNG; equal numbers give equal bytes."""
    matplotlib.use('Agg')
    with pyplot.rc_context(
        {
            'font.size': 9,
            'axes.grid': True,
            'grid.alpha': 0.3,
            'legend.fontsize': 8,
            'axes.axisbelow': True,
        }
    ):
        figure = draw()
        figure.savefig(path, dpi=80, bbox_inches='tight', metadata={'Software': None})
        pyplot.close(figure)


def figure_of(
    rows: Sequence[Row], x: str, by: str = '', title: str = '{}', width: float = 5.5, **axis: Any
) -> Any:
    """Draw curves over x, one panel for each value of `by`; `axis`: arguments of Axes.set."""
    values = list(dict.fromkeys(row[by] if by else '' for row in rows))
    size = (width, 3.7)
    figure, grid = pyplot.subplots(
        1, len(values), figsize=size, constrained_layout=True, squeeze=False
    )
    for axes, value in zip(grid.flat, values, strict=True):
        curves(axes, [row for row in rows if not by or row[by] == value], x)
        axes.set(title=title.format(value), **axis)
    return figure


def curves(axes: Any, rows: Sequence[Row], x: str) -> None:
    """Draw a curve with standard errors for each method, in the order of their first rows."""
    for method in dict.fromkeys(row['method'] for row in rows):
        chosen = [row for row in rows if row['method'] == method]
        columns = [np.array([row[key] for row in chosen]) for key in (x, 'mean', 'se')]
        axes.errorbar(*columns, label=method, marker='o', markersize=3, capsize=2)
    axes.legend()


def row(method: str, values: Any, **place: Any) -> Row:
    """Return mean, standard error and number of the replicates (r,) of a method."""
    array = np.asarray(values, dtype=np.float64)
    error = float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else float('nan')
    return {
        **place,
        'method': method,
        'mean': float(array.mean()),
        'se': error,
        'runs': len(array),
    }


def rows_by(x: str, errors: Mapping[str, Mapping[Any, Any]], **place: Any) -> list[Row]:
    """Return rows from values (replicates,) by method and value of x."""
    return [
        row(method, values, **place, **{x: point})
        for method, by_point in errors.items()
        for point, values in by_point.items()
    ]


def labelled(x: str, errors: Mapping[str, Mapping[Any, Any]]) -> dict[str, dict[str, Any]]:
    """Replace the values of x, the inner keys, by labels such as 'n = 100'."""
    return {
        method: {f'{x} = {point}': values for point, values in by_point.items()}
        for method, by_point in errors.items()
    }


def rows_over(
    x: str, grid: Sequence[Any] | np.ndarray, trials: Mapping[str, Any], **place: Any
) -> list[Row]:
    """
    Return rows over a grid from values (replicates, grid) by method.

    A method with values (replicates,) is constant over the grid.
    """
    return [
        row(method, values[:, i] if values.ndim > 1 else values, **place, **{x: point})
        for method, values in trials.items()
        for i, point in enumerate(grid)
    ]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(','))


def _printed(value: Any) -> Any:
    return f'{value:.6g}' if isinstance(value, float | np.floating) else value
