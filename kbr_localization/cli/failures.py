"""From exceptions to exit codes: a user's mistake is one line on stderr, never a traceback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import logging
import os
import signal
import sys
from typing import Any

from kbr_localization.errors import KbrError
from kbr_localization.progress import printable
from kbr_localization.resources import describe_missing, REMEDIES
import typer

BAD_INPUT = 2
INTERRUPTED = 128 + signal.SIGINT


def run_command(command: Callable[..., Any], arguments: Sequence[str] | None) -> int:
    """
    Run a typer application and return the exit code of the process.

    0 done, 1 the reader of stdout is gone, 2 bad usage or bad input, 130 interrupted. Anything
    else that is raised is a defect of this package and leaves with its traceback.
    """
    if hasattr(sys.stdout, 'reconfigure'):
        sys.stdout.reconfigure(errors='replace')  # terminals of few characters
    logging.basicConfig(format='kbr: %(message)s', level=logging.WARNING, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_make_printable)
    try:
        code = command(arguments, prog_name='kbr', standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # the interpreter's own flush at exit would complain about the closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except typer.Exit as leaving:
        code = leaving.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        return _explain(error)
    return _say('interrupted', code) if code == INTERRUPTED else int(code or 0)


def _make_printable(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage()), ()
    return True


def _explain(error: Exception) -> int:
    """Print one line for an error that a user can correct; raise any other again."""
    if isinstance(error, OSError) and error.strerror:
        where = f'{error.filename}: ' if error.filename else ''
        return _say(f'{where}{error.strerror[0].lower()}{error.strerror[1:]}')
    if isinstance(error, (KbrError, OSError)):
        return _say(str(error))
    if isinstance(error, ModuleNotFoundError) and error.name in REMEDIES:
        return _say(describe_missing(error.name))
    if not hasattr(error, 'format_message'):
        raise error
    if not str(error):  # a group without a command has shown its help already
        return BAD_INPUT
    context = getattr(error, 'ctx', None)
    command = context.command_path if context else 'kbr'
    return _say(f'{error.format_message().rstrip(".")} (see `{command} --help`)')


def _say(message: str, code: int = BAD_INPUT) -> int:
    print(f'kbr: {printable(" ".join(message.split()))}', file=sys.stderr)
    return code
