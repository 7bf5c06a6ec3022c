"""Commands about one run: localize, evaluate."""

import math
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
    Spacing,
    Start,
)
from kbr_localization.cli.reading import Reading
from kbr_localization.cli.saving import note_frame
from kbr_localization.cli.settings import describe_parameters, with_settings_of
from kbr_localization.errors import KbrError
from kbr_localization.progress import terminal_progress
import typer


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
    spacing: Spacing = None,
    seed: Seed = 0,
) -> None:
    """
    Localize a run on a map: a pose for every frame, as a TUM file.

    Covariance, confidence, status and time of every frame go to a CSV file beside it.
    """
    from kbr_localization.evaluation.details import check_details, details_path, write_detailed
    from kbr_localization.localization import pipeline
    from kbr_localization.localization.kbr.leave_out import MEASURED_NOW
    from kbr_localization.localization.map.kernel_map import KernelMap
    from kbr_localization.localization.methods.registry import METHODS

    if method not in METHODS:
        raise KbrError(f'unknown method {method!r}: expected one of {", ".join(METHODS)}')
    console.prepare_output(out, map_file, run)
    if details_path(out) == out:
        raise KbrError(f'{out}: expected another suffix, .csv is that of the details beside it')
    console.prepare_output(details_path(out), map_file, run)
    check_details(details_path(out))
    kernel_map = KernelMap.load(map_file)
    if method == 'kbr' and kernel_map.statistics is None:
        console.note(f'{map_file}: {MEASURED_NOW}')
    reading = Reading(cameras, odometry_topic, reference_topic, spacing)
    dataset = reading.dataset_for(kernel_map, map_file, run)
    note_frame(kernel_map, map_file, [dataset])
    kernel_map = with_settings_of(kernel_map, method, settings or ())
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

    described = {name: {'description': text} for name, text in METHODS.items()}
    console.print_columns('method', ('description',), described)


def parameters(
    method: Annotated[str, typer.Option(help='See `kbr methods`.')] = 'kbr', json: Json = False
) -> None:
    """List the parameters that `--set` takes, with their defaults, ranges and meanings."""
    from kbr_localization.localization.methods.method_configs import config_class
    from kbr_localization.vision import VisionConfig

    described = describe_parameters(config_class(method))
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
    *,
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
    spacing: Spacing = None,
) -> None:
    """
    Compare a trajectory with the reference poses of its run; nothing is aligned.

    Every frame that has a reference pose counts: one without an estimate is lost and outside of
    all thresholds. Where the recall cannot be told, all else is printed before that is said.
    """
    from kbr_localization.datasets.selection import outside_fixes
    from kbr_localization.evaluation import reference_trajectory, run_errors, summarize
    from kbr_localization.localization.map.kernel_map import KernelMap

    if not math.isfinite(tolerance):
        raise KbrError(f'--tolerance {tolerance}: expected a finite number of seconds')
    reading = Reading(cameras, odometry_topic, reference_topic, spacing)
    if map_file is None:
        kernel_map, dataset = None, reading.dataset(run)
    else:
        kernel_map = KernelMap.load(map_file)
        dataset = reading.dataset_for(kernel_map, map_file, run)
        note_frame(kernel_map, map_file, [dataset])
    estimates = _read_trajectory(trajectory)
    reference = reference_trajectory(dataset)
    if not len(reference) and (why := outside_fixes(dataset)):
        raise KbrError(why)
    summary: dict[str, Any] = dict(summarize(run_errors(reference, estimates, tolerance)))
    no_recall: KbrError | None = None
    try:
        summary |= {} if kernel_map is None else _retrieval(kernel_map, dataset)
    except KbrError as error:
        # the errors of the trajectory are known all the same
        no_recall = error
    if len(reference) < len(dataset):
        unknown = len(dataset) - len(reference)
        console.note(f'{unknown} of {len(dataset)} frames have no reference pose: left out')
    console.note_skipped(dataset.skipped)
    if json:
        console.print_json(summary)
    else:
        console.print_table(f'{trajectory} on {run}', summary)
    if no_recall is not None:
        raise no_recall


COMMANDS = (localize, evaluate, methods, parameters)


def _read_trajectory(path: Path) -> Any:
    from kbr_localization.evaluation.details import details_path, holds_details, with_details
    from kbr_localization.evaluation.tum import read_tum

    trajectory = read_tum(path)
    details = details_path(path)
    # a trajectory with commas may be called .csv itself
    if details == path or not details.is_file():
        return trajectory
    if not holds_details(details):
        console.note(f'{details}: not of `kbr localize`: the trajectory has no covariances')
        return trajectory
    return with_details(trajectory, details)


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
