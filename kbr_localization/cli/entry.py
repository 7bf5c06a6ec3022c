"""The way in and out of `kbr`."""

from __future__ import annotations

from collections.abc import Sequence
import re
import sys
from typing import Any

from kbr_localization.cli.failures import run_command
from kbr_localization.errors import KbrError
import typer

OLDEST_TYPER = (0, 9)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `kbr` and leave the process with its exit code."""
    sys.exit(run_command(_kbr, sys.argv[1:] if arguments is None else arguments))


def _kbr(arguments: Sequence[str], **options: Any) -> Any:
    _refuse_old(typer.__version__)
    # an older typer cannot even import the commands
    from kbr_localization.cli.app import run  # noqa: PLC0415

    return run(arguments, **options)


def _refuse_old(version: str) -> None:
    found = re.match(r'(\d+)\.(\d+)', version)
    if found and tuple(map(int, found.groups())) < OLDEST_TYPER:
        oldest = '.'.join(map(str, OLDEST_TYPER))
        raise KbrError(
            f'kbr needs the Python module typer {oldest} or newer, got {version}: '
            f"`pip install 'typer>={oldest}'`"
        )
