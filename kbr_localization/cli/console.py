"""What a command shows: progress on stderr, tables or JSON on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
import math
import os
from pathlib import Path
import sys
from typing import Any

from kbr_localization import conversions
from kbr_localization.errors import KbrError
from kbr_localization.files import refuse_null_device
from kbr_localization.progress import printable

WIDE = 400
STILL = 0.1
"""Metres and radians within which an odometry has no way."""


def note(message: str) -> None:
    """Say something beside the result: one line on stderr."""
    print(f'kbr: {printable(message)}', file=sys.stderr)


def note_skipped(skipped: Mapping[str, int], last_error: str = '') -> None:
    """Say what was left out of a run, if anything was, and what was wrong with the last image."""
    if skipped:
        note('skipped: ' + ', '.join(f'{count} x {reason}' for reason, count in skipped.items()))
    if last_error:
        note(f'the last image that was left out: {last_error}')
    converted = conversions.take()
    if converted:
        note('converted: ' + ', '.join(f'{count} x {kind}' for kind, count in converted.items()))


def note_localized(out: Path, statuses: Sequence[str], odometry: Any) -> None:
    """
    Say at how many frames the robot was localized, and what it may be if at none.

    `odometry`: its poses (n, 3).
    """
    count, frames = statuses.count('localized'), len(statuses)
    note(f'{out}: {frames} poses, localized at {count} of them ({count / max(frames, 1):.0%})')
    if count == 0 and _stands_still(odometry):
        note(
            'warning: never localized: by its odometry the robot stood still, and one image does '
            'not tell where; if it drove, this is not its odometry: see --odometry-topic for a bag'
        )
    elif count == 0:
        note('warning: never localized: is this a map of that place, made with that camera?')


def _stands_still(odometry: Any) -> bool:
    """Whether poses (n, 3) stay within some centimetres and degrees."""
    from kbr_localization import se2  # noqa: PLC0415  (not for `--help`)

    moved = odometry - odometry[:1]
    moved[:, 2] = se2.wrap_angle(moved[:, 2])
    return bool((abs(moved) < STILL).all())


def print_json(value: Any) -> None:
    """Print JSON on stdout; what is not a finite number becomes null."""
    print(json.dumps(_plain(value), indent=2, allow_nan=False))


def print_table(title: str, rows: Mapping[str, Any]) -> None:
    """Print names and values as a table of two columns."""
    table = _table('', title)
    for name, value in rows.items():
        table.add_row(_cell(name), _cell(value))
    _print(table)


def print_columns(
    title: str, columns: Sequence[str], rows: Mapping[str, Mapping[str, Any]]
) -> None:
    """Print one row per name with the chosen values of each."""
    print_rows(title, columns, [{title: name, **values} for name, values in rows.items()])


def print_rows(title: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the chosen values of each row behind the one called `title`."""
    table = _table()
    table.add_column(_cell(title), no_wrap=True)
    for column in columns:
        words = any(isinstance(row[column], str) for row in rows)
        table.add_column(_cell(column), justify='left' if words else 'right')
    for row in rows:
        table.add_row(_cell(row[title]), *(_cell(row[column]) for column in columns))
    _print(table)


def _table(*headers: str) -> Any:
    from rich.table import Table  # noqa: PLC0415  (commands without tables need not wait for it)

    table = Table(show_edge=False)
    for header in headers:
        table.add_column(_cell(header))
    return table


def _cell(value: Any) -> Any:
    """Return the text of a value as it is: names of runs are no markup."""
    from rich.text import Text  # noqa: PLC0415

    return Text(printable(format_value(value)))


def _print(table: Any) -> None:
    """Print a table on stdout; what is no terminal has room for all of it."""
    from rich.console import Console  # noqa: PLC0415

    Console(width=None if sys.stdout.isatty() else WIDE).print(table)


def format_value(value: Any) -> str:
    """Write numbers with the digits that a reader wants, and nothing as a dash."""
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
    """
    Make sure, before the long work, that a file can be written: create its folder.

    A device or a pipe is left for the writer. Raises KbrError when the path is a folder, one of
    the inputs or a file of a run among them; OSError when it is the null device, or the folder
    cannot be made or written.
    """
    refuse_null_device(path)
    if path.is_dir():
        raise KbrError(f'{path} is a folder: expected the name of the file to write')
    if path.exists() and not path.is_file():
        return path
    for given in inputs:
        if path.exists() and given.exists() and path.samefile(given):
            raise KbrError(f'{path} would be overwritten, but it is read too: write another file')
        refuse_file_of(given, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    existed = path.exists()
    with path.open('ab'):
        pass
    if not existed:
        path.resolve().unlink()
    return path


def refuse_file_of(run: Path, path: Path) -> None:
    """Raise KbrError for an output that is a file of a run, or would be taken for one."""
    from kbr_localization.datasets.opening import has_meaning  # noqa: PLC0415

    # a link in the run is a part of it, wherever it leads to
    # (realpath, since resolve has no words for links in a circle: the writer has)
    real = Path(os.path.realpath(path))
    places = (real, Path(os.path.realpath(path.parent)) / path.name)
    if not any(Path(os.path.realpath(run)) in place.parents for place in places):
        return
    if path.exists():
        raise KbrError(f'{path} is a file of the run {run}: write another file')
    if has_meaning(path):
        raise KbrError(f'{path} would be read as a file of the run {run}: write another file')


def prepare_map(path: Path, *inputs: Path) -> Path:
    """Do the same for a map, which has to be a file; raises KbrError for a device or a pipe."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise KbrError(f'{path} is a device or a pipe: expected the name of the map to write')
    return prepare_output(path, *inputs)


def _plain(value: Any) -> Any:
    """Convert what JSON does not know: arrays, tuples, numbers that are none."""
    if hasattr(value, 'tolist'):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
