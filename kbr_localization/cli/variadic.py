"""Options that take several values at once: `--train A B` for `--train A --train B`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def repeat_options(arguments: Sequence[str], names: Iterable[str]) -> list[str]:
    """Repeat each of the named options before every value that follows it."""
    several = set(names)
    current, first = '', False
    repeated = []
    for argument in arguments:
        if argument.startswith('-') and argument != '-':
            current, first = (argument, True) if argument in several else ('', False)
        elif current and not first:
            repeated.append(current)
        else:
            first = False
        repeated.append(argument)
    return repeated
