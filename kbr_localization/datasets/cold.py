"""Runs in the format of COLD, the CoSy localization database (Pronobis and Caputo, IJRR 2009)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import math
from pathlib import Path
import re
from typing import NamedTuple

from kbr_localization.datasets.frame import Dataset, Frame, OdometryTrack, Skipped
from kbr_localization.datasets.images import encoded_bytes, ImageFile
from kbr_localization.datasets.run_folder import (
    leave_out_image,
    new_folder,
    read_notes,
    with_notes,
    WITHOUT_POSES,
    write_notes,
)
from kbr_localization.datasets.tables import FARTHEST_M, read_table
from kbr_localization.datasets.tracks import (
    make_track,
    pause_notes,
    refuse_repeated_times,
    select_images,
    without_jumps,
)
from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray, wrap_angle
from kbr_localization.trajectory import LATEST_S
import numpy as np

CAMERAS = ('std_cam', 'omni_cam')
SUFFIX = '_cam'
"""Ending of the folders of other cameras, too."""
IMAGE_SUFFIXES = ('.jpeg', '.jpg', '.png')
PLACES = Path('localization', 'places.lst')
ODOMETRY = Path('odom_scans', 'odom.tdf')
DRAWN = 'robot.json'
"""File of a rendered run: its robot, light, route and building."""

_NUMBER = r'([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)'
_IMAGE_NAME = re.compile(
    rf't(\d+)(?:\.(\d{{1,9}}))?(?:_x{_NUMBER}_y{_NUMBER}_a{_NUMBER})?\.(?:jpe?g|png)',
    re.IGNORECASE | re.ASCII,
)


class ImageName(NamedTuple):
    """Stamp in nanoseconds and reference pose (3,), or None, of the name of an image."""

    stamp_ns: int
    reference: FloatArray | None


class OdometryLine(NamedTuple):
    """Stamp in nanoseconds and pose (3,) in the odometry frame."""

    stamp_ns: int
    pose: FloatArray


def parse_image_name(name: str) -> ImageName:
    """
    Parse `t<seconds>.<fraction>_x<m>_y<m>_a<rad>.jpeg`; the pose may be missing.

    Raises ValueError for any other name.
    """
    match = _IMAGE_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f'expected t<sec>.<usec>_x<m>_y<m>_a<rad>.jpeg, got {name[:80]!r}')
    seconds, fraction, *pose = match.groups()
    stamp_ns = _stamp_ns(int(seconds), int((fraction or '0').ljust(9, '0')))
    return ImageName(stamp_ns, None if pose[0] is None else _pose(*map(float, pose)))


def format_image_name(stamp_ns: int, reference: FloatArray | None) -> str:
    """Name an image as COLD does: microseconds, metres and radians with seven decimals."""
    stamp = f't{stamp_ns // 10**9}.{stamp_ns % 10**9 // 1000:06d}'
    if reference is None:
        return f'{stamp}.jpeg'
    x, y, angle = reference
    return f'{stamp}_x{x:.7f}_y{y:.7f}_a{angle:.7f}.jpeg'


def parse_place(words: Sequence[str]) -> tuple[str, str]:
    """Image name and label of a line of places.lst; raises ValueError for any other line."""
    if len(words) != 2:
        raise ValueError(f'expected <image name> <label>, got {" ".join(words)[:80]!r}')
    parse_image_name(words[0])
    return words[0], words[1]


def parse_odometry(words: Sequence[str]) -> OdometryLine:
    """
    Parse `0 0 0 <sec> <usec> 2 0 6 <x> <y> <z> <theta> 0 0`; raises ValueError otherwise.

    The microseconds are not padded with zeros, and theta is in [0, 2 pi).
    """
    try:
        if len(words) != 14:
            raise ValueError
        seconds, microseconds = int(words[3]), int(words[4])
        x, y, theta = (float(words[index]) for index in (8, 9, 11))
    except ValueError as error:
        form = '0 0 0 <sec> <usec> 2 0 6 <x> <y> <z> <theta> 0 0'
        raise ValueError(f'expected {form}, got {" ".join(words)[:80]!r}') from error
    if not 0 <= microseconds < 10**6:
        raise ValueError(f'expected microseconds in [0, 999999], got {microseconds}')
    return OdometryLine(_stamp_ns(seconds, microseconds * 1000), _pose(x, y, theta))


def format_odometry(stamp_ns: int, pose: FloatArray) -> str:
    """Write one line of odom.tdf, with its end."""
    x, y, theta = pose
    seconds, microseconds = stamp_ns // 10**9, stamp_ns % 10**9 // 1000
    # six decimals of anything up to 2 pi stay below 2 pi
    turned = theta % (2 * math.pi)
    return f'0 0 0 {seconds} {microseconds} 2 0 6 {x:.6f} {y:.6f} 0.000000 {turned:.6f} 0 0\n'


def _stamp_ns(seconds: int, nanoseconds: int) -> int:
    if not 0 <= seconds < LATEST_S:
        raise ValueError(f'expected seconds in [0, {LATEST_S}), got {seconds}')
    return seconds * 10**9 + nanoseconds


def _pose(x: float, y: float, angle: float) -> FloatArray:
    # a comparison with NaN is false
    if not (abs(x) <= FARTHEST_M and abs(y) <= FARTHEST_M and abs(angle) <= FARTHEST_M):
        raise ValueError(f'expected a finite pose, got x {x}, y {y}, angle {angle}')
    return np.array([x, y, float(wrap_angle(angle))])


class ColdRun(Dataset):
    """
    A run of COLD: images with the reference pose in their names, odometry, place labels.

    The frames are the images of one camera (`std_cam`, `omni_cam` or another `<name>_cam`; by
    default the first that the folder has), with the odometry interpolated to their stamps. Images
    of a run that was recorded without poses (`WITHOUT_POSES`) have no reference. Images are read
    when asked for. Raises DatasetError when the folder is no such run or nothing usable is left.
    """

    def __init__(self, path: Path | str, camera: str | None = None) -> None:
        self.path = Path(path)
        self.name = self.path.resolve().name
        self.skipped = Skipped()
        self._folder = _camera_folder(self.path, camera)
        files, places = sorted(self._folder.iterdir()), self.path / PLACES
        if not files and places.is_file() and not places.stat().st_size:
            raise DatasetError(
                f'no image was recorded in {self.path}: each needs a pose that is near in time; '
                'the log of the recorder says what did not come'
            )
        self.odometry, notes = self._read_odometry()
        lines = read_table(places, parse_place, self.skipped) if places.is_file() else []
        self._labels = dict(line for line in lines if line is not None)
        self._named = self._parse_names(files)
        missing = len(self._labels.keys() - self._named.keys())
        self.skipped.add('listed in places.lst but missing', number=missing)
        if not self._named:
            raise DatasetError(
                f'no images in {self._folder}: expected names like '
                f't<sec>.<usec>_x<m>_y<m>_a<rad>.jpeg'
                + ''.join(f', {count} {reason}' for reason, count in self.skipped.items())
            )
        images = [(image.stamp_ns, name) for name, image in self._named.items()]
        self._names, self.stamps_ns, self._odometry_poses = select_images(
            str(self._folder), images, self.odometry, self.skipped
        )
        notes += pause_notes(self.odometry, self.stamps_ns)
        self.notes = with_notes(read_notes(self.path), notes)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Frame:
        name = self._names[index]
        return Frame(
            stamp_ns=int(self.stamps_ns[index]),
            image=ImageFile(self._folder / name),
            odometry=self._odometry_poses[index],
            reference=None if WITHOUT_POSES in self.notes else self._named[name].reference,
            name=name,
            label=self._labels.get(name, ''),
        )

    def _read_odometry(self) -> tuple[OdometryTrack, tuple[str, ...]]:
        path = self.path / ODOMETRY
        if not path.is_file():
            raise DatasetError(f'no odometry in {self.path}: expected the file {ODOMETRY}')
        lines = read_table(path, parse_odometry, self.skipped)
        # identical stamps do no harm
        stamps = list(dict.fromkeys(line.stamp_ns for line in lines if line))
        refuse_repeated_times(f'{path}: the times', stamps)
        return without_jumps(make_track(lines, self.skipped, f'in {ODOMETRY.name}'))

    def _parse_names(self, files: Sequence[Path]) -> dict[str, ImageName]:
        names = {}
        for file in files:
            if file.suffix.lower() in IMAGE_SUFFIXES:
                try:
                    names[file.name] = parse_image_name(file.name)
                except ValueError as error:
                    self.skipped.add('bad image name', error)
        return names


def write_cold_run(
    path: Path | str, frames: Iterable[Frame], odometry: OdometryTrack, notes: Sequence[str] = ()
) -> ColdRun:
    """
    Write a run in COLD's format, as a whole or not at all, and open it.

    JPEG and PNG files are copied byte by byte, other images are encoded as JPEG; those that cannot
    be read are left out and counted in `skipped` of the run. Stamps are cut to microseconds, as
    the format has them. Raises DatasetError when `path` exists, when no image can be read, or when
    there is no frame.
    """
    with new_folder(path) as folder:
        skipped = fill_cold_run(folder, frames, odometry)
        write_notes(folder, notes)
        ColdRun(folder)
    run = ColdRun(path)
    run.skipped |= skipped
    return run


def fill_cold_run(
    folder: Path, frames: Iterable[Frame], odometry: OdometryTrack, quality: int = 95
) -> Skipped:
    """Write the files of a run to an empty folder; raises DatasetError and OSError."""
    skipped, places, last = Skipped(), dict[str, str](), 'give at least one'
    for file in (folder / CAMERAS[0], folder / PLACES.parent, folder / ODOMETRY.parent):
        file.mkdir()
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
        (folder / CAMERAS[0] / name).write_bytes(data)
        places[name] = label_word(frame.label)
    if not places:
        raise DatasetError(f'cannot write a run without images: {last}')
    lines = (f'{name} {label}\n' for name, label in places.items())
    (folder / PLACES).write_text(''.join(lines), encoding='utf-8')
    track = odometry.recorded or odometry
    samples = map(format_odometry, track.stamps_ns.tolist(), track.poses)
    (folder / ODOMETRY).write_text(''.join(samples), encoding='utf-8')
    return skipped


def label_word(label: str) -> str:
    """Return a label as places.lst has it: without blanks, never empty."""
    return '_'.join(label.split()) or 'unknown'


def _camera_folder(path: Path, camera: str | None) -> Path:
    if not path.is_dir():
        raise DatasetError(f'no such folder: {path}: expected a COLD run with a folder std_cam')
    there = cameras_in(path)
    wanted = (*CAMERAS, *there) if camera is None else (folder_of(camera),)
    for name in wanted:
        if name in there:
            return path / name
    expected = CAMERAS if camera is None else wanted
    raise DatasetError(
        f'no images in {path}: expected a folder {" or ".join(expected)}; '
        f'cameras: {", ".join(there) or "none"}'
    )


def cameras_in(path: Path) -> list[str]:
    """Names of the folders of cameras of a run."""
    return sorted(p.name for p in path.iterdir() if p.is_dir() and p.name.endswith(SUFFIX))


def folder_of(camera: str) -> str:
    """Name of the folder of a camera, which may be given with or without its ending."""
    return camera if camera.endswith(SUFFIX) else camera + SUFFIX
