"""Read public datasets: images, with true poses in separate files."""

from collections.abc import Callable
from pathlib import Path
import re
from typing import Any, NamedTuple

from kbr_localization import se2
from kbr_localization.datasets import tables
from kbr_localization.datasets.frame import Dataset, Frame, OdometryTrack, Skipped
from kbr_localization.datasets.images import image_files, IMAGE_SUFFIXES, ImageFile
from kbr_localization.datasets.odometry_noise import synthetic_odometry
from kbr_localization.datasets.tables import Z_FORWARD
from kbr_localization.datasets.tracks import make_run, make_track
from kbr_localization.errors import DatasetError
from kbr_localization.files import read_text
from kbr_localization.trajectory import parse_seconds
import numpy as np

SCENE_IMAGE = '.color.png'
FOLDER_POSES = ('trajectory.tum', 'groundtruth.tum')
TRAVERSE_SETTINGS = 'traverse.yaml'


class Listing(NamedTuple):
    """Stamps in ns and files of images of a public dataset, and true poses on the floor."""

    name: str
    images: list[tuple[int, Path]]
    reference: OdometryTrack
    odometry: OdometryTrack | None = None

    def run(self, skipped: Skipped, odometry_seed: int) -> Dataset:
        """Return the run, with synthetic odometry if it has none; raises DatasetError."""
        frames = [
            Frame(stamp_ns, ImageFile(file), name=file.name)
            for stamp_ns, file in self.images
            if file.is_file()
        ]
        if not frames:
            raise DatasetError(
                f'no images of {self.name}: {len(self.images)} are listed, the first being '
                f'{self.images[0][1]}: are the images unpacked?'
            )
        skipped.add('listed but missing', count=len(self.images) - len(frames))
        if self.odometry:
            return make_run(self.name, frames, self.odometry, skipped, self.reference)
        notes = [
            'odometry made from the true poses, with errors as large as on COLD '
            f'(seed {odometry_seed}): the run has no odometry'
        ]
        odometry = synthetic_odometry(self.reference, self.name, odometry_seed)
        return make_run(self.name, frames, odometry, skipped, self.reference, notes, True)


def _listed_images(
    file: Path, folder: Path, stamp_of: Callable[[str], int], skipped: Skipped
) -> list[tuple[int, Path]]:

    def parse(words: list[str]) -> tuple[int, Path]:
        name = Path(' '.join(words[1:]))
        if len(words) < 2 or name.is_absolute() or '..' in name.parts:
            raise ValueError(
                f'expected a time and a file in {folder}, got {" ".join(words)[:80]!r}'
            )
        return stamp_of(words[0]), folder / name

    return [image for image in tables.read_table(file, parse, skipped) if image is not None]


def read_tum_rgbd(path: Path, skipped: Skipped) -> Listing:
    """Read a sequence of TUM RGB-D (Sturm et al., IROS 2012): poses of the camera, z up."""
    truth = tables.require(path / 'groundtruth.txt', 'the true poses of a TUM RGB-D sequence')
    images = _listed_images(path / 'rgb.txt', path, parse_seconds, skipped)
    return Listing(path.resolve().name, images, tables.read_track(truth, skipped, Z_FORWARD))


def read_euroc(folder: Path, skipped: Skipped) -> Listing:
    """Read a sequence of EuRoC MAV (Burri et al., IJRR 2016), or of TUM VI."""
    root, parse_stamp = folder.parent, tables.stamp_of_nanoseconds
    images = _listed_images(folder / 'data.csv', folder / 'data', parse_stamp, skipped)
    places = [root / name / 'data.csv' for name in ('state_groundtruth_estimate0', 'mocap0')]
    truth = next((place for place in places if place.is_file()), places[0])
    tables.require(truth, 'the true poses of a EuRoC sequence')
    sensor = tables.require(folder / 'sensor.yaml', 'T_BS, the camera on the body')
    expected = 'T_BS with 16 numbers of a pose under data'
    on_body = tables.read_setting(sensor, _camera_pose, expected)

    def parse(words: list[str]) -> tuple[int, se2.FloatArray]:
        # velocities follow
        x, y, z, qw, qx, qy, qz = tables.parse_numbers(words[1:8], 7)
        body = np.array(tables.quaternion_rotation(qx, qy, qz, qw))
        position = [x, y, z] + body @ on_body[:3, 3]
        pose = tables.project_pose(position, body @ on_body[:3, :3], Z_FORWARD)
        return parse_stamp(words[0]), pose

    track = tables.read_poses(truth, parse, skipped)
    return Listing(root.resolve().parent.name, images, track)


def _camera_pose(settings: Any) -> se2.FloatArray:
    # float refuses nested lists, which aliases of YAML could make huge
    matrix = np.reshape([float(number) for number in settings['T_BS']['data']], (4, 4))
    tables.check_rotation(matrix[:3, :3])
    if not np.all(np.abs(matrix) < tables.MAX_COORDINATE):
        raise DatasetError('expected finite numbers')
    return matrix


def read_kitti(folder: Path, skipped: Skipped) -> Listing:
    """Read a sequence of KITTI odometry (Geiger et al., CVPR 2012): poses of its left camera."""
    path, whole = folder.parent, folder.parent.resolve()
    times = tables.require(
        path / 'times.txt', 'the times of a KITTI sequence, a line for each image'
    )
    truth = whole / 'poses.txt'
    if not truth.is_file():
        truth = whole.parent.parent / 'poses' / f'{whole.name}.txt'
    tables.require(
        truth, f'the true poses, or poses.txt in {path} (KITTI gives them for sequences 00 to 10)'
    )
    stamps = tables.read_table(times, lambda words: parse_seconds(words[0]), skipped)
    poses = tables.read_table(truth, _matrix_pose, skipped)
    if len(poses) != len(stamps):
        raise DatasetError(
            f'{truth}: expected a pose for each line of {times}, got {len(poses)} poses and '
            f'{len(stamps)} times'
        )
    pairs = zip(stamps, poses, strict=True)
    samples = [(stamp, pose) for stamp, pose in pairs if stamp is not None and pose is not None]
    if not samples:
        raise DatasetError(f'{truth}: no line with a pose has a time in {times}')
    images = [
        (stamp, folder / f'{index:06d}.png')
        for index, stamp in enumerate(stamps)
        if stamp is not None
    ]
    return Listing(whole.name, images, make_track(samples, skipped, f'in {truth.name}'))


def _matrix_pose(words: list[str]) -> se2.FloatArray:
    """Return the pose (3,) of [R t] in 12 numbers, in a world with the axes of a level camera."""
    matrix = np.reshape(tables.parse_numbers(words[:12], 12), (3, 4))
    tables.check_rotation(matrix[:, :3])
    position, rotation = tables.LEVEL_CAMERA @ matrix[:, 3], tables.LEVEL_CAMERA @ matrix[:, :3]
    return tables.project_pose(position, rotation, Z_FORWARD)


def read_seven_scenes(path: Path, skipped: Skipped) -> Listing:
    """Read a sequence of 7-Scenes (Shotton et al., CVPR 2013), at 30 images a second."""
    images, samples = [], []
    for file in sorted(path.glob(f'frame-*{SCENE_IMAGE}')):
        number = file.name.removesuffix(SCENE_IMAGE).removeprefix('frame-')
        if not number.isdecimal() or len(number) > 9:
            continue
        pose = file.with_name(f'frame-{number}.pose.txt')
        if not pose.is_file():
            skipped.add('no file of the true pose')
            continue
        stamp_ns = (int(number) + 1) * 10**9 // 30
        images.append((stamp_ns, file))
        try:
            samples.append((stamp_ns, _matrix_pose(read_text(pose, errors='replace').split())))
        except (OSError, ValueError, DatasetError) as error:
            skipped.add('bad pose', f'{pose.name}: {error}')
    if not samples:
        first = skipped.reason('bad pose')
        raise DatasetError(
            f'no poses in {path}: expected frame-XXXXXX.pose.txt for each image'
            + (f', got {first}' if first else '')
        )
    whole = path.resolve()
    track = make_track(samples, skipped, 'of an image')
    return Listing(f'{whole.parent.name}-{whole.name}', images, track)


def read_image_folder(path: Path, skipped: Skipped) -> Listing:
    """Read a folder of images with poses of the base, x ahead and z up, in TUM files."""
    truth = next(path / name for name in FOLDER_POSES if (path / name).is_file())
    odometry, listed, images = path / 'odometry.tum', path / 'images.txt', path / 'images'
    return Listing(
        path.resolve().name,
        _listed_images(listed, path, parse_seconds, skipped)
        if listed.is_file()
        else _images_by_time(images if images.is_dir() else path, skipped),
        tables.read_track(truth, skipped),
        tables.read_track(odometry, skipped) if odometry.is_file() else None,
    )


def _images_by_time(folder: Path, skipped: Skipped) -> list[tuple[int, Path]]:
    images, files = [], image_files(folder)
    for file in files:
        digits = len(file.stem) if file.stem.isdecimal() else 0
        try:
            if 0 < digits < 9:
                raise ValueError('the number of an image, not a time')
            stamp_of = tables.stamp_of_nanoseconds if digits >= 15 else parse_seconds
            images.append((stamp_of(file.stem), file))
        except ValueError:
            skipped.add('image not named by its time', file.name)
    if not images:
        raise DatasetError(
            f'no images in {folder}: expected {", ".join(IMAGE_SUFFIXES)} named by time, as '
            '1403636579.763555.png or 1403636579763555584.png, or a list images.txt of lines '
            '"seconds file"' + (f'; got {files[0].name}' if files else '')
        )
    return images


def read_traverse(path: Path, spacing: float | None, skipped: Skipped) -> Listing:
    """Read a folder in which image i shows place i of a line, `spacing` m apart, at 1 m/s."""
    files, settings = image_files(path), path / TRAVERSE_SETTINGS
    if spacing is None and not settings.is_file():
        raise DatasetError(
            f'{path} holds {len(files)} images without poses: expected --spacing METRES (or a '
            f'file {TRAVERSE_SETTINGS} with "spacing: METRES") if image i shows place i, or a '
            'trajectory.tum next to them'
        )
    if spacing is None:
        spacing = tables.read_setting(
            settings, lambda s: float(s['spacing']), 'a line "spacing: METRES"'
        )
    if not 0.0 < spacing <= 1e4:
        raise DatasetError(f'{path}: expected a spacing in (0, 10000] metres, got {spacing}')
    places = _places(files)
    if max(places) * spacing > tables.MAX_COORDINATE:
        raise DatasetError(
            f'{path}: the last image would lie {max(places) * spacing:g} m from the first place: '
            'expected names that end with the number of the place, or without numbers'
        )
    stamps = [round((place + 1) * spacing * 1e9) for place in places]
    poses = [np.array([place * spacing, 0.0, 0.0]) for place in places]
    track = make_track(zip(stamps, poses, strict=True), skipped, 'of a place')
    return Listing(path.resolve().name, list(zip(stamps, files, strict=True)), track)


def _places(files: list[Path]) -> list[int]:
    """
    Return the place of each image: the last number in its name, else its index.

    The index is used if numbers repeat, or if the names differ before the number: the last number
    of a name that holds a time is its milliseconds.
    """
    matches = [re.fullmatch(r'(.*?)(?<!\d)(\d{1,9})\D*', file.stem, re.DOTALL) for file in files]
    numbered = [match.groups() for match in matches if match]
    places = [int(number) for _, number in numbered]
    if len(set(places)) < len(files) or len({head for head, _ in numbered}) > 1:
        return list(range(len(files)))
    return places
