"""From exceptions to exit codes: a user's mistake is one line on stderr, never a traceback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import logging
import os
from pathlib import Path
import sys
from typing import Any

from kbr_localization.cli.interrupts import ended, INTERRUPTED
from kbr_localization.errors import KbrError
from kbr_localization.extras import describe_missing, REMEDIES
from kbr_localization.progress import printable
import typer

BAD_INPUT = 2
BROKEN_PIPE = 1
OPTIONAL = REMEDIES
"""Modules that only some commands need, and how to get them."""


def run_command(command: Callable[..., Any], arguments: Sequence[str] | None) -> int:
    """
    Run a typer application and return the exit code of the process.

    0 done, 2 bad usage or bad input, 130 interrupted, 143 and 129 ended by SIGTERM and SIGHUP, 1
    when the reader of stdout is gone.
    Anything else that is raised is a defect of this package and leaves with its traceback.
    """
    _make_writable()
    logging.basicConfig(format='kbr: %(message)s', level=logging.WARNING, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_make_printable)
    try:
        code = command(arguments, prog_name='kbr', standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # the interpreter's own flush at exit would complain about the closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except typer.Exit as leaving:
        code = leaving.exit_code
    except (Exception, KeyboardInterrupt) as error:
        return _explain(error)
    return _explain(KeyboardInterrupt()) if code == INTERRUPTED else int(code or 0)


def _make_writable() -> None:
    """Let stdout and stderr take any text, also where they are closed or know few characters."""
    for name in ('stdout', 'stderr'):
        if getattr(sys, name) is None:
            # else the next file that is opened would get their number, and what libraries print
            nowhere = Path(os.devnull).open('w', encoding='utf-8')  # noqa: SIM115
            setattr(sys, name, nowhere)
    if hasattr(sys.stdout, 'reconfigure'):
        sys.stdout.reconfigure(errors='replace')


def _make_printable(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage()), ()
    return True


def _explain(error: BaseException) -> int:
    """Say in one line what a user can understand, return the exit code; raise defects again."""
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return _say(*ended())
    if isinstance(error, (KbrError, OSError)):
        return _say(_describe(error), BAD_INPUT)
    if isinstance(error, ModuleNotFoundError) and error.name in OPTIONAL:
        return _say(describe_missing(error.name), BAD_INPUT)
    if not hasattr(error, 'format_message'):
        raise error
    # a group without a command has shown its help already
    return _say(_describe_usage(error), BAD_INPUT) if str(error) else BAD_INPUT


def _say(message: str, code: int) -> int:
    print(f'kbr: {printable(" ".join(message.split()))}', file=sys.stderr)
    return code


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f'{error.filename}: ' if error.filename else ''
        return f'{where}{error.strerror[0].lower()}{error.strerror[1:]}'
    return str(error)


def _describe_usage(error: Any) -> str:
    """One line from a usage error of typer, whichever click stands behind it."""
    context = getattr(error, 'ctx', None)
    command = context.command_path if context else 'kbr'
    return f'{error.format_message().rstrip(".")} (see `{command} --help`)'
