"""`kbr map align` and `kbr map extend`: a finished map into another frame, and more runs in it."""

import math
from pathlib import Path
from typing import Annotated, Any, Optional

from kbr_localization.cli import console
from kbr_localization.cli.options import (
    Cameras,
    Jobs,
    MapFile,
    OdometryTopic,
    Poses,
    ReferenceTopic,
    Run,
    Spacing,
)
from kbr_localization.cli.reading import Reading
from kbr_localization.cli.saving import note_frame, save_measured
from kbr_localization.errors import KbrError
from kbr_localization.progress import terminal_progress
from kbr_localization.workers import open_workers
import typer

Out = Annotated[Path, typer.Option(help='The map file to write.', show_default=False)]


def align(
    map_file: MapFile,
    *,
    out: Out,
    at: Annotated[
        Optional[list[str]],
        typer.Option(
            metavar='SECONDS,X,Y',
            help='A known position, at a time of the map or so long after its first image.',
        ),
    ] = None,
    tum: Annotated[Optional[Path], typer.Option(help='Known poses in a TUM file.')] = None,
    bag: Annotated[
        Optional[Path],
        typer.Option(help='A bag or run of the map with known poses now and then.'),
    ] = None,
    cameras: Cameras = None,
    odometry_topic: OdometryTopic = None,
    reference_topic: ReferenceTopic = None,
    onto: Annotated[
        Optional[Path], typer.Option(help='A map of the same place, to whose frame to move.')
    ] = None,
    scale: Annotated[
        bool, typer.Option('--scale', help='Also take over the metres of the known poses.')
    ] = False,
) -> None:
    """
    Move a map into another frame, by three or more known poses or onto another map.

    What the known poses and the moved map differ by is printed for each of them.
    """
    from kbr_localization.localization.map.kernel_map import KernelMap
    from kbr_localization.localization.mapping.align import align as align_map
    from kbr_localization.localization.mapping.align import since_first_image
    from kbr_localization.localization.mapping.onto import align_onto

    ways = {'--at': at, '--tum': tum, '--bag': bag, '--onto': onto}
    given = [name for name, value in ways.items() if value]
    if len(given) != 1:
        raise KbrError(
            f'expected one of {", ".join(ways)}, got {" and ".join(given) or "none of them"}'
        )
    topics = {
        '--cameras': cameras,
        '--odometry-topic': odometry_topic,
        '--reference-topic': reference_topic,
    }
    for name, topic in topics.items():
        if topic is not None and bag is None:
            raise KbrError(f'{name} {topic}: expected --bag beside it, {given[0]} has no topics')
    kernel_map = KernelMap.load(map_file)
    console.prepare_map(out, *(path for path in (map_file, tum, bag, onto) if path))
    if onto is not None:
        with terminal_progress() as progress:
            moved, found = align_onto(kernel_map, KernelMap.load(onto), scale, progress)
    else:
        reading = Reading(cameras, odometry_topic, reference_topic)
        stamps_ns, known = known_poses(at, tum, bag, reading)
        if at:
            # also where the clock of the map is a simulated one
            stamps_ns = since_first_image(kernel_map, stamps_ns)
        moved, found = align_map(kernel_map, stamps_ns, known, scale)
    _save_aligned(moved, found, out, onto is None)


def _save_aligned(moved: Any, alignment: Any, out: Path, listed: bool) -> None:
    from kbr_localization.localization.mapping.align import lines_of

    save_measured(moved, out)
    if listed:
        console.print_rows('seconds', ('x', 'y', 'missed_m'), _residuals(alignment))
    for line in lines_of(alignment):
        console.note(line)


def known_poses(
    at: Optional[list[str]],
    tum: Optional[Path],
    bag: Optional[Path],
    reading: Reading,
) -> tuple[Any, Any]:
    """Stamps (k,) in nanoseconds and poses (k, 3) of known poses that were given somehow."""
    import numpy as np

    if tum is not None:
        from kbr_localization.evaluation.tum import read_tum

        trajectory = read_tum(tum)
        return trajectory.stamps_ns, trajectory.poses
    if bag is not None:
        fixes = reading.dataset(bag).fixes
        if fixes is None:
            raise KbrError(f'{bag}: expected known poses, of a bag also by --reference-topic')
        return fixes.stamps_ns, fixes.poses
    rows = [_typed(text) for text in at or ()]
    stamps = np.array([row[0] for row in rows], dtype=np.int64)
    return stamps, np.array([[row[1], row[2], np.nan] for row in rows])


def _typed(text: str) -> tuple[int, float, float]:
    """Return the nanoseconds and metres of SECONDS,X,Y; raises KbrError."""
    from kbr_localization.evaluation.tum import FARTHEST_M
    from kbr_localization.trajectory import LATEST_S, parse_seconds

    try:
        seconds, x, y = text.split(',')
        stamp_ns, position = parse_seconds(seconds), (float(x), float(y))
    except ValueError:
        stamp_ns, position = 0, (math.nan, math.nan)
    # a comparison with NaN is false
    if not all(abs(metres) <= FARTHEST_M for metres in position):
        raise KbrError(
            f'--at {text!r:.80}: expected SECONDS,X,Y as in 12.5,3.0,-1.2, seconds in '
            f'[0, {LATEST_S}) and metres of at most {FARTHEST_M:g}'
        )
    return stamp_ns, *position


def _residuals(alignment: Any) -> list[dict[str, Any]]:
    found = zip(alignment.stamps_ns, alignment.known, alignment.residuals, strict=True)
    return [
        {
            'seconds': f'{stamp * 1e-9:.3f}',
            'x': float(pose[0]),
            'y': float(pose[1]),
            'missed_m': float(missed),
        }
        for stamp, pose, missed in found
    ]


def extend(
    map_file: MapFile,
    run: Run,
    *,
    out: Out,
    poses: Annotated[
        Poses, typer.Option(help='Of the run: known ones, or from odometry and the map.')
    ] = Poses.ODOMETRY,
    cameras: Cameras = None,
    odometry_topic: OdometryTopic = None,
    reference_topic: ReferenceTopic = None,
    spacing: Spacing = None,
    jobs: Jobs = None,
) -> None:
    """
    Add another run to a map; what is in the map stays where it is.

    Without known poses the run is joined by its odometry and the places that both show.
    """
    from kbr_localization.localization.map.kernel_map import KernelMap
    from kbr_localization.localization.mapping.extend import extend as extend_map

    kernel_map = KernelMap.load(map_file)
    console.prepare_map(out, map_file, run)
    reading = Reading(cameras, odometry_topic, reference_topic, spacing)
    with open_workers(jobs, None) as workers, terminal_progress() as progress:
        dataset = reading.dataset_for(kernel_map, map_file, run)
        known = poses is Poses.KNOWN
        if known:
            note_frame(kernel_map, map_file, [dataset])
        longer, notes = extend_map(kernel_map, dataset, known, progress, workers)
    save_measured(longer, out)
    console.note_skipped(dataset.skipped)
    for line in notes:
        console.note(line)
    console.note(f'{out}: {len(longer)} images, {len(kernel_map)} of them as they were')
