"""`kbr map …`: build maps, look into them, prune them."""

from collections.abc import Sequence
import dataclasses
from pathlib import Path
from typing import Annotated, Any

from kbr_localization.cli import console
from kbr_localization.cli.options import (
    Jobs,
    Json,
    MapFile,
    MapOut,
    MaxImages,
    Poses,
    Reading,
    reads_runs,
    Runs,
    Scheduler,
    Seed,
    Settings,
)
from kbr_localization.cli.settings import configurations
from kbr_localization.errors import KbrError
from kbr_localization.progress import terminal_progress
from kbr_localization.workers import open_workers
import typer


def measured(kernel_map: Any) -> Any:
    """Return a map with its statistics measured again."""
    from kbr_localization.localization.filter.wrong_places import with_statistics

    return with_statistics(dataclasses.replace(kernel_map, statistics=None))


def save_map(kernel_map: Any, out: Path) -> None:
    """Write a map, measured if it was not; print its size and whether that is little."""
    from kbr_localization.localization.filter.wrong_places import with_statistics

    with_statistics(kernel_map).save(out)
    console.note(f'{out}: {len(kernel_map)} images, {out.stat().st_size / 1e6:.1f} MB')
    if len(kernel_map) < 25:
        console.note(
            'warning: a map of fewer than 25 images: poses are seldom called localized on it, and '
            'maybe wrongly in other buildings; take an image every 0.2 m or so'
        )


@reads_runs
def build(
    runs: Runs,
    *,
    out: MapOut,
    poses: Annotated[
        Poses,
        typer.Option(help='Of the runs: known ones, or from odometry and places seen again.'),
    ] = Poses.KNOWN,
    pose_frame: Annotated[
        str,
        typer.Option(help='With --poses odometry: poses of the camera, or of base_link (base).'),
    ] = 'camera',
    max_images: MaxImages = None,
    settings: Settings = None,
    seed: Seed = 0,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    reading: Reading,
) -> None:
    """Build a map from runs, by known poses or by odometry and images alone."""
    if pose_frame not in ('camera', 'base'):
        raise KbrError(f'--pose-frame {pose_frame}: expected camera or base')
    if pose_frame == 'base' and poses is Poses.KNOWN:
        raise KbrError(
            '--pose-frame base: expected --poses odometry beside it; known poses are of the point '
            'that they were given for'
        )
    vision, given = configurations(settings)
    console.prepare_map(out, *runs)
    with open_workers(jobs, scheduler) as workers:
        datasets = [reading.open(run) for run in runs]
        with terminal_progress() as progress:
            options: dict[str, Any] = {'seed': seed, 'progress': progress, 'workers': workers}
            notes: Sequence[str] = ()
            if poses is Poses.KNOWN:
                from kbr_localization.localization.map.build import build_map
                from kbr_localization.localization.map.run_checks import frames_apart

                kernel_map = build_map(datasets, vision, given, max_images, **options)
                notes = [f'warning: {line}' for line in frames_apart(kernel_map)]
            else:
                from kbr_localization.localization.mapping.build import map_from_odometry

                options |= {'base': pose_frame == 'base'}
                mapped = map_from_odometry(datasets, vision, given, max_images, **options)
                kernel_map, notes = mapped.kernel_map, mapped.notes
    for note in notes:
        console.note(note)
    for dataset in datasets:
        console.note_skipped(dataset.skipped)
    save_map(kernel_map, out)


def info(map_file: MapFile, json: Json = False) -> None:
    """Print what a map holds."""
    from kbr_localization.localization.map.kernel_map import KernelMap

    facts = describe_map(KernelMap.load(map_file))
    if json:
        console.print_json(facts)
        return
    odometry = facts.pop('odometry')
    console.show(str(map_file), _flat(facts))
    words = {name: values['words'] for name, values in odometry.items()}
    console.show('systematic errors of the odometry of the runs', words)


def describe_map(kernel_map: Any) -> dict[str, Any]:
    """Facts about a map, ready for JSON."""
    from kbr_localization import se2
    from kbr_localization.configuration import to_mapping
    from kbr_localization.localization.calibration_report import described
    from kbr_localization.localization.map.build import unique_names
    from kbr_localization.vision.multi_camera import sections_of
    from kbr_localization.vision.network import HASH

    runs = {}
    for index, name in enumerate(unique_names(kernel_map.run_names)):
        poses = kernel_map.poses[kernel_map.run_index == index]
        runs[name] = {'images': len(poses), 'metres': float(se2.travelled(poses).max(initial=0))}
    state = kernel_map.describer.state()
    cameras = sections_of(state) if kernel_map.cameras else {}
    shapes = {
        name: [int(of['image_height']), int(of['image_width'])] for name, of in cameras.items()
    }
    networks = {name: of[HASH] for name, of in cameras.items() if HASH in of}
    network = networks or state.get(HASH)
    low, high = kernel_map.poses[:, :2].min(axis=0), kernel_map.poses[:, :2].max(axis=0)
    return {
        'images': len(kernel_map),
        'runs': runs,
        'x_m': [float(low[0]), float(high[0])],
        'y_m': [float(low[1]), float(high[1])],
        'cameras': list(kernel_map.cameras) or 1,
        'image_shape': shapes or list(kernel_map.image_shape),
        'descriptor': kernel_map.describer.kind,
        'descriptor_size': int(kernel_map.describer.size),
        **({} if network is None else {HASH: network}),
        'filter': to_mapping(kernel_map.filter_config),
        'baselines': {name: dict(values) for name, values in kernel_map.baselines.items()},
        'motion_noise': to_mapping(kernel_map.motion_noise),
        'odometry': described(kernel_map.calibration, kernel_map.mapping is not None),
        'poses': _poses_facts(kernel_map.mapping),
    }


def _poses_facts(record: Any) -> Any:
    """Say where the poses of a map come from."""
    from kbr_localization.localization.mapping.align import described_point

    if record is None:
        return 'known'
    frames = {False: 'that of the first image', True: 'aligned', None: 'unknown'}
    return {
        'from': 'odometry',
        'of': described_point(record),
        'frame': frames[record.aligned],
        'closures': int((record.kept == 1).sum()),
        'deviation_m': record.deviation_m,
    }


def _flat(facts: dict[str, Any], prefix: str = '') -> dict[str, Any]:
    """Rows of a table, named by their path in nested facts."""
    rows: dict[str, Any] = {}
    for name, value in facts.items():
        inner = _flat(value, f'{prefix}{name}.') if isinstance(value, dict) else {}
        rows |= inner or {prefix + name: value}
    return rows


def check(map_file: MapFile) -> None:
    """
    Read all of a map and compare it with its checksums.

    Large arrays are otherwise verified in the background, once a map is loaded.
    """
    from kbr_localization.localization.map.file import check_map

    images, unverified = check_map(map_file)
    if unverified:
        console.note(
            f'{map_file}: no checksums of {", ".join(unverified)}, which an older package wrote: '
            'build the map again to have some'
        )
    console.note(f'{map_file}: whole: {images} images, {map_file.stat().st_size / 1e6:.1f} MB')


def measure(map_file: MapFile, *, out: MapOut) -> None:
    """Measure the statistics of a map, as one of an earlier version needs it, and keep them."""
    from kbr_localization.localization.map.kernel_map import KernelMap

    kernel_map = KernelMap.load(map_file)
    console.prepare_map(out, map_file)
    kernel_map = measured(kernel_map)
    save_map(kernel_map, out)
    limit = kernel_map.statistics.evidence_limit
    console.note(f'{out}: the evidence of wrong places stays below {limit:.2f} nats')


def prune(
    map_file: MapFile,
    *,
    max_images: Annotated[
        int, typer.Option(min=1, help='Keep so many images.', show_default=False)
    ],
    out: MapOut,
) -> None:
    """Keep fewer images of a map, chosen to cover it, and print what that loses."""
    from kbr_localization.localization.map.kernel_map import KernelMap
    from kbr_localization.localization.map.prune import prune as prune_map

    kernel_map = KernelMap.load(map_file)
    console.prepare_map(out, map_file)
    pruned, loss = prune_map(kernel_map, max_images, 0)
    rows = {
        'images': f'{loss.kept} of {loss.images}',
        'farthest dropped image from one that stays': f'{loss.radius:.2f} m',
        'median of these distances': f'{loss.median:.2f} m',
        'distance of the kernel means of the poses': f'{100 * loss.mmd:.1f}%',
        'similarity of a dropped image and its neighbour': f'{loss.similarity:.2f}',
    }
    console.show(str(out), rows)
    save_map(pruned, out)
