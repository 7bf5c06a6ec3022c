"""Progress of long work: what a caller passes in, and how it is shown on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import sys

Progress = Callable[[str, int, int], None]
"""Called with what is done, how much of it, and of how much."""

STEPS = 10
"""Where stderr is no terminal, progress is a line for every tenth of the work."""


def printable(text: str) -> str:
    """
    Replace what would move the cursor, colour the screen or turn the text round.

    Names in files from others may have anything in them.
    """
    return ''.join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


def silent(what: str, done: int, total: int) -> None:
    """Be the progress that nobody looks at."""


@contextmanager
def terminal_progress() -> Iterator[Progress]:
    """Give a `Progress` that writes to stderr: bars on a terminal, plain lines anywhere else."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    # a quarter of a second that a log need not pay
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415
    from rich.progress import MofNCompleteColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    columns = (*Bars.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(escape(printable(what)))
            bars.update(tasks[what], completed=done, total=total)

        yield report


class _Lines:
    """A line for every tenth."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        tenth = STEPS * done // max(total, 1)
        if tenth != self._told.get(what):
            self._told[what] = tenth
            print(f'{printable(what)}: {done} of {total}', file=sys.stderr, flush=True)
