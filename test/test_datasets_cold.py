"""Runs of COLD: what is read, skipped and refused, written and recorded."""

from contextlib import suppress
from dataclasses import replace
import shutil

from helpers import (
    FRAME_NS,
    START_NS,
    straight_reference,
    textured_image,
    tiny_frames,
    tiny_odometry,
    write_tiny_cold_run,
)
from kbr_localization.datasets import Frame, open_dataset
from kbr_localization.datasets.cold import (
    ColdRecording,
    format_image_name,
    format_odometry,
    ODOMETRY_FILE,
    parse_image_name,
    parse_odometry,
    PLACES_FILE,
    POSES_FILE,
    write_cold_run,
)
from kbr_localization.datasets.images import encode_jpeg
from kbr_localization.datasets.tables import format_pose
from kbr_localization.errors import DatasetError, MapError
from kbr_localization.localization.map.build import build_map
import numpy as np
from process_helpers import full_disk
import pytest


@pytest.fixture
def run_path(tmp_path):
    return write_tiny_cold_run(tmp_path / 'run')


def images_of(path):
    return sorted((path / 'std_cam').iterdir())


def edit(path, change):
    path.write_text(''.join(change(path.read_text().splitlines(keepends=True))))


@pytest.mark.parametrize(
    ('name', 'stamp_ns', 'pose'),
    [
        ('t1.19_x0.306_y-0.0158_a-0.0096.jpeg', 1_190_000_000, (0.306, -0.0158, -0.0096)),
        ('t1152212857.193444_x0_y0_a0.jpeg', 1152212857193444000, (0, 0, 0)),
        ('t1.000001_x-1.2e-05_y3E2_a+1e-3.JPG', 1_000_001_000, (-1.2e-5, 300.0, 1e-3)),
        ('t1.5_x1_y.5_a3.2.png', 1_500_000_000, (1.0, 0.5, 3.2 - 2 * np.pi)),
        ('t7.000000001.png', 7_000_000_001, None),
    ],
)
def test_image_names_are_parsed_tolerantly_and_to_the_nanosecond(name, stamp_ns, pose):
    found_ns, found = parse_image_name(name)
    assert found_ns == stamp_ns and (found is None) == (pose is None)
    if pose is not None:
        np.testing.assert_allclose(found, pose, atol=1e-12)


def test_microseconds_of_odometry_are_not_padded():
    line = '0 0 0 1152212856 4417 2 0 6 -4.7 -3.5 0.0 5.829165 0 0'
    stamp_ns, pose = parse_odometry(line.split())
    assert stamp_ns == 1152212856004417000
    np.testing.assert_allclose(pose, [-4.7, -3.5, 5.829165 - 2 * np.pi])


@pytest.mark.parametrize(
    ('parse', 'text'),
    [
        *((parse_image_name, name) for name in (
            '', 'img_001.jpeg', 't1.5_xnan_y0_a0.jpeg', 't1_x1e400_y0_a0.jpeg',
            't99999999999999999999.5.jpeg', 't1.5_x1_y2_a3.gif', 't-1.5_x1_y2_a3.jpeg',
        )),
        *((lambda line: parse_odometry(line.split()), line) for line in (
            'rubbish', '0 0 0 1 2 2 0 6 1 2 0 3 0', '0 0 0 1 1000000 2 0 6 1 2 0 3 0 0',
            '0 0 0 1 2 2 0 6 nan 2 0 3 0 0', '0 0 0 -5 2 2 0 6 1 2 0 3 0 0',
            '0 0 0 1 2 2 0 6 1 2 0 \ufffd 0 0',
        )),
    ],
)  # fmt: skip
def test_other_names_and_lines_are_refused(parse, text):
    with pytest.raises(ValueError, match='expected'):
        parse(text)


def test_a_written_run_and_its_copy_are_read_back(run_path, tmp_path):
    run, track = open_dataset(run_path), tiny_odometry(8)
    assert (run.name, len(run), run.skipped) == ('run', 8, {})
    for index, (frame, original) in enumerate(zip(run, tiny_frames(8), strict=True)):
        assert frame.stamp_ns == START_NS + index * FRAME_NS
        np.testing.assert_allclose(frame.reference, original.reference, atol=1e-6)
        np.testing.assert_allclose(frame.odometry, original.odometry, atol=2e-6)
        assert np.abs(frame.load_image().astype(int) - original.load_image()).mean() < 3
    np.testing.assert_array_equal(run.odometry.stamps_ns, track.stamps_ns)
    np.testing.assert_allclose(run.odometry.poses, track.poses, atol=2e-6)
    write_cold_run(tmp_path / 'copy', run, run.odometry)
    for source, target in zip(images_of(run_path), images_of(tmp_path / 'copy'), strict=True):
        assert (source.name, source.read_bytes()) == (target.name, target.read_bytes())


def test_colours_and_missing_references_are_written(tmp_path):
    frames = [replace(f, reference=None) for f in tiny_frames(3, colour=True)]
    write_cold_run(tmp_path / 'bare', frames, tiny_odometry(3))
    bare = open_dataset(tmp_path / 'bare')
    assert (bare[0].reference, bare.skipped) == (None, {})
    assert bare[0].load_image().shape == (96, 128, 3)


def test_cameras_are_chosen_by_name(run_path):
    shutil.copytree(run_path / 'std_cam', run_path / 'omni_cam')
    images_of(run_path)[0].unlink()
    assert (len(open_dataset(run_path)), len(open_dataset(run_path, ['omni']))) == (7, 8)
    shutil.rmtree(run_path / 'std_cam')
    assert len(open_dataset(run_path)) == 8
    with pytest.raises(DatasetError, match="no camera 'front': expected one of omni_cam"):
        open_dataset(run_path, ['front'])


def test_what_is_no_run_is_told_with_what_would_be(tmp_path, run_path):
    with pytest.raises(DatasetError, match='no such'):
        open_dataset(tmp_path / 'nothing')
    with pytest.raises(DatasetError, match=f'expected one of the runs in it, such as {run_path}'):
        open_dataset(tmp_path)
    (tmp_path / 'empty').mkdir()
    with pytest.raises(DatasetError, match=r'is no run: expected a COLD run .* TUM RGB-D .* KIT'):
        open_dataset(tmp_path / 'empty')


def test_a_run_without_images_or_odometry_is_refused(run_path):
    (run_path / ODOMETRY_FILE).write_text('\n')
    with pytest.raises(DatasetError, match=r'odom\.tdf: no line can be used: it is empty'):
        open_dataset(run_path)
    (run_path / ODOMETRY_FILE).unlink()
    with pytest.raises(DatasetError, match=r'no odometry in .*expected the file odom_scans'):
        open_dataset(run_path)
    write_tiny_cold_run(run_path.parent / 'other')
    for image in images_of(run_path.parent / 'other'):
        image.unlink()
    with pytest.raises(DatasetError, match=r'no images in .*expected names like t<sec>'):
        open_dataset(run_path.parent / 'other')


def test_images_that_cannot_be_used_are_counted(run_path):
    images = images_of(run_path)
    images[2].unlink()
    (run_path / 'std_cam' / 'front.jpeg').write_bytes(b'')
    (run_path / 'std_cam' / 'Thumbs.db').write_bytes(b'')
    other = images[0].with_name(format_image_name(START_NS, straight_reference(5.0)))
    shutil.copy(images[0], other)
    edit(run_path / ODOMETRY_FILE, lambda lines: [*lines[:40], lines[0]])
    skipped = open_dataset(run_path).skipped.items()
    assert {reason.partition(' (')[0]: count for reason, count in skipped} == {
        'bad image name': 1,
        'repeated stamp': 1,
        'repeated stamp in odom.tdf': 1,
        'no odometry': 4,
    }
    edit(run_path / ODOMETRY_FILE, lambda lines: lines[:3])
    with pytest.raises(DatasetError, match=r'no image of .* lies within its odometry'):
        open_dataset(run_path)


def test_a_clock_that_was_set_back_is_refused(run_path):
    """Sorting would interleave the poses of both times."""
    track = open_dataset(run_path).odometry
    later = track.stamps_ns > START_NS + 2_300_000_000
    stamps = track.stamps_ns - later * 2_010_000_000
    samples = zip(stamps.tolist(), track.poses, strict=True)
    (run_path / ODOMETRY_FILE).write_text(''.join(format_odometry(*sample) for sample in samples))
    with pytest.raises(DatasetError, match='tdf: the times go back and over the same times'):
        open_dataset(run_path)


def test_writing_refuses_a_taken_path_and_leaves_nothing_after_an_error(tmp_path, run_path):
    def broken():
        yield from tiny_frames(2)
        raise DatasetError('the camera fell off')

    odd = Frame(START_NS, np.zeros((4, 4, 2), np.uint8), np.zeros(3), name='odd one')
    (tmp_path / 'file').write_text('')
    for path, frames, track, says in (
        ('run', tiny_frames(3), tiny_odometry(3), 'exists already'),
        ('file/run', tiny_frames(3), tiny_odometry(3), 'cannot write'),
        ('new', broken(), tiny_odometry(3), 'fell off'),
        ('new', [], tiny_odometry(3), 'without images: give'),
        ('new', tiny_frames(1) * 2, tiny_odometry(3), 'two frames are called'),
        ('new', [odd], tiny_odometry(3), 'image odd one: expected a uint8 array'),
    ):
        with pytest.raises(DatasetError, match=says):
            write_cold_run(tmp_path / path, frames, track)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['file', 'run']
    (tmp_path / 'empty').mkdir()
    write_cold_run(tmp_path / 'empty', tiny_frames(3), tiny_odometry(3))
    assert len(open_dataset(tmp_path / 'empty')) == 3


TRACK = tiny_odometry(6)
JPEG = encode_jpeg(textured_image(0), 'test')


def record(path, first, last, odometry=True, poses=True):
    """Append frames first..last-1, with their poses 0.1 s later."""
    recording = ColdRecording(path)
    for sample in zip(TRACK.stamps_ns.tolist(), TRACK.poses, strict=True) if odometry else ():
        recording.add(ODOMETRY_FILE, format_odometry(*sample))
    for index in range(first, last):
        stamp_ns = START_NS + index * FRAME_NS
        if poses:
            later = straight_reference(index * 0.4 + 0.1)
            recording.add(POSES_FILE, format_pose(stamp_ns + 100_000_000, later))
        recording.append_image(stamp_ns, [JPEG], 'long hall')
    recording.write()
    return recording


def test_a_recording_without_an_image_says_so(tmp_path):
    record(tmp_path / 'run', 0, 0)
    with pytest.raises(DatasetError, match=r'no image was recorded in .*: each needs odometry'):
        open_dataset(tmp_path / 'run')
    assert len(open_dataset(record(tmp_path / 'run', 0, 4).path)) == 4


def test_an_existing_run_is_continued(tmp_path):
    record(tmp_path / 'run', 0, 3)
    recording = record(tmp_path / 'run', 3, 3, odometry=False)
    assert recording.count == 3
    assert recording.last_image_ns == START_NS + 2 * FRAME_NS
    assert recording.last_odometry_ns == TRACK.stamps_ns[-1]
    recording.append_image(START_NS + 3 * FRAME_NS, [JPEG])
    run = open_dataset(tmp_path / 'run')
    assert recording.count == len(run) == 4
    expected = [straight_reference(0.4 * index) for index in range(4)]
    np.testing.assert_allclose([frame.reference for frame in run], expected, atol=1e-6)
    stamps_ns = START_NS + np.arange(3) * FRAME_NS + 100_000_000
    np.testing.assert_array_equal(run.fixes.stamps_ns, stamps_ns)


def test_a_run_with_poses_in_the_names_of_its_images_is_continued(run_path):
    recording, end_ns = ColdRecording(run_path), START_NS + 7 * FRAME_NS
    assert (recording.count, recording.last_image_ns) == (8, end_ns)
    for index in range(6):
        stamp_ns, pose = end_ns + index * FRAME_NS + FRAME_NS, straight_reference(index * 0.4)
        recording.add(ODOMETRY_FILE, format_odometry(stamp_ns, pose))
        recording.add(POSES_FILE, format_pose(stamp_ns, pose))
    recording.append_image(end_ns + 3 * FRAME_NS, [JPEG])
    found = [frame.reference for frame in open_dataset(run_path)]
    expected = [straight_reference(0.4 * index) for index in (*range(8), 2)]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize('cameras', [(), ('front', 'rear')])
def test_one_camera_and_named_ones_are_not_mixed(tmp_path, cameras):
    ColdRecording(tmp_path / 'run', *(() if cameras else ('front', 'rear'))).close()
    recording = ColdRecording(tmp_path / 'run', *cameras)
    for second in (-1, 1):
        recording.add(ODOMETRY_FILE, format_odometry(START_NS + second * 10**9, np.zeros(3)))
    recording.append_image(START_NS, [JPEG] * max(1, len(cameras)))
    recording.close()
    assert open_dataset(tmp_path / 'run').cameras == cameras
    with pytest.raises(DatasetError, match=r"run holds .*_cam': give a new folder"):
        ColdRecording(tmp_path / 'run', *(() if cameras else ('front', 'rear')))


def test_what_a_kill_left_unfinished_costs_one_line_or_image(tmp_path):
    record(tmp_path / 'first', 0, 0)
    (tmp_path / 'first' / ODOMETRY_FILE).write_text('0 0 0 16000')
    assert ColdRecording(tmp_path / 'first').last_odometry_ns == 0
    record(tmp_path / 'run', 0, 3)
    (tmp_path / 'run' / 'std_cam' / 't1.5_x0_y0_a0.jpeg.part').write_bytes(JPEG[:50])
    for file, missing in ((ODOMETRY_FILE, 7), (POSES_FILE, 30), (PLACES_FILE, 15)):
        path = tmp_path / 'run' / file
        path.write_bytes(path.read_bytes()[:-missing])
    record(tmp_path / 'run', 3, 5, odometry=False)
    run = open_dataset(tmp_path / 'run')
    assert (len(run), run.skipped) == (5, {})
    places = (tmp_path / 'run' / PLACES_FILE).read_text().splitlines()
    assert [place.split()[1] for place in places] == ['long_hall'] * 4
    assert not list((tmp_path / 'run' / 'std_cam').glob('*.part'))


def test_a_folder_is_recorded_into_by_one_at_a_time(tmp_path):
    first = record(tmp_path / 'run', 0, 2)
    with pytest.raises(DatasetError, match='run is in use by another recorder: stop it'):
        ColdRecording(tmp_path / 'run')
    first.close()
    record(tmp_path / 'run', 2, 3, odometry=False)
    assert len(open_dataset(tmp_path / 'run')) == 3


def test_what_a_full_disk_cuts_off_is_taken_back_and_written_later(tmp_path):
    recording, first = ColdRecording(tmp_path / 'run'), straight_reference(0.0)
    for largest in range(0, len(JPEG), 97):
        recording.add(ODOMETRY_FILE, format_odometry(START_NS + largest * 1000, first))
        recording.add(POSES_FILE, format_pose(START_NS + largest * 1000, first))
        with full_disk(largest), suppress(DatasetError):
            recording.append_image(START_NS, [JPEG])
    with full_disk(50), pytest.raises(DatasetError, match='large: free some space, or choose'):
        recording.append_image(START_NS, [JPEG])
    recording.append_image(START_NS, [JPEG])
    run = open_dataset(tmp_path / 'run')
    assert len(run) == 1 and run[0].image.encoded() == JPEG and run.skipped == {}
    assert not list((tmp_path / 'run' / 'std_cam').glob('*.part'))
    expected = START_NS + 97_000 * np.arange(len(run.odometry.stamps_ns))
    assert len(expected) > 10
    np.testing.assert_array_equal(run.odometry.stamps_ns, expected)
    np.testing.assert_array_equal(run.fixes.stamps_ns, expected)


def test_a_run_without_poses_is_built_from_its_odometry(tmp_path):
    record(tmp_path / 'run', 0, 4, poses=False)
    run = open_dataset(tmp_path / 'run')
    assert len(run) == 4 and run.fixes is None
    with pytest.raises(MapError, match='without known poses build it by --poses odometry'):
        build_map([run])
