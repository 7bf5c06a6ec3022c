"""The page of all results: what does not hold first, then every figure with its claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import itertools
import json
import math
from pathlib import Path
import re
from typing import Any

from experiments.claims import FAILS, HOLDS, NOISE
from experiments.records import Records, Task

START, END = '<!-- table: python -m experiments --table -->', '<!-- end of table -->'

Line = Mapping[str, Any]


def completed(records: Records, tasks: Sequence[Task]) -> str:
    """Say which seeds and trials are done, cell by cell where they differ."""
    done = {one.task for one in records.done}
    by_cell = {
        cell: [task for task in tasks if task.cell == cell and task in done]
        for cell in dict.fromkeys(task.cell for task in tasks)
    }
    counts = {
        cell: _trials(found, sum(task.cell == cell for task in tasks))
        for cell, found in by_cell.items()
    }
    groups = itertools.groupby(counts, key=lambda cell: counts[cell])
    parts = [(text, list(cells)) for text, cells in groups]
    if len(parts) == 1:
        return parts[0][0]
    return '; '.join(f'{_cells(cells)}: {text}' for text, cells in parts)


def write_page(out: Path) -> None:
    """Assemble the generated part of README.md from all results that are stored."""
    readme = out / 'README.md'
    text = readme.read_text(encoding='utf-8') if readme.exists() else f'{START}\n{END}\n'
    head, _, rest = text.partition(START)
    tail = rest.partition(END)[2]
    results = out / 'results'
    reduced = [path for path in sorted(results.glob('*.json')) if not _is_full(path)]
    stems = [path.stem for path in reduced]
    stems += [p.stem[:-5] for p in sorted(results.glob('*_full.json')) if p.stem[:-5] not in stems]
    figures = [_stored(results, name) for name in stems]
    parts = [_failures(figures), _unfinished(figures), *(_section(lines) for lines in figures)]
    readme.write_text(f'{head}{START}\n\n' + '\n\n'.join(parts) + f'\n\n{END}{tail}', 'utf-8')


def _stored(results: Path, name: str) -> list[tuple[str, Line]]:
    """Return (path of the figure, line) of every stored result: reduced, full, and timed."""
    paths = [
        results / folder / f'{name}{suffix}.json'
        for folder in ('', 'timed')
        for suffix in ('', '_full')
    ]
    return [
        (path.relative_to(results.parent).with_suffix('.png').as_posix(), _read(path))
        for path in paths
        if path.exists()
    ]


def _section(lines: Sequence[tuple[str, Line]]) -> str:
    first = lines[0][1]
    parts = [f'## {first["source"]}', '', f'The paper: {first["paper"]}.', '']
    for picture, line in lines:
        kind = f'{line["size"]}, times of one machine' if 'timed/' in picture else line['size']
        parts += [f'- [{kind}]({picture}) ({line["completed"]}): {line["ours"]}.']
    for timed in (False, True):
        chosen = [line for picture, line in lines if ('timed/' in picture) == timed]
        parts += ['', *_claims(chosen)] if chosen else []
    return '\n'.join([*parts, '', f'Settings: {first["settings"]}'])


def _claims(lines: Sequence[Line]) -> list[str]:
    """Return a table of claims, one column for every size."""
    sizes = [line['size'] for line in lines]
    found = [{one['text']: one for one in line['claims']} for line in lines]
    texts = dict.fromkeys(text for claims in found for text in claims)
    head = f'| claim | {" | ".join(sizes)} |'
    rows = [
        f'| {text} | ' + ' | '.join(_cell(claims.get(text)) for claims in found) + ' |'
        for text in texts
    ]
    return [head, '|---' * (len(sizes) + 1) + '|', *rows]


def _cell(claim: Line | None) -> str:
    if claim is None:
        return '–'
    state = claim['state'] if claim['state'] == HOLDS else f'**{claim["state"]}**'
    return f'{state} ({claim["detail"]})' if claim['detail'] else state


def _failures(figures: Sequence[Sequence[tuple[str, Line]]]) -> str:
    """Return the list of all claims that fail or are not sure in any stored result."""
    lines_of = {
        size: [line for lines in figures for _, line in lines if line['size'] == size]
        for size in ('reduced', 'full')
    }
    counts = [_counted(size, lines) for size, lines in lines_of.items() if lines]
    parts = ['## What does not hold here, or is not sure', '', ' '.join(counts), '']
    for lines in figures:
        found = itertools.chain(*(_lost(line) for _, line in lines))
        states: dict[str, list[str]] = {}
        for text, state in found:
            states.setdefault(text, []).append(state)
        lost = [f'{text} ({", ".join(where)})' for text, where in states.items()]
        if lost:
            parts += [f'- {lines[0][1]["source"]}: {"; ".join(lost)}.']
    return '\n'.join(parts)


def _counted(size: str, lines: Sequence[Line]) -> str:
    states = [one['state'] for line in lines for one in line['claims']]
    held, noise, failed = (states.count(state) for state in (HOLDS, NOISE, FAILS))
    return (
        f'Of {held + noise + failed} claims at the {size} size {held} hold, {noise} are within '
        f'noise and {failed} do not hold.'
    )


def _unfinished(figures: Sequence[Sequence[tuple[str, Line]]]) -> str:
    """Return the list of what has not been run at full size."""
    parts = ['## What has not been run at full size', '']
    for lines in figures:
        source = lines[0][1]['source']
        full = [
            line for picture, line in lines if line['size'] == 'full' and 'timed/' not in picture
        ]
        if not full:
            parts.append(f'- {source}: nothing.')
        elif re.search(r'\d of \d|not run', full[0]['completed']):
            parts.append(f'- {source}: done are {full[0]["completed"]}.')
    return '\n'.join(parts if len(parts) > 2 else [*parts, 'Nothing is missing.'])


def _lost(line: Line) -> Iterable[tuple[str, str]]:
    for state in (FAILS, NOISE):
        for one in line['claims']:
            if one['state'] == state:
                yield one['text'], f'{line["size"]}: {state}'


def _trials(found: Sequence[Task], wanted: int) -> str:
    if not found:
        return 'not run'
    seeds = sorted({task.seed for task in found})
    span = f'{seeds[0]}–{seeds[-1]}' if len(seeds) == seeds[-1] - seeds[0] + 1 else str(seeds)
    span = span if len(seeds) > 1 else str(seeds[0])
    total = f'{len(found)} runs' if len(found) == wanted else f'{len(found)} of {wanted} runs'
    return f'seed{"s" if len(seeds) > 1 else ""} {span}, {total}'


def _cells(cells: Sequence[tuple[tuple[str, Any], ...]]) -> str:
    """Name cells, those that are a product of values by the values of each axis."""
    axes: dict[str, dict[Any, None]] = {}
    for name, value in itertools.chain(*cells):
        axes.setdefault(name, {})[value] = None
    if math.prod(len(values) for values in axes.values()) == len(cells):
        return ', '.join(f'{name} = {" and ".join(map(str, axes[name]))}' for name in axes)
    return ' and '.join(', '.join(f'{name} = {value}' for name, value in cell) for cell in cells)


def _is_full(path: Path) -> bool:
    return path.stem.endswith('_full')


def _read(path: Path) -> Line:
    line: Line = json.loads(path.read_text(encoding='utf-8'))
    return line
