"""Read, write and record runs in the format of COLD (Pronobis and Caputo, IJRR 2009)."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
import errno
import math
import os
from pathlib import Path
import re
import weakref

from kbr_localization.datasets import run_folder
from kbr_localization.datasets.frame import Dataset, Frame, OdometryTrack, Skipped
from kbr_localization.datasets.images import encoded_bytes, image_files, ImageFile
from kbr_localization.datasets.tables import MAX_COORDINATE, read_table, read_track
from kbr_localization.datasets.tracks import make_run, make_track, refuse_repeated_times
from kbr_localization.errors import DatasetError
from kbr_localization.files import lock_file
from kbr_localization.se2 import FloatArray, wrap_angle
from kbr_localization.trajectory import parse_seconds
import numpy as np

CAMERA_FOLDERS = ('std_cam', 'omni_cam')
CAMERA_SUFFIX = '_cam'
"""End of the folder name of any camera."""
PLACES_FILE = Path('localization', 'places.lst')
POSES_FILE = Path('localization', 'poses.tum')
"""Known poses of a recorded run; COLD has them in the names of images."""
ODOMETRY_FILE = Path('odom_scans', 'odom.tdf')
RENDERING_FILE = 'robot.json'
"""Robot, light, route and building of a rendered run."""
PART_SUFFIX = '.part'
"""End of the name of an incomplete image."""
MAX_WAITING_LINES = 100_000
"""Lines kept in memory for each file while the disk is full; more are dropped."""

_NUMBER = r'([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)'
_IMAGE_NAME = re.compile(
    rf't(\d+)(?:\.(\d{{1,9}}))?(?:_x{_NUMBER}_y{_NUMBER}_a{_NUMBER})?\.(?:jpe?g|png)',
    re.IGNORECASE | re.ASCII,
)


def parse_image_name(name: str) -> tuple[int, FloatArray | None]:
    """Parse `t<sec>.<usec>[_x<m>_y<m>_a<rad>].jpeg` as stamp in ns and pose; raises ValueError."""
    match = _IMAGE_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f'expected t<sec>.<usec>_x<m>_y<m>_a<rad>.jpeg, got {name[:80]!r}')
    seconds, fraction, *pose = match.groups()
    stamp_ns = parse_seconds(f'{seconds}.{fraction or 0}')
    return stamp_ns, None if pose[0] is None else _pose(*map(float, pose))


def format_image_name(stamp_ns: int, reference: FloatArray | None) -> str:
    """Format the name of an image as in COLD: microseconds; metres, radians with 7 decimals."""
    stamp = f't{stamp_ns // 10**9}.{stamp_ns % 10**9 // 1000:06d}'
    if reference is None:
        return f'{stamp}.jpeg'
    x, y, angle = reference
    return f'{stamp}_x{x:.7f}_y{y:.7f}_a{angle:.7f}.jpeg'


def parse_odometry(words: Sequence[str]) -> tuple[int, FloatArray]:
    """Parse a line of odom.tdf, whose microseconds have no leading zeros; raises ValueError."""
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
    return parse_seconds(f'{seconds}.{microseconds:06d}'), _pose(x, y, theta)


def format_odometry(stamp_ns: int, pose: FloatArray) -> str:
    x, y, theta = pose
    seconds, microseconds = stamp_ns // 10**9, stamp_ns % 10**9 // 1000
    angle = theta % (2 * math.pi)
    return f'0 0 0 {seconds} {microseconds} 2 0 6 {x:.6f} {y:.6f} 0.000000 {angle:.6f} 0 0\n'


def _pose(x: float, y: float, angle: float) -> FloatArray:
    # NaN fails every comparison
    if not all(abs(value) <= MAX_COORDINATE for value in (x, y, angle)):
        raise ValueError(f'expected a finite pose, got x {x}, y {y}, angle {angle}')
    return np.array([x, y, float(wrap_angle(angle))])


def read_cold(folder: Path) -> Dataset:
    """Read a run from the folder of one camera; raises DatasetError if no image can be used."""
    path, skipped = folder.parent, Skipped()
    places, poses = path / PLACES_FILE, path / POSES_FILE
    if not any(folder.iterdir()) and places.is_file() and not places.stat().st_size:
        raise DatasetError(
            f'no image was recorded in {path}: each needs odometry of the same time; the log of '
            'the recorder says which input was missing'
        )
    if not (path / ODOMETRY_FILE).is_file():
        raise DatasetError(f'no odometry in {path}: expected the file {ODOMETRY_FILE}')
    samples = [line for line in read_table(path / ODOMETRY_FILE, parse_odometry, skipped) if line]
    stamps = list(dict.fromkeys(stamp for stamp, _ in samples))  # equal stamps are allowed
    refuse_repeated_times(f'{path / ODOMETRY_FILE}: the times', stamps)
    odometry = make_track(samples, skipped, f'in {ODOMETRY_FILE.name}')
    images = list[Frame]()
    for file in image_files(folder):
        try:
            stamp_ns, pose = parse_image_name(file.name)
        except ValueError as error:
            skipped.add('bad image name', error)
            continue
        images.append(Frame(stamp_ns, ImageFile(file), reference=pose, name=file.name))
    if not images:
        raise DatasetError(
            f'no images in {folder}: expected names like t<sec>.<usec>_x<m>_y<m>_a<rad>.jpeg'
            + ''.join(f', {count} {reason}' for reason, count in skipped.items())
        )
    has_poses = poses.is_file() and poses.stat().st_size > 0
    known = read_track(poses, skipped) if has_poses else None
    notes = run_folder.read_notes(path)
    return make_run(path.resolve().name, images, odometry, skipped, known, notes)


def write_cold_run(
    path: Path | str,
    frames: Iterable[Frame],
    odometry: OdometryTrack,
    notes: Sequence[str] = (),
    quality: int = 95,
) -> dict[str, int]:
    """
    Write a run in the format of COLD, which appears only when it is complete.

    JPEG and PNG files are copied, other images are encoded as JPEG of a `quality`. Stamps are
    truncated to microseconds. Returns counts of what is left out, by reason. Raises DatasetError
    when `path` exists, and when there is no frame or no image can be read.
    """
    skipped, last = Skipped(), 'give at least one'
    with run_folder.new_folder(path) as folder:
        recording = ColdRecording(folder)
        for frame in frames:
            name = format_image_name(frame.stamp_ns, frame.reference)
            if (folder / CAMERA_FOLDERS[0] / name).exists():
                raise DatasetError(f'two frames are called {name}: expected one per microsecond')
            try:
                data = encoded_bytes(frame.image, frame.name or name, quality)
            except DatasetError as error:
                last = str(error)
                run_folder.count_broken_image(skipped, name, error)
                continue
            recording.append_image(frame.stamp_ns, [data], pose=frame.reference)
        if not recording.count:
            raise DatasetError(f'cannot write a run without images: {last}')
        track = odometry.recorded or odometry
        lines = map(format_odometry, track.stamps_ns.tolist(), track.poses)
        recording.add(ODOMETRY_FILE, ''.join(lines))
        recording.close()
        run_folder.write_notes(folder, notes)
        return read_cold(folder / CAMERA_FOLDERS[0]).skipped | skipped


class ColdRecording:
    """
    Append images, odometry and known poses to a new or existing run folder of some cameras.

    Images appear when they are complete. If the process is killed, the image being written and the
    lines that wait for `write` are lost. If the disk is full, incomplete data are removed, and
    lines wait for the next `write`. `count`: images of the run. `last_image_ns`,
    `last_odometry_ns`: latest stamps, 0 if there is none. Raises DatasetError when the folder
    holds something else, cannot be written, or is in use by another recorder.
    """

    def __init__(self, path: Path | str, *cameras: str) -> None:
        self.path = Path(path)
        self.cameras = tuple(f'{camera}{CAMERA_SUFFIX}' for camera in cameras or ['std'])
        tables = (ODOMETRY_FILE, POSES_FILE, PLACES_FILE)
        self._lines = {table: list[str]() for table in tables}
        places, odometry = self.path / PLACES_FILE, self.path / ODOMETRY_FILE
        if self.path.exists() and not self.path.is_dir():
            raise DatasetError(f'{self.path} is a file: expected a folder to record into')
        own = {PLACES_FILE.parts[0], ODOMETRY_FILE.parts[0], run_folder.NOTES, RENDERING_FILE}
        with self._as_dataset_errors():
            found = sorted(self.path.iterdir()) if self.path.is_dir() else []
            others = [file for file in found if file.name not in own]
            held = [file.name for file in others if not file.is_dir() or any(file.iterdir())]
            if held and set(held) != set(self.cameras):
                raise DatasetError(
                    f'{self.path} holds {", ".join(map(repr, held))}: give a new folder, or a run '
                    f'that holds only {", ".join(self.cameras)} to continue'
                )
            folders = [self.path / camera for camera in self.cameras]
            for folder in (*folders, places.parent, odometry.parent):
                folder.mkdir(parents=True, exist_ok=True)
            locked = places.open('ab')
            self._release = weakref.finalize(self, locked.close)
            in_use = f'{self.path} is in use by another recorder: stop it, or give another folder'
            lock_file(locked, DatasetError(in_use))
            for table in tables:
                _remove_unfinished_line(self.path / table)
            for folder in folders:
                for incomplete in folder.glob(f'*{PART_SUFFIX}'):
                    incomplete.unlink()
            images = list[int]()
            for file in folders[0].iterdir():
                with suppress(ValueError):
                    images.append(parse_image_name(file.name)[0])
            recorded = odometry.is_file() and odometry.stat().st_size > 0
            lines = read_table(odometry, parse_odometry, Skipped()) if recorded else []
        self.count, self.last_image_ns = len(images), max(images, default=0)
        self.last_odometry_ns = max((line[0] for line in lines if line is not None), default=0)

    def add(self, table: Path, line: str) -> None:
        """Add a line of a file for the next `write`; drop it if too many wait for a full disk."""
        if len(self._lines[table]) < MAX_WAITING_LINES:
            self._lines[table].append(line)

    def append_image(
        self,
        stamp_ns: int,
        encoded: Sequence[bytes],
        label: str = 'unknown',
        pose: FloatArray | None = None,
    ) -> None:
        """
        Write the waiting lines and JPEG or PNG bytes of each camera; raises DatasetError.

        `label`: class of the place. `pose`: (3,), becomes part of the name.
        """
        self.write()
        name = format_image_name(stamp_ns, pose)
        with self._as_dataset_errors():
            for camera, data in zip(self.cameras, encoded, strict=True):
                part = self.path / camera / (name + PART_SUFFIX)
                try:
                    part.write_bytes(data)
                    part.rename(self.path / camera / name)
                finally:
                    part.unlink(missing_ok=True)
        self.count, self.last_image_ns = self.count + 1, stamp_ns
        self.add(PLACES_FILE, f'{name} {"_".join(label.split()) or "unknown"}\n')

    def write(self) -> None:
        """Write the waiting lines, of each file all or none; raises DatasetError."""
        for table, lines in self._lines.items():
            count = len(lines)  # another thread may add more meanwhile
            if count:
                with self._as_dataset_errors():
                    _append(self.path / table, ''.join(lines[:count]))
                del lines[:count]

    def close(self) -> None:
        """Write the waiting lines and unlock the folder; raises DatasetError."""
        try:
            self.write()
        finally:
            self._release()

    @contextmanager
    def _as_dataset_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            remedy = ''
            if isinstance(error, (FileNotFoundError, NotADirectoryError)):
                remedy = 'it was moved or removed: put it back, or '
            elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                remedy = 'free some space, or '
            raise DatasetError(
                f'cannot record into {self.path}: {error.strerror or error}: {remedy}choose '
                'another folder'
            ) from error


def _append(path: Path, text: str) -> None:
    """Append a text to a file; after an error the file is unchanged."""
    end = path.stat().st_size if path.exists() else 0
    try:
        with path.open('ab') as file:
            file.write(text.encode())
    except OSError:
        with suppress(OSError):
            os.truncate(path, end)
        raise


def _remove_unfinished_line(path: Path) -> None:
    """Remove an incomplete last line, as a power cut leaves it."""
    if path.is_file():
        content = path.read_bytes()
        if not content.endswith(b'\n'):
            os.truncate(path, content.rfind(b'\n') + 1)
