"""Public datasets as they are on disk: poses on the floor, made odometry, what is missing."""

import shutil

from helpers import SHARED_DATA
from kbr_localization import se2
from kbr_localization.datasets import Dataset, odometry_noise, open_dataset
from kbr_localization.datasets.cold import ColdRun, write_cold_run
from kbr_localization.datasets.frame import OdometryTrack
from kbr_localization.datasets.odometry_noise import made_odometry, OdometryNoise
from kbr_localization.datasets.rosbag import BagRun, write_bag
from kbr_localization.datasets.selection import outside_fixes
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
def test_poses_in_space_become_poses_on_the_floor(tmp_path, name):
    run = open_dataset(WRITERS[name](tmp_path / 'data'))
    assert isinstance(run, Dataset)
    assert run.skipped == {}
    found, expected = references(run), planar_poses()
    np.testing.assert_allclose(found[:, :2], expected[:, :2], atol=1e-6)
    # a pitched camera that also rolls looks a little aside
    np.testing.assert_allclose(found[:, 2], expected[:, 2], atol=1e-2)
    assert run[2].load_image().shape[:2] == (24, 32)
    assert np.any(run[0].load_image() != run[5].load_image())


@pytest.mark.parametrize('name', ['tum_rgbd', 'euroc', 'image_folder'])
def test_stamps_lose_nothing(tmp_path, name):
    run = open_dataset(WRITERS[name](tmp_path / 'data'))
    expected = START_S * 10**9 + np.arange(FRAMES) * (10**9 // RATE)
    np.testing.assert_array_equal([frame.stamp_ns for frame in run], expected)


@pytest.mark.parametrize('name', WRITERS)
def test_odometry_is_made_where_there_is_none_and_that_is_said(tmp_path, name):
    path = WRITERS[name](tmp_path / 'data')
    run, same, other = (open_dataset(path, odometry_seed=seed) for seed in (0, 0, 1))
    assert 'odometry made from the truth' in run.notes[0]
    np.testing.assert_array_equal(run.odometry.poses, same.odometry.poses)
    assert np.abs(run.odometry.poses - other.odometry.poses).max() > 1e-3
    odometry = np.array([frame.odometry for frame in run])
    made = se2.between(odometry[:-1], odometry[1:])
    true = se2.between(references(run)[:-1], references(run)[1:])
    assert 1e-5 < np.abs(made - true).max() < 0.05


def test_a_pause_of_the_truth_that_odometry_is_made_from_is_noted(tmp_path):
    path = write_tum_rgbd(tmp_path / 'data')
    lines = (path / 'groundtruth.txt').read_text().splitlines()
    later = [line.replace(f'{START_S + 1}.', f'{START_S + 31}.') for line in lines]
    assert sum(line != was for line, was in zip(later, lines, strict=True)) == 1
    (path / 'groundtruth.txt').write_text('\n'.join(later) + '\n')
    assert len(open_dataset(path).notes) == 1
    moved = later[-1].split()
    moved[1] = '9.0'
    (path / 'groundtruth.txt').write_text('\n'.join([*later[:-1], ' '.join(moved)]) + '\n')
    notes = open_dataset(path).notes
    assert notes[1:] == (
        'the odometry pauses for up to 30.2 s and does not go on where it was: '
        '1 images in between are on a straight line',
    )


def test_odometry_of_a_folder_is_taken_where_there_is_some(tmp_path):
    run = open_dataset(write_image_folder(tmp_path / 'data', odometry=True))
    assert run.notes == ()
    np.testing.assert_allclose(run[3].odometry - run[3].reference, [5.0, 0, 0], atol=1e-6)


def test_odometry_of_a_folder_is_read_as_that_of_bags(tmp_path):
    path = write_image_folder(tmp_path / 'data')
    xs = [*range(8), 500, *range(9, 16), *range(6)]
    file = path / 'odometry.tum'
    file.write_text(
        ''.join(f'{START_S + i // 10}.{i % 10} {x / 10} 0 0 0 0 0 1\n' for i, x in enumerate(xs))
    )
    with file.open('a') as lines:
        lines.write(f'{START_S + 3} nan 0 0 0 0 0 1\n')
        lines.write(f'{START_S + 4} 1 0 0 nan nan nan nan\n')
    run = open_dataset(path)
    assert run.skipped == {'odometry.tum: pose that is not finite': 2}
    assert 'jumped once' in run.notes[0] and 'left out: 1' in run.notes[1]
    assert np.abs(np.diff(run.odometry.poses[:, 0])).max() < 0.3


def test_images_outside_of_the_poses_are_counted_by_what_they_lack(tmp_path):
    path = write_image_folder(tmp_path / 'data', odometry=True)
    for name, reason in (('odometry', 'no odometry'), ('trajectory', 'no true pose')):
        file = path / f'{name}.tum'
        file.write_text(''.join(file.read_text().splitlines(keepends=True)[:-1]))
        assert open_dataset(path).skipped == {reason: 1}
        (path / 'odometry.tum').unlink(missing_ok=True)


def test_a_pause_of_the_odometry_of_a_folder_is_noted(tmp_path):
    path = write_image_folder(tmp_path / 'data')
    lines = ''.join(f'{START_S + s} {x} 0 0 0 0 0 1\n' for s, x in ((-20, 0), (20, 5), (21, 5)))
    (path / 'odometry.tum').write_text(lines)
    (note,) = open_dataset(path).notes
    assert 'pauses for up to 40.0 s' in note and f': {FRAMES} images in between' in note


def test_names_of_images_may_be_nanoseconds_or_listed(tmp_path):
    run = open_dataset(write_image_folder(tmp_path / 'ns', names='nanoseconds'))
    assert (len(run), run[0].stamp_ns) == (FRAMES, START_S * 10**9)
    path = write_image_folder(tmp_path / 'listed')
    files = sorted((path / 'images').iterdir())
    for index, file in enumerate(files):
        file.rename(file.with_name(f'{index}.png'))
    with pytest.raises(DatasetError, match=r'0.png: expected its time as the name.* images.txt'):
        open_dataset(path)
    (path / 'images.txt').write_text(f'{START_S}.2 images/1.png\n')
    assert len(open_dataset(path)) == 1
    files[0].with_name('1.png').rename(path / 'images/left 1.png')
    (path / 'images.txt').write_text(f'{START_S}.2 images/left 1.png\n')
    assert len(open_dataset(path)) == 1


def test_the_errors_of_made_odometry_are_those_asked_for():
    """Along a straight line at 1 m/s for 400 s: 2000 times 0.2 s."""
    stamps = np.arange(0, 401, dtype=np.int64) * 10**9
    truth = OdometryTrack(stamps, np.column_stack([stamps * 1e-9, np.zeros((401, 2))]))
    noise = OdometryNoise()
    poses = made_odometry(truth, 'run', 3).poses[::4]
    errors = se2.between(poses[:-1], poses[1:]) - [0.2, 0, 0]
    np.testing.assert_allclose(
        errors.std(axis=0), [noise.along, noise.across, noise.turn], rtol=0.1
    )
    assert errors[:, 2].mean() / 0.2 == pytest.approx(noise.yaw_bias, rel=0.1)
    again = made_odometry(truth, 'another run', 3).poses[::4]
    assert np.abs(again - poses).max() > 0.1


def test_odometry_that_is_made_over_years_is_not_made_at_its_usual_rate(monkeypatch):
    monkeypatch.setattr(odometry_noise, 'MOST_POSES', 100)
    stamps = np.array([0, 3 * 10**17], dtype=np.int64)
    made = made_odometry(OdometryTrack(stamps, np.zeros((2, 3))), 'run')
    assert len(made.stamps_ns) == 101 and made.stamps_ns[[0, -1]].tolist() == stamps.tolist()


def test_a_traverse_has_places_at_the_spacing_given(tmp_path):
    path = write_traverse(tmp_path / 'day', [0, 1, 3, 4])
    run = open_dataset(path, spacing=0.3)
    np.testing.assert_allclose(references(run), [[0.3 * i, 0, 0] for i in (0, 1, 3, 4)], atol=1e-9)
    assert [frame.name for frame in run] == [f'Image{i:03d}.jpg' for i in (0, 1, 3, 4)]
    # at one metre per second, and not at zero, which messages have for no stamp
    assert [frame.stamp_ns * 1e-9 for frame in run] == pytest.approx([0.3, 0.6, 1.2, 1.5])
    with pytest.raises(DatasetError, match='expected --spacing METRES') as caught:
        open_dataset(path)
    assert '\n' not in str(caught.value)
    (path / 'traverse.yaml').write_text('spacing: 2.0\n')
    assert open_dataset(path)[3].reference[0] == pytest.approx(8.0)
    assert open_dataset(path, spacing=1.0)[3].reference[0] == pytest.approx(4.0)


def test_places_of_images_without_numbers_are_their_order(tmp_path):
    for name in ('a1', 'b1', 'c1'):
        write_image(tmp_path / 'data' / f'{name}.png')
    run = open_dataset(tmp_path / 'data', spacing=2.0)
    np.testing.assert_allclose(references(run)[:, 0], [0, 2, 4])


def test_milliseconds_of_names_that_are_times_are_no_places(tmp_path):
    for name in ('11_16_21_421', '11_16_22_406', '11_16_23_354', '11_17_00_007'):
        write_image(tmp_path / 'data' / f'robocam_2017_05_02_{name}.jpg')
    run = open_dataset(tmp_path / 'data', spacing=2.0)
    np.testing.assert_allclose(references(run)[:, 0], [0, 2, 4, 6])
    assert [frame.name[-7:-4] for frame in run] == ['421', '406', '354', '007']


def test_hidden_files_beside_images_are_no_images(tmp_path):
    path = write_traverse(tmp_path / 'day', [0, 1, 3, 4])
    for file in list(path.iterdir()):
        file.with_name(f'._{file.name}').write_bytes(b'\0\5\x16\7')
    run = open_dataset(path, spacing=1.0)
    assert references(run)[:, 0].tolist() == [0, 1, 3, 4]


def test_numbers_in_names_that_are_no_places_are_told(tmp_path):
    for millisecond in range(3):
        write_image(tmp_path / 'data' / f'PXL_20240501_12345678{millisecond}.jpg')
    with pytest.raises(DatasetError, match=r'would lie 1.23457e.10 m from the first place: exp'):
        open_dataset(tmp_path / 'data', spacing=100.0)


def test_images_of_a_scene_without_a_pose_are_counted(tmp_path):
    path = write_seven_scenes(tmp_path / 'data')
    next(path.glob('*.pose.txt')).unlink()
    run = open_dataset(path)
    assert (len(run), run.skipped) == (FRAMES - 1, {'no file of the true pose': 1})
    # the stamp zero is that of messages that have none
    assert open_dataset(write_seven_scenes(tmp_path / 'other'))[0].stamp_ns > 0


@pytest.mark.parametrize(
    ('name', 'missing', 'message'),
    [
        ('tum_rgbd', 'groundtruth.txt', 'no groundtruth.txt in .*: expected the true poses'),
        ('tum_rgbd', 'rgb', 'no images of data: 6 are listed, the first being .*unpacked'),
        ('euroc', 'mav0/state_groundtruth_estimate0', 'no data.csv in .*estimate0: expected the'),
        ('euroc', 'mav0/cam0/sensor.yaml', 'no sensor.yaml in .*cam0: expected T_BS'),
        ('kitti', 'sequences/07/times.txt', 'no times.txt in .*07: expected the times'),
        ('kitti', 'poses', 'no true poses of .*07: expected poses.txt in it or .*07.txt'),
        ('seven_scenes', 'seq-01/*.pose.txt', 'no poses in .*: expected frame-XXXXXX.pose.txt'),
        ('image_folder', 'images/*', 'no images in .*images: expected .jpg, .jpeg, .png named by'),
    ],
)
def test_what_is_missing_is_one_line(tmp_path, name, missing, message):
    run = WRITERS[name](tmp_path / 'data')
    for path in list((tmp_path / 'data').glob(missing)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(DatasetError, match=message) as caught:
        open_dataset(run)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    ('name', 'file', 'text', 'message'),
    [
        ('tum_rgbd', 'groundtruth.txt', '1 2 3\n', 'line 1: expected 8 fields, got 3'),
        ('tum_rgbd', 'groundtruth.txt', '1,5 2 3 0 0 0 0 1\n', 'expected 8 fields, got 9'),
        ('tum_rgbd', 'groundtruth.txt', '# none\n', 'expected lines of 8 fields, got none'),
        ('tum_rgbd', 'groundtruth.txt', 'x 0 0 0 0 0 0 1\n', "time in seconds, got 'x'"),
        ('tum_rgbd', 'groundtruth.txt', '1 0 0 0 0 0 0 0\n', 'expected unit quaternions'),
        ('tum_rgbd', 'groundtruth.txt', '1 y 0 0 0 0 0 1\n', 'expected numbers'),
        ('tum_rgbd', 'groundtruth.txt', '1 nan 0 0 0 0 0 1\n', 'poses of finite numbers'),
        ('tum_rgbd', 'groundtruth.txt', '1 0 0 0 nan 0 0 1\n', 'poses of finite numbers'),
        ('tum_rgbd', 'groundtruth.txt', '-5 0 0 0 0 0 0 1\n', r'time in \[0'),
        ('euroc', 'mav0/cam0/sensor.yaml', 'T_BS: 3\n', 'expected T_BS with 16 numbers'),
        ('euroc', 'mav0/cam0/data.csv', '1.5,a.png\n', 'time in nanoseconds'),
        ('euroc', 'mav0/cam0/data.csv', f'{"1" * 5000},a.png\n', 'time in nanoseconds'),
        ('kitti', 'poses/07.txt', '1 0 0 0 0 1 0 0 0 0 1 0\n' * 7, 'got 7 poses and 6 times'),
        ('kitti', 'poses/07.txt', '1 0 0 0 0 1 0 0 0 0 1 0\n', 'got 1 poses and 6 times'),
        ('seven_scenes', 'seq-01/frame-000003.pose.txt', '1 2 3 4\n', 'matrix of 4 x 4 numbers'),
    ],
)  # fmt: skip
def test_what_is_broken_is_one_line(tmp_path, name, file, text, message):
    run = WRITERS[name](tmp_path / 'data')
    (tmp_path / 'data' / file).write_text(text)
    with pytest.raises(DatasetError, match=message) as caught:
        open_dataset(run)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    ('name', 'file'), [('tum_rgbd', 'groundtruth.txt'), ('image_folder', 'trajectory.tum')]
)
def test_true_poses_of_another_clock_are_named_with_both_spans(tmp_path, name, file):
    run = WRITERS[name](tmp_path / 'data')
    text = (run / file).read_text()
    (run / file).write_text(text.replace('14036365', '14036465'))
    says = rf'lies within its {file}: images at \[1403636579.* s, {file} at \[1403646579'
    with pytest.raises(DatasetError, match=says):
        open_dataset(run)
    # with an odometry of the right clock only the known poses are beside the images
    (run / 'odometry.tum').write_text(text)
    if name == 'image_folder':
        assert [frame.reference for frame in open_dataset(run)] == [None] * FRAMES
        assert 'lies within its reference poses' in outside_fixes(open_dataset(run))


def test_a_byte_order_mark_of_true_poses_is_left_out(tmp_path):
    path = write_image_folder(tmp_path / 'data')
    truth = path / 'trajectory.tum'
    truth.write_bytes(b'\xef\xbb\xbf' + truth.read_bytes())
    assert len(open_dataset(path)) == FRAMES


def test_true_poses_may_be_utf_16(tmp_path):
    path = write_image_folder(tmp_path / 'data')
    truth = path / 'trajectory.tum'
    truth.write_text(truth.read_text(), encoding='utf-16')
    assert len(open_dataset(path)) == FRAMES


def test_images_that_are_listed_but_missing_are_counted(tmp_path):
    path = write_tum_rgbd(tmp_path / 'data')
    sorted((path / 'rgb').iterdir())[2].unlink()
    run = open_dataset(path)
    assert (len(run), run.skipped) == (FRAMES - 1, {'listed but missing': 1})


def test_cameras_of_a_rig_are_chosen_by_their_folders(tmp_path):
    path = write_euroc(tmp_path / 'data', ('cam0', 'cam1'))
    assert len(open_dataset(path)) == FRAMES
    assert len(open_dataset(path / 'mav0', ['cam1'])) == FRAMES
    both = open_dataset(path, ['cam0', 'cam1'])
    assert both.cameras == ('cam0', 'cam1')
    assert len(both[0].load_image()) == 2
    assert 'odometry made' in both.notes[0]
    with pytest.raises(DatasetError, match=r"no camera 'cam9': expected cam0 or cam1"):
        open_dataset(path, ['cam9'])
    with pytest.raises(DatasetError, match='expected no --cameras'):
        open_dataset(write_tum_rgbd(tmp_path / 'tum'), ['rgb'])


def test_poses_of_a_motion_capture_are_taken_where_a_sequence_has_those(tmp_path):
    path = write_euroc(tmp_path / 'data')
    expected = references(open_dataset(path))
    (path / 'mav0' / 'state_groundtruth_estimate0').rename(path / 'mav0' / 'mocap0')
    np.testing.assert_array_equal(references(open_dataset(path)), expected)


def test_options_of_other_runs_are_refused(tmp_path):
    path = write_tum_rgbd(tmp_path / 'tum')
    with pytest.raises(DatasetError, match='expected no --spacing, which is for folders of image'):
        open_dataset(path, spacing=1.0)
    with pytest.raises(DatasetError, match='expected no --odometry-topic'):
        open_dataset(path, odometry_topic='/odom')
    for spacing in (0.0, -1.0, float('nan'), float('inf')):
        with pytest.raises(DatasetError, match='expected a spacing in'):
            open_dataset(write_traverse(tmp_path / 'day'), spacing=spacing)
    with pytest.raises(DatasetError, match='expected no --cameras, it has one'):
        open_dataset(tmp_path / 'day', ['left'], spacing=1.0)


def test_a_scene_names_a_sequence_in_it(tmp_path):
    write_seven_scenes(tmp_path / 'kitchen')
    with pytest.raises(DatasetError, match=r'expected one of the runs in it, as .*seq-01'):
        open_dataset(tmp_path / 'kitchen')


def test_a_folder_that_holds_nothing_is_told_what_would_be_a_run(tmp_path):
    with pytest.raises(DatasetError, match=r'is no run: expected a COLD run .* TUM RGB-D .* KIT'):
        open_dataset(tmp_path)


@pytest.mark.parametrize('name', WRITERS)
def test_notes_survive_the_way_through_the_other_formats(tmp_path, name):
    run = open_dataset(WRITERS[name](tmp_path / 'data'))
    write_cold_run(tmp_path / 'cold', run, run.odometry, notes=run.notes)
    cold = open_dataset(tmp_path / 'cold')
    assert isinstance(cold, ColdRun)
    write_bag(cold, tmp_path / 'bag')
    bag = open_dataset(tmp_path / 'bag')
    assert isinstance(bag, BagRun)
    assert bag.notes == cold.notes == run.notes != ()
    np.testing.assert_allclose(references(bag), references(run), atol=1e-6)


def test_gardens_point_is_read():
    path = SHARED_DATA / 'gardens_point' / 'day_left'
    if not path.is_dir():
        pytest.skip('needs ../shared/data/gardens_point')
    run = open_dataset(path, spacing=1.0)
    assert len(run) == 200
    assert run[199].reference[0] == 199.0
    assert run[0].load_image().shape == (360, 640, 3)
