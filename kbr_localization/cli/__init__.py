"""The command `kbr`: arguments in, library calls, text or JSON out."""

from collections.abc import Sequence
import signal
import sys
from types import FrameType

from kbr_localization.resources import describe_missing
from kbr_localization.workers import prefer_one_thread

prefer_one_thread()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `kbr` and leave the process with its exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # not under nohup
            signal.signal(number, _exit)
    try:
        from kbr_localization.cli.app import run, run_command  # noqa: PLC0415
    except ModuleNotFoundError as error:
        # nothing of the command line works without typer, not even its errors
        if error.name != 'typer':
            raise
        print(f'kbr: {describe_missing(error.name)}', file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    sys.exit(run_command(run, sys.argv[1:] if arguments is None else arguments))


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)  # as an exception, so that files and processes are cleaned up


__all__ = ['main']
