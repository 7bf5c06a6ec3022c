"""Commands that make runs and hand them on: synth, convert, play, demo."""

from collections.abc import Sequence
from enum import Enum
import os
from pathlib import Path, PurePath
from typing import Annotated, Optional

from kbr_localization.cli import console
from kbr_localization.cli.options import Reading, reads_runs, Run, Seed
from kbr_localization.errors import KbrError
from kbr_localization.progress import terminal_progress
from kbr_localization.resources import profile_variable, shared_file
import typer


class Format(str, Enum):
    """What `kbr convert` makes."""

    BAG = 'bag'
    COLD = 'cold'


class Storage(str, Enum):
    """The storage of a rosbag2."""

    MCAP = 'mcap'
    SQLITE3 = 'sqlite3'


NewFolder = Annotated[Path, typer.Argument(metavar='OUT', help='What to make.')]
RobotSeed = Annotated[Optional[int], typer.Option(min=0, help='Draw the robot at random.')]


def synth(
    out: NewFolder,
    seed: Seed = 0,
    robot: RobotSeed = None,
    map_robot: RobotSeed = None,
    small: Annotated[bool, typer.Option('--small', help='Small rooms and images.')] = False,
) -> None:
    """
    Render runs through a building with look-alike corridors, in COLD's format.

    Two tours for a map and a test run at night; robot.json in each run holds its parameters.
    """
    from kbr_localization.simulation import (
        BuildingConfig,
        DEMO_RUNS,
        random_robot,
        with_robots,
        write_building,
    )

    robots = [None if chosen is None else random_robot(chosen) for chosen in (robot, map_robot)]
    building = BuildingConfig(size=14.0, width=160, height=120) if small else None
    with terminal_progress() as progress:
        write_building(out, seed, with_robots(DEMO_RUNS, *robots), building, progress)
    console.note(f'{out}: {", ".join(sorted(path.name for path in out.iterdir()))}')


@reads_runs
def convert(
    run: Run,
    out: NewFolder,
    to: Annotated[Format, typer.Option('--to', help='A rosbag2, or a COLD run.')] = Format.BAG,
    storage: Annotated[Optional[Storage], typer.Option(help='Of a bag: mcap.')] = None,
    *,
    reading: Reading,
) -> None:
    """Write a run as a rosbag2 that `ros2 bag play` can replay, or in the COLD format."""
    from kbr_localization.datasets.tracks import outside_fixes

    if to is Format.COLD and storage is not None:
        raise KbrError(f'--storage {storage.value}: expected --to bag, a COLD run has no storage')
    dataset = reading.open(run)
    if why := outside_fixes(dataset):
        console.note(f'warning: without known poses: {why}')
    if to is Format.BAG:
        from kbr_localization.datasets.bag_writer import write_bag

        left_out = write_bag(dataset, out, storage=(storage or Storage.MCAP).value)
    elif dataset.cameras:
        names = ', '.join(dataset.cameras)
        raise KbrError(f'--to cold: expected one camera, got {names}: choose with --cameras')
    else:
        from kbr_localization.datasets.cold import write_cold_run

        left_out = write_cold_run(out, dataset, dataset.odometry, notes=dataset.notes).skipped
    console.note_skipped(dataset.skipped | left_out)
    # of several cameras the others may have an image of that moment
    broken = 0 if dataset.cameras else left_out.get('broken image', 0)
    console.note(f'{out}: {len(dataset) - broken} frames')


@reads_runs
def play(
    run: Run,
    *,
    rate: Annotated[float, typer.Option(min=0.01, help='Speed relative to the recording.')] = 1.0,
    start: Annotated[float, typer.Option(min=0.0, help='Seconds to leave out.')] = 0.0,
    duration: Annotated[float, typer.Option(min=0.0, help='Seconds to play; 0 is all.')] = 0.0,
    loop: Annotated[bool, typer.Option('--loop', help='Start over at the end.')] = False,
    compressed: Annotated[bool, typer.Option('--compressed', help='Send JPEG images.')] = False,
    remap: Annotated[Optional[list[str]], typer.Option('--remap', '-r', help='FROM:=TO')] = None,
    reading: Reading,
) -> None:
    """Publish a run as ROS topics, with a clock: `image`, `odom`, `reference_pose`, `/clock`."""
    # without the shipped profile Fast DDS loses raw images
    if profile := shared_file('config/fastdds.xml'):
        os.environ.setdefault(profile_variable(), str(profile))
    from kbr_localization.ros import player
    from kbr_localization.ros.config import PlayerConfig

    options = PlayerConfig(
        rate=rate,
        start=start,
        duration=duration,
        loop=loop,
        image_transport='compressed' if compressed else 'raw',
    )
    arguments = [part for rule in _remappings(remap or ()) for part in ('-r', rule)]
    dataset = reading.open(run)
    with terminal_progress() as progress:
        played = player.play(dataset, options, progress, arguments)
    console.note(played)


def _remappings(texts: Sequence[str]) -> list[str]:
    """Rules for rcl, which takes the first that fits; compressed images go with the raw ones."""
    rules = []
    for text in texts:
        before, assigned, after = text.partition(':=')
        if not (before and assigned and after):
            raise KbrError(f'--remap {text}: expected FROM:=TO, as image:=/camera/image_raw')
        if PurePath(before).name == 'image':
            rules.append(f'{before}/compressed:={after}/compressed')
    return [*texts, *rules]


def demo(
    out: Annotated[Path, typer.Option(help='Where the new folder goes.')] = Path('demo'),
    rate: Annotated[float, typer.Option(min=0.1, max=10.0, help='Speed of the replay.')] = 1.0,
    seed: Seed = 0,
) -> None:
    """
    Render a building, map it, and localize a run with the ROS node.

    Prints, of the node and of two baselines, when their status is localized, when their error
    stays below 1 m, their errors after that, which part of their wrong answers (more than 1 m
    off) they called localized, and the error over the whole run; writes a picture, the node's
    trajectory, the map and the runs to a new folder.
    """
    from kbr_localization.demo.tour import run_demo

    with terminal_progress() as progress:
        result = run_demo(out, rate, seed, progress)
    columns = (
        'localized_after_s',
        'localized_after_m',
        'below_1m_after_s',
        'below_1m_after_m',
        'rmse_once_below_1m_m',
        'lost_fraction_once_below_1m',
        'wrong_called_localized',
        'position_rmse_m',
    )
    console.show_rows(
        [
            {'method': name, **{column: metrics[column] for column in columns}}
            for name, metrics in result.metrics.items()
        ]
    )
    console.note(f'{result.folder}: trajectory.png, trajectory.tum, map.h5, building/')
