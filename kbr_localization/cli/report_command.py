"""`kbr report`: a page about one run."""

import os
from pathlib import Path
from typing import Annotated, Optional

from kbr_localization.cli import console
from kbr_localization.cli.options import (
    Cameras,
    Init,
    MapFile,
    Method,
    OdometryTopic,
    ReferenceTopic,
    RUN_HELP,
    Seed,
    Settings,
    Spacing,
    Start,
)
from kbr_localization.cli.reading import note_unreferenced, Reading
from kbr_localization.cli.saving import note_frame
from kbr_localization.cli.settings import with_settings_of
from kbr_localization.errors import KbrError
from kbr_localization.progress import terminal_progress
import typer

OneRun = Annotated[
    Optional[Path], typer.Argument(metavar='[RUN]', help=RUN_HELP, show_default=False)
]


_OF_A_MAP = ('map_file', 'run', 'out')
"""What the page about a map alone goes by."""


def report(
    context: typer.Context,
    map_file: MapFile,
    run: OneRun = None,
    *,
    out: Annotated[Path, typer.Option(help='The HTML page to write.')] = Path('report.html'),
    rerun: Annotated[
        Optional[Path], typer.Option(metavar='FILE.rrd', help='Write a recording for rerun too.')
    ] = None,
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
    One HTML page: what happened when a run was localized, or what a map of odometry was made of.

    Trajectory and belief on the map, errors and confidence over time, the worst frames beside
    the images that they were taken for, latency, parameters.
    """
    from kbr_localization.evaluation.record import record_run
    from kbr_localization.evaluation.report import write_report
    from kbr_localization.localization.map.kernel_map import KernelMap

    if run is None:
        _refuse_options_of_a_run(context)
        _show_map(map_file, out)
        return
    for path in (out, rerun):
        if path is not None:
            console.prepare_output(path, map_file, run)
    if rerun is not None:
        if os.path.realpath(rerun) == os.path.realpath(out):
            raise KbrError(f'--rerun {rerun}: is the file of the page: expected another name')
        # what is not installed is told before the work
        from kbr_localization.evaluation.rerun_recording import write_recording
    kernel_map = with_settings_of(KernelMap.load(map_file), method, settings or ())
    reading = Reading(cameras, odometry_topic, reference_topic, spacing)
    dataset = reading.dataset_for(kernel_map, map_file, run)
    note_frame(kernel_map, map_file, [dataset])
    note_unreferenced(dataset)
    with terminal_progress() as progress:
        record = record_run(kernel_map, dataset, method, init.value, seed, progress)
    write_report(out, record)
    console.note_skipped(record.trajectory.skipped, record.trajectory.last_error)
    console.note_localized(out, record.trajectory.statuses, dataset.odometry.poses)
    if rerun is not None:
        write_recording(rerun, record)
        console.note(f'{rerun}: open it with `rerun {rerun}`')


def _refuse_options_of_a_run(context: typer.Context) -> None:
    sources = {p: context.get_parameter_source(str(p.name)) for p in context.command.params}
    given = [
        parameter.opts[0]
        for parameter, source in sources.items()
        if parameter.name not in _OF_A_MAP and source is not None and source.name == 'COMMANDLINE'
    ]
    if given:
        raise KbrError(f'{" and ".join(given)}: expected RUN beside MAP, no run is shown without')


def _show_map(map_file: Path, out: Path) -> None:
    """Write the page about a map that was made of odometry and images."""
    from kbr_localization.evaluation.map_report import write_map_report
    from kbr_localization.localization.map.kernel_map import KernelMap

    console.prepare_output(out, map_file)
    write_map_report(out, KernelMap.load(map_file), map_file.name)
    console.note(f'{out}: open it in a browser')
