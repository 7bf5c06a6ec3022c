"""Commands that make runs and hand them on: synthesize, convert, play."""

from collections.abc import Sequence
from enum import Enum
import os
from pathlib import Path, PurePath
from typing import Annotated, Any, Optional

from kbr_localization.cli import console
from kbr_localization.cli.options import (
    Cameras,
    OdometryTopic,
    ReferenceTopic,
    Run,
    Seed,
    Spacing,
)
from kbr_localization.cli.reading import note_unreferenced, Reading
from kbr_localization.errors import KbrError
from kbr_localization.progress import terminal_progress
from kbr_localization.resources import profile_variable, shared_file
import typer

RobotSeed = Annotated[
    Optional[int],
    typer.Option(
        min=0,
        help='Seed from which the robot of the test run is drawn, its camera and its odometry.',
        show_default=False,
    ),
]
MapRobotSeed = Annotated[
    Optional[int],
    typer.Option(min=0, help='The same for the runs of the map.', show_default=False),
]


class Format(str, Enum):
    """What `kbr convert` makes."""

    BAG = 'bag'
    COLD = 'cold'


class Storage(str, Enum):
    """The storage of a rosbag2."""

    MCAP = 'mcap'
    SQLITE3 = 'sqlite3'


def synth(
    out: Annotated[
        Path, typer.Argument(metavar='OUT', help='The folder to make.', show_default=False)
    ],
    seed: Seed = 0,
    robot: RobotSeed = None,
    map_robot: MapRobotSeed = None,
) -> None:
    """
    Render runs through a building with look-alike corridors, in COLD's format.

    Two tours for a map and a test run at night; robot.json in each run says what it was made with.
    """
    from kbr_localization.simulation import (
        DEMO_RUNS,
        random_robot,
        with_robots,
        write_building,
    )

    robots = [None if chosen is None else random_robot(chosen) for chosen in (robot, map_robot)]
    with terminal_progress() as progress:
        write_building(out, seed, with_robots(DEMO_RUNS, *robots), progress=progress)
    console.note(f'{out}: {", ".join(sorted(path.name for path in out.iterdir()))}')


def convert(
    run: Run,
    out: Annotated[
        Path, typer.Argument(metavar='OUT', help='The bag or run to make.', show_default=False)
    ],
    to: Annotated[
        Format, typer.Option('--to', help='What to make: a rosbag2 or a run in the COLD format.')
    ] = Format.BAG,
    storage: Annotated[
        Optional[Storage], typer.Option(help='Storage of the bag.', show_default='mcap')
    ] = None,
    cameras: Cameras = None,
    odometry_topic: OdometryTopic = None,
    reference_topic: ReferenceTopic = None,
    spacing: Spacing = None,
) -> None:
    """Write a run as a rosbag2 that `ros2 bag play` can replay, or in the COLD format."""
    if to is Format.COLD and storage is not None:
        raise KbrError(f'--storage {storage.value}: expected --to bag, a COLD run has no storage')
    dataset = Reading(cameras, odometry_topic, reference_topic, spacing).dataset(run)
    note_unreferenced(dataset)
    if to is Format.COLD:
        left_out = _write_cold(dataset, out)
    else:
        from kbr_localization.datasets.rosbag import write_bag

        left_out = write_bag(dataset, out, storage=(storage or Storage.MCAP).value)
    console.note_skipped(dataset.skipped | left_out)
    # of several cameras the others may have an image of that moment
    broken = 0 if dataset.cameras else left_out.get('broken image', 0)
    console.note(f'{out}: {len(dataset) - broken} frames')


def _write_cold(dataset: Any, out: Path) -> dict[str, int]:
    from kbr_localization.datasets.cold import write_cold_run

    several = dataset.cameras
    if several:
        raise KbrError(
            f'--to cold: expected one camera, got {", ".join(several)}: choose with --cameras'
        )
    return write_cold_run(out, dataset, dataset.odometry, notes=dataset.notes).skipped


def play(
    run: Run,
    *,
    rate: Annotated[float, typer.Option(min=0.01, help='Speed relative to the recording.')] = 1.0,
    start: Annotated[float, typer.Option(min=0.0, help='Seconds to leave out.')] = 0.0,
    duration: Annotated[float, typer.Option(min=0.0, help='Seconds to play; 0 is all.')] = 0.0,
    loop: Annotated[bool, typer.Option('--loop', help='Start over at the end.')] = False,
    compressed: Annotated[bool, typer.Option('--compressed', help='Send JPEG images.')] = False,
    cameras: Cameras = None,
    odometry_topic: OdometryTopic = None,
    reference_topic: ReferenceTopic = None,
    spacing: Spacing = None,
    remap: Annotated[
        Optional[list[str]],
        typer.Option('--remap', '-r', help='A topic as FROM:=TO, as on ROS command lines.'),
    ] = None,
) -> None:
    """Publish a run as ROS topics, with a clock: `image`, `odom`, `reference_pose`, `/clock`."""
    use_roomy_transport()
    from kbr_localization.ros.playback import player, schedule

    options = schedule.PlayerOptions(
        rate=rate,
        start=start,
        duration=duration,
        loop=loop,
        image_transport='compressed' if compressed else 'raw',
    )
    arguments = [part for rule in _remappings(remap or ()) for part in ('-r', rule)]
    dataset = Reading(cameras, odometry_topic, reference_topic, spacing).dataset(run)
    with terminal_progress() as progress:
        played = player.play(dataset, options, progress, arguments)
    console.note(str(played))


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


def use_roomy_transport() -> None:
    """Let Fast DDS use the shipped profile, without which raw images are lost."""
    profile = shared_file('config/fastdds.xml')
    if profile is not None:
        os.environ.setdefault(profile_variable(), str(profile))


COMMANDS = (synth, convert, play)
