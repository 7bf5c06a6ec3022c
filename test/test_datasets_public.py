"""Public datasets as they are on disk: poses on the floor, made odometry, what is unusable."""

import re
import shutil

from helpers import write_tiny_cold_run
from kbr_localization import se2
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.bag_writer import write_bag
from kbr_localization.datasets.cold import write_cold_run
from kbr_localization.datasets.tracks import explain_missing_reference
from kbr_localization.errors import DatasetError
import numpy as np
from public_datasets import (
    FRAMES,
    planar_poses,
    RATE,
    START_S,
    write_euroc,
    write_image,
    write_image_folder,
    write_kitti,
    write_seven_scenes,
    write_traverse,
    write_tum_rgbd,
)
import pytest

WRITERS = {
    'tum_rgbd': write_tum_rgbd,
    'euroc': write_euroc,
    'kitti': write_kitti,
    'seven_scenes': write_seven_scenes,
    'image_folder': write_image_folder,
}


def references(run):
    return np.array([frame.reference for frame in run])


@pytest.mark.parametrize('name', WRITERS)
def test_every_format_is_read_and_survives_conversion(tmp_path, name):
    path = WRITERS[name](tmp_path / 'data')
    run, same, other = (open_dataset(path, odometry_seed=seed) for seed in (0, 0, 1))
    assert run.skipped == {}
    found, expected = references(run), planar_poses()
    np.testing.assert_allclose(found[:, :2], expected[:, :2], atol=1e-6)
    # a pitched camera that also rolls looks a little aside
    np.testing.assert_allclose(found[:, 2], expected[:, 2], atol=1e-2)
    assert run[2].load_image().shape[:2] == (24, 32)
    assert np.any(run[0].load_image() != run[5].load_image())
    if name in ('tum_rgbd', 'euroc', 'image_folder'):
        stamps = START_S * 10**9 + np.arange(FRAMES) * (10**9 // RATE)
        np.testing.assert_array_equal([frame.stamp_ns for frame in run], stamps)

    assert 'odometry made from the true poses' in run.notes[0]
    np.testing.assert_array_equal(run.odometry.poses, same.odometry.poses)
    assert np.abs(run.odometry.poses - other.odometry.poses).max() > 1e-3
    odometry = np.array([frame.odometry for frame in run])
    made = se2.between(odometry[:-1], odometry[1:])
    assert 1e-5 < np.abs(made - se2.between(found[:-1], found[1:])).max() < 0.05

    write_cold_run(tmp_path / 'cold', run, run.odometry, notes=run.notes)
    cold = open_dataset(tmp_path / 'cold')
    write_bag(cold, tmp_path / 'bag')
    bag = open_dataset(tmp_path / 'bag')
    assert bag.notes == cold.notes == run.notes
    np.testing.assert_allclose(references(bag), found, atol=1e-6)


UNUSABLE = [
    ('tum_rgbd', 'groundtruth.txt', 'x 0 0 0 0 0 0 1', "time in seconds, got 'x'"),
    ('tum_rgbd', 'groundtruth.txt', '-5 0 0 0 0 0 0 1', 'time in [0'),
    ('tum_rgbd', 'groundtruth.txt', '1 0 0 0 0 0 0 0', 'unit quaternion, got one of length 0'),
    ('tum_rgbd', 'groundtruth.txt', '1 nan 0 0 0 0 0 1', 'expected a finite pose'),
    ('tum_rgbd', 'rgb.txt', '1403636579.3 ../secret.png', 'a time and a file in'),
    ('tum_rgbd', 'rgb.txt', '1403636579.3 /etc/passwd', 'a time and a file in'),
    ('euroc', 'mav0/cam0/data.csv', '1.5,a.png', 'time in nanoseconds'),
    ('euroc', 'mav0/state_groundtruth_estimate0/data.csv', '1,0,0,0,0,0,0,0', 'unit quaternion'),
    ('cold', 'odom_scans/odom.tdf', 'rubbish', 'expected 0 0 0 <sec>'),
]  # fmt: skip


@pytest.mark.parametrize(('name', 'file', 'line', 'why'), UNUSABLE)
def test_unusable_lines_are_skipped_and_counted_in_every_format(tmp_path, name, file, line, why):
    run = WRITERS.get(name, write_tiny_cold_run)(tmp_path / 'data')
    path, frames = tmp_path / 'data' / file, len(open_dataset(run))
    with path.open('a') as table:
        table.write(f'{line}\n{line}\n')
    number = len(path.read_text().splitlines()) - 1
    ((reason, count),) = open_dataset(run).skipped.items()
    assert (count, len(open_dataset(run))) == (2, frames)
    start = f'bad line in {path.name} (the first: line {number}: '
    assert reason.startswith(start) and why in reason
    path.write_text(f'# nothing else\n{line}\n')
    with pytest.raises(DatasetError, match=f'no line can be used: line 2: .*{re.escape(why)}'):
        open_dataset(run)


def test_yaml_whose_aliases_stand_for_billions_of_numbers_is_refused_at_once(tmp_path):
    run = write_euroc(tmp_path / 'data')
    lines = ['i0: &i0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]']
    lines += [f'i{n}: &i{n} [{", ".join([f"*i{n - 1}"] * 10)}]' for n in range(1, 9)]
    sensor = run / 'mav0/cam0/sensor.yaml'
    sensor.write_text('\n'.join([*lines, 'T_BS: {data: *i8}']))
    with pytest.raises(DatasetError, match='expected T_BS with 16 numbers'):
        open_dataset(run)


@pytest.mark.parametrize('bad', ['1 0 0 0\n0 1 0 0\n0 0 2 0\n', '0 0 0 0\n' * 3, '1 2 3\n'])
def test_matrices_that_are_no_rotations_are_skipped_and_counted(tmp_path, bad):
    run = write_kitti(tmp_path / 'kitti')
    file = tmp_path / 'kitti/poses/07.txt'
    lines = file.read_text().splitlines()
    file.write_text('\n'.join([*lines[:2], bad.replace('\n', ' '), *lines[3:]]))
    kitti = open_dataset(run)
    ((reason, count),) = kitti.skipped.items()
    assert count == 1 and reason.startswith('bad line in 07.txt (the first: line 3: expected ')
    # the lines after it are not shifted
    np.testing.assert_allclose(references(kitti)[5, :2], planar_poses()[5, :2], atol=1e-6)
    scene = write_seven_scenes(tmp_path / 'scene')
    (scene / 'frame-000002.pose.txt').write_text(bad)
    seven = open_dataset(scene)
    ((reason, count),) = seven.skipped.items()
    assert (len(seven), count) == (FRAMES, 1)
    assert reason.startswith('bad pose (the first: frame-000002.pose.txt: expected ')


@pytest.mark.parametrize(
    ('name', 'missing', 'message'),
    [
        ('tum_rgbd', 'groundtruth.txt', 'no groundtruth.txt in .*: expected the true poses'),
        ('tum_rgbd', 'rgb', 'no images of data: 6 are listed, the first being .*unpacked'),
        ('euroc', 'mav0/state_groundtruth_estimate0', 'no data.csv in .*estimate0: expected the'),
        ('kitti', 'poses', r'no 07.txt in .*: expected the true poses, or poses.txt in .*07 \('),
        ('seven_scenes', 'seq-01/*.pose.txt', 'no poses in .*: expected frame-XXXXXX.pose.txt'),
        ('image_folder', 'images/*', 'no images in .*images: expected .jpg, .jpeg, .png named by'),
    ],
)
def test_a_missing_file_is_told(tmp_path, name, missing, message):
    run = WRITERS[name](tmp_path / 'data')
    for path in list((tmp_path / 'data').glob(missing)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(DatasetError, match=message):
        open_dataset(run)


def test_odometry_of_a_folder_is_taken_and_cleaned(tmp_path):
    run = open_dataset(write_image_folder(tmp_path / 'data', odometry=True))
    assert run.notes == ()
    np.testing.assert_allclose(run[3].odometry - run[3].reference, [5.0, 0, 0], atol=1e-6)
    xs = [*range(8), 500, *range(9, 16), *range(6)]
    (tmp_path / 'data/odometry.tum').write_text(
        ''.join(f'{START_S + i // 10}.{i % 10} {x / 10} 0 0 0 0 0 1\n' for i, x in enumerate(xs))
    )
    run = open_dataset(tmp_path / 'data')
    assert 'jumped once' in run.notes[0] and 'left out: 1' in run.notes[1]
    assert np.abs(np.diff(run.odometry.poses[:, 0])).max() < 0.3


def test_true_poses_of_another_clock_are_named_with_both_spans(tmp_path):
    run = write_image_folder(tmp_path / 'data')
    text = (run / 'trajectory.tum').read_text()
    (run / 'trajectory.tum').write_text(text.replace('14036365', '14036465'))
    says = r'lies within its true poses: images at \[1403636579.* s, true poses at \[1403646579'
    with pytest.raises(DatasetError, match=says):
        open_dataset(run)
    # with an odometry of the right clock only the known poses are elsewhere
    (run / 'odometry.tum').write_text(text)
    assert [frame.reference for frame in open_dataset(run)] == [None] * FRAMES
    assert 'lies within its reference poses' in explain_missing_reference(open_dataset(run))


def test_images_may_be_named_by_nanoseconds_or_listed(tmp_path):
    run = open_dataset(write_image_folder(tmp_path / 'ns', names='nanoseconds'))
    assert (len(run), run[0].stamp_ns) == (FRAMES, START_S * 10**9)
    path = write_image_folder(tmp_path / 'listed')
    files = sorted((path / 'images').iterdir())
    for index, file in enumerate(files[1:]):
        file.rename(file.with_name(f'{index}.png'))
    assert open_dataset(path).skipped == {
        'image not named by its time (the first: 0.png)': FRAMES - 1
    }
    files[0].rename(path / 'images/left 5.png')
    with pytest.raises(DatasetError, match=r'named by time, as .* images.txt .*; got 0.png'):
        open_dataset(path)
    (path / 'images.txt').write_text(f'{START_S}.2 images/left 5.png\n')
    assert len(open_dataset(path)) == 1


def test_missing_images_and_poses_are_counted(tmp_path):
    path = write_tum_rgbd(tmp_path / 'data')
    sorted((path / 'rgb').iterdir())[2].unlink()
    assert open_dataset(path).skipped == {'listed but missing': 1}
    path = write_seven_scenes(tmp_path / 'scene')
    next(path.glob('*.pose.txt')).unlink()
    run = open_dataset(path)
    assert (len(run), run.skipped) == (FRAMES - 1, {'no file of the true pose': 1})


def test_a_traverse_has_places_at_the_spacing_given(tmp_path):
    path = write_traverse(tmp_path / 'day', [0, 1, 3, 4])
    for file in list(path.iterdir()):  # as macOS puts beside each
        file.with_name(f'._{file.name}').write_bytes(b'\0\5\x16\7')
    run = open_dataset(path, spacing=0.3)
    np.testing.assert_allclose(references(run), [[0.3 * i, 0, 0] for i in (0, 1, 3, 4)], atol=1e-9)
    assert [frame.name for frame in run] == [f'Image{i:03d}.jpg' for i in (0, 1, 3, 4)]
    # at one metre per second, and not at zero, which messages have for no stamp
    assert [frame.stamp_ns for frame in run] == [3 * 10**8, 6 * 10**8, 12 * 10**8, 15 * 10**8]
    (path / 'traverse.yaml').write_text('spacing: 0.5\n')
    assert references(open_dataset(path))[3, 0] == 2.0
    for text in ('[' * 5000, '9' * 400, '2001-99-99', '.nan', '0', '[]'):
        (path / 'traverse.yaml').write_text(f'spacing: {text}')
        with pytest.raises(DatasetError, match='expected a'):
            open_dataset(path)


@pytest.mark.parametrize(
    'names', [['left', 'right', 'up'], ['11_16_21_421', '11_16_22_406', '11_17_00_007']]
)
def test_names_that_hold_no_places_are_taken_in_order(tmp_path, names):
    for name in names:
        write_image(tmp_path / 'data' / f'robocam {name}.jpg')
    run = open_dataset(tmp_path / 'data', spacing=2.0)
    np.testing.assert_allclose(references(run)[:, 0], [0, 2, 4])
    assert [frame.name[8:-4] for frame in run] == sorted(names)


def test_cameras_and_options_are_checked(tmp_path):
    path, tum = write_euroc(tmp_path / 'euroc', ('cam0', 'cam1')), write_tum_rgbd(tmp_path / 'tum')
    assert len(open_dataset(path / 'mav0', ['cam1'])) == FRAMES
    both = open_dataset(path, ['cam0', 'cam1'])
    assert both.cameras == ('cam0', 'cam1') and 'odometry made' in both.notes[0]
    assert len(both[0].load_image()) == 2
    (path / 'mav0' / 'state_groundtruth_estimate0').rename(path / 'mav0' / 'mocap0')
    np.testing.assert_array_equal(references(open_dataset(path)), references(both))
    day = write_traverse(tmp_path / 'day')
    for run, options, message in (
        (path, {'cameras': ['cam9']}, r"no camera 'cam9': expected one of cam0, cam1"),
        (tum, {'cameras': ['rgb']}, 'expected no --cameras'),
        (tum, {'spacing': 1.0}, 'expected no --spacing, which is for a folder of images'),
        (tum, {'odometry_topic': '/odom'}, 'expected no --odometry-topic'),
        (day, {'spacing': -1.0}, 'expected a spacing in'),
        (day, {'spacing': 1.0, 'cameras': ['left']}, 'expected no --cameras'),
    ):
        with pytest.raises(DatasetError, match=message):
            open_dataset(run, **options)
