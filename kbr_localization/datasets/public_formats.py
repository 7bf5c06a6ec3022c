"""Runs of public datasets: images with true poses in separate files."""

from collections.abc import Callable
from pathlib import Path
import re
from typing import Any, NamedTuple

from kbr_localization import se2
from kbr_localization.datasets.frame import Dataset, Frame, OdometryTrack, Skipped
from kbr_localization.datasets.images import image_files, IMAGE_SUFFIXES, ImageFile
from kbr_localization.datasets.odometry_noise import synthetic_odometry
from kbr_localization.datasets.tables import (
    check_rotation,
    LEVEL_CAMERA,
    MAX_COORDINATE,
    parse_numbers,
    project_pose,
    quaternion_rotation,
    read_poses,
    read_setting,
    read_table,
    read_track,
    require_file,
    stamp_of_nanoseconds,
    Z_FORWARD,
)
from kbr_localization.datasets.tracks import make_run, make_track
from kbr_localization.errors import DatasetError
from kbr_localization.files import read_text
from kbr_localization.trajectory import parse_seconds
import numpy as np

SCENE_IMAGE = '.color.png'
FOLDER_POSES = ('trajectory.tum', 'groundtruth.tum')
TRAVERSE_SETTINGS = 'traverse.yaml'


class Listing(NamedTuple):
    """A folder of a public dataset: stamps in ns and files of images, true poses on the floor."""

    name: str
    images: list[tuple[int, Path]]
    reference: OdometryTrack
    odometry: OdometryTrack | None = None

    def run(self, skipped: Skipped, odometry_seed: int) -> Dataset:
        """Return the run, with odometry made of the true poses where it has none."""
        there = [
            Frame(stamp_ns, ImageFile(file), name=file.name)
            for stamp_ns, file in self.images
            if file.is_file()
        ]
        if not there:
            raise DatasetError(
                f'no images of {self.name}: {len(self.images)} are listed, the first being '
                f'{self.images[0][1]}: are the images unpacked?'
            )
        skipped.add('listed but missing', count=len(self.images) - len(there))
        if self.odometry:
            return make_run(self.name, there, self.odometry, skipped, self.reference)
        note = (
            'odometry made from the truth with errors as large as those of COLD '
            f'(seed {odometry_seed}): the run has none of its own'
        )
        odometry = synthetic_odometry(self.reference, self.name, odometry_seed)
        return make_run(
            self.name, there, odometry, skipped, self.reference, [note], synthetic=True
        )


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

    return [image for image in read_table(file, parse, skipped) if image is not None]


def read_tum_rgbd(path: Path, skipped: Skipped) -> Listing:
    """Read a sequence of TUM RGB-D (Sturm et al., IROS 2012): poses of the camera, z up."""
    truth = require_file(path / 'groundtruth.txt', 'the true poses of a TUM RGB-D sequence')
    images = _listed_images(path / 'rgb.txt', path, parse_seconds, skipped)
    return Listing(path.resolve().name, images, read_track(truth, skipped, Z_FORWARD))


def read_euroc(folder: Path, skipped: Skipped) -> Listing:
    """Read a sequence of EuRoC MAV (Burri et al., IJRR 2016), or of TUM VI."""
    root = folder.parent
    images = _listed_images(folder / 'data.csv', folder / 'data', stamp_of_nanoseconds, skipped)
    places = [root / name / 'data.csv' for name in ('state_groundtruth_estimate0', 'mocap0')]
    truth = next((place for place in places if place.is_file()), places[0])
    require_file(truth, 'the true poses of a EuRoC sequence')
    sensor = require_file(folder / 'sensor.yaml', 'T_BS, the camera on the body')
    expected = 'T_BS with 16 numbers of a pose under data'
    on_body = read_setting(sensor, _camera_pose, expected)

    def parse(words: list[str]) -> tuple[int, se2.FloatArray]:
        x, y, z, qw, qx, qy, qz = parse_numbers(words[1:8], 7)  # and behind them velocities
        body = np.array(quaternion_rotation(qx, qy, qz, qw))
        position = [x, y, z] + body @ on_body[:3, 3]
        pose = project_pose(position, body @ on_body[:3, :3], Z_FORWARD)
        return stamp_of_nanoseconds(words[0]), pose

    track = read_poses(truth, parse, skipped)
    return Listing(root.resolve().parent.name, images, track)


def _camera_pose(settings: Any) -> se2.FloatArray:
    matrix = np.reshape(np.array(settings['T_BS']['data'], dtype=np.float64), (4, 4))
    check_rotation(matrix[:3, :3])
    if not np.all(np.abs(matrix) < MAX_COORDINATE):
        raise DatasetError('expected finite numbers')
    return matrix


def read_kitti(folder: Path, skipped: Skipped) -> Listing:
    """Read a sequence of KITTI odometry (Geiger et al., CVPR 2012): poses of its left camera."""
    path, whole = folder.parent, folder.parent.resolve()
    times = require_file(
        path / 'times.txt', 'the times of a KITTI sequence, a line for each image'
    )
    truth = whole / 'poses.txt'
    if not truth.is_file():
        truth = whole.parent.parent / 'poses' / f'{whole.name}.txt'
    require_file(
        truth, f'the true poses, or poses.txt in {path} (KITTI gives them for sequences 00 to 10)'
    )
    stamps = read_table(times, lambda words: parse_seconds(words[0]), skipped)
    poses = read_table(truth, _matrix_pose, skipped)
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
    """Pose (3,) of the 12 numbers of [R t] of a camera, in the axes of a level camera."""
    matrix = np.reshape(parse_numbers(words[:12], 12), (3, 4))
    check_rotation(matrix[:, :3])
    position, rotation = LEVEL_CAMERA @ matrix[:, 3], LEVEL_CAMERA @ matrix[:, :3]
    return project_pose(position, rotation, Z_FORWARD)


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
        read_track(truth, skipped),
        read_track(odometry, skipped) if odometry.is_file() else None,
    )


def _images_by_time(folder: Path, skipped: Skipped) -> list[tuple[int, Path]]:
    images, files = [], image_files(folder)
    for file in files:
        digits = len(file.stem) if file.stem.isdecimal() else 0
        try:
            if 0 < digits < 9:
                raise ValueError('it is the number of an image')
            stamp_of = stamp_of_nanoseconds if digits >= 15 else parse_seconds
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
    """Read a folder in which image i shows place i, `spacing` metres apart, at 1 m/s."""
    files, settings = image_files(path), path / TRAVERSE_SETTINGS
    if spacing is None and not settings.is_file():
        raise DatasetError(
            f'{path} holds {len(files)} images without poses: expected --spacing METRES (or a '
            f'file {TRAVERSE_SETTINGS} with "spacing: METRES") if image i shows place i, or a '
            'trajectory.tum beside them'
        )
    if spacing is None:
        spacing = read_setting(settings, lambda s: float(s['spacing']), 'a line "spacing: METRES"')
    if not 0.0 < spacing <= 1e4:
        raise DatasetError(f'{path}: expected a spacing in (0, 10000] metres, got {spacing}')
    places = _places(files)
    if max(places) * spacing > MAX_COORDINATE:
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
