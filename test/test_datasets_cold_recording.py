"""A recording that grows: whole at every moment, continued after any end."""

import os
import subprocess
import sys

from helpers import FRAME_NS, START_NS, straight_reference, textured_image, tiny_odometry
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.cold import ColdRecording
from kbr_localization.datasets.images import encode_jpeg
from kbr_localization.errors import DatasetError, MapError
from kbr_localization.localization.map.build import build_map
import numpy as np
import pytest

ODOMETRY = tiny_odometry(6)
JPEG = encode_jpeg(textured_image(0), 'test')


def record(path, first, last, odometry=True):
    """Append frames first..last-1."""
    recording = ColdRecording(path)
    if odometry:
        samples = zip(ODOMETRY.stamps_ns.tolist(), ODOMETRY.poses, strict=True)
        recording.append_odometry(list(samples))
    for index in range(first, last):
        reference = straight_reference(index * 0.4)
        recording.append_image(START_NS + index * FRAME_NS, reference, JPEG, 'long hall')
    return recording


@pytest.mark.parametrize('odometry', [True, False])
def test_a_recording_without_an_image_says_so(tmp_path, odometry):
    record(tmp_path / 'run', 0, 0, odometry)
    with pytest.raises(DatasetError, match=r'no image was recorded in .*: each needs a pose'):
        open_dataset(tmp_path / 'run')
    assert len(open_dataset(record(tmp_path / 'run', 0, 4).path)) == 4


def test_an_existing_run_is_continued(tmp_path):
    record(tmp_path / 'run', 0, 3)
    recording = record(tmp_path / 'run', 3, 3, odometry=False)
    assert recording.count == 3
    assert recording.last_image.stamp_ns == START_NS + 2 * FRAME_NS
    np.testing.assert_allclose(recording.last_image.pose, straight_reference(0.8))
    assert recording.last_odometry.stamp_ns == ODOMETRY.stamps_ns[-1]
    recording.append_image(START_NS + 3 * FRAME_NS, straight_reference(1.2), JPEG)
    assert recording.count == len(open_dataset(tmp_path / 'run')) == 4


@pytest.mark.parametrize('cameras', [(), ('front', 'rear')])
def test_one_camera_and_named_ones_are_not_mixed(tmp_path, cameras):
    ColdRecording(tmp_path / 'run', *(() if cameras else ('front', 'rear'))).close()
    recording = ColdRecording(tmp_path / 'run', *cameras)
    recording.append_odometry([(START_NS + second * 10**9, np.zeros(3)) for second in (-1, 1)])
    recording.append_image(START_NS, np.zeros(3), [JPEG] * max(1, len(cameras)))
    recording.close()
    assert open_dataset(tmp_path / 'run').cameras == cameras
    with pytest.raises(DatasetError, match=r'run holds images of .*: give a new folder to record'):
        ColdRecording(tmp_path / 'run', *(() if cameras else ('front', 'rear')))


@pytest.mark.parametrize('left', [0, 1, 30, -1])
def test_a_first_line_of_odometry_that_was_cut_off_does_not_stop_a_recorder(tmp_path, left):
    first = [(int(ODOMETRY.stamps_ns[0]), ODOMETRY.poses[0])]
    recording = ColdRecording(tmp_path / 'run')
    recording.append_odometry(first)
    recording.close()
    path = tmp_path / 'run/odom_scans/odom.tdf'
    line = path.read_text()
    path.write_text(line[:left])
    again = ColdRecording(tmp_path / 'run')
    assert again.last_odometry is None and path.read_text() == ''
    again.append_odometry(first)
    again.close()
    assert ColdRecording(tmp_path / 'run').last_odometry.stamp_ns == first[0][0]


def test_what_a_kill_left_unfinished_costs_one_line_or_image(tmp_path):
    record(tmp_path / 'run', 0, 3)
    (tmp_path / 'run' / 'std_cam' / 't1.5_x0_y0_a0.jpeg.part').write_bytes(JPEG[:50])
    for file, missing in (('odom_scans/odom.tdf', 7), ('localization/places.lst', 15)):
        path = tmp_path / 'run' / file
        path.write_bytes(path.read_bytes()[:-missing])
    record(tmp_path / 'run', 3, 5, odometry=False)
    run = open_dataset(tmp_path / 'run')
    assert (len(run), run.skipped) == (5, {})
    assert [frame.label for frame in run][1:4] == ['long_hall', '', 'long_hall']
    assert not list((tmp_path / 'run' / 'std_cam').glob('*.part'))


def test_a_folder_is_recorded_into_by_one_at_a_time(tmp_path):
    first = record(tmp_path / 'run', 0, 2)
    with pytest.raises(DatasetError, match='run is being recorded into: stop the other recorder'):
        ColdRecording(tmp_path / 'run')
    first.close()
    record(tmp_path / 'run', 2, 3, odometry=False)
    assert len(open_dataset(tmp_path / 'run')) == 3


LIMITED = """
import resource, sys
from helpers import START_NS, straight_reference
from kbr_localization.datasets.cold import ColdRecording
from kbr_localization.errors import DatasetError, MapError
from kbr_localization.localization.map.build import build_map

recording = ColdRecording(sys.argv[1])
jpeg = open(sys.argv[2], 'rb').read()
for limit in (*range(0, len(jpeg) + 200, 97), -1):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
    for attempt in (
        lambda: recording.append_odometry([(START_NS, straight_reference(0.0))] * 2),
        lambda: recording.append_image(START_NS, straight_reference(0.0), jpeg),
    ):
        try:
            attempt()
        except DatasetError as error:
            print(error)
"""


def test_what_a_full_disk_cuts_off_is_taken_back(tmp_path):
    (tmp_path / 'image.jpeg').write_bytes(JPEG)
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)}
    command = [sys.executable, '-c', LIMITED, tmp_path / 'run', tmp_path / 'image.jpeg']
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'File too large: free some space' in done.stdout
    run = open_dataset(tmp_path / 'run')
    assert len(run) == 1 and run[0].image.encoded() == JPEG
    assert not list((tmp_path / 'run' / 'std_cam').glob('*.part'))
    lines = (tmp_path / 'run' / 'odom_scans' / 'odom.tdf').read_text().splitlines()
    assert len(lines) % 2 == 0 and len(set(lines)) == 1


def test_a_folder_that_is_moved_meanwhile_is_told_and_gone_on_with_when_it_is_back(tmp_path):
    recording = ColdRecording(tmp_path / 'run')
    recording.append_odometry([(START_NS, straight_reference(0.0))] * 2)
    (tmp_path / 'run').rename(tmp_path / 'moved')
    for attempt in (
        lambda: recording.append_odometry([(START_NS, straight_reference(0.0))]),
        lambda: recording.append_image(START_NS, straight_reference(0.0), JPEG),
    ):
        with pytest.raises(DatasetError, match=r'No such .*: it was moved or removed: put'):
            attempt()
    (tmp_path / 'moved').rename(tmp_path / 'run')
    recording.append_image(START_NS, straight_reference(0.0), JPEG)
    recording.close()
    assert len(open_dataset(tmp_path / 'run')) == 1


def test_a_run_without_poses_says_so(tmp_path):
    record(tmp_path / 'run', 0, 0).set_poses(known=False)
    record(tmp_path / 'run', 0, 4)
    run = open_dataset(tmp_path / 'run')
    assert run.notes == ('its poses are unknown',)
    assert run[0].reference is None
    record(tmp_path / 'run', 4, 6, odometry=False).set_poses(known=False)
    with pytest.raises(MapError, match='without known poses build it by --poses odometry'):
        build_map([run])
