"""Commands about runs: localize, evaluate and report them, compare and tune methods, make runs."""

import importlib
import os
from pathlib import Path
from typing import Annotated, Any, Optional

from kbr_localization.cli import console, options
from kbr_localization.cli.map_commands import save_map
from kbr_localization.cli.options import Init, MapFile, Out, reads_runs, Run, RunFormat, RunReader
from kbr_localization.errors import KbrError
from kbr_localization.progress import terminal_progress
from kbr_localization.resources import fast_dds_profile
from kbr_localization.workers import open_workers
import typer


@reads_runs
def localize(
    map_file: MapFile,
    run: Run,
    *,
    out: Out,
    method: options.Method = 'kbr',
    init: options.Start = Init.GLOBAL,
    settings: options.Settings = None,
    seed: options.Seed = 0,
    reader: RunReader,
) -> None:
    """
    Localize a run on a map and write a TUM file with a pose for each frame.

    A CSV file of the same name gets covariance, confidence, status and time of each frame.
    """
    from kbr_localization.evaluation.tum import check_details, details_path, write_detailed
    from kbr_localization.localization import pipeline
    from kbr_localization.localization.filter.wrong_places import MEASURED_NOW
    from kbr_localization.localization.map.kernel_map import KernelMap

    details = details_path(out)
    if details == out:
        raise KbrError(f'{out}: expected another suffix than .csv, which the details have')
    for path in (out, details):
        console.prepare_output(path, map_file, run)
    check_details(details)
    kernel_map = options.apply_settings(KernelMap.load(map_file), method, settings)
    if method == 'kbr' and kernel_map.statistics is None:
        console.note(f'{map_file}: {MEASURED_NOW}')
    dataset = reader.open_run_for(kernel_map, map_file, run)
    with terminal_progress():
        trajectory = pipeline.localize(kernel_map, dataset, method, init.value, seed)
    write_detailed(out, trajectory)
    _note_localized(out, kernel_map, dataset, trajectory)


def _note_localized(out: Path, kernel_map: Any, dataset: Any, trajectory: Any) -> None:
    """Print what was skipped, how many frames were localized, and why so few."""
    from kbr_localization.evaluation.trial import contradictions, why_not_localized

    console.note_skipped(trajectory.skipped, last_error=trajectory.last_error)
    count, frames = trajectory.statuses.count('localized'), len(trajectory)
    console.note(f'{out}: {frames} poses, localized at {count} of them ({count / frames:.0%})')
    for text, _ in contradictions(dataset, trajectory):
        console.note(f'warning: {text}')
    if why := why_not_localized(kernel_map, dataset, trajectory):
        console.note(f'warning: {"seldom" if count else "never"} localized: {why}')


def methods() -> None:
    """List the localization methods."""
    from kbr_localization.localization.methods.registry import METHODS

    console.show_rows(
        [{'method': name, 'description': m.description} for name, m in METHODS.items()]
    )


def parameters(
    method: Annotated[str, typer.Option(help='See `kbr methods`.')] = 'kbr',
    json: options.Json = False,
) -> None:
    """List the parameters for `--set` with their defaults, ranges and descriptions."""
    from kbr_localization.configuration import allowed_values, fields_of
    from kbr_localization.localization.methods.registry import method_named
    from kbr_localization.vision import VisionConfig

    rows = []
    for config in (method_named(method).config, VisionConfig):
        for name, field in fields_of(config).items():
            rows.append(
                {
                    'parameter': config.prefix + name,
                    'default': field.default,
                    'values': allowed_values(field),
                    'description': field.metadata['description'],
                }
            )
    if json:
        console.print_json({row.pop('parameter'): row for row in rows})
    else:
        console.show_rows(rows)


@reads_runs
def evaluate(
    run: Run,
    trajectory: Annotated[Path, typer.Argument(metavar='TRAJECTORY', help='A TUM file.')],
    *,
    tolerance: Annotated[float, typer.Option(min=0.0, max=1e6, help='Of stamps, seconds.')] = 0.01,
    json: options.Json = False,
    reader: RunReader,
) -> None:
    """
    Compare a trajectory with the reference poses of its run, without alignment.

    Each frame with a reference pose counts. A frame without an estimate is lost.
    """
    from kbr_localization.evaluation.metrics import required_reference, run_errors, run_metrics
    from kbr_localization.evaluation.tum import read_detailed

    dataset = reader.open_run(run)
    estimates, reference = read_detailed(trajectory), required_reference(dataset)
    metrics = run_metrics(run_errors(reference, estimates, tolerance))
    if len(reference) < len(dataset):
        unknown = len(dataset) - len(reference)
        console.note(f'{unknown} of {len(dataset)} frames have no reference pose: left out')
    console.note_skipped(dataset.skipped | estimates.skipped)
    console.show(f'{trajectory} on {run}', metrics, json)


@reads_runs
def report(
    map_file: MapFile,
    run: Annotated[Optional[Path], typer.Argument(metavar='[RUN]', help=options.RUN_HELP)] = None,
    *,
    out: Annotated[Path, typer.Option(help='The HTML page to write.')] = Path('report.html'),
    rerun: Annotated[Optional[Path], typer.Option(help='A recording for rerun.')] = None,
    method: options.Method = 'kbr',
    init: options.Start = Init.GLOBAL,
    settings: options.Settings = None,
    reader: RunReader,
) -> None:
    """
    Write an HTML page about a run on a map, or about a map made from odometry.

    It shows trajectory and belief, errors and confidence over time, the worst frames with the
    most similar map images, times and parameters.
    """
    from kbr_localization.evaluation import report as pages
    from kbr_localization.localization.map.kernel_map import KernelMap

    for path in (out, rerun):
        if path is not None:
            console.prepare_output(path, *(given for given in (map_file, run) if given))
    if run is None:
        of_a_run = (rerun, method, init, settings, reader)
        if of_a_run != (None, 'kbr', Init.GLOBAL, None, RunReader()):
            raise KbrError('options of a run: expected RUN after MAP')
        pages.write_page(out, pages.map_data(KernelMap.load(map_file), map_file.name))
        console.note(f'{out}: open it in a browser')
        return
    if rerun is not None:
        if os.path.realpath(rerun) == os.path.realpath(out):
            raise KbrError(f'--rerun {rerun}: is the file of the page: expected another name')
        importlib.import_module('rerun')  # fail before the work if it is not installed
    kernel_map = options.apply_settings(KernelMap.load(map_file), method, settings)
    dataset = reader.open_run_for(kernel_map, map_file, run)
    with terminal_progress():
        record = pages.record_run(kernel_map, dataset, method, init.value)
    pages.write_page(out, pages.run_data(record))
    _note_localized(out, kernel_map, dataset, record.trajectory)
    if rerun is not None:
        pages.write_recording(rerun, record)
        console.note(f'{rerun}: open it with `rerun {rerun}`')


@reads_runs
def try_(
    run: Run,
    second: Annotated[Optional[Path], typer.Argument(metavar='[RUN2]', help='The test.')] = None,
    *,
    out: Annotated[Path, typer.Option(help='The HTML page to write.')] = Path('try/report.html'),
    twice: Annotated[Optional[Path], typer.Option(help='The same as RUN2.')] = None,
    jobs: options.Jobs = None,
    json: options.Json = False,
    reader: RunReader,
) -> None:
    """
    Will it work on my robot? Map one part of a drive, localize the other, and write a page.

    The map is the first part; the test is the part that returns to mapped places in the same
    direction. Of two runs the first is the map, the second the test. Without known poses the
    poses come from odometry and images.
    """
    from kbr_localization.evaluation import trial
    from kbr_localization.evaluation.report import write_page

    if second and twice:
        raise KbrError(f'--twice {twice}: is a second run, but {second} was given too: drop one')
    runs, made = [path for path in (run, second or twice) if path], not out.parent.exists()
    console.prepare_output(out, *runs)
    try:
        with open_workers(jobs), terminal_progress():
            drives = [reader.open_run(path, guess=True) for path in runs]
            summary, page, trajectory = trial.try_drives(drives)
        write_page(out, page)
    except BaseException:
        if made:
            out.parent.rmdir()
        raise
    skipped = [each.skipped for each in (*drives, trajectory)]
    console.note_skipped(*skipped, last_error=trajectory.last_error)
    if not json:
        print(summary['verdict'], flush=True)
    console.note('what would make it better:')
    console.note(*(f'{number}. {text}' for number, text in enumerate(page['advice'], start=1)))
    rows = {
        name: value if not isinstance(value, float) else f'{value:.{1 + (unit == "m")}f} {unit}'
        for name, value, unit in page['tiles']
    }
    title = ' on a map of '.join(map(str, reversed(runs)))
    console.show(title, summary if json else rows, json)
    console.note(f'{out}: open it in a browser')


@reads_runs
def compare(
    *,
    train: Annotated[Optional[list[Path]], typer.Option(help='Runs to map.')] = None,
    test: Annotated[list[Path], typer.Option(help='Runs to localize.')],
    out: Out,
    map_file: Annotated[Optional[Path], typer.Option('--map', help='A map.')] = None,
    sizes: options.Sizes = None,
    trials: options.Trials = 10,
    methods: options.Methods = 'all',
    jobs: options.Jobs = None,
    scheduler: options.Scheduler = None,
    settings: options.Settings = None,
    seed: options.Seed = 0,
    reader: RunReader,
) -> None:
    """
    Compare localization methods over map sizes, by default 50,100,...,800 if the map has them.

    In each trial the map is a random subset of the training images, on which each method localizes
    the test runs without an initial pose. OUT/rows.json gets all numbers; an interrupted
    comparison continues. lost_fraction_once_below_1m is 1 if a run never gets below 1 m.
    """
    from kbr_localization.evaluation import comparison
    from kbr_localization.localization.map.build import build_map
    from kbr_localization.localization.map.kernel_map import KernelMap
    from kbr_localization.localization.methods.registry import METHODS

    if not train and map_file is None:
        raise KbrError('compare: expected --train RUN... or --map MAP, got neither')
    if map_file is not None and (train or settings):
        raise KbrError('compare: --map takes a finished map: expected no --train and no --set')
    training = [reader.open_run(run) for run in train or ()]
    vision, given = options.parse_settings(settings)
    kernel_map: Any = KernelMap.load(map_file) if map_file else None
    tests = [
        reader.open_run_for(kernel_map, map_file, run) if map_file else reader.open_run(run)
        for run in test
    ]
    images = len(kernel_map) if map_file else sum(map(len, training))
    default = tuple(size for size in (50, 100, 200, 400, 800) if size <= images) or (50,)
    chosen = list(METHODS) if methods == 'all' else options.split_names('--methods', methods)
    tasks = comparison.plan_tasks(chosen, options.parse_sizes(sizes) or default, trials, images)
    with open_workers(jobs, scheduler), terminal_progress():
        if kernel_map is None:
            kernel_map = build_map(training, vision, given, None, seed)
        rows = comparison.compare(kernel_map, tests, tasks, out, seed)
    console.show_rows(rows)
    console.note_skipped(*(dataset.skipped for dataset in (*training, *tests)))
    console.note(f'{out / "rows.json"}: the same numbers')


@reads_runs
def tune(
    runs: options.Runs,
    *,
    out: Out,
    methods: options.Methods = 'all',
    sizes: options.Sizes = None,
    trials: options.Trials = 60,
    jobs: options.Jobs = None,
    scheduler: options.Scheduler = None,
    settings: options.Settings = None,
    seed: options.Seed = 0,
    json: options.Json = False,
    reader: RunReader,
) -> None:
    """
    Build a map with parameters chosen by cross-validation over its runs.

    Each run is localized on a map of the others, from its start and from a random frame; a single
    run is split into halves. --sizes: sizes of these maps, up to 500 images. An interrupted search
    continues from OUT.trials.jsonl. Scores are clipped errors plus the fraction of lost frames, in
    metres: lower is better.
    """
    from kbr_localization.evaluation import tuning

    vision, given = options.parse_settings(settings)
    console.prepare_output(out, *runs)
    journal = console.prepare_output(out.with_name(f'{out.name}.trials.jsonl'))
    datasets = [reader.open_run(run) for run in runs]
    chosen = tuning.TUNED if methods == 'all' else options.split_names('--methods', methods)
    with open_workers(jobs, scheduler), terminal_progress():
        kernel_map, rows = tuning.tune(
            datasets,
            journal,
            methods=chosen,
            trials=trials,
            sizes=options.parse_sizes(sizes),
            vision=vision,
            filter_values=given,
            seed=seed,
        )
    console.note_skipped(*(dataset.skipped for dataset in datasets))
    save_map(kernel_map, out)
    if not json:
        rows = [{name: row[name] for name in row if name != 'values'} for row in rows]
    console.show_rows(rows, json)


NewFolder = Annotated[Path, typer.Argument(metavar='OUT', help='Folder to create.')]
RobotSeed = Annotated[Optional[int], typer.Option(min=0, help='Seed of a random robot.')]


def synth(
    out: NewFolder,
    seed: options.Seed = 0,
    robot: RobotSeed = None,
    map_robot: RobotSeed = None,
    small: Annotated[bool, typer.Option('--small', help='Small rooms and images.')] = False,
) -> None:
    """
    Render runs through a building with look-alike corridors, in COLD's format.

    Two tours are for a map, one run at night is for a test. robot.json has their parameters.
    """
    from kbr_localization.simulation import run as rendered
    from kbr_localization.simulation.robot import random_robot

    robots = [None if n is None else random_robot(n) for n in (robot, map_robot)]
    runs = rendered.with_robots(rendered.DEMO_RUNS, *robots)
    building = rendered.BuildingConfig(seed=seed)
    if small:
        building = rendered.BuildingConfig(14.0, seed, width=160, height=120)
    with terminal_progress():
        rendered.write_building(out, runs, building)
    console.note(f'{out}: {", ".join(sorted(path.name for path in out.iterdir()))}')


@reads_runs
def convert(
    run: Run,
    out: NewFolder,
    to: Annotated[RunFormat, typer.Option('--to', help='A rosbag2 or COLD run.')] = RunFormat.BAG,
    storage: Annotated[Optional[options.Storage], typer.Option(help='Default: mcap.')] = None,
    *,
    reader: RunReader,
) -> None:
    """Convert a run to a rosbag2, for `ros2 bag play`, or to the COLD format."""
    from kbr_localization.datasets.tracks import explain_missing_reference

    if to is RunFormat.COLD and storage:
        raise KbrError(f'--storage {storage.value}: expected --to bag, a COLD run has no storage')
    dataset = reader.open_run(run)
    if why := explain_missing_reference(dataset):
        console.note(f'warning: without known poses: {why}')
    if to is RunFormat.BAG:
        from kbr_localization.datasets.bag_writer import write_bag

        left_out = write_bag(dataset, out, storage=(storage or options.Storage.MCAP).value)
    elif dataset.cameras:
        names = ', '.join(dataset.cameras)
        raise KbrError(f'--to cold: expected one camera, got {names}: choose with --cameras')
    else:
        from kbr_localization.datasets.cold import write_cold_run

        left_out = write_cold_run(out, dataset, dataset.odometry, notes=dataset.notes)
    console.note_skipped(dataset.skipped | left_out)
    # with several cameras a frame stays if another camera has an image
    broken = 0 if dataset.cameras else left_out.get('broken image', 0)
    console.note(f'{out}: {len(dataset) - broken} frames')


@reads_runs
def play(
    run: Run,
    *,
    rate: Annotated[float, typer.Option(min=0.01, help='Speed relative to the recording.')] = 1.0,
    start: Annotated[float, typer.Option(min=0.0, help='Seconds to skip.')] = 0.0,
    duration: Annotated[float, typer.Option(min=0.0, help='Seconds to play; 0 is all.')] = 0.0,
    loop: Annotated[bool, typer.Option('--loop', help='Repeat the run.')] = False,
    compressed: Annotated[bool, typer.Option('--compressed', help='Send JPEG images.')] = False,
    reader: RunReader,
) -> None:
    """Publish a run on ROS topics: `image`, `odom`, `reference_pose`, `/clock`."""
    os.environ.update(fast_dds_profile())
    from kbr_localization.ros import player
    from kbr_localization.ros.config import PlayerConfig

    transport = 'compressed' if compressed else 'raw'
    config = PlayerConfig(
        rate=rate, start=start, duration=duration, loop=loop, image_transport=transport
    )
    dataset = reader.open_run(run)
    with terminal_progress():
        played = player.play(dataset, config)
    console.note(played)


def demo(
    out: Annotated[Path, typer.Option(help='Where the new folder goes.')] = Path('demo'),
) -> None:
    """
    Render a building, map it, and localize a run with the ROS node.

    Prints for the node and two baselines when the status is localized, when the error stays below
    1 m, the errors after that, the fraction of wrong answers (more than 1 m off) called localized,
    and the error over the whole run. A new folder gets a page, the node's trajectory, the map and
    the runs.
    """
    from kbr_localization.demo.tour import run_demo
    from kbr_localization.evaluation.metrics import SUMMARY

    with terminal_progress():
        folder, metrics = run_demo(out)
    shown = {name: {column: of[column] for column in SUMMARY} for name, of in metrics.items()}
    console.show_rows([{'method': name, **row} for name, row in shown.items()])
    console.note(f'{folder}: report.html, trajectory.tum, map.h5, building/')


COMMANDS = (
    try_, localize, evaluate, report, methods, parameters,
    synth, convert, play, demo, compare, tune,
)  # fmt: skip
