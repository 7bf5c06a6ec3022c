"""
What all experiments share: sizes and command line, CSV, figure, and the table of results.

An experiment is a module that fills in an `Experiment` and calls `run` from its `main`. Its
outcome is judged by claims, sentences that the numbers make true or false, so that the verdict in
the table is computed and never edited.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
import csv
from dataclasses import dataclass
import json
import logging
from pathlib import Path
import time
from typing import Any

import matplotlib
from matplotlib import pyplot
import numpy as np

HERE = Path(__file__).parent
SIZES = ('tiny', 'reduced', 'full')
START, END = '<!-- table: python -m experiments --table -->', '<!-- end of table -->'

Row = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """A sentence that the paper supports, and whether our numbers do."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Outcome:
    """
    What an experiment found.

    `rows`: the CSV, all with the same keys; `ours`: our values in one line; `claims`: the paper's
    orderings, tested on the rows; `draw`: makes the figure from nothing but itself.
    """

    rows: list[Row]
    ours: str
    claims: list[Claim]
    draw: Callable[[], Any]


@dataclass(frozen=True)
class Experiment:
    """
    One figure or table of a paper.

    `source`: e.g. '[KBR] Fig. 2'; `paper`: its values or its finding; `settings`: what the paper
    leaves open and how it was chosen; `sizes`: keyword arguments of `measure` for every size.
    """

    name: str
    source: str
    paper: str
    settings: str
    sizes: Mapping[str, Mapping[str, Any]]
    measure: Callable[..., Outcome]


def run(experiment: Experiment, arguments: Sequence[str] | None = None) -> Outcome:
    """Run an experiment from the command line; write its CSV, figure and line of the table."""
    options = parser(experiment.source).parse_args(arguments)
    started = time.process_time()
    rng = np.random.default_rng(options.seed)
    with expected_warnings('kbr_localization.kernels'):
        outcome = experiment.measure(rng, **experiment.sizes[options.size])
    seconds = time.process_time() - started
    results = options.out / 'results'
    results.mkdir(parents=True, exist_ok=True)
    write_rows(results / f'{experiment.name}.csv', outcome.rows)
    write_figure(results / f'{experiment.name}.png', outcome.draw)
    write_line(results / f'{experiment.name}.json', experiment, outcome, options, seconds)
    write_table(options.out)
    print(
        f'{experiment.source}: {outcome.ours}. {verdict(outcome.claims)} ({seconds:.0f} s of CPU)'
    )
    return outcome


def parser(description: str) -> argparse.ArgumentParser:
    """Return the command line of every experiment."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument('--size', choices=SIZES, default='reduced', help='tiny is for tests')
    result.add_argument(
        '--full', dest='size', action='store_const', const='full', help="the paper's sizes"
    )
    result.add_argument('--out', type=Path, default=HERE, help='folder for README.md and results/')
    result.add_argument('--seed', type=int, default=0)
    return result


def verdict(claims: Iterable[Claim]) -> str:
    """Return which claims hold and which do not."""
    held = '; '.join(claim.text for claim in claims if claim.holds)
    failed = '; '.join(claim.text for claim in claims if not claim.holds)
    parts = [f'holds: {held}' if held else '', f'**does not hold: {failed}**' if failed else '']
    return '. '.join(part for part in parts if part)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as CSV, floats with six digits."""
    with path.open('w', newline='', encoding='utf-8') as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator='\n')
        writer.writeheader()
        for row in rows:
            writer.writerow({key: _printed(value) for key, value in row.items()})


def write_figure(path: Path, draw: Callable[[], Any]) -> None:
    """Draw without a display and write a small PNG."""
    matplotlib.use('Agg')
    style = {'font.size': 9, 'axes.grid': True, 'grid.alpha': 0.3, 'legend.fontsize': 8}
    with pyplot.rc_context({**style, 'axes.axisbelow': True}):
        figure = draw()
        figure.savefig(path, dpi=90, bbox_inches='tight')
        pyplot.close(figure)


def write_line(
    path: Path,
    experiment: Experiment,
    outcome: Outcome,
    options: argparse.Namespace,
    seconds: float,
) -> None:
    """Write what the table needs of one experiment."""
    line = {
        'source': experiment.source,
        'paper': experiment.paper,
        'ours': outcome.ours,
        'settings': experiment.settings,
        'claims': [{'text': c.text, 'holds': bool(c.holds)} for c in outcome.claims],
        'size': options.size,
        'seed': options.seed,
        'seconds': round(seconds, 1),
    }
    path.write_text(json.dumps(line, indent=1, ensure_ascii=False) + '\n', encoding='utf-8')


def write_table(out: Path) -> None:
    """Assemble the table of README.md from the lines of all experiments that have run."""
    readme = out / 'README.md'
    text = readme.read_text(encoding='utf-8') if readme.exists() else f'{START}\n{END}\n'
    head, _, rest = text.partition(START)
    tail = rest.partition(END)[2]
    paths = sorted((out / 'results').glob('*.json'))
    lines = [_table_line(path) for path in paths]
    header = '| figure | paper | ours | verdict | size, CPU time |\n|---|---|---|---|---|'
    notes = [_note(path) for path in paths]
    table = '\n'.join([header, *lines, '', 'What the papers leave open:', '', *notes])
    readme.write_text(f'{head}{START}\n\n{table}\n\n{END}{tail}', encoding='utf-8')


def mean_and_deviation(values: Any) -> tuple[Any, Any]:
    """Mean and standard deviation over the first axis (trials)."""
    array = np.asarray(values, dtype=np.float64)
    return array.mean(axis=0), array.std(axis=0)


def series(rows: Iterable[Row], method: str, x: str, *values: str) -> list[Any]:
    """Columns x and values of one method's rows, as arrays."""
    chosen = [row for row in rows if row['method'] == method]
    return [np.array([row[key] for row in chosen]) for key in (x, *values)]


def curves(axes: Any, rows: Sequence[Row], x: str, y: str, spread: str | None = None) -> None:
    """One curve with error bars for every method, in the order of their first rows."""
    for method in dict.fromkeys(row['method'] for row in rows):
        columns = series(rows, method, x, y, *([spread] if spread else []))
        axes.errorbar(
            *columns[:2], *columns[2:], label=method, marker='o', markersize=3, capsize=2
        )
    axes.legend()


def rows_of(x: str, grid: Iterable[Any], trials: Mapping[str, Any]) -> list[Row]:
    """
    Rows (x, method, mean, std) from values (trials, grid) of every method.

    A method whose values are (trials,) is constant over the grid.
    """
    rows = []
    for method, values in trials.items():
        array = np.asarray(values, dtype=np.float64)
        means, deviations = mean_and_deviation(array)
        for i, point in enumerate(grid):
            index = i if array.ndim > 1 else ()
            mean, std = float(means[index]), float(deviations[index])
            rows.append({x: point, 'method': method, 'mean': mean, 'std': std})
    return rows


@contextmanager
def expected_warnings(name: str) -> Iterator[None]:
    """Keep out of the output what a library warns of while a search tries poor settings."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _printed(value: Any) -> Any:
    return f'{value:.6g}' if isinstance(value, float | np.floating) else value


def _table_line(path: Path) -> str:
    line = json.loads(path.read_text(encoding='utf-8'))
    figure = f'[{line["source"].strip("[]").replace("] ", " ")}](results/{path.stem}.png)'
    cells = [figure, line['paper'], line['ours'], verdict(_claims(line))]
    return '| ' + ' | '.join([*cells, f'{line["size"]}, {line["seconds"]:.0f} s']) + ' |'


def _claims(line: Mapping[str, Any]) -> list[Claim]:
    return [Claim(**claim) for claim in line['claims']]


def _note(path: Path) -> str:
    line = json.loads(path.read_text(encoding='utf-8'))
    return f'- {line["source"]}: {line["settings"]}'
