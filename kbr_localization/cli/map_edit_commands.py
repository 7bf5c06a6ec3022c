"""`kbr map align`, `extend` and `grown`: move a finished map, add images to it."""

import math
from pathlib import Path
from typing import Annotated, Any, Optional

from kbr_localization.cli import console
from kbr_localization.cli.map_commands import measured, save_map
from kbr_localization.cli.options import (
    Jobs,
    MapFile,
    MapOut,
    Poses,
    Reading,
    reads_runs,
    Run,
)
from kbr_localization.errors import KbrError, MapError
from kbr_localization.progress import terminal_progress
from kbr_localization.workers import open_workers
import typer


@reads_runs
def align(
    map_file: MapFile,
    *,
    out: MapOut,
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
    onto: Annotated[
        Optional[Path], typer.Option(help='A map of the same place, to whose frame to move.')
    ] = None,
    scale: Annotated[
        bool, typer.Option('--scale', help='Also take over the metres of the known poses.')
    ] = False,
    reading: Reading,
) -> None:
    """
    Move a map into another frame, by three or more known poses or onto another map.

    The distance between the moved map and each known pose is printed.
    """
    from kbr_localization.localization.map.kernel_map import KernelMap
    from kbr_localization.localization.mapping.align import align as align_map
    from kbr_localization.localization.mapping.align import align_onto, lines_of, since_first_image

    ways = {'--at': at, '--tum': tum, '--bag': bag, '--onto': onto}
    given = [name for name, value in ways.items() if value]
    if len(given) != 1:
        got = ' and '.join(given) or 'none of them'
        raise KbrError(f'expected one of {", ".join(ways)}, got {got}')
    if reading != Reading() and bag is None:
        raise KbrError('options of a bag: expected --bag beside them')
    kernel_map = KernelMap.load(map_file)
    console.prepare_map(out, *(path for path in (map_file, tum, bag, onto) if path))
    if onto is not None:
        with terminal_progress() as progress:
            moved, found = align_onto(kernel_map, KernelMap.load(onto), scale, progress)
    else:
        stamps_ns, known = _known_poses(at, tum, bag, reading)
        if at:
            # the clock of the map may be a simulated one
            stamps_ns = since_first_image(kernel_map, stamps_ns)
        moved, found = align_map(kernel_map, stamps_ns, known, scale)
    save_map(moved, out)
    if onto is None:
        console.show_rows(('seconds', 'x', 'y', 'missed_m'), _residuals(found))
    for line in lines_of(found):
        console.note(line)


def _known_poses(
    at: Optional[list[str]], tum: Optional[Path], bag: Optional[Path], reading: Reading
) -> tuple[Any, Any]:
    """Stamps (k,) in nanoseconds and poses (k, 3); headings of typed positions are NaN."""
    import numpy as np

    if tum is not None:
        from kbr_localization.evaluation.tum import read_tum

        trajectory = read_tum(tum)
        console.note_skipped(trajectory.skipped)
        return trajectory.stamps_ns, trajectory.poses
    if bag is not None:
        fixes = reading.open(bag).fixes
        if fixes is None:
            raise KbrError(f'{bag}: expected known poses, of a bag also by --reference-topic')
        return fixes.stamps_ns, fixes.poses
    rows = [_typed_position(text) for text in at or ()]
    stamps = np.array([row[0] for row in rows], dtype=np.int64)
    return stamps, np.array([[row[1], row[2], np.nan] for row in rows])


def _typed_position(text: str) -> tuple[int, float, float]:
    from kbr_localization.datasets.poses import FARTHEST_M
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


@reads_runs
def extend(
    map_file: MapFile,
    run: Run,
    *,
    out: MapOut,
    poses: Annotated[
        Poses, typer.Option(help='Of the run: known ones, or from odometry and the map.')
    ] = Poses.ODOMETRY,
    jobs: Jobs = None,
    reading: Reading,
) -> None:
    """
    Add another run to a map, whose own images stay where they are.

    Without known poses the run is joined by its odometry and the places that both show.
    """
    from kbr_localization.localization.map.kernel_map import KernelMap
    from kbr_localization.localization.mapping.extend import extend as extend_map

    kernel_map = KernelMap.load(map_file)
    console.prepare_map(out, map_file, run)
    with open_workers(jobs) as workers, terminal_progress() as progress:
        dataset = reading.open_for(kernel_map, map_file, run)
        known = poses is Poses.KNOWN
        longer, notes = extend_map(kernel_map, dataset, known, progress, workers)
    console.note_skipped(dataset.skipped)
    for line in notes:
        console.note(line)
    save_map(longer, out)


def grown(
    map_file: MapFile,
    *,
    merge: Annotated[
        bool, typer.Option('--merge', help='Take the added images into the map for good.')
    ] = False,
    drop: Annotated[
        bool, typer.Option('--drop', help='Delete the file with the added images.')
    ] = False,
    added: Annotated[
        Optional[Path],
        typer.Option(help='The file with them, as out of grow_into; by default MAP_grown.h5.'),
    ] = None,
) -> None:
    """
    Print how many images a node has added to a map; merge or drop them.

    They are in a separate file; the map does not change until they are merged.
    """
    from kbr_localization.localization.map.grow import grown_form, grown_path, GrownFile
    from kbr_localization.localization.map.kernel_map import KernelMap

    if merge and drop:
        raise KbrError('--merge and --drop: expected one of them')
    path, base = added or grown_path(map_file), KernelMap.load(map_file)
    file = GrownFile(path)  # before it is read: a node may add to it meanwhile
    if not path.is_file():
        raise KbrError(f'{path}: no such file: nothing was added to {map_file}; see --added')
    if path.samefile(map_file):
        raise KbrError(f'{path}: is the map itself: expected the file with the added images')
    try:
        whole = grown_form(base, KernelMap.load(path))
    except MapError:
        # a file of that name was written by a node, and a broken one has nothing to lose
        if not (drop and path == grown_path(map_file)):
            raise
        whole = base
    new = len(whole) - len(base)
    if not (merge or drop):
        console.show(str(map_file), {'file': str(path), 'added': new, 'images': len(whole)})
        return
    with file.claimed():
        if merge:
            measured(whole).save(map_file)
        path.unlink()
    done = f'{len(whole)} images, {new} of them added' if merge else 'stays as it is'
    console.note(f'{map_file}: {done}; {path} is deleted')
