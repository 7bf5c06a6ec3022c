"""`kbr map …`: build maps and look into them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

from kbr_localization.cli import console
from kbr_localization.cli.options import (
    Cameras,
    Jobs,
    Json,
    MapFile,
    MOST_TRIALS,
    OdometryTopic,
    PoseFrame,
    Poses,
    PosesOf,
    ReferenceTopic,
    Runs,
    Scheduler,
    Seed,
    Settings,
    Spacing,
)
from kbr_localization.cli.reading import note_repeated, Reading
from kbr_localization.cli.saving import note_map, save_measured, with_statistics_of_all
from kbr_localization.cli.settings import configurations
from kbr_localization.errors import KbrError
from kbr_localization.progress import terminal_progress
from kbr_localization.workers import open_workers
import typer

app = typer.Typer(
    help='Build maps of images and their poses, look into them, change them.', no_args_is_help=True
)


@app.command()
def build(
    runs: Runs,
    *,
    out: Annotated[Path, typer.Option(help='The map file to write.', show_default=False)],
    poses: Annotated[
        Poses,
        typer.Option(help='Of the runs: known ones, or from odometry and places seen again.'),
    ] = Poses.KNOWN,
    pose_frame: PosesOf = PoseFrame.CAMERA,
    max_images: Annotated[
        Optional[int],
        typer.Option(min=1, help='Keep so many images, chosen to cover the runs.'),
    ] = None,
    settings: Settings = None,
    seed: Seed = 0,
    tune: Annotated[
        bool, typer.Option('--tune', help='Choose the parameters on the runs, as `kbr tune` does.')
    ] = False,
    trials: Annotated[
        Optional[int],
        typer.Option(min=1, max=MOST_TRIALS, help='Candidates of --tune; 60 unless given.'),
    ] = None,
    cameras: Cameras = None,
    odometry_topic: OdometryTopic = None,
    reference_topic: ReferenceTopic = None,
    spacing: Spacing = None,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
) -> None:
    """Build a map from runs, by known poses or by odometry and images alone."""
    reading = Reading(cameras, odometry_topic, reference_topic, spacing)
    given_too: dict[str, Any] = {'seed': seed, **_frame_options(pose_frame, poses)}
    if tune:
        if poses is Poses.ODOMETRY:
            raise KbrError('--tune: expected runs with known poses, not --poses odometry')
        options = {'methods': ('kbr',), 'max_images': max_images, 'seed': seed}
        options |= {'trials': trials} if trials else {}
        _tune(runs, out, options, settings or (), reading, jobs, scheduler)
        return
    if trials is not None:
        raise KbrError(f'--trials {trials}: expected --tune beside it, nothing is tuned without')
    with open_workers(jobs, scheduler) as workers:
        vision, given = configurations(settings or ())
        console.prepare_map(out, *runs)
        note_repeated(runs)
        datasets = [reading.dataset(run) for run in runs]
        with terminal_progress() as progress:
            given_too |= {'progress': progress, 'workers': workers}
            kernel_map = built(poses, datasets, vision, given, max_images, given_too)
    save_measured(kernel_map, out)
    note_map(kernel_map, out, datasets)


def _frame_options(pose_frame: PoseFrame, poses: Poses) -> dict[str, Any]:
    if pose_frame is PoseFrame.CAMERA:
        return {}
    if poses is Poses.KNOWN:
        raise KbrError(
            '--pose-frame base: expected --poses odometry beside it; known poses are of the point '
            'that they were given for'
        )
    return {'base': True}


def _tune(
    runs: Sequence[Path],
    out: Path,
    options: dict[str, Any],
    settings: Sequence[str],
    reading: Reading,
    jobs: Optional[int],
    scheduler: Optional[str],
) -> None:
    from kbr_localization.cli.tune_command import tune_runs

    with open_workers(jobs, scheduler) as workers:
        tune_runs(runs, out, options, workers, settings, reading=reading)


def built(
    poses: Poses,
    datasets: Sequence[Any],
    vision: Any,
    given: Any,
    max_images: Optional[int],
    options: dict[str, Any],
) -> Any:
    """Build the map of datasets; say what there is to know of one without known poses."""
    if poses is Poses.KNOWN:
        from kbr_localization.localization.map.build import build_map

        return build_map(datasets, vision, given, max_images, **options)
    from kbr_localization.localization.mapping.build import map_from_odometry

    mapped = map_from_odometry(datasets, vision, given, max_images, **options)
    for line in mapped.notes:
        console.note(line)
    return mapped.kernel_map


@app.command()
def info(map_file: MapFile, json: Json = False) -> None:
    """Say what a map holds."""
    from kbr_localization.cli.map_facts import describe_map, flat
    from kbr_localization.localization.map.kernel_map import KernelMap

    facts = describe_map(KernelMap.load(map_file))
    if json:
        console.print_json(facts)
    else:
        odometry = facts.pop('odometry')
        console.print_table(str(map_file), flat(facts))
        words = {name: values['words'] for name, values in odometry.items()}
        console.print_table('systematic errors of the odometry of the runs', words)


@app.command()
def check(map_file: MapFile, json: Json = False) -> None:
    """
    Read all of a map and compare it with its checksums.

    Large arrays are otherwise verified in the background, once a map is loaded.
    """
    import dataclasses

    from kbr_localization.localization.map.file import check_map

    found = check_map(map_file)
    if found.unverified:
        console.note(
            f'{map_file}: no checksums of {", ".join(found.unverified)}, which an older package '
            'wrote: build the map again to have some'
        )
    if json:
        console.print_json(dataclasses.asdict(found))
        return
    size = f'{found.size / 1e6:.1f} MB'
    console.note(f'{map_file}: whole: {found.images} images, {found.arrays} arrays, {size}')


@app.command()
def measure(
    map_file: MapFile,
    *,
    out: Annotated[Path, typer.Option(help='The map file to write.', show_default=False)],
) -> None:
    """Measure the statistics of a map anew, as of one of an earlier version, and keep them."""
    from kbr_localization.localization.map.kernel_map import KernelMap

    kernel_map = KernelMap.load(map_file)
    console.prepare_map(out, map_file)
    measured = with_statistics_of_all(kernel_map)
    measured.save(out)
    limit = measured.statistics.evidence_limit
    console.note(f'{out}: the evidence of wrong places stays below {limit:.2f} nats')


@app.command()
def prune(
    map_file: MapFile,
    *,
    max_images: Annotated[
        int, typer.Option(min=1, help='Keep so many images.', show_default=False)
    ],
    out: Annotated[Path, typer.Option(help='The map file to write.', show_default=False)],
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Keep fewer images of a map, chosen to cover it, and say what that loses."""
    import dataclasses

    from kbr_localization.localization.map import prune as pruning
    from kbr_localization.localization.map.kernel_map import KernelMap

    kernel_map = KernelMap.load(map_file)
    console.prepare_map(out, map_file)
    pruned, loss = pruning.prune(kernel_map, max_images, seed)
    save_measured(pruned, out)
    if json:
        console.print_json(dataclasses.asdict(loss))
    else:
        console.print_table(str(out), _loss_rows(loss))
    note_map(pruned, out)


def _loss_rows(loss: Any) -> dict[str, Any]:
    return {
        'images': f'{loss.kept} of {loss.images}',
        'farthest dropped image from one that stays': f'{loss.radius:.2f} m',
        'median of these distances': f'{loss.median:.2f} m',
        'distance of the kernel means of the poses': f'{100 * loss.mmd:.1f}%',
        'similarity of a dropped image and its neighbour': f'{loss.similarity:.2f}',
    }
