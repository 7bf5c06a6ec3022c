"""Progress of long work: what a caller passes in, and how it is shown on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import math
import sys
import time

Progress = Callable[[str, int, int], None]
"""Called with what is done, how much of it, and of how much."""


def printable(text: str) -> str:
    """Escape what would move the cursor, colour the screen or turn the text round."""
    return ''.join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


def silent(what: str, done: int, total: int) -> None:
    """Ignore progress."""


@contextmanager
def terminal_progress() -> Iterator[Progress]:
    """Give a `Progress` on stderr: bars on a terminal, else a line at the end and every 10 s."""
    if not sys.stderr.isatty():
        last = -math.inf

        def report_lines(what: str, done: int, total: int) -> None:
            nonlocal last
            if done >= total or time.monotonic() - last > 10.0:
                last = time.monotonic()
                print(f'{printable(what)}: {done} of {total}', file=sys.stderr, flush=True)

        yield report_lines
        return
    # a quarter of a second that a log need not pay
    from rich import progress  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415

    columns = (
        *progress.Progress.get_default_columns(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, progress.TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(escape(printable(what)))
            bars.update(tasks[what], completed=done, total=total)

        yield report
