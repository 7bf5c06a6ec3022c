"""Progress of long work: functions report it, the caller decides whether it is shown."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
import math
import shutil
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
    """Show progress on stderr: on a terminal a line that changes, else one every 10 s."""
    on_terminal, shown, is_open = sys.stderr.isatty(), -math.inf, False

    def show(what: str, done: int, total: int) -> None:
        nonlocal shown, is_open
        now, ended = time.monotonic(), done >= total
        if not ended and now - shown < (0.2 if on_terminal else 10.0):
            return
        text, is_open = f'{printable(what)}: {done} of {total}', on_terminal and not ended
        shown = -math.inf if on_terminal and ended else now  # the next work is shown at once
        if on_terminal:
            width = shutil.get_terminal_size().columns - 1
            text = f'\r{text[-width:]}\033[K'  # erases what is left of a longer line
        print(text, end='' if is_open else '\n', file=sys.stderr, flush=True)

    try:
        with report_to(show):
            yield
    finally:
        if is_open:
            print(file=sys.stderr)
