"""Progress of long work: reported from anywhere, shown for a block of the program."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
import math
import sys
import time
from typing import Any

Progress = Callable[[str, int, int], None]
"""Called with what is done, how much of it, and of how much."""
_shown: ContextVar[Progress | None] = ContextVar('progress', default=None)


def printable(text: str) -> str:
    """Escape what would move the cursor, colour the screen or turn the text round."""
    return ''.join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


def report(what: str, done: int, total: int) -> None:
    """Tell whoever shows progress what is done, how much of it, and of how much."""
    if show := _shown.get():
        show(what, done, total)


def tracked(what: str, items: Any) -> Iterator[Any]:
    """Yield the items of a sequence, and report each one once the loop is done with it."""
    for done, item in enumerate(items, start=1):
        yield item
        report(what, done, len(items))


@contextmanager
def shown_by(show: Progress | None) -> Iterator[None]:
    """Call `show` with the progress of the block; None shows nothing."""
    token = _shown.set(show)
    try:
        yield
    finally:
        _shown.reset(token)


@contextmanager
def terminal_progress() -> Iterator[None]:
    """Show progress on stderr: bars on a terminal, else a line at the end and every 10 s."""
    if not sys.stderr.isatty():
        last = -math.inf

        def show_lines(what: str, done: int, total: int) -> None:
            nonlocal last
            if done >= total or time.monotonic() - last > 10.0:
                last = time.monotonic()
                print(f'{printable(what)}: {done} of {total}', file=sys.stderr, flush=True)

        with shown_by(show_lines):
            yield
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

        def show_bars(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(escape(printable(what)))
            bars.update(tasks[what], completed=done, total=total)

        with shown_by(show_bars):
            yield
