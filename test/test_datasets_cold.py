import contextlib
from dataclasses import replace
import logging
import shutil

from helpers import (
    FRAME_NS,
    SHARED_DATA,
    START_NS,
    straight_reference,
    tiny_frames,
    tiny_odometry,
    write_tiny_cold_run,
)
from hypothesis import given
from hypothesis import strategies as st
from kbr_localization import se2
from kbr_localization.datasets import Dataset, Frame, OdometryTrack, open_dataset
from kbr_localization.datasets.cold import ColdRun, write_cold_run
from kbr_localization.datasets.cold_format import (
    format_image_name,
    format_odometry_line,
    parse_image_name,
    parse_odometry_line,
    parse_place_line,
    read_places,
)
from kbr_localization.errors import DatasetError
import numpy as np
import pytest

REAL_PLACES = sorted((SHARED_DATA / 'cold').glob('*/*/localization/places.lst'))


@pytest.fixture
def run_path(tmp_path):
    return write_tiny_cold_run(tmp_path / 'run')


def images_of(path):
    return sorted((path / 'std_cam').iterdir())


def append(path, *lines):
    with path.open('a', encoding='utf-8') as file:
        file.writelines(f'{line}\n' for line in lines)


def drop_lines(path, keep):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(''.join(lines[keep]))


@pytest.mark.parametrize(
    ('name', 'pose'),
    [
        ('t1.193444_x0.3068230_y-0.0158034_a-0.0096662.jpeg', (0.306823, -0.0158034, -0.0096662)),
        ('t1151926008.508000_x1.51418_y-6.1979_a1.50073.jpeg', (1.51418, -6.1979, 1.50073)),
        ('t1.000001_x-1.2e-05_y3E2_a+1e-3.JPG', (-1.2e-5, 300.0, 1e-3)),
        ('t1.5_x1_y.5_a2..png', (1.0, 0.5, 2.0)),
        ('t1.5_x1_y2_a3.2.jpeg', (1.0, 2.0, 3.2 - 2 * np.pi)),
    ],
)  # fmt: skip
def test_image_name_is_parsed_tolerantly(name, pose):
    np.testing.assert_allclose(parse_image_name(name).reference, pose, atol=1e-12)


def test_image_stamp_is_exact_to_the_nanosecond():
    assert parse_image_name('t1152212857.193444_x0_y0_a0.jpeg').stamp_ns == 1152212857193444000
    assert parse_image_name('t1152212857.1_x0_y0_a0.jpeg').stamp_ns == 1152212857100000000
    assert parse_image_name('t7.000000001.png').stamp_ns == 7000000001


def test_image_name_without_a_pose_has_no_reference():
    assert parse_image_name('t7.5.jpeg').reference is None


@pytest.mark.parametrize(
    'name',
    [
        '', 'img_001.jpeg', 't1.5_x1_y2.jpeg', 't1.5_xnan_y0_a0.jpeg', 't1_x1e400_y0_a0.jpeg',
        't99999999999999999999.5.jpeg', 't1.5_x1_y2_a3.gif', 't-1.5_x1_y2_a3.jpeg',
    ],
)  # fmt: skip
def test_other_image_names_are_refused(name):
    with pytest.raises(ValueError, match='expected'):
        parse_image_name(name)


def test_microseconds_of_odometry_are_not_padded():
    line = parse_odometry_line('0 0 0 1152212856 4417 2 0 6 -4.7 -3.5 0.0 5.829165 0 0')
    assert line.stamp_ns == 1152212856004417000
    np.testing.assert_allclose(line.pose, [-4.7, -3.5, 5.829165 - 2 * np.pi])


@pytest.mark.parametrize(
    'line',
    [
        'rubbish', '0 0 0 1 2 2 0 6 1 2 0 3 0', '0 0 0 1 1000000 2 0 6 1 2 0 3 0 0',
        '0 0 0 1 -1 2 0 6 1 2 0 3 0 0', '0 0 0 1 2 2 0 6 nan 2 0 3 0 0',
        '0 0 0 1 2 2 0 6 1 inf 0 3 0 0', '0 0 0 -5 2 2 0 6 1 2 0 3 0 0',
        '0 0 0 1 2 2 0 6 1 2 0 \ufffd 0 0',
    ],
)  # fmt: skip
def test_other_odometry_lines_are_refused(line):
    with pytest.raises(ValueError):
        parse_odometry_line(line)


@given(st.floats(-1e6, 1e6))
def test_headings_are_wrapped_as_everywhere(angle):
    line = parse_odometry_line(f'0 0 0 1 2 2 0 6 0 0 0 {angle!r} 0 0')
    assert line.pose[2] == se2.wrap_angle(angle)


POSES = st.tuples(
    st.floats(-1e3, 1e3), st.floats(-1e3, 1e3), st.floats(-np.pi, np.pi, exclude_max=True)
)
STAMPS = st.integers(0, 2**33 * 10**6 - 1).map(lambda microseconds: microseconds * 1000)


@given(STAMPS, POSES)
def test_written_names_and_lines_are_read_back(stamp_ns, pose):
    named = parse_image_name(format_image_name(stamp_ns, np.array(pose)))
    stamped = parse_odometry_line(format_odometry_line(stamp_ns, np.array(pose)))
    assert named.stamp_ns == stamped.stamp_ns == stamp_ns
    for read, tolerance in ((named.reference, 1e-7), (stamped.pose, 1e-6)):
        difference = read - pose
        difference[2] = se2.wrap_angle(difference[2])
        np.testing.assert_allclose(difference, 0, atol=tolerance)


def test_poses_as_far_as_those_of_bags_may_be_are_kept(tmp_path):
    utm = np.array([450_000.0, 5_400_000.0, 0.0])
    frames = [replace(frame, reference=frame.reference + utm) for frame in tiny_frames(3)]
    run = write_cold_run(tmp_path / 'run', frames, tiny_odometry(3))
    np.testing.assert_allclose(run[2].reference, frames[2].reference, atol=1e-6)
    assert (len(run), run.skipped) == (3, {})


@given(st.text(max_size=200))
def test_random_text_raises_nothing_but_value_errors(text):
    for parse in (parse_image_name, parse_place_line, parse_odometry_line):
        with contextlib.suppress(ValueError):
            parse(text)


@given(st.binary(max_size=400))
def test_random_bytes_as_places_or_odometry_raise_the_rooms_error(tmp_path_factory, data):
    path = write_tiny_cold_run(tmp_path_factory.mktemp('fuzz') / 'run', frames=1, shape=(8, 8))
    for file in ('localization/places.lst', 'odom_scans/odom.tdf'):
        (path / file).write_bytes(data)
        with pytest.raises(DatasetError):
            ColdRun(path)
    shutil.rmtree(path)


def test_a_written_run_is_read_back(run_path):
    run = open_dataset(run_path)
    assert isinstance(run, ColdRun)
    assert isinstance(run, Dataset)
    assert (run.name, len(run), run.skipped) == ('run', 8, {})
    for index, (frame, original) in enumerate(zip(run, tiny_frames(8), strict=True)):
        assert frame.stamp_ns == START_NS + index * FRAME_NS
        assert frame.label == 'CR'
        np.testing.assert_allclose(frame.reference, original.reference, atol=1e-6)
        np.testing.assert_allclose(frame.odometry, original.odometry, atol=2e-6)
        difference = frame.load_image().astype(int) - original.load_image()
        assert frame.load_image().shape == (96, 128)
        assert np.abs(difference).mean() < 3


def test_odometry_at_full_rate_is_kept(run_path):
    track, expected = ColdRun(run_path).odometry, tiny_odometry(8)
    np.testing.assert_array_equal(track.stamps_ns, expected.stamps_ns)
    np.testing.assert_allclose(track.poses, expected.poses, atol=2e-6)


def test_odometry_is_interpolated_across_the_wrap_of_theta(tmp_path):
    track = OdometryTrack(np.array([0, 10**9]), np.array([[0, 0, 3.1], [1, 0, -3.1]]))
    frame = Frame(5 * 10**8, np.zeros((8, 8), np.uint8), np.zeros(3), np.zeros(3))
    run = write_cold_run(tmp_path / 'run', [frame], track)
    np.testing.assert_allclose(run[0].odometry[:2], [0.5, 0])
    assert abs(run[0].odometry[2]) == pytest.approx(np.pi, abs=1e-5)


def test_colour_stays_colour(tmp_path):
    run = ColdRun(write_tiny_cold_run(tmp_path / 'run', frames=1, colour=True))
    assert run[0].load_image().shape == (96, 128, 3)


def test_copying_a_run_keeps_the_bytes_of_its_images(run_path, tmp_path):
    run = ColdRun(run_path)
    copy = write_cold_run(tmp_path / 'copy', run, run.odometry)
    assert [frame.name for frame in copy] == [frame.name for frame in run]
    for source, target in zip(images_of(run_path), images_of(tmp_path / 'copy'), strict=True):
        assert source.read_bytes() == target.read_bytes()


def test_blanks_in_a_label_make_no_bad_line(tmp_path):
    frames = [replace(frame, label='long  hall') for frame in tiny_frames(3)]
    run = write_cold_run(tmp_path / 'run', frames, tiny_odometry(3))
    assert (run[0].label, run.skipped) == ('long_hall', {})


def test_frames_without_reference_or_label_survive(tmp_path):
    frames = [Frame(f.stamp_ns, f.image, f.odometry) for f in tiny_frames(3)]
    run = write_cold_run(tmp_path / 'run', frames, tiny_odometry(3))
    assert [frame.reference for frame in run] == [None] * 3


def test_omni_camera_by_name_and_when_alone(run_path):
    shutil.copytree(run_path / 'std_cam', run_path / 'omni_cam')
    images_of(run_path)[0].unlink()
    assert (len(ColdRun(run_path)), len(ColdRun(run_path, camera='omni_cam'))) == (7, 8)
    shutil.rmtree(run_path / 'std_cam')
    assert len(open_dataset(run_path)) == 8
    with pytest.raises(DatasetError, match='expected a folder std_cam'):
        ColdRun(run_path, camera='std_cam')
    with pytest.raises(DatasetError, match='expected a folder front_cam; cameras: omni_cam'):
        ColdRun(run_path, camera='front')


def test_missing_folder(tmp_path):
    for opener in (open_dataset, ColdRun):
        with pytest.raises(DatasetError, match='no such'):
            opener(tmp_path / 'nothing')


def test_a_folder_or_file_that_is_no_run(tmp_path):
    (tmp_path / 'notes.txt').write_text('hello')
    for path in (tmp_path, tmp_path / 'notes.txt'):
        with pytest.raises(DatasetError, match='is no run: expected a COLD run'):
            open_dataset(path)


def test_a_folder_of_runs_names_one_of_them(run_path):
    with pytest.raises(DatasetError, match=f'expected one of the runs in it, as {run_path}'):
        open_dataset(run_path.parent)


def test_empty_run(run_path):
    for image in images_of(run_path):
        image.unlink()
    with pytest.raises(DatasetError, match=r'no images in .*8 listed in places.lst but missing'):
        ColdRun(run_path)


def test_run_without_odometry(run_path):
    (run_path / 'odom_scans' / 'odom.tdf').unlink()
    with pytest.raises(DatasetError, match=r'no odometry in .*expected the file odom_scans'):
        ColdRun(run_path)


def test_empty_odometry(run_path):
    (run_path / 'odom_scans' / 'odom.tdf').write_text('\n')
    with pytest.raises(DatasetError, match=r'odom\.tdf: expected .* got 0 good and 0 bad'):
        ColdRun(run_path)


def test_missing_places_are_fine(run_path):
    (run_path / 'localization' / 'places.lst').unlink()
    run = ColdRun(run_path)
    assert (len(run), run.skipped, run[0].label) == (8, {}, '')
    assert run[0].reference is not None


def test_broken_jpeg_raises_only_when_it_is_loaded(run_path):
    first, second, third, fourth = images_of(run_path)[:4]
    first.write_bytes(b'')
    second.write_bytes(b'this is no image')
    third.write_bytes(third.read_bytes()[:700])
    fourth.write_bytes(b'\xff\xd8\xff\xe0rubbish\xff\xd9')
    run = ColdRun(run_path)
    for index, image in enumerate((first, second, third, fourth)):
        with pytest.raises(DatasetError, match=f'broken image .*{image.name}'):
            run[index].load_image()
    assert run[4].load_image().shape == (96, 128)


def test_image_that_disappears_after_opening(run_path):
    run = ColdRun(run_path)
    images_of(run_path)[0].unlink()
    with pytest.raises(DatasetError, match='cannot read image'):
        run[0].load_image()


def test_image_listed_but_missing_is_counted(run_path):
    images_of(run_path)[2].unlink()
    run = ColdRun(run_path)
    assert (len(run), run.skipped) == (7, {'listed in places.lst but missing': 1})


@pytest.mark.parametrize(
    ('file', 'number'), [('localization/places.lst', 9), ('odom_scans/odom.tdf', 78)]
)
def test_line_of_rubbish_is_skipped_counted_and_logged(run_path, caplog, file, number):
    append(run_path / file, '\x00\ufffd what is this', '')
    with caplog.at_level(logging.WARNING):
        run = ColdRun(run_path)
    name = file.split('/')[1]
    assert (len(run), run.skipped) == (8, {f'bad line in {name}': 1})
    assert [f'{name} line {number} skipped' in message for message in caplog.messages] == [True]


@pytest.mark.parametrize('field', [3, 4, 8])
def test_a_line_of_odometry_without_a_number_is_told_in_words(field):
    fields = ['0', '0', '0', '1600000000', '0', '2', '0', '6', *6 * ['0']]
    fields[field] = '--'
    with pytest.raises(ValueError, match=r'expected numbers 0 0 0 <sec> <usec> .*, got .*--'):
        parse_odometry_line(' '.join(fields))


def test_many_bad_lines_are_logged_shortly(run_path, caplog):
    append(run_path / 'odom_scans' / 'odom.tdf', *['rubbish'] * 50)
    with caplog.at_level(logging.WARNING):
        assert ColdRun(run_path).skipped == {'bad line in odom.tdf': 50}
    assert len(caplog.messages) == 6
    assert caplog.messages[-1].endswith('50 bad lines skipped in all')


@pytest.mark.parametrize('file', ['localization/places.lst', 'odom_scans/odom.tdf'])
def test_mostly_rubbish_is_refused(run_path, file):
    append(run_path / file, *['rubbish'] * 100)
    with pytest.raises(DatasetError, match=r'expected mostly well-formed lines, got .* 100 bad'):
        ColdRun(run_path)


def test_image_with_a_bad_name_is_counted(run_path):
    (run_path / 'std_cam' / 'front.jpeg').write_bytes(b'')
    (run_path / 'std_cam' / 'Thumbs.db').write_bytes(b'')
    assert ColdRun(run_path).skipped == {'bad image name': 1}


def test_odometry_that_ends_early(run_path):
    drop_lines(run_path / 'odom_scans' / 'odom.tdf', slice(None, 40))
    run = ColdRun(run_path)
    assert (len(run), run.skipped) == (4, {'no odometry': 4})


def test_odometry_of_another_time(run_path):
    drop_lines(run_path / 'odom_scans' / 'odom.tdf', slice(None, 3))
    with pytest.raises(DatasetError, match=r'no image of .* lies within its odometry'):
        ColdRun(run_path)


def test_unordered_and_repeated_odometry(run_path):
    file = run_path / 'odom_scans' / 'odom.tdf'
    expected = ColdRun(run_path).odometry
    lines = file.read_text().splitlines()
    lines[:10:2], lines[1:10:2] = lines[1:10:2], lines[:10:2]
    file.write_text('\n'.join([*lines, *lines]))
    run = ColdRun(run_path)
    assert run.skipped == {'odometry of a repeated stamp': len(lines)}
    np.testing.assert_array_equal(run.odometry.stamps_ns, expected.stamps_ns)
    np.testing.assert_array_equal(run.odometry.poses, expected.poses)


def test_a_clock_that_is_set_back_makes_no_way_of_two(run_path):
    """The poses of both times would take turns, and that is what the odometry was then."""
    file = run_path / 'odom_scans' / 'odom.tdf'
    track = ColdRun(run_path).odometry
    later = track.stamps_ns > START_NS + 2_300_000_000
    stamps = track.stamps_ns - later * 2_010_000_000
    lines = map(format_odometry_line, stamps.tolist(), track.poses)
    file.write_text('\n'.join(lines))
    with pytest.raises(DatasetError, match='tdf: the times go back and over the same times'):
        ColdRun(run_path)


def test_the_heading_of_an_odometry_line_is_within_one_turn():
    lines = [format_odometry_line(START_NS, np.array([1.0, 2.0, turn])) for turn in (-0.1, 7.0)]
    assert [line.split()[11] for line in lines] == ['6.183185', '0.716815']


def test_a_pause_of_the_odometry_in_which_images_were_taken_is_noted(run_path):
    track = ColdRun(run_path).odometry
    # the second half 12 s later, and so a part of the images in between
    halves = track.stamps_ns > START_NS + 1_500_000_000
    stamps = track.stamps_ns + halves * 12_000_000_000
    lines = map(format_odometry_line, stamps.tolist(), track.poses + halves[:, np.newaxis])
    (run_path / 'odom_scans' / 'odom.tdf').write_text('\n'.join(lines))
    (note,) = [note for note in ColdRun(run_path).notes if 'pauses' in note]
    assert 'the odometry pauses for up to 12.1 s' in note and ': 4 images in between' in note


def test_images_of_a_repeated_stamp_are_counted(run_path):
    image = images_of(run_path)[0]
    shutil.copy(image, image.with_name(format_image_name(START_NS, straight_reference(5.0))))
    run = ColdRun(run_path)
    assert (len(run), run.skipped) == (8, {'repeated stamp': 1})


def test_writing_refuses_a_taken_path_and_leaves_nothing_after_an_error(tmp_path, run_path):
    with pytest.raises(DatasetError, match='exists already'):
        write_tiny_cold_run(run_path)

    def broken():
        yield from tiny_frames(2)
        raise DatasetError('the camera fell off')

    with pytest.raises(DatasetError, match='fell off'):
        write_cold_run(tmp_path / 'new', broken(), tiny_odometry(3))
    with pytest.raises(DatasetError, match='without images: give'):
        write_cold_run(tmp_path / 'new', [], tiny_odometry(3))
    early = OdometryTrack(tiny_odometry(3).stamps_ns - 10**10, tiny_odometry(3).poses)
    with pytest.raises(DatasetError, match='lies within its odometry'):
        write_cold_run(tmp_path / 'new', tiny_frames(3), early)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['run']


def test_writing_where_no_folder_can_be(tmp_path, run_path):
    (tmp_path / 'file').write_text('')
    for path in (tmp_path / 'file' / 'run', tmp_path / 'file'):
        with pytest.raises(DatasetError, match=r'cannot write|exists already'):
            write_tiny_cold_run(path)


def test_an_empty_folder_may_become_a_run(tmp_path):
    (tmp_path / 'run').mkdir()
    assert len(ColdRun(write_tiny_cold_run(tmp_path / 'run'))) == 8


def test_odometry_outside_of_the_track_is_refused(run_path):
    track = ColdRun(run_path).odometry
    with pytest.raises(DatasetError, match=r'no odometry: stamps .* are outside'):
        track.at(int(track.stamps_ns[-1]) + 1)


def test_writing_refuses_two_frames_of_one_microsecond(tmp_path):
    with pytest.raises(DatasetError, match='share the name'):
        write_cold_run(tmp_path / 'run', tiny_frames(1) * 2, tiny_odometry(3))


def test_writing_refuses_images_that_jpeg_cannot_hold(tmp_path):
    frame = Frame(START_NS, np.zeros((4, 4, 2), np.uint8), np.zeros(3), name='odd one')
    with pytest.raises(DatasetError, match=r'image odd one: expected a uint8 array'):
        write_cold_run(tmp_path / 'run', [frame], tiny_odometry(3))


@pytest.mark.skipif(not REAL_PLACES, reason='../shared/data/cold is absent')
@pytest.mark.parametrize('path', REAL_PLACES, ids=lambda path: '-'.join(path.parts[-4:-2]))
def test_real_lists_are_parsed_whole(path):
    places, bad = read_places(path)
    assert (len(places), bad) == (len(path.read_text().splitlines()), 0)
    stamps = np.array([place.image.stamp_ns for place in places])
    assert np.all(np.diff(stamps) > 0)
    assert all(np.all(np.isfinite(place.image.reference)) for place in places)
    with pytest.raises(DatasetError, match='is no run'):
        open_dataset(path.parents[1])


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason='../shared/data is absent')
@pytest.mark.parametrize(
    ('folder', 'shape'),
    [
        ('cold_like/seq1_cloudy1', (480, 640)),
        ('cold_like/seq1_cloudy2', (480, 640)),
        ('cold_like/seq1_cloudy3', (480, 640)),
        ('seven_scenes_kitchen/map', (480, 640, 3)),
        ('seven_scenes_kitchen/test', (480, 640, 3)),
    ],
)
def test_whole_runs_are_read_without_loss(folder, shape):
    run = open_dataset(SHARED_DATA / folder)
    assert len(run) == len(images_of(SHARED_DATA / folder))
    assert run.skipped == {}
    assert run[0].load_image().shape == shape
    assert run[len(run) - 1].label
