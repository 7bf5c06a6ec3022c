"""Find out what a path holds and open it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kbr_localization.datasets.cold import CAMERAS, cameras_in, ColdRun
from kbr_localization.datasets.frame import Dataset
from kbr_localization.datasets.multi_camera import camera_names, MultiCameraRun, TOLERANCE
from kbr_localization.datasets.public_formats import (
    FORMATS,
    image_files,
    ImageRun,
    read_traverse,
)
from kbr_localization.errors import DatasetError

BAG_SUFFIXES = ('.mcap', '.db3', '.bag')
BAG_METADATA = 'metadata.yaml'
COLD, BAG, TRAVERSE = 'a COLD run', 'a bag', 'a folder of images (with --spacing)'


def open_dataset(
    path: Path | str,
    cameras: Sequence[str] = (),
    tolerance: float = TOLERANCE,
    odometry_topic: str | None = None,
    reference_topic: str | None = None,
    spacing: float | None = None,
    odometry_seed: int = 0,
    guess: bool = False,
) -> Dataset:
    """
    Open a COLD run, a bag (a folder, or one file of it) or a public dataset's folder.

    `cameras`: which ones, by folders of the run, topics of the bag, or names (`camera_name`);
    with several the images are `MultiImage`s of stamps at most `tolerance` seconds apart. By
    default the only one, or the first, or all that a recorded run has. The topics are for a bag
    that has several. `spacing`: metres between the images of a folder without poses.
    `guess`: take the likeliest topics where that is unclear. `odometry_seed`: of the odometry that
    is made where a run has none (see its `notes`). Raises DatasetError when the path holds no
    run, or not these cameras or topics.
    """
    where = Path(path)
    if not where.exists():
        raise DatasetError(f'no such run: {where}: expected the folder of a run, or a bag')
    kind = _kind_of(where)
    if (odometry_topic or reference_topic) and kind != BAG:
        raise DatasetError(
            f'{where} is {kind}: expected no --odometry-topic or --reference-topic, which '
            'are for bags'
        )
    if spacing is not None and kind != TRAVERSE:
        raise DatasetError(
            f'{where} is {kind}: expected no --spacing, which is for folders of images '
            'without poses'
        )

    def open_one(camera: str | None) -> Dataset:
        if kind == COLD:
            return ColdRun(where, camera)
        if kind == BAG:
            # rosbags is an optional dependency, needed for bags only
            from kbr_localization.datasets.rosbag import BagRun  # noqa: PLC0415

            return BagRun(where, camera, odometry_topic, reference_topic, guess)
        known = next((known for known in FORMATS if known.name == kind), None)
        there = known.cameras(where) if known else []
        if camera is not None and camera not in there:
            raise DatasetError(
                f'{where}: no camera {camera!r}: expected {" or ".join(there) or "no --cameras"}'
            )
        listing = known.read(where, camera) if known else read_traverse(where, spacing)
        return ImageRun(listing, odometry_seed)

    chosen = cameras or (_usual_cameras(where) if kind == COLD else [])
    if len(chosen) < 2:
        return open_one(chosen[0] if chosen else None)
    return MultiCameraRun(camera_names(chosen), [open_one(c) for c in chosen], tolerance)


def _kind_of(path: Path) -> str:
    """Name the kind of run that a path holds; raises DatasetError for none."""
    if kind := _run_kind(path):
        return kind
    if path.is_dir() and image_files(path):
        return TRAVERSE
    inside = sorted(path.iterdir()) if path.is_dir() else ()
    run = next((inner for inner in inside if inner.is_dir() and _run_kind(inner)), None)
    expected = (
        f'a COLD run (a folder that holds {" or ".join(CAMERAS)}), a bag (a folder with '
        f'{BAG_METADATA}, or a file {" or ".join(BAG_SUFFIXES)}), '
        f'{", ".join(known.name for known in FORMATS)} or {TRAVERSE}'
    )
    raise DatasetError(
        f'{path} is no run: expected {f"one of the runs in it, as {run}" if run else expected}'
    )


def _run_kind(path: Path) -> str | None:
    if not path.is_dir():
        return BAG if path.suffix in BAG_SUFFIXES else None
    if cameras_in(path):
        return COLD
    if any(file.name == BAG_METADATA or file.suffix in BAG_SUFFIXES for file in path.iterdir()):
        return BAG
    return next((known.name for known in FORMATS if known.holds(path)), None)


def _usual_cameras(path: Path) -> list[str]:
    """Cameras of a COLD run when none is named: one of COLD's, or all of a recorder's."""
    found = cameras_in(path)
    of_cold = [camera for camera in CAMERAS if camera in found][:1]
    # a recorder that was started without camera topics leaves an empty one
    if of_cold and any((path / of_cold[0]).iterdir()):
        return of_cold
    return [camera for camera in found if camera not in of_cold] or found
