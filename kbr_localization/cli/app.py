"""The application: its commands by name, and what becomes of their errors."""

from collections.abc import Callable, Sequence
import logging
import os
import signal
import sys
from typing import Annotated, Any

from kbr_localization import __version__, conversions
from kbr_localization.cli import data_commands, map_commands, run_commands
from kbr_localization.cli.console import note
from kbr_localization.errors import KbrError
from kbr_localization.progress import printable
from kbr_localization.resources import describe_missing, REMEDIES
import typer

BAD_INPUT, INTERRUPTED = 2, 128 + signal.SIGINT

map_app = typer.Typer(
    help='Build maps of images and their poses, look into them, change them.', no_args_is_help=True
)
app = typer.Typer(
    name='kbr',
    help='Camera localization by kernel Bayesian inference.',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={'help_option_names': ['-h', '--help']},
)
app.add_typer(map_app, name='map')
for command in (
    map_commands.build,
    map_commands.info,
    map_commands.check,
    map_commands.measure,
    map_commands.prune,
    map_commands.align,
    map_commands.extend,
    map_commands.grown,
):
    map_app.command()(command)
app.command('try')(run_commands.try_)
for command in (
    run_commands.localize,
    run_commands.evaluate,
    run_commands.report,
    run_commands.methods,
    run_commands.parameters,
    data_commands.synth,
    data_commands.convert,
    data_commands.play,
    data_commands.demo,
    run_commands.compare,
    run_commands.tune,
):
    app.command()(command)


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
    conversions.begin()


def run(arguments: Sequence[str], **options: Any) -> Any:
    """Run the command that the arguments name, with options of a typer application."""
    return app(repeat_options(arguments), **options)


def repeat_options(arguments: Sequence[str]) -> list[str]:
    """Repeat --train and --test before every value that follows them."""
    current, first, repeated = '', False, []
    for argument in arguments:
        if argument.startswith('-') and argument != '-':
            current, first = argument if argument in ('--train', '--test') else '', True
        elif current and not first:
            repeated.append(current)
        else:
            first = False
        repeated.append(argument)
    return repeated


def run_command(command: Callable[..., Any], arguments: Sequence[str] | None) -> int:
    """
    Run a typer application and return the exit code of the process.

    0 done, 1 the reader of stdout is gone, 2 bad usage or bad input, with one line on stderr,
    130 interrupted. Anything else that is raised is a defect of this package and leaves with its
    traceback.
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
        if message := _explain(error):
            note(' '.join(message.split()))
        return BAD_INPUT
    if code == INTERRUPTED:
        note('interrupted')
    return int(code or 0)


def _make_printable(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage()), ()
    return True


def _explain(error: Exception) -> str:
    """Return a line for an error that a user can correct; raise any other again."""
    if isinstance(error, OSError) and error.strerror:
        where = f'{error.filename}: ' if error.filename else ''
        return f'{where}{error.strerror[0].lower()}{error.strerror[1:]}'
    if isinstance(error, (KbrError, OSError)):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name in REMEDIES:
        return describe_missing(error.name)
    if not hasattr(error, 'format_message'):
        raise error
    if not str(error):  # a group without a command has shown its help already
        return ''
    context = getattr(error, 'ctx', None)
    command = context.command_path if context else 'kbr'
    return f'{error.format_message().rstrip(".")} (see `{command} --help`)'
