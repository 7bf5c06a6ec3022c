"""Runs of public datasets: images with true poses in separate files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
import re
from typing import NamedTuple

from kbr_localization import se2
from kbr_localization.datasets.frame import Dataset, Frame, OdometryTrack, Skipped
from kbr_localization.datasets.images import ImageFile
from kbr_localization.datasets.odometry_noise import made_odometry, odometry_note
from kbr_localization.datasets.tables import (
    checked_rotation,
    FARTHEST_M,
    listed_file,
    load_yaml,
    numbers,
    project_pose,
    quaternion_rotation,
    read_table,
    read_tum_track,
    require,
    stamp_of_nanoseconds,
    y_down,
    Z_FORWARD,
)
from kbr_localization.datasets.tracks import (
    known_pose,
    make_track,
    pause_notes,
    select_images,
    without_jumps,
)
from kbr_localization.errors import DatasetError
from kbr_localization.files import read_text
from kbr_localization.trajectory import parse_seconds
import numpy as np

IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png')
SCENE_IMAGE = '.color.png'
FOLDER_POSES = ('trajectory.tum', 'groundtruth.tum')
TRAVERSE_SETTINGS = 'traverse.yaml'


@dataclass
class Listing:
    """
    What a folder of a public dataset holds.

    `images`: stamps in nanoseconds and files. `reference`: the true poses on the floor.
    `odometry`: None where there is none. `skipped`: what was left out.
    """

    name: str
    images: list[tuple[int, Path]]
    reference: OdometryTrack
    skipped: Skipped
    odometry: OdometryTrack | None = None


class ImageRun(Dataset):
    """
    A run of a public dataset.

    Where it has no odometry one is made from the true poses, with errors that follow from
    `odometry_seed`, and `notes` says so. Images are read when asked for. Raises DatasetError when
    none can be used.
    """

    def __init__(self, listing: Listing, odometry_seed: int = 0) -> None:
        self.name, self.skipped, self._true = listing.name, listing.skipped, listing.reference
        lacking, recorded = 'true poses', listing.reference
        if listing.odometry is None:
            self.notes = (odometry_note(odometry_seed),)
            self.odometry = made_odometry(listing.reference, listing.name, odometry_seed)
        else:
            self.odometry, self.notes = without_jumps(listing.odometry)
            lacking, recorded = 'odometry', self.odometry
        found = sorted(image for image in listing.images if image[1].is_file())
        if not found:
            raise DatasetError(
                f'no images of {self.name}: {len(listing.images)} are listed, the first being '
                f'{listing.images[0][1]}: are the images unpacked?'
            )
        self.skipped.add('listed but missing', number=len(listing.images) - len(found))
        self._files, self.stamps_ns, self._odometry_poses = select_images(
            self.name, found, self.odometry, self.skipped, lacking
        )
        self.notes += pause_notes(recorded, self.stamps_ns)

    @property
    def fixes(self) -> OdometryTrack:
        """Return the true poses at their own stamps."""
        return self._true

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Frame:
        stamp_ns, file = int(self.stamps_ns[index]), self._files[index]
        reference = known_pose(self._true, stamp_ns)
        return Frame(stamp_ns, ImageFile(file), self._odometry_poses[index], reference, file.name)


def _images(
    path: Path, folder: Path, stamp_of: Callable[[str], int], skipped: Skipped
) -> list[tuple[int, Path]]:
    """Read a list of lines of a time and a file in a folder."""

    def parse(words: list[str]) -> tuple[int, Path]:
        if len(words) < 2:
            raise ValueError(f'expected a time and a file, got {words[0][:60]!r}')
        return stamp_of(words[0]), listed_file(folder, ' '.join(words[1:]))

    return [image for image in read_table(path, parse, skipped) if image is not None]


def read_tum_rgbd(path: Path, camera: str | None = None) -> Listing:
    """Read a sequence of TUM RGB-D (Sturm et al., IROS 2012): poses of the camera, z up."""
    skipped = Skipped()
    truth = require(path / 'groundtruth.txt', 'the true poses of a TUM RGB-D sequence')
    images = _images(path / 'rgb.txt', path, parse_seconds, skipped)
    return Listing(path.resolve().name, images, read_tum_track(truth, skipped, Z_FORWARD), skipped)


def euroc_cameras(path: Path) -> list[str]:
    """Folders of the cameras of a EuRoC sequence, or of its part mav0; cam0 first."""
    return sorted(file.parent.name for file in _euroc_root(path).glob('cam*/data.csv'))


def _euroc_root(path: Path) -> Path:
    return path / 'mav0' if (path / 'mav0').is_dir() else path


def read_euroc(path: Path, camera: str | None = None) -> Listing:
    """
    Read a sequence of EuRoC MAV (Burri et al., IJRR 2016), or of TUM VI, laid out the same.

    The poses are of the body in a world with z up; `sensor.yaml` has the camera pose on it.
    """
    root, skipped = _euroc_root(path), Skipped()
    folder = root / (camera or euroc_cameras(path)[0])
    images = _images(folder / 'data.csv', folder / 'data', stamp_of_nanoseconds, skipped)
    places = [root / name / 'data.csv' for name in ('state_groundtruth_estimate0', 'mocap0')]
    truth = next((place for place in places if place.is_file()), places[0])
    require(truth, 'the true poses of a EuRoC sequence')
    on_body = _camera_on_body(require(folder / 'sensor.yaml', 'T_BS, the camera on the body'))

    def parse(words: list[str]) -> tuple[int, se2.FloatArray]:
        x, y, z, qw, qx, qy, qz = numbers(words[1:], 7)
        body = np.array(quaternion_rotation(qx, qy, qz, qw))
        position = np.array([x, y, z]) + body @ on_body[:3, 3]
        pose = project_pose(position, body @ on_body[:3, :3], forward=Z_FORWARD)
        return stamp_of_nanoseconds(words[0]), pose

    track = make_track(read_table(truth, parse, skipped), skipped, 'in data.csv')
    return Listing(root.resolve().parent.name, images, track, skipped)


def _camera_on_body(file: Path) -> se2.FloatArray:
    """Matrix (4, 4) of the camera in the frame of the body."""
    try:
        # OpenCV begins the file with %YAML:1.0
        text = re.sub('^%.*', '', read_text(file, most=1 << 16), flags=re.MULTILINE)
        data = load_yaml(text)['T_BS']['data']
        values = data if len(data) == 16 else [value for row in data for value in row]
        matrix = np.reshape([float(value) for value in values], (4, 4))
        checked_rotation(matrix[:3, :3])
        if not np.all(np.abs(matrix) < FARTHEST_M):
            raise ValueError('not finite')
    except (OSError, ValueError, LookupError, TypeError, DatasetError) as error:
        raise DatasetError(
            f'{file}: expected T_BS with 16 numbers of a pose under data'
        ) from error
    return matrix


def kitti_cameras(path: Path) -> list[str]:
    """Folders of the cameras of a KITTI sequence, image_0 first."""
    return sorted(p.name for p in path.glob('image_[0-9]') if p.is_dir())


def read_kitti(path: Path, camera: str | None = None) -> Listing:
    """
    Read a sequence of KITTI odometry (Geiger et al., CVPR 2012).

    The poses are of the left camera in the axes of its first image. They lie in
    `../../poses/<sequence>.txt`, or as `poses.txt` in the sequence.
    """
    whole, skipped = path.resolve(), Skipped()
    times = require(path / 'times.txt', 'the times of a KITTI sequence, a line for each image')
    places = [whole / 'poses.txt', whole.parent.parent / 'poses' / f'{whole.name}.txt']
    truth = next((place for place in places if place.is_file()), None)
    if truth is None:
        raise DatasetError(
            f'no true poses of {path}: expected poses.txt in it or {places[1]} '
            '(KITTI gives them for sequences 00 to 10)'
        )
    stamps = read_table(times, lambda words: parse_seconds(words[0]), skipped)
    poses = read_table(truth, lambda words: _matrix_pose(numbers(words, 12)), skipped)
    if len(poses) != len(stamps):
        raise DatasetError(
            f'{truth}: expected a pose for each line of {times}, got {len(poses)} poses and '
            f'{len(stamps)} times'
        )
    folder = path / (camera or kitti_cameras(path)[0])
    images, samples = [], []
    for index, (stamp, pose) in enumerate(zip(stamps, poses, strict=True)):
        if stamp is not None:
            images.append((stamp, folder / f'{index:06d}.png'))
            if pose is not None:
                samples.append((stamp, pose))
    if not samples:
        raise DatasetError(f'{truth}: no line with a pose has a time in {times}')
    return Listing(whole.name, images, make_track(samples, skipped, f'in {truth.name}'), skipped)


def _matrix_pose(values: list[float]) -> se2.FloatArray:
    """Pose (3,) of the 12 numbers of [R t] of a camera, in the axes of a level camera."""
    matrix = np.reshape(values, (3, 4))
    return project_pose(matrix[:, 3], checked_rotation(matrix[:, :3]), y_down, Z_FORWARD)


def read_seven_scenes(path: Path, camera: str | None = None) -> Listing:
    """
    Read a sequence of 7-Scenes (Shotton et al., CVPR 2013).

    `frame-XXXXXX.color.png` with `frame-XXXXXX.pose.txt`: camera-to-world matrices, in the axes of
    a level camera. Times follow from the numbers, at 30 images a second.
    """
    images, samples, skipped = [], [], Skipped()
    for file in sorted(path.glob(f'frame-*{SCENE_IMAGE}')):
        number = file.name.removesuffix(SCENE_IMAGE).removeprefix('frame-')
        pose = file.with_name(f'frame-{number}.pose.txt')
        if not number.isdecimal() or len(number) > 9:
            continue
        if not pose.is_file():
            skipped.add('no file of the true pose')
            continue
        stamp_ns = (int(number) + 1) * 10**9 // 30
        images.append((stamp_ns, file))
        try:
            rows = read_table(pose, lambda words: numbers(words, 4), Skipped())
            samples.append((stamp_ns, _matrix_pose([v for row in rows[:3] for v in row or ()])))
        except (ValueError, DatasetError) as error:
            skipped.add('bad pose', f'{pose.name}: expected a matrix of 4 x 4 numbers: {error}')
    if not samples:
        first = skipped.reason('bad pose')
        raise DatasetError(
            f'no poses in {path}: expected frame-XXXXXX.pose.txt for each image'
            + (f', got {first}' if first else '')
        )
    whole = path.resolve()
    track = make_track(samples, skipped, 'of an image')
    return Listing(f'{whole.parent.name}-{whole.name}', images, track, skipped)


def read_image_folder(path: Path, camera: str | None = None) -> Listing:
    """
    Read a folder of images with a trajectory in the TUM format.

    `trajectory.tum` or `groundtruth.tum` has the poses of the robot's base in the map (x ahead, z
    up), `odometry.tum` those in the odometry frame, where there are some. The images lie in the
    folder or in `images/` under their times as names, unless `images.txt` lists `seconds file`.
    """
    truth = next(path / name for name in FOLDER_POSES if (path / name).is_file())
    skipped, file, listed = Skipped(), path / 'odometry.tum', path / 'images.txt'
    reference = read_tum_track(truth, skipped)
    odometry = read_tum_track(file, skipped) if file.is_file() else None
    if listed.is_file():
        images = _images(listed, path, parse_seconds, skipped)
    else:
        images = _images_by_time(path / 'images' if (path / 'images').is_dir() else path, skipped)
    return Listing(path.resolve().name, images, reference, skipped, odometry)


def image_files(path: Path) -> list[Path]:
    """Images of a folder by name; hidden files, as macOS adds to each, are none."""
    files = (file for file in path.iterdir() if not file.name.startswith('.'))
    return sorted(file for file in files if file.suffix.lower() in IMAGE_SUFFIXES)


def _images_by_time(folder: Path, skipped: Skipped) -> list[tuple[int, Path]]:
    images, files = [], image_files(folder)
    for file in files:
        digits = len(file.stem) if file.stem.isdecimal() else None
        try:
            if digits is not None and digits < 9:
                raise ValueError('it is the number of an image')
            whole_ns = digits is not None and digits >= 15
            stamp_ns = (stamp_of_nanoseconds if whole_ns else parse_seconds)(file.stem)
            images.append((stamp_ns, file))
        except ValueError:
            skipped.add('image not named by its time', file.name)
    if not images:
        raise DatasetError(
            f'no images in {folder}: expected {", ".join(IMAGE_SUFFIXES)} named by time, as '
            '1403636579.763555.png or 1403636579763555584.png, or a list images.txt of lines '
            '"seconds file"' + (f'; got {files[0].name}' if files else '')
        )
    return images


def read_traverse(path: Path, spacing: float | None = None) -> Listing:
    """
    Read a folder of images without poses, as benchmarks of place recognition have them.

    Image i of every traverse shows place i, at x = i * `spacing` metres (or `spacing:` of
    `traverse.yaml`), y = 0, heading 0; the camera moves at 1 m/s.
    """
    files = image_files(path)
    metres = _spacing_of(path, len(files)) if spacing is None else spacing
    if not 0.0 < metres <= 1e4:
        raise DatasetError(f'{path}: expected a spacing in (0, 10000] metres, got {metres}')
    places = np.array(_places(files))
    if max(places) * metres > FARTHEST_M:
        raise DatasetError(
            f'{path}: the last image would lie {max(places) * metres:g} m from the first place: '
            'expected names that end with the number of the place, or without numbers'
        )
    stamps = [round((place + 1) * metres * 1e9) for place in places.tolist()]
    poses = np.column_stack([places * metres, np.zeros((len(places), 2))])
    skipped = Skipped()
    track = make_track(zip(stamps, poses, strict=True), skipped, 'of a place')
    return Listing(path.resolve().name, list(zip(stamps, files, strict=True)), track, skipped)


def _places(files: list[Path]) -> list[int]:
    """
    Return the last number in each name, or the order where these are no places.

    They are none where they are not all different, and where the names differ before them: of a
    name that is a time the last number is its milliseconds.
    """
    found = [re.fullmatch(r'(.*?)(?<!\d)(\d{1,9})\D*', file.stem, re.DOTALL) for file in files]
    numbered = [match.groups() for match in found if match]
    places = [int(number) for _, number in numbered]
    if len(set(places)) < len(files) or len({head for head, _ in numbered}) > 1:
        return list(range(len(files)))
    return places


def _spacing_of(path: Path, images: int) -> float:
    file = path / TRAVERSE_SETTINGS
    if not file.is_file():
        raise DatasetError(
            f'{path} holds {images} images without poses: expected --spacing METRES (or a file '
            f'{TRAVERSE_SETTINGS} with "spacing: METRES") if image i shows place i, or a '
            'trajectory.tum beside them'
        )
    try:
        return float(load_yaml(read_text(file, most=1 << 16))['spacing'])
    except (OSError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise DatasetError(f'{file}: expected a line "spacing: METRES"') from error


class PublicFormat(NamedTuple):
    """
    A format with true poses.

    `holds`: whether a folder is in it. `read`: read it with a camera of `cameras`, by default the
    first one; raises DatasetError.
    """

    name: str
    holds: Callable[[Path], bool]
    read: Callable[[Path, str | None], Listing]
    cameras: Callable[[Path], list[str]] = lambda path: []


FORMATS = (
    PublicFormat(
        'a TUM RGB-D sequence (rgb.txt)',
        lambda path: (path / 'rgb.txt').is_file(),
        read_tum_rgbd,
    ),
    PublicFormat(
        'a EuRoC sequence (mav0/cam0)',
        lambda path: bool(euroc_cameras(path)),
        read_euroc,
        euroc_cameras,
    ),
    PublicFormat(
        'a KITTI odometry sequence (image_0)',
        lambda path: bool(kitti_cameras(path)),
        read_kitti,
        kitti_cameras,
    ),
    PublicFormat(
        'a sequence of 7-Scenes (frame-000000.color.png)',
        lambda path: next(path.glob(f'frame-*{SCENE_IMAGE}'), None) is not None,
        read_seven_scenes,
    ),
    PublicFormat(
        f'a folder of images with {" or ".join(FOLDER_POSES)}',
        lambda path: any((path / name).is_file() for name in FOLDER_POSES),
        read_image_folder,
    ),
)
