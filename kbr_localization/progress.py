"""Progress of long work: functions report it, the caller decides whether it is shown."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
import math
import sys
import time
from typing import Any

Progress = Callable[[str, int, int], None]
"""Called with the name of the work, the number of finished items and their total."""
_shown: ContextVar[Progress | None] = ContextVar('progress', default=None)


def printable(text: str) -> str:
    """Escape characters that would move the cursor, colour the screen or reverse the text."""
    return ''.join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


def report(what: str, done: int, total: int) -> None:
    """Report the number of finished items of named work, and their total."""
    if show := _shown.get():
        show(what, done, total)


def tracked(what: str, items: Any) -> Iterator[Any]:
    """Yield the items of a sequence, and report each one after the loop has used it."""
    for done, item in enumerate(items, start=1):
        yield item
        report(what, done, len(items))


@contextmanager
def report_to(show: Progress | None) -> Iterator[None]:
    """Call `show` with the progress that the block reports; None shows nothing."""
    token = _shown.set(show)
    try:
        yield
    finally:
        _shown.reset(token)


@contextmanager
def terminal_progress() -> Iterator[None]:
    """Show progress on stderr: bars on a terminal, else a line every 10 s and at the end."""
    if not sys.stderr.isatty():
        last = -math.inf

        def show_lines(what: str, done: int, total: int) -> None:
            nonlocal last
            if done >= total or time.monotonic() - last > 10.0:
                last = time.monotonic()
                print(f'{printable(what)}: {done} of {total}', file=sys.stderr, flush=True)

        with report_to(show_lines):
            yield
        return
    # importing rich takes 0.25 s, which a log does not need
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

        def show_bars(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(escape(printable(what)))
            bars.update(tasks[what], completed=done, total=total)

        with report_to(show_bars):
            yield
