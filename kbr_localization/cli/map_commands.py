"""`kbr map …`: build, inspect, align, extend and prune maps."""

from collections.abc import Sequence
import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any, Optional

from kbr_localization.cli import console, options
from kbr_localization.cli.options import MapFile, Out, reads_runs, RunReader
from kbr_localization.errors import KbrError
from kbr_localization.progress import terminal_progress
from kbr_localization.workers import open_workers
import typer


def save_map(kernel_map: Any, out: Path) -> None:
    """Save a map, with statistics; print its size, warn if it is small."""
    from kbr_localization.localization.filter.wrong_places import with_statistics

    kernel_map = with_statistics(kernel_map)
    kernel_map.save(out)
    console.note(f'{out}: {len(kernel_map)} images, {out.stat().st_size / 1e6:.1f} MB')
    if len(kernel_map) < 25:
        console.note(
            'warning: a map of fewer than 25 images: poses are seldom called localized on it, and '
            'perhaps wrongly in other buildings; take an image about every 0.2 m'
        )


@reads_runs
def build(
    runs: options.Runs,
    *,
    out: Out,
    poses: options.PosesFrom = options.PoseSource.KNOWN,
    pose_frame: options.PosesOf = options.PoseFrame.CAMERA,
    max_images: options.MaxImages = None,
    settings: options.Settings = None,
    seed: options.Seed = 0,
    jobs: options.Jobs = None,
    scheduler: options.Scheduler = None,
    reader: RunReader,
) -> None:
    """Build a map from runs with known poses, or from odometry and images alone."""
    from kbr_localization.localization.map.build import build_map
    from kbr_localization.localization.map.run_checks import frames_apart
    from kbr_localization.localization.mapping.build import map_from_odometry

    if pose_frame is options.PoseFrame.BASE and poses is options.PoseSource.KNOWN:
        raise KbrError(
            '--pose-frame base: expected --poses odometry as well; known poses are poses of '
            'the point at which they were measured'
        )
    vision, given = options.parse_settings(settings)
    console.prepare_output(out, *runs)
    with open_workers(jobs, scheduler), terminal_progress():
        datasets = [reader.open_run(run) for run in runs]
        parts = (datasets, vision, given, max_images, seed)
        if poses is options.PoseSource.KNOWN:
            kernel_map = build_map(*parts)
            console.note(*(f'warning: {line}' for line in frames_apart(kernel_map)))
        else:
            of_base = pose_frame is options.PoseFrame.BASE
            kernel_map, notes = map_from_odometry(*parts, base=of_base)
            console.note(*notes)
        console.note_skipped(*(dataset.skipped for dataset in datasets))
        save_map(kernel_map, out)


def info(map_file: MapFile, json: options.Json = False) -> None:
    """Print the contents of a map."""
    from kbr_localization.localization.map.kernel_map import KernelMap

    facts = describe_map(KernelMap.load(map_file))
    if json:
        console.print_json(facts)
        return
    odometry = facts.pop('odometry')
    console.show(str(map_file), _flatten(facts))
    words = {name: values['words'] for name, values in odometry.items()}
    console.show('systematic errors of the odometry of the runs', words)


def describe_map(kernel_map: Any) -> dict[str, Any]:
    """Return facts about a map for JSON."""
    from kbr_localization import se2
    from kbr_localization.localization.map.build import unique_names
    from kbr_localization.localization.mapping.align import describe_point
    from kbr_localization.vision.describer import camera_states

    runs = {}
    for index, name in enumerate(unique_names(kernel_map.run_names)):
        poses = kernel_map.poses[kernel_map.run_index == index]
        runs[name] = {'images': len(poses), 'metres': float(se2.travelled(poses).max(initial=0))}
    state, record = kernel_map.describer.state(), kernel_map.mapping
    cameras = camera_states(state) if kernel_map.cameras else {'': state}
    shapes = {n: [int(of['image_height']), int(of['image_width'])] for n, of in cameras.items()}
    frames = {False: 'that of the first image', True: 'aligned'}
    return {
        'images': len(kernel_map),
        'runs': runs,
        'x_m': [f(kernel_map.poses[:, 0]) for f in (min, max)],
        'y_m': [f(kernel_map.poses[:, 1]) for f in (min, max)],
        'cameras': list(kernel_map.cameras) or 1,
        'image_shape': shapes.get('', shapes),
        'descriptor': kernel_map.describer.kind,
        'descriptor_size': int(kernel_map.describer.size),
        'filter': vars(kernel_map.filter_config),
        'baselines': {name: dict(values) for name, values in kernel_map.baselines.items()},
        'motion_noise': vars(kernel_map.motion_noise),
        'odometry': kernel_map.calibration.described(),
        'poses': 'known' if record is None else {
            'from': 'odometry',
            'of': describe_point(record),
            'frame': frames[record.aligned],
            'closures': int((record.kept == 1).sum()),
            'deviation_m': record.deviation_m,
        },
    }  # fmt: skip


def _flatten(facts: dict[str, Any], prefix: str = '') -> dict[str, Any]:
    """Return nested facts as one dictionary, named by their paths."""
    rows: dict[str, Any] = {}
    for name, value in facts.items():
        inner = _flatten(value, f'{prefix}{name}.') if isinstance(value, dict) else {}
        rows |= inner or {prefix + name: value}
    return rows


def check(map_file: MapFile) -> None:
    """
    Verify all checksums of a map.

    After a map is loaded, large arrays are otherwise verified in the background.
    """
    from kbr_localization.localization.map.file import check_map

    images = check_map(map_file)
    console.note(f'{map_file}: whole: {images} images, {map_file.stat().st_size / 1e6:.1f} MB')


def prune(
    map_file: MapFile,
    *,
    max_images: Annotated[int, typer.Option(min=1, help='Images to keep.')],
    out: Out,
) -> None:
    """Keep fewer images of a map, chosen to cover it, and print what is lost."""
    from kbr_localization.localization.map.kernel_map import KernelMap
    from kbr_localization.localization.map.prune import prune as prune_map

    kernel_map = KernelMap.load(map_file)
    console.prepare_output(out, map_file)
    pruned, loss = prune_map(kernel_map, max_images)
    rows = {
        'images': f'{len(pruned)} of {len(kernel_map)}',
        'largest distance of a dropped image to a kept one': f'{loss.radius:.2f} m',
        'median of these distances': f'{loss.median:.2f} m',
    }
    console.show(str(out), rows)
    save_map(pruned, out)


@reads_runs
def align(
    map_file: MapFile,
    *,
    out: Out,
    at: Annotated[Optional[list[str]], typer.Option(help='SECONDS of the run,X,Y')] = None,
    tum: Annotated[Optional[Path], typer.Option(help='Known poses in a TUM file.')] = None,
    bag: Annotated[Optional[Path], typer.Option(help='A run with known poses.')] = None,
    scale: Annotated[bool, typer.Option('--scale', help='Change the scale too.')] = False,
    reader: RunReader,
) -> None:
    """
    Move a map to another frame by three or more known poses.

    Prints the distance of the moved map from each known pose.
    """
    from kbr_localization.evaluation.tum import read_tum
    from kbr_localization.localization.map.kernel_map import KernelMap
    from kbr_localization.localization.mapping.align import align as align_map
    from kbr_localization.localization.mapping.align import describe_alignment, since_first_image

    sources = {'--at': at, '--tum': tum, '--bag': bag}
    given = [name for name, value in sources.items() if value]
    if len(given) != 1:
        got = ' and '.join(given) or 'none of them'
        raise KbrError(f'expected one of {", ".join(sources)}, got {got}')
    if reader != RunReader() and bag is None:
        raise KbrError('options of a bag: expected --bag as well')
    kernel_map = KernelMap.load(map_file)
    console.prepare_output(out, *(path for path in (map_file, tum, bag) if path))
    if at:
        stamps, known = _parse_positions(at)
        # count from the first image, because the map may have the stamps of a simulation
        stamps = since_first_image(kernel_map, stamps)
    else:
        track: Any = read_tum(tum) if tum else bag and reader.open_run(bag).fixes
        if track is None:
            raise KbrError(f'{bag}: expected known poses, in a bag also by --reference-topic')
        console.note_skipped(getattr(track, 'skipped', {}))
        stamps, known = track.stamps_ns, track.poses
    moved, found = align_map(kernel_map, stamps, known, scale)
    save_map(moved, out)
    console.show_rows(
        [
            {'seconds': f'{stamp * 1e-9:.3f}', 'x': x, 'y': y, 'missed_m': float(missed)}
            for stamp, (x, y, _), missed in zip(
                found.stamps_ns, found.known, found.residuals, strict=True
            )
        ]
    )
    console.note(*describe_alignment(found))


def _parse_positions(texts: Sequence[str]) -> tuple[Any, Any]:
    """Return stamps (k,) in nanoseconds and poses (k, 3) with NaN as heading."""
    from kbr_localization.datasets.tables import MAX_COORDINATE
    from kbr_localization.trajectory import LATEST_S, parse_seconds
    import numpy as np

    stamps, poses = [], []
    for text in texts:
        try:
            seconds, x, y = text.split(',')
            stamps.append(parse_seconds(seconds))
            poses.append((float(x), float(y), math.nan))
            if not math.hypot(*poses[-1][:2]) <= MAX_COORDINATE:  # false for NaN too
                raise ValueError
        except ValueError as error:
            raise KbrError(
                f'--at {text!r:.80}: expected SECONDS,X,Y as in 12.5,3.0,-1.2, seconds in '
                f'[0, {LATEST_S}) and metres of at most {MAX_COORDINATE:g}'
            ) from error
    return np.array(stamps, dtype=np.int64), np.array(poses)


@reads_runs
def extend(
    map_file: MapFile,
    run: options.Run,
    *,
    out: Out,
    poses: options.PosesFrom = options.PoseSource.ODOMETRY,
    jobs: options.Jobs = None,
    reader: RunReader,
) -> None:
    """
    Add a run to a map, whose poses do not change.

    Without known poses, odometry and common places join the run to the map.
    """
    from kbr_localization.localization.map.kernel_map import KernelMap
    from kbr_localization.localization.mapping.build import extend as extend_map

    kernel_map = KernelMap.load(map_file)
    console.prepare_output(out, map_file, run)
    with open_workers(jobs), terminal_progress():
        dataset = reader.open_run_for(kernel_map, map_file, run)
        longer, notes = extend_map(kernel_map, dataset, poses is options.PoseSource.KNOWN)
    console.note_skipped(dataset.skipped)
    console.note(*notes)
    save_map(longer, out)


def grown(
    map_file: MapFile,
    *,
    merge: Annotated[bool, typer.Option('--merge', help='Add them to the map.')] = False,
    drop: Annotated[bool, typer.Option('--drop', help='Delete them.')] = False,
    added: Annotated[Optional[Path], typer.Option(help='Default: MAP_grown.h5.')] = None,
) -> None:
    """
    Print how many images a node has added to a map; merge or drop them.

    They are in a separate file. The map does not change until they are merged.
    """
    from kbr_localization.localization.filter.wrong_places import with_statistics
    from kbr_localization.localization.map.grow import grown_path, GrownFile, with_settings_of
    from kbr_localization.localization.map.kernel_map import KernelMap

    if merge and drop:
        raise KbrError('--merge and --drop: expected one of them')
    path, base = added or grown_path(map_file), KernelMap.load(map_file)
    file = GrownFile(path)  # before reading: a node may add to it meanwhile
    if not path.is_file():
        raise KbrError(f'{path}: no such file: nothing was added to {map_file}; see --added')
    if path.samefile(map_file):
        raise KbrError(f'{path} is the map itself: expected the file with the added images')
    whole = with_settings_of(base, KernelMap.load(path))
    new = len(whole) - len(base)
    if not (merge or drop):
        console.show(str(map_file), {'file': str(path), 'added': new, 'images': len(whole)})
        return
    file.claim()
    try:
        if merge:
            with_statistics(dataclasses.replace(whole, statistics=None)).save(map_file)
        path.unlink()
    finally:
        file.release()
    done = f'{len(whole)} images, {new} of them added' if merge else 'unchanged'
    console.note(f'{map_file}: {done}; {path} is deleted')


COMMANDS = (build, info, check, prune, align, extend, grown)
