"""Progress on the terminal: a bar where there is one, a line now and then in a log file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import sys

Progress = Callable[[str, int, int], None]
"""Called with what is done, how much of it, and of how much."""


@contextmanager
def terminal_progress() -> Iterator[Progress]:
    """Give a `Progress` that writes to stderr."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console  # noqa: PLC0415 (a third of a second that a log need not pay)
    from rich.progress import Progress as Bar  # noqa: PLC0415

    with Bar(console=Console(stderr=True), transient=True) as bar:
        tasks = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what)
            bar.update(tasks[what], completed=done, total=total)

        yield report


class _Lines:
    """One line for each tenth."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        tenth = 10 * done // max(total, 1)
        if tenth > self._told.get(what, 0):
            self._told[what] = tenth
            print(f'{what}: {done} of {total}', file=sys.stderr, flush=True)
