"""Output of commands: notes on stderr, tables or JSON on stdout; checks of output files."""

from collections.abc import Mapping, Sequence
import os
from pathlib import Path
import sys
from typing import Any

from kbr_localization.errors import KbrError
from kbr_localization.files import json_text
from kbr_localization.progress import printable


def note(*messages: str) -> None:
    """Print each message as one line on stderr."""
    for message in messages:
        print(f'kbr: {printable(message)}', file=sys.stderr)


def note_skipped(*runs: Mapping[str, int], last_error: str = '') -> None:
    """Print the counts of what was skipped in each run, and the error of the last image."""
    for skipped in filter(None, runs):
        note('skipped: ' + ', '.join(f'{n} x {reason}' for reason, n in skipped.items()))
    if last_error:
        note(f'last image that was left out: {last_error}')


def show(title: str, rows: Mapping[str, Any], as_json: bool = False) -> None:
    """Print names and values as JSON, or as a table of two columns under `title`."""
    if as_json:
        print_json(rows)
    else:
        _print_table(['', title], list(rows.items()))


def show_rows(rows: Sequence[Mapping[str, Any]], as_json: bool = False) -> None:
    """Print rows that have the same names as JSON or as a table."""
    if as_json:
        print_json(rows)
    else:
        _print_table(list(rows[0]), [list(row.values()) for row in rows])


def print_json(value: Any) -> None:
    """Print JSON on stdout; numbers that are not finite become null."""
    print(json_text(value, indent=2))


def _print_table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.console import Console  # noqa: PLC0415  (slow to import)
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(show_edge=False)
    for number, header in enumerate(headers):
        words = number == 0 or any(isinstance(row[number], str) for row in rows)
        table.add_column(
            Text(printable(header)), justify='left' if words else 'right', no_wrap=number == 0
        )
    for row in rows:
        # Text, because names of runs may look like markup
        table.add_row(*(Text(printable(format_value(value))) for value in row))
    # do not wrap in a file or pipe
    Console(width=None if sys.stdout.isatty() else 400).print(table)


def format_value(value: Any) -> str:
    """Return a value as text: floats with three decimals or an exponent, None as a dash."""
    if value is None:
        return '-'
    if hasattr(value, 'tolist'):
        return format_value(value.tolist())
    if isinstance(value, list):
        return f'[{", ".join(map(format_value, value))}]'
    if not isinstance(value, float):
        return str(value)
    return f'{value:.3f}' if value == 0 or abs(value) >= 0.001 else f'{value:.1e}'


def prepare_output(path: Path, *inputs: Path) -> Path:
    """Check that a file can be written and overwrites no input; create its folder."""
    if path.is_dir():
        raise KbrError(f'{path} is a folder: expected the name of the file to write')
    if path.exists() and not path.is_file():
        return path
    # realpath, because resolve fails on circular links; a link in a run belongs to the run
    places = [Path(os.path.realpath(path)), Path(os.path.realpath(path.parent)) / path.name]
    for given in inputs:
        source = Path(os.path.realpath(given))
        if source in places:
            raise KbrError(f'{path} would be overwritten, but is an input: write another file')
        if any(source in place.parents for place in places):
            raise KbrError(f'{path} is in the folder of the run {given}: write to another folder')
    path.parent.mkdir(parents=True, exist_ok=True)
    existed = path.exists()
    with path.open('ab'):
        pass
    if not existed:
        path.resolve().unlink()
    return path
