"""The application `kbr`: its commands, and how it reports errors."""

from collections.abc import Callable, Sequence
import logging
import os
import signal
import sys
from typing import Annotated, Any

from kbr_localization import __version__
from kbr_localization.cli import map_commands, run_commands
from kbr_localization.cli.console import note
from kbr_localization.errors import KbrError
from kbr_localization.progress import printable
from kbr_localization.resources import describe_missing
import typer

BAD_INPUT, INTERRUPTED = 2, 128 + signal.SIGINT

app = typer.Typer(
    name='kbr',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={'help_option_names': ['-h', '--help']},
)
map_app = typer.Typer(help='Build, inspect and change maps.', no_args_is_help=True)
app.add_typer(map_app, name='map')
for group, commands in ((app, run_commands.COMMANDS), (map_app, map_commands.COMMANDS)):
    for command in commands:
        group.command(command.__name__.strip('_'))(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f'kbr {__version__}')
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option('--version', callback=_print_version, is_eager=True, help='Print version.'),
    ] = False,
) -> None:
    """Camera localization by kernel Bayesian inference."""


def main() -> int:
    """Run the arguments of the process; SIGTERM and SIGHUP raise SystemExit."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
    return run_command(app, repeat_options(sys.argv[1:]))


def repeat_options(arguments: Sequence[str]) -> list[str]:
    """Repeat --train and --test before each of their values, as click expects."""
    option, repeated = '', list[str]()
    for argument in arguments:
        if argument.startswith('-') and argument != '-':
            option = argument if argument in ('--train', '--test') else ''
        elif option and repeated[-1] != option:
            repeated.append(option)
        repeated.append(argument)
    return repeated


def run_command(command: Callable[..., Any], arguments: Sequence[str]) -> int:
    """
    Run a typer application and return the exit code of the process.

    2: bad usage or bad input, with one line on stderr. 1: the reader of stdout is gone. Any other
    exception is a bug of this package and propagates.
    """
    if hasattr(sys.stdout, 'reconfigure'):
        sys.stdout.reconfigure(errors='replace')  # for terminals without Unicode
    layout = 'kbr: %(levelname)s: %(message)s'
    logging.basicConfig(format=layout, level=logging.WARNING, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_prepare)
    try:
        code = command(arguments, prog_name='kbr', standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # avoid the error message of the flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except typer.Exit as leaving:
        code = leaving.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        if message := _explain(error):
            note(' '.join(message.split()))
        return BAD_INPUT
    if code == INTERRUPTED:
        note('interrupted')
    return int(code or 0)


def _prepare(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage()), ()
    record.levelname = record.levelname.lower()
    return True


def _explain(error: Exception) -> str:
    """Return a message for an error that a user can correct; raise any other again."""
    if isinstance(error, OSError) and error.strerror:
        where = f'{error.filename}: ' if error.filename else ''
        return f'{where}{error.strerror[0].lower()}{error.strerror[1:]}'
    if isinstance(error, (KbrError, OSError)):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (text := describe_missing(error.name)):
        return text
    if not hasattr(error, 'format_message'):
        raise error
    if not str(error):  # a group without a command has printed its help
        return ''
    context = getattr(error, 'ctx', None)
    command = context.command_path if context else 'kbr'
    return f'{error.format_message().rstrip(".")} (see `{command} --help`)'
