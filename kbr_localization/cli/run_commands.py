"""Commands about one run: localize, evaluate, convert, synthesize, play."""

from enum import Enum
import os
from pathlib import Path
from typing import Annotated, Any, Optional

from kbr_localization.cli import console
from kbr_localization.cli.options import (
    Cameras,
    Init,
    Json,
    MapFile,
    Method,
    OdometryTopic,
    ReferenceTopic,
    Run,
    Seed,
    Settings,
    Start,
)
from kbr_localization.cli.reading import Reading
from kbr_localization.cli.settings import describe_parameters, with_settings_of
from kbr_localization.errors import KbrError
from kbr_localization.progress import terminal_progress
from kbr_localization.resources import shared_file
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


class Storage(str, Enum):
    """The storage of a rosbag2."""

    MCAP = 'mcap'
    SQLITE3 = 'sqlite3'


def localize(
    map_file: MapFile,
    run: Run,
    *,
    out: Annotated[Path, typer.Option(help='The TUM file to write.', show_default=False)],
    method: Method = 'kbr',
    init: Start = Init.GLOBAL,
    settings: Settings = None,
    cameras: Cameras = None,
    odometry_topic: OdometryTopic = None,
    reference_topic: ReferenceTopic = None,
    seed: Seed = 0,
) -> None:
    """
    Localize a run on a map: a pose for every frame, as a TUM file.

    Covariance, confidence, status and time of every frame go to a CSV file beside it.
    """
    from kbr_localization.evaluation.details import check_details, details_path, write_details
    from kbr_localization.evaluation.tum import write_tum
    from kbr_localization.localization import pipeline
    from kbr_localization.localization.map.kernel_map import KernelMap

    if method not in pipeline.METHODS:
        raise KbrError(f'unknown method {method!r}: expected one of {", ".join(pipeline.METHODS)}')
    if details_path(out) == out:
        raise KbrError(f'{out}: expected another suffix, .csv is that of the details beside it')
    for path in (out, details_path(out)):
        console.prepare_output(path, map_file, run)
    check_details(details_path(out))
    kernel_map = KernelMap.load(map_file)
    dataset = Reading(cameras, odometry_topic, reference_topic).dataset(run, kernel_map.cameras)
    kernel_map = with_settings_of(kernel_map, method, settings or ())
    with terminal_progress() as progress:
        trajectory = pipeline.localize(
            kernel_map, dataset, method=method, init=init.value, seed=seed, progress=progress
        )
    write_tum(out, trajectory)
    write_details(details_path(out), trajectory)
    console.note_skipped(trajectory.skipped, trajectory.last_error)
    console.note_localized(out, trajectory.statuses)


def methods() -> None:
    """List the localization methods."""
    from kbr_localization.localization.pipeline import METHODS

    console.print_table('method', METHODS)


def parameters(json: Json = False) -> None:
    """List the parameters that `--set` takes, with their defaults, ranges and meanings."""
    from kbr_localization.localization.config import FilterConfig
    from kbr_localization.vision import VisionConfig

    described = describe_parameters(FilterConfig)
    vision = describe_parameters(VisionConfig)
    described |= {f'vision.{name}': parameter for name, parameter in vision.items()}
    if json:
        console.print_json(described)
    else:
        console.print_columns('parameter', ('default', 'range', 'description'), described)


def evaluate(
    run: Run,
    trajectory: Annotated[
        Path, typer.Argument(metavar='TRAJECTORY', help='A TUM file.', show_default=False)
    ],
    json: Json = False,
    map_file: Annotated[
        Optional[Path],
        typer.Option('--map', help='Also report the recall of the image retrieval on this map.'),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help='Seconds by which stamps may differ.')
    ] = 0.01,
    cameras: Cameras = None,
    odometry_topic: OdometryTopic = None,
    reference_topic: ReferenceTopic = None,
) -> None:
    """
    Compare a trajectory with the reference poses of its run; nothing is aligned.

    Every frame that has a reference pose counts: one without an estimate is lost and outside of
    all thresholds.
    """
    from kbr_localization.evaluation import reference_trajectory, run_errors, summarize
    from kbr_localization.localization.map.kernel_map import KernelMap

    kernel_map = None if map_file is None else KernelMap.load(map_file)
    reading = Reading(cameras, odometry_topic, reference_topic)
    dataset = reading.dataset(run, kernel_map.cameras if kernel_map else ())
    estimates = _read_trajectory(trajectory)
    reference = reference_trajectory(dataset)
    summary: dict[str, Any] = dict(summarize(run_errors(reference, estimates, tolerance)))
    if kernel_map is not None:
        summary |= _retrieval(kernel_map, dataset)
    if len(reference) < len(dataset):
        unknown = len(dataset) - len(reference)
        console.note(f'{unknown} of {len(dataset)} frames have no reference pose: left out')
    console.note_skipped(dataset.skipped)
    if json:
        console.print_json(summary)
    else:
        console.print_table(f'{trajectory} on {run}', summary)


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
    from kbr_localization.datasets.synthetic import (
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
    out_bag: Annotated[
        Path, typer.Argument(metavar='OUT_BAG', help='The bag to make.', show_default=False)
    ],
    storage: Annotated[Storage, typer.Option(help='Storage of the bag.')] = Storage.MCAP,
    cameras: Cameras = None,
    odometry_topic: OdometryTopic = None,
    reference_topic: ReferenceTopic = None,
) -> None:
    """Write a run as a rosbag2 that `ros2 bag play` can replay."""
    from kbr_localization.datasets.rosbag import write_bag

    dataset = Reading(cameras, odometry_topic, reference_topic).dataset(run)
    write_bag(dataset, out_bag, storage=storage.value)
    console.note_skipped(dataset.skipped)
    console.note(f'{out_bag}: {len(dataset)} frames')


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
    remap: Annotated[
        Optional[list[str]],
        typer.Option('--remap', '-r', help='A topic as FROM:=TO, as on ROS command lines.'),
    ] = None,
) -> None:
    """Publish a run as ROS topics, with a clock: `image`, `odom`, `reference_pose`, `/clock`."""
    use_roomy_transport()
    from kbr_localization.ros import player, schedule

    options = schedule.PlayerOptions(
        rate=rate,
        start=start,
        duration=duration,
        loop=loop,
        image_transport='compressed' if compressed else 'raw',
    )
    arguments = [part for topic in remap or () for part in ('-r', topic)]
    dataset = Reading(cameras, odometry_topic, reference_topic).dataset(run)
    with terminal_progress() as progress:
        played = player.play(dataset, options, progress, arguments)
    console.note(str(played))


def use_roomy_transport() -> None:
    """Let Fast DDS use the shipped profile, without which raw images are lost."""
    profile = shared_file('config/fastdds.xml')
    if profile is not None:
        os.environ.setdefault('FASTDDS_DEFAULT_PROFILES_FILE', str(profile))


COMMANDS = (localize, evaluate, methods, parameters, synth, convert, play)


def _read_trajectory(path: Path) -> Any:
    from kbr_localization.evaluation.details import details_path, with_details
    from kbr_localization.evaluation.tum import read_tum

    trajectory = read_tum(path)
    details = details_path(path)
    return with_details(trajectory, details) if details.is_file() else trajectory


def _retrieval(kernel_map: Any, dataset: Any) -> dict[str, Any]:
    """Recall of the map's images for the frames that can be read and have a reference."""
    from kbr_localization.evaluation.described import describe_run
    from kbr_localization.evaluation.retrieval import recall_at
    import numpy as np

    with terminal_progress() as progress:
        run = describe_run(kernel_map.describer, dataset, progress)
    unusable = run.unusable
    if len(unusable) == len(run):
        raise KbrError(f'recall: no image of {run.name} could be used: {unusable[0]}')
    if unusable:
        console.note(f'recall: {len(unusable)} of {len(run)} images cannot be used')
    known = [n for n, f in enumerate(run) if f.reference is not None and n not in unusable]
    similarities = (kernel_map.similarities(run.descriptors[number]) for number in known)
    references = np.array([run[number].reference for number in known])
    return recall_at(similarities, kernel_map.poses, references)
