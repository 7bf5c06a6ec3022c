"""The application: its commands by name."""

from collections.abc import Sequence
from typing import Annotated, Any

from kbr_localization import __version__, conversions
from kbr_localization.cli import (
    compare_command,
    data_commands,
    demo_command,
    growth_commands,
    map_commands,
    mapping_commands,
    report_command,
    run_commands,
    tune_command,
)
from kbr_localization.cli.options import repeat_options
import typer

app = typer.Typer(
    name='kbr',
    help='Camera localization by kernel Bayesian inference.',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={'help_option_names': ['-h', '--help']},
)
map_commands.app.command()(mapping_commands.align)
map_commands.app.command()(mapping_commands.extend)
map_commands.app.command()(growth_commands.grown)
app.add_typer(map_commands.app, name='map')
for command in (
    *run_commands.COMMANDS,
    *data_commands.COMMANDS,
    compare_command.compare,
    report_command.report,
    tune_command.tune,
    demo_command.demo,
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
    """Run the command that the arguments name; options are those of a typer application."""
    return app(repeat_options(arguments, compare_command.SEVERAL), **options)
