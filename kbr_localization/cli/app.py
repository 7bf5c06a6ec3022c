"""The application: its commands by name."""

from collections.abc import Sequence
from typing import Annotated, Any

from kbr_localization import __version__, conversions
from kbr_localization.cli import (
    data_commands,
    map_commands,
    map_edit_commands,
    run_commands,
    study_commands,
)
from kbr_localization.cli.options import repeat_options
import typer

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
    map_edit_commands.align,
    map_edit_commands.extend,
    map_edit_commands.grown,
):
    map_app.command()(command)
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
    study_commands.compare,
    study_commands.tune,
):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f'kbr {__version__}')
        raise typer.Exit


app.command('try')(run_commands.try_)


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
    return app(repeat_options(arguments, study_commands.SEVERAL), **options)
