"""Commands about one run: localize, evaluate, report; and what can be chosen for them."""

import math
import os
from pathlib import Path
from typing import Annotated, Any, Optional

from kbr_localization.cli import console
from kbr_localization.cli.options import (
    Init,
    Jobs,
    Json,
    MapFile,
    Method,
    Reading,
    reads_runs,
    Run,
    RUN_HELP,
    Seed,
    Settings,
    Start,
)
from kbr_localization.cli.settings import describe_parameters, with_settings_of
from kbr_localization.errors import KbrError
from kbr_localization.progress import terminal_progress
from kbr_localization.workers import open_workers
import typer


@reads_runs
def localize(
    map_file: MapFile,
    run: Run,
    *,
    out: Annotated[Path, typer.Option(help='The TUM file to write.', show_default=False)],
    method: Method = 'kbr',
    init: Start = Init.GLOBAL,
    settings: Settings = None,
    seed: Seed = 0,
    reading: Reading,
) -> None:
    """
    Localize a run on a map: a pose for every frame, as a TUM file.

    Covariance, confidence, status and time of every frame go to a CSV file of the same name.
    """
    from kbr_localization.evaluation.tum import check_details, details_path, write_detailed
    from kbr_localization.localization import pipeline
    from kbr_localization.localization.filter.wrong_places import MEASURED_NOW
    from kbr_localization.localization.map.kernel_map import KernelMap

    details = details_path(out)
    if details == out:
        raise KbrError(f'{out}: expected another suffix, .csv is that of the details beside it')
    for path in (out, details):
        console.prepare_output(path, map_file, run)
    check_details(details)
    kernel_map = with_settings_of(KernelMap.load(map_file), method, settings)
    if method == 'kbr' and kernel_map.statistics is None:
        console.note(f'{map_file}: {MEASURED_NOW}')
    dataset = reading.open_for(kernel_map, map_file, run)
    with terminal_progress() as progress:
        trajectory = pipeline.localize(
            kernel_map, dataset, method=method, init=init.value, seed=seed, progress=progress
        )
    write_detailed(out, trajectory)
    console.note_skipped(trajectory.skipped, trajectory.last_error)
    console.note_localized(out, trajectory.statuses, dataset.odometry.poses)


def methods() -> None:
    """List the localization methods."""
    from kbr_localization.localization.methods.registry import METHODS

    rows = [{'method': name, 'description': m.description} for name, m in METHODS.items()]
    console.show_rows(('method', 'description'), rows)


def parameters(
    method: Annotated[str, typer.Option(help='See `kbr methods`.')] = 'kbr', json: Json = False
) -> None:
    """List the parameters that `--set` takes, with their defaults, ranges and meanings."""
    from kbr_localization.localization.methods.registry import method_named
    from kbr_localization.vision import VisionConfig

    described = describe_parameters(method_named(method).config)
    vision = describe_parameters(VisionConfig)
    described |= {f'vision.{name}': parameter for name, parameter in vision.items()}
    if json:
        console.print_json(described)
        return
    rows = [{'parameter': name, **values} for name, values in described.items()]
    console.show_rows(('parameter', 'default', 'range', 'description'), rows)


@reads_runs
def evaluate(
    run: Run,
    trajectory: Annotated[
        Path, typer.Argument(metavar='TRAJECTORY', help='A TUM file.', show_default=False)
    ],
    *,
    map_file: Annotated[
        Optional[Path],
        typer.Option('--map', help='Also report the recall of the image retrieval on this map.'),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help='Seconds by which stamps may differ.')
    ] = 0.01,
    json: Json = False,
    reading: Reading,
) -> None:
    """
    Compare a trajectory with the reference poses of its run; nothing is aligned.

    Every frame that has a reference pose counts: one without an estimate is lost and outside of
    all thresholds.
    """
    from kbr_localization.datasets.selection import outside_fixes
    from kbr_localization.evaluation import reference_trajectory, run_errors, run_metrics
    from kbr_localization.evaluation.tum import read_detailed
    from kbr_localization.localization.map.kernel_map import KernelMap

    if not math.isfinite(tolerance):
        raise KbrError(f'--tolerance {tolerance}: expected a finite number of seconds')
    kernel_map = KernelMap.load(map_file) if map_file else None
    dataset = reading.open_for(kernel_map, map_file, run) if map_file else reading.open(run)
    estimates, reference = read_detailed(trajectory), reference_trajectory(dataset)
    if not len(reference) and (why := outside_fixes(dataset)):
        raise KbrError(why)
    metrics: dict[str, Any] = run_metrics(run_errors(reference, estimates, tolerance))
    if len(reference) < len(dataset):
        unknown = len(dataset) - len(reference)
        console.note(f'{unknown} of {len(dataset)} frames have no reference pose: left out')
    console.note_skipped(dataset.skipped | estimates.skipped)
    if kernel_map is not None:
        metrics |= _recall(kernel_map, dataset)
    console.show(f'{trajectory} on {run}', metrics, json)


def _recall(kernel_map: Any, dataset: Any) -> dict[str, Any]:
    """Recall of the map's images for the frames that can be read and have a reference."""
    from kbr_localization.errors import EvaluationError
    from kbr_localization.evaluation.described import describe_run
    from kbr_localization.evaluation.metrics import recall_at
    import numpy as np

    with terminal_progress() as progress:
        run = describe_run(kernel_map.describer, dataset, progress)
    if run.unusable:
        console.note(f'recall: {len(run.unusable)} of {len(run)} images cannot be used')
    known = [n for n, f in enumerate(run) if f.reference is not None and n not in run.unusable]
    similarities = (kernel_map.similarities(run.descriptors[number]) for number in known)
    references = np.array([run[number].reference for number in known]).reshape(-1, 3)
    try:
        return recall_at(similarities, kernel_map.poses, references)
    except EvaluationError as error:
        console.note(str(error))  # the errors of the trajectory are known all the same
        return {}


@reads_runs
def report(
    map_file: MapFile,
    run: Annotated[
        Optional[Path], typer.Argument(metavar='[RUN]', help=RUN_HELP, show_default=False)
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help='The HTML page to write.')] = Path('report.html'),
    rerun: Annotated[
        Optional[Path], typer.Option(metavar='FILE.rrd', help='Write a recording for rerun too.')
    ] = None,
    method: Method = 'kbr',
    init: Start = Init.GLOBAL,
    settings: Settings = None,
    reading: Reading,
) -> None:
    """
    One HTML page: what happened when a run was localized, or how a map of odometry was made.

    Trajectory and belief on the map, errors and confidence over time, the worst frames beside
    the map images that they were taken for, latency, parameters.
    """
    from kbr_localization.evaluation.record import record_run
    from kbr_localization.evaluation.report import write_map_report, write_run_report
    from kbr_localization.localization.map.kernel_map import KernelMap

    inputs = [path for path in (map_file, run) if path]
    for path in (out, rerun):
        if path is not None:
            console.prepare_output(path, *inputs)
    if run is None:
        of_a_run = (rerun, method, init, settings, reading)
        if of_a_run != (None, 'kbr', Init.GLOBAL, None, Reading()):
            raise KbrError('options of a run: expected RUN beside MAP, no run is shown without')
        write_map_report(out, KernelMap.load(map_file), map_file.name)
        console.note(f'{out}: open it in a browser')
        return
    if rerun is not None:
        if os.path.realpath(rerun) == os.path.realpath(out):
            raise KbrError(f'--rerun {rerun}: is the file of the page: expected another name')
        # before the work, as rerun may not be installed
        from kbr_localization.evaluation.rerun_recording import write_recording
    kernel_map = with_settings_of(KernelMap.load(map_file), method, settings)
    dataset = reading.open_for(kernel_map, map_file, run)
    with terminal_progress() as progress:
        record = record_run(kernel_map, dataset, method, init.value, 0, progress)
    write_run_report(out, record)
    console.note_skipped(record.trajectory.skipped, record.trajectory.last_error)
    console.note_localized(out, record.trajectory.statuses, dataset.odometry.poses)
    if rerun is not None:
        write_recording(rerun, record)
        console.note(f'{rerun}: open it with `rerun {rerun}`')


@reads_runs
def try_(
    run: Run,
    *,
    out: Annotated[Path, typer.Option(help='The HTML page to write.')] = Path('try/report.html'),
    twice: Annotated[
        Optional[Path],
        typer.Option(metavar='RUN', help='A second drive to localize on a map of all of RUN.'),
    ] = None,
    jobs: Jobs = None,
    json: Json = False,
    reading: Reading,
) -> None:
    """
    Will it work on my robot? Map one part of a drive, localize the other, print and write a page.

    What the drive shows first becomes the map; the stretch in which it comes back, in the same
    direction, is the test. Poses are the known ones, else they are made of odometry and images.
    """
    from kbr_localization.evaluation import trial

    runs, made = [path for path in (run, twice) if path], not out.parent.exists()
    console.prepare_output(out, *runs)
    try:
        with open_workers(jobs) as workers, terminal_progress() as progress:
            drives = [reading.open(path, guess=True) for path in runs]
            tried = trial.try_drives(drives, workers, progress)
        trial.write_trial(out, tried)
    except BaseException:
        if made:
            out.parent.rmdir()
        raise
    console.note_skipped(tried.record.trajectory.skipped, tried.record.trajectory.last_error)
    console.show(str(run), tried.summary, json)
    for number, (text, _) in enumerate(tried.advice, start=1):
        console.note(f'{number}. {text}')
    console.note(f'{out}: open it in a browser')
