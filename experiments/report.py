"""Generate the table in README.md: one row per figure, with the counts of verdicts."""

from collections.abc import Sequence
import itertools
import json
from pathlib import Path
from typing import Any

from experiments.claims import FAILS, HOLDS, NOISE
from experiments.records import Records, Task

START, END = '<!-- table: python -m experiments --table -->', '<!-- end of table -->'
HEAD = '| figure or table | reduced size | full size |\n|---|---|---|'


def completed(records: Records, tasks: Sequence[Task]) -> str:
    """Return the seeds and the number of finished runs as text."""
    found = [task for task in tasks if task in records.done]
    seeds = sorted({task.seed for task in found})
    count = f'{len(found)}' if len(found) == len(tasks) else f'{len(found)} of {len(tasks)}'
    return f'seeds {seeds[0]}–{seeds[-1]}, {count} runs'


def write_page(out: Path) -> None:
    """Replace the table in README.md by a table of all stored results."""
    readme = out / 'README.md'
    text = readme.read_text(encoding='utf-8') if readme.exists() else f'{START}\n{END}\n'
    head, _, rest = text.partition(START)
    tail = rest.partition(END)[2]
    names = sorted({p.stem.removesuffix('_full') for p in (out / 'results').glob('*.json')})
    rows = '\n'.join(_row(out, name) for name in names)
    readme.write_text(f'{head}{START}\n\n{HEAD}\n{rows}\n\n{END}{tail}', 'utf-8')


def _row(out: Path, name: str) -> str:
    stored = {
        size: [
            (path.relative_to(out).as_posix(), json.loads(path.read_text(encoding='utf-8')))
            for path in [out / 'results' / f'{name}{suffix}.json']
            if path.exists()
        ]
        for size, suffix in (('reduced', ''), ('full', '_full'))
    }
    link, first = next(itertools.chain(*stored.values()))
    cells = [_verdicts([line for _, line in lines]) for lines in stored.values()]
    return f'| [{first["source"]}]({link}) | {" | ".join(cells)} |'


def _verdicts(lines: Sequence[dict[str, Any]]) -> str:
    states = [claim['state'] for line in lines for claim in line['claims']]
    counts = ' / '.join(str(states.count(state)) for state in (HOLDS, NOISE, FAILS))
    return f'{counts} ({lines[0]["completed"]})' if lines else '–'
