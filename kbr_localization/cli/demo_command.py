"""`kbr demo`: the tour, with its table."""

from pathlib import Path
from typing import Annotated

from kbr_localization.cli import console
from kbr_localization.cli.options import Seed
from kbr_localization.progress import terminal_progress
import typer

SHOWN = (
    'localized_after_s',
    'localized_after_m',
    'rmse_after_localized_m',
    'lost_fraction_after_localized',
    'wrong_called_localized',
    'position_rmse_m',
)


def demo(
    out: Annotated[Path, typer.Option(help='Where the new folder goes.')] = Path('demo'),
    rate: Annotated[float, typer.Option(min=0.1, max=10.0, help='Speed of the replay.')] = 1.0,
    seed: Seed = 0,
) -> None:
    """
    Render a building, map it, and localize a run with the ROS node.

    Prints, of the node and of two baselines, when they are localized, how far off they are and how
    often lost after that, which part of their wrong answers (more than 1 m off) they called
    localized, and the error over the whole run; writes a picture, the node's trajectory,
    the map and the runs to a new folder.
    """
    from kbr_localization.demo.tour import run_demo

    with terminal_progress() as progress:
        result = run_demo(out, rate, seed, progress)
    console.print_columns('method', SHOWN, result.metrics)
    console.note(f'{result.folder}: trajectory.png, trajectory.tum, map.h5, building/')
