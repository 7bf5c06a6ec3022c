"""The command `kbr`: arguments in, library calls, text or JSON out."""

from collections.abc import Sequence
import sys

from kbr_localization.cli.interrupts import ended, interrupts_after_imports
from kbr_localization.extras import describe_missing
from kbr_localization.threads import prefer_one_thread

prefer_one_thread()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `kbr` and leave the process with its exit code."""
    try:
        with interrupts_after_imports(as_program=arguments is None):
            _run(arguments)
    except KeyboardInterrupt:
        reason, code = ended()
        print(f'kbr: {reason}', file=sys.stderr)
        sys.exit(code)


def _run(arguments: Sequence[str] | None) -> None:
    try:
        from kbr_localization.cli.entry import main as run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        # nothing of the command line works without typer, not even its errors
        if error.name != 'typer':
            raise
        print(f'kbr: {describe_missing(error.name)}', file=sys.stderr)
        sys.exit(2)
    run(arguments)


__all__ = ['main']
