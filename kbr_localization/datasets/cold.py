"""Runs in the format of COLD, the CoSy localization database (Pronobis and Caputo, IJRR 2009)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from kbr_localization import se2
from kbr_localization.datasets.cold_format import (
    format_image_name,
    format_odometry_line,
    ImageName,
    parse_image_name,
    read_odometry,
    read_places,
)
from kbr_localization.datasets.frame import Dataset, Frame, OdometryTrack
from kbr_localization.datasets.image_file import encoded_bytes, ImageFile
from kbr_localization.datasets.odometry_jumps import (
    pause_notes,
    refuse_beginning_over,
    without_jumps,
)
from kbr_localization.datasets.run_folder import (
    leave_out_image,
    new_folder,
    read_notes,
    with_notes,
    WITHOUT_POSES,
    write_notes,
)
from kbr_localization.datasets.selection import make_track, not_covered, select_frames
from kbr_localization.errors import DatasetError
import numpy as np

CAMERAS = ('std_cam', 'omni_cam')
SUFFIX = '_cam'
"""With which the folders of other cameras end as well."""
IMAGE_SUFFIXES = ('.jpeg', '.jpg', '.png')
PLACES = Path('localization', 'places.lst')
ODOMETRY = Path('odom_scans', 'odom.tdf')
DRAWN = 'robot.json'
"""File of a rendered run: its robot, light, route and building."""


class ColdRun(Dataset):
    """
    A run of COLD: images with the reference pose in their names, odometry, place labels.

    The frames are the images of one camera (`std_cam`, `omni_cam` or another `<name>_cam`; by
    default the first that the folder has) in order of time, with the odometry interpolated to
    their stamps. Those of a run that was recorded without poses (`WITHOUT_POSES`) have no
    reference. Images are read when asked for. `skipped` counts by reason what was left out:
    images without odometry, with a bad name, of a stamp that was already there, listed in
    places.lst but missing; bad lines of places.lst and odom.tdf (each is logged with its number).
    Raises DatasetError when the folder is no such run or nothing usable is left.
    """

    def __init__(self, path: Path | str, camera: str | None = None) -> None:
        self.path = Path(path)
        self.name = self.path.resolve().name
        self.skipped: dict[str, int] = {}
        self.notes = read_notes(self.path)
        self._folder = _camera_folder(self.path, camera)
        self._refuse_nothing()
        self.odometry = self._read_odometry()
        self._labels = self._read_labels()
        names = self._read_names()
        self._count('listed in places.lst but missing', len(self._labels.keys() - names.keys()))
        self._select(names)

    def __len__(self) -> int:
        """Count the frames."""
        return len(self._names)

    def __getitem__(self, index: int) -> Frame:
        """Return one frame; its image is read when asked for."""
        name = self._names[index]
        return Frame(
            stamp_ns=int(self.stamps_ns[index]),
            image=ImageFile(self._folder / name),
            odometry=self._odometry_poses[index],
            reference=self._references[index],
            name=name,
            label=self._labels.get(name, ''),
        )

    def _count(self, reason: str, number: int) -> None:
        if number:
            self.skipped[reason] = self.skipped.get(reason, 0) + number

    def _refuse_nothing(self) -> None:
        """Tell a recording during which no image found its pose from a run that is damaged."""
        places = self.path / PLACES
        started = places.is_file() and places.stat().st_size == 0
        if started and not any(self._folder.iterdir()):
            raise DatasetError(
                f'no image was recorded in {self.path}: each needs a pose that is near in time; '
                'the log of the recorder says what did not come'
            )

    def _read_odometry(self) -> OdometryTrack:
        path = self.path / ODOMETRY
        if not path.is_file():
            raise DatasetError(f'no odometry in {self.path}: expected the file {ODOMETRY}')
        lines, bad = read_odometry(path)
        self._count('bad line in odom.tdf', bad)
        stamps = [line.stamp_ns for line in lines]
        # lines that are there twice do no harm
        refuse_beginning_over(f'{path}: the times', list(dict.fromkeys(stamps)))
        track, repeated = make_track(stamps, [line.pose for line in lines])
        self._count('odometry of a repeated stamp', repeated)
        track, notes = without_jumps(track)
        self.notes = with_notes(self.notes, notes)
        return track

    def _read_labels(self) -> dict[str, str]:
        path = self.path / PLACES
        if not path.is_file():
            return {}
        lines, bad = read_places(path)
        self._count('bad line in places.lst', bad)
        return {line.name: line.label for line in lines}

    def _read_names(self) -> dict[str, ImageName]:
        names = {}
        for file in self._folder.iterdir():
            if file.suffix.lower() in IMAGE_SUFFIXES:
                try:
                    names[file.name] = parse_image_name(file.name)
                except ValueError:
                    self._count('bad image name', 1)
        return names

    def _select(self, names: dict[str, ImageName]) -> None:
        """Keep one image per stamp, in order of time, within the span of the odometry."""
        ordered = sorted(names, key=lambda name: (names[name].stamp_ns, name))
        stamps = np.array([names[name].stamp_ns for name in ordered], dtype=np.int64)
        kept, left_out = select_frames(stamps, self.odometry)
        self.skipped |= left_out
        if kept.size == 0:
            raise DatasetError(self._nothing_left(stamps))
        self.stamps_ns = stamps[kept]
        self.notes = with_notes(self.notes, pause_notes(self.odometry, self.stamps_ns))
        self._names = [ordered[index] for index in kept]
        unknown = WITHOUT_POSES in self.notes
        self._references = [None if unknown else names[name].reference for name in self._names]
        self._odometry_poses = se2.interpolate(
            self.odometry.stamps_ns, self.odometry.poses, self.stamps_ns
        )

    def _nothing_left(self, stamps: se2.StampArray) -> str:
        if stamps.size == 0:
            return (
                f'no images in {self._folder}: expected names like '
                f't<sec>.<usec>_x<m>_y<m>_a<rad>.jpeg{_reasons(self.skipped)}'
            )
        return not_covered(str(self._folder), stamps, self.odometry)


def write_cold_run(
    path: Path | str,
    frames: Iterable[Frame],
    odometry: OdometryTrack,
    quality: int = 95,
    notes: Sequence[str] = (),
) -> ColdRun:
    """
    Write a run in COLD's format and open it; its notes go to a file in it.

    The run appears at `path` as a whole or not at all. Images that come as JPEG or PNG are copied
    byte by byte, others are encoded as JPEG of the given quality; those that cannot be read are
    left out, and counted in `skipped` of the run. The odometry is that of the track;
    `frame.odometry` is not written. Stamps are cut to microseconds, as the format has them.
    Raises DatasetError when `path` exists, when no image can be read, or when there is no frame.
    """
    with new_folder(path) as folder:
        places, skipped = _write_images(folder / CAMERAS[0], frames, quality)
        _write_text(folder / PLACES, (f'{name} {label}' for name, label in places.items()))
        track = odometry.recorded or odometry
        lines = zip(track.stamps_ns.tolist(), track.poses, strict=True)
        _write_text(folder / ODOMETRY, (format_odometry_line(*line) for line in lines))
        write_notes(folder, notes)
        ColdRun(folder)
    run = ColdRun(path)
    run.skipped |= skipped
    return run


def _write_images(
    folder: Path, frames: Iterable[Frame], quality: int
) -> tuple[dict[str, str], dict[str, int]]:
    """Write images; returns the labels by name, and how many are left out by reason."""
    folder.mkdir()
    places, skipped, last = dict[str, str](), dict[str, int](), 'give at least one'
    for frame in frames:
        name = format_image_name(frame.stamp_ns, frame.reference)
        if name in places:
            raise DatasetError(f'two frames share the name {name}: expected one per microsecond')
        try:
            data = encoded_bytes(frame.image, frame.name or name, quality)
        except DatasetError as error:
            last = str(error)
            leave_out_image(skipped, name, error)
            continue
        (folder / name).write_bytes(data)
        places[name] = '_'.join(frame.label.split()) or 'unknown'
    if not places:
        raise DatasetError(f'cannot write a run without images: {last}')
    return places, skipped


def _write_text(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(''.join(f'{line}\n' for line in lines), encoding='utf-8')


def _camera_folder(path: Path, camera: str | None) -> Path:
    if not path.is_dir():
        raise DatasetError(f'no such folder: {path}: expected a COLD run with a folder std_cam')
    wanted = (*CAMERAS, *cameras_in(path)) if camera is None else (folder_of(camera),)
    for name in wanted:
        if (path / name).is_dir():
            return path / name
    others = ', '.join(cameras_in(path)) or 'none'
    expected = CAMERAS if camera is None else wanted
    raise DatasetError(
        f'no images in {path}: expected a folder {" or ".join(expected)}; cameras: {others}'
    )


def cameras_in(path: Path) -> list[str]:
    """Names of the folders of cameras of a run."""
    return sorted(p.name for p in path.iterdir() if p.is_dir() and p.name.endswith(SUFFIX))


def folder_of(camera: str) -> str:
    """Name of the folder of a camera, which may be called by it or without its ending."""
    return camera if camera.endswith(SUFFIX) else camera + SUFFIX


def _reasons(skipped: dict[str, int]) -> str:
    return f' ({", ".join(f"{n} {reason}" for reason, n in skipped.items())})' if skipped else ''
