"""The recorder: as a process that is killed and started again, and its choices one by one."""

from collections import Counter
import resource
import signal
import struct
from types import SimpleNamespace

import cv2
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import PoseArray, PoseStamped, PoseWithCovarianceStamped
from helpers import textured_image, wall_image, write_tiny_cold_run
from kbr_localization import se2
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.cold_recording import ColdRecording
from kbr_localization.datasets.images import decode_image, encode_jpeg
from kbr_localization.datasets.run_folder import WITHOUT_POSES
from kbr_localization.errors import DatasetError
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.mapping.segments import odometry_leaps
from kbr_localization.ros.common import conversions, diagnostics
from kbr_localization.ros.recording import recording
from kbr_localization.ros.recording.image_sizes import ImageSizes
from kbr_localization.ros.recording.poses import SureOdometry
from kbr_localization.ros.recording.recording import RecordingConfig, RecordingSession
from kbr_localization.ros.recording.tally import Tally
from kbr_localization.ros.session.odometry_buffer import Added, Coverage
import numpy as np
import pytest
from ros_helpers import LATCHED, RELIABLE
from ros_node_helpers import diagnostics as newest
from ros_robot import Robot, VISION
from sensor_msgs.msg import CompressedImage

pytestmark = pytest.mark.ros
SECOND = 1_000_000_000
START = 1_600_000_000 * SECOND
ORIGIN = np.array([2.0, -1.0, 3.0])
JPEG = encode_jpeg(textured_image(0), 'test')


class Drive:
    """A session fed with a drive along x at 0.5 m/s whose odometry has another origin."""

    def __init__(self, path, **config):
        self.told = []
        self.recording = ColdRecording(path)
        self.session = RecordingSession(
            self.recording,
            RecordingConfig(**config),
            lambda level, text: self.told.append(text),
            lambda image: JPEG,
        )

    def odometry(self, seconds, origin=ORIGIN):
        pose = se2.compose(origin, np.array([0.5 * seconds, 0.0, 0.0]))
        return self.session.add_odometry(START + round(seconds * SECOND), pose)

    def pose(self, seconds, deviation=0.1):
        pose = np.array([0.5 * seconds, 0.0, 0.0])
        self.session.add_pose(START + round(seconds * SECOND), pose, deviation)

    def image(self, seconds):
        self.session.add_image(START + round(seconds * SECOND), lambda: textured_image(0))

    def go(self, start, end, pose_every=1.0, origin=ORIGIN):
        for tick in range(round(start * 20), round(end * 20) + 1):
            self.odometry(tick / 20, origin)
            if tick % 2 == 0:
                self.image(tick / 20)
            if pose_every and tick % round(pose_every * 20) == 0:
                self.pose(tick / 20)
            self.work()

    def work(self):
        for _ in range(5):
            self.session.work(0.0)

    def positions(self):
        run = open_dataset(self.recording.path)
        return np.array([frame.reference[0] for frame in run]), run


def record_three_seconds(path):
    """Record the beginning of a run, which another session may go on with."""
    drive = Drive(path)
    drive.go(0.0, 3.0)
    drive.session.close()


def test_images_are_spaced_and_get_the_pose_of_their_stamp(tmp_path):
    drive = Drive(tmp_path / 'run', spacing_distance=0.25)
    drive.go(0.0, 8.0)
    positions, run = drive.positions()
    steps = np.diff(positions)  # an image every 0.05 m
    assert len(steps) > 10 and steps.min() > 0.247 and steps.max() < 0.3 + 1e-6
    seconds = (run.stamps_ns - START) * 1e-9
    np.testing.assert_allclose(positions, 0.5 * seconds, atol=1e-6)


def test_a_robot_that_turns_on_the_spot_is_recorded_by_the_angle(tmp_path):
    drive = Drive(tmp_path / 'run', spacing_distance=0.25, spacing_angle=0.2)
    for number in range(41):
        stamp_ns, turned = START + number * SECOND // 20, np.array([1.0, 0.0, -0.05 * number])
        drive.session.add_odometry(stamp_ns, se2.compose(ORIGIN, turned))
        drive.session.add_pose(stamp_ns, turned, 0.1)
        drive.session.add_image(stamp_ns, lambda: textured_image(0))
        drive.work()
    drive.session.close()
    headings = [frame.reference[2] for frame in open_dataset(tmp_path / 'run')]
    np.testing.assert_allclose(headings, -0.2 * np.arange(11), atol=1e-6)


def test_poses_that_come_seldom_are_carried_by_the_odometry(tmp_path):
    drive = Drive(tmp_path / 'run', max_pose_age=3.0)
    drive.go(0.0, 8.0, pose_every=4.0)
    positions, run = drive.positions()
    assert len(positions) > 15
    np.testing.assert_allclose(positions, 0.5 * (run.stamps_ns - START) * 1e-9, atol=1e-6)


def test_images_within_the_age_of_a_pose_are_recorded_and_no_others(tmp_path):
    drive = Drive(tmp_path / 'run', max_pose_age=1.0, spacing_distance=0.0)
    drive.go(0.0, 1.95, pose_every=None)
    drive.pose(1.95)
    drive.go(2.0, 5.0, pose_every=None)
    seconds = (drive.positions()[1].stamps_ns - START) * 1e-9
    # of an image each 0.1 s, all of them but those of 0.9 s and before
    np.testing.assert_allclose(seconds, np.arange(10, 30) / 10.0, atol=1e-6)


def test_after_a_jump_of_the_odometry_images_wait_for_a_new_pose(tmp_path):
    drive = Drive(tmp_path / 'run', spacing_distance=0.0)
    drive.go(0.0, 2.0)
    drive.go(2.05, 4.0, pose_every=None, origin=np.array([50.0, 0.0, 0.0]))
    before = drive.session.recorded
    assert drive.recording.last_image.stamp_ns <= START + 2 * SECOND
    drive.pose(4.0)
    drive.go(4.05, 5.0, pose_every=None, origin=np.array([50.0, 0.0, 0.0]))
    positions, run = drive.positions()
    assert len(positions) > before + 5
    np.testing.assert_allclose(positions, 0.5 * (run.stamps_ns - START) * 1e-9, atol=1e-6)


def test_an_image_of_the_microsecond_of_the_last_one_is_not_newer(tmp_path):
    """A run has stamps in microseconds."""
    drive = Drive(tmp_path / 'run', spacing_distance=0.0)
    drive.pose(0.5)
    for tick in range(21):
        drive.odometry(tick / 20)
    for seconds in (0.5, 0.5 + 9e-7, 0.5 + 1e-6):
        drive.image(seconds)
        drive.work()
    stamps = drive.positions()[1].stamps_ns - START
    np.testing.assert_array_equal(stamps, [SECOND // 2, SECOND // 2 + 1000])
    assert drive.session.dropped == {'not newer than the run': 1}


@pytest.mark.parametrize('error', [DatasetError, ValueError])
def test_an_image_that_cannot_be_encoded_is_left_out_and_counted(tmp_path, error):
    drive, broken = Drive(tmp_path / 'run', spacing_distance=0.0), [1]

    def encode(image):
        if broken and image.stamp_ns == START + SECOND:
            broken.clear()
            raise error('no image')
        return JPEG

    drive.session._encode = encode
    drive.go(0.0, 0.95)
    try:
        drive.go(1.0, 1.2)
    except ValueError:  # as the worker does
        drive.session.recover_from_error()
    drive.go(1.25, 2.0)
    stamps = drive.positions()[1].stamps_ns
    assert START + SECOND not in stamps and START + SECOND // 2 in stamps
    reason = 'internal error' if error is ValueError else 'broken image'
    assert drive.session.dropped == {reason: 1}


def test_without_a_pose_nothing_is_recorded_and_each_image_counted_once(tmp_path):
    drive = Drive(tmp_path / 'run', max_pose_age=1.0)
    drive.go(0.0, 4.0, pose_every=None)
    assert drive.session.recorded == 0
    images = len(range(0, 81, 2))
    drive.session.close()
    dropped = drive.session.dropped
    assert dropped['no pose near enough in time'] > 10
    assert set(dropped) == {
        'no pose near enough in time',
        'still without odometry or pose at the end',
    }
    assert sum(dropped.values()) == images


def test_a_run_without_poses_is_recorded_by_the_odometry_and_says_so(tmp_path):
    drive = Drive(tmp_path / 'run', spacing_distance=0.25)
    drive.recording.without_poses()
    drive.session.needs_poses = False
    drive.go(0.0, 8.0, pose_every=None)
    run = open_dataset(tmp_path / 'run')
    assert len(run) > 10
    assert all(frame.reference is None for frame in run)
    assert run.notes == (WITHOUT_POSES,)


def test_a_run_with_known_poses_is_not_gone_on_with_without_them(tmp_path):
    drive = Drive(tmp_path / 'run')
    drive.go(0.0, 4.0)
    with pytest.raises(DatasetError, match='images with known poses: give another folder'):
        drive.recording.without_poses()


def test_a_run_without_poses_is_not_gone_on_with_with_them(ros, tmp_path):
    ColdRecording(tmp_path / 'run').without_poses()
    node = ros.start_node('recorder', out=tmp_path / 'run')
    assert node.wait() == 2
    assert 'run was recorded without poses, so that none' in node.output


def test_uncertain_poses_are_not_used(tmp_path):
    drive = Drive(tmp_path / 'run')
    for seconds in (0.0, 0.5, 1.0):
        drive.pose(seconds, deviation=100.0)
        drive.pose(seconds, deviation=float('nan'))
    drive.go(0.0, 1.0, pose_every=None)
    assert drive.session.recorded == 0 and drive.session.tally.poses == {'too uncertain': 6}
    assert 'too uncertain' not in ' '.join(drive.session.dropped)
    expected = (
        'pose not used: its standard deviation is 100.00 m, expected at most max_position_sd'
    )
    assert drive.told[0].startswith(f'{expected}, 0.5 m')


def test_a_run_that_ends_later_is_told_at_the_first_image(tmp_path):
    record_three_seconds(tmp_path / 'run')
    second = Drive(tmp_path / 'run')
    second.go(0.0, 1.0)
    assert second.told[0].startswith('image of 1600000000.000 s not recorded: expected one after')
    assert 'record into a new folder' in second.told[0]


def test_images_of_which_none_is_recorded_are_told_until_one_is(tmp_path, monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=100.0)
    monkeypatch.setattr(recording, 'time', clock)
    drive, stalls = Drive(tmp_path / 'run', max_pose_age=0.5), []
    assert drive.session.stall(clock.now) == ''
    for second in range(30):
        clock.now = 100.0 + second
        if second < 20:
            drive.pose(second, deviation=100.0 if 5 <= second < 15 else 0.1)
            drive.go(second, second + 0.95, pose_every=None)
        stalls.append(drive.session.stall(clock.now))
    told = [second for second, stall in enumerate(stalls) if stall]
    assert 10 <= told[0] <= 12 and told == list(range(told[0], 15))
    assert stalls[14].startswith('images come in, but none could be recorded for')
    assert 'no pose near enough in time' in stalls[14] and 'poses too uncertain' in stalls[14]


@pytest.mark.parametrize(('spacing', 'recorded'), [(100.0, 1), (0.0, 200)])
def test_a_robot_that_stands_or_drives_is_no_stall(tmp_path, monkeypatch, spacing, recorded):
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=100.0)
    monkeypatch.setattr(recording, 'time', clock)
    drive = Drive(tmp_path / 'run', spacing_distance=spacing)
    for second in range(20):
        clock.now = 100.0 + second
        drive.go(second, second + 0.95)
    assert drive.session.recorded == recorded and drive.session.stall(clock.now) == ''


def test_images_that_come_again_after_a_break_are_no_stall_and_reasons_are_those_since():
    tally = Tally(Counter())
    tally.came(0.0)
    tally.images['broken image'] += 3
    tally.placed(0.0)
    tally.came(100.0)
    assert tally.stall(100.5) == ''
    tally.poses['too uncertain'] += 2
    for second in range(101, 107):
        tally.came(second)
    says = 'images come in, but none could be recorded for 6 s: 2 poses too uncertain'
    assert tally.stall(106.0) == says


def test_a_stall_is_a_warning_on_diagnostics_and_poses_are_no_images():
    stalled = diagnostics.recording_status('recorder: recording', '3 images', '', 'why', {})
    assert (stalled.level, stalled.message) == (DiagnosticStatus.WARN, '3 images, but: why')
    poses = Counter({'too uncertain': 7})
    inputs = diagnostics.input_status('input', [], [], Counter(), Counter(), poses=poses)
    values = {pair.key: pair.value for pair in inputs.values}
    assert values == {'poses dropped: too uncertain': '7', 'images dropped': '0'}


def test_a_run_is_continued_with_a_reset_odometry(tmp_path):
    record_three_seconds(tmp_path / 'run')
    second = Drive(tmp_path / 'run')
    second.go(4.0, 7.0, origin=np.array([100.0, 50.0, 0.0]))
    _, run = second.positions()
    assert len(run) > 10
    steps = se2.between(run.odometry.poses[:-1], run.odometry.poses[1:])
    assert np.hypot(*steps[:, :2].T).max() < 0.1


@pytest.mark.parametrize('pause', [4.0, 60.0])
@pytest.mark.parametrize('origin', [(0.0, 0.0, 0.0), (1.0, 0.5, 0.3), (900.0, 0.0, 0.0), None])
@pytest.mark.parametrize('restarted', [False, True])
def test_what_the_odometry_did_in_a_long_pause_is_seen_in_the_run(
    tmp_path, pause, origin, restarted
):
    drive, begin = Drive(tmp_path / 'run'), 3.0 + pause
    drive.go(0.0, 3.0)
    if restarted:  # the recorder
        drive.session.close()
        drive = Drive(tmp_path / 'run')
    last = se2.compose(ORIGIN, [1.5, 0.0, 0.0]) if origin is None else np.array(origin)
    drive.go(begin, begin + 3.0, origin=se2.compose(last, [-0.5 * begin, 0.0, 0.0]))
    drive.session.close()
    run = open_dataset(tmp_path / 'run')
    assert len(run.odometry.stamps_ns) == 122
    cuts = odometry_leaps(run.odometry, run.stamps_ns, 0)
    first = int(np.searchsorted(run.stamps_ns, START + round(begin * SECOND)))
    assert [cut.image for cut in cuts] == [first] * (pause > 10.0 and origin is not None)
    jumped = 'the odometry jumped once: taken as reset, without motion'
    assert (jumped in run.notes) == (origin in ((0.0, 0.0, 0.0), (900.0, 0.0, 0.0)))


@pytest.mark.parametrize('jump', [(0.0, 1.5, 0.0), (0.0, 0.0, 1.5)])
def test_a_jump_is_seen_in_a_run_of_few_odometry_poses(tmp_path, jump):
    drive, there = Drive(tmp_path / 'run', odometry_rate=1.0), np.array([2.025, 0.0, 0.0])
    drive.go(0.0, 4.0)
    moved = se2.compose(se2.compose(there, np.array(jump)), se2.inverse(there))
    drive.go(4.05, 8.0, origin=se2.compose(ORIGIN, moved))
    drive.session.close()
    run = open_dataset(tmp_path / 'run')
    assert run.notes == ('the odometry jumped once: taken as reset, without motion',)
    steps = se2.between(run.odometry.poses[:-1], run.odometry.poses[1:])
    assert np.hypot(*steps[:, :2].T).max() < 0.6 and len(steps) < 12


@pytest.mark.parametrize(('rate', 'recorded'), [(20.0, 81), (10.0, 41)])
def test_odometry_that_comes_a_little_early_is_on_time(tmp_path, rate, recorded):
    drive = Drive(tmp_path / 'run', odometry_rate=rate)
    drive.pose(0.0)
    drive.image(0.0)
    for number in range(81):
        drive.odometry(number / 20 - 0.004 * (number % 3 == 1))
        drive.work()
    drive.session.close()
    assert len(open_dataset(tmp_path / 'run').odometry.stamps_ns) == recorded


def go_with_a_stray(drive, ahead, at=4.0):
    """Drive for 14 s with one odometry message whose stamp is too large by so many seconds."""
    if at > 0.0:
        drive.go(0.0, at)
    pose = se2.compose(ORIGIN, np.array([0.5 * at, 0.0, 0.0]))
    drive.session.add_odometry(START + round((at + ahead) * SECOND), pose)
    drive.work()
    drive.go(at + 0.05, 14.0)


@pytest.mark.parametrize('at', [0.0, 4.0])
@pytest.mark.parametrize('ahead', [2.0, 5.0, 9.0])
def test_an_odometry_stamp_in_the_future_costs_nothing(tmp_path, ahead, at):
    drive, whole = Drive(tmp_path / 'run'), Drive(tmp_path / 'whole')
    go_with_a_stray(drive, ahead, at)
    whole.go(0.05 if at == 0.0 else 0.0, 14.0)
    for one in (drive, whole):
        one.session.close()
    assert Added.RETURNED.value in drive.session.odometry_counts or at == 0.0
    files = [(tmp_path / run / 'odom_scans' / 'odom.tdf').read_text() for run in ('run', 'whole')]
    assert files[0] == files[1]
    positions, run = drive.positions()
    assert len(positions) > 30
    np.testing.assert_allclose(positions, 0.5 * (run.stamps_ns - START) * 1e-9, atol=1e-6)


def test_images_that_wait_for_a_pose_wait_on_behind_a_stamp_in_the_future(tmp_path):
    drive = Drive(tmp_path / 'run', max_pose_age=2.0)
    drive.go(0.0, 1.0, pose_every=None)
    drive.session.add_odometry(START + 6 * SECOND, se2.compose(ORIGIN, [0.5, 0.0, 0.0]))
    drive.work()
    drive.pose(0.5)
    drive.go(1.05, 2.0, pose_every=None)
    drive.session.close()
    assert drive.session.recorded > 5 and drive.session.dropped == {}


def test_odometry_behind_a_stamp_that_is_somewhat_ahead_is_written(tmp_path):
    drive = Drive(tmp_path / 'run')
    go_with_a_stray(drive, 0.8)
    drive.session.close()
    stamps = drive.positions()[1].odometry.stamps_ns
    assert np.diff(stamps).max() < 0.11 * SECOND and stamps[-1] == START + 14 * SECOND


def test_odometry_out_of_order_is_sure_and_the_newest_one_is_not():
    sure = SureOdometry()
    for stamp_ns in (0, SECOND, SECOND // 2):
        outcome = sure.buffer.add(stamp_ns, np.zeros(3))
        written = [stamp for stamp, _ in sure.follow(outcome, stamp_ns, np.zeros(3))]
    assert written == [SECOND // 2]
    assert sure.coverage(SECOND // 2) is Coverage.READY
    assert sure.coverage(SECOND // 2 + 1) is Coverage.EARLY


def test_a_recorder_that_is_started_again_writes_no_odometry_of_before(tmp_path):
    record_three_seconds(tmp_path / 'run')
    second = Drive(tmp_path / 'run')
    second.go(1.0, 4.0)
    second.session.close()
    lines = (tmp_path / 'run' / 'odom_scans' / 'odom.tdf').read_text().splitlines()
    assert len(lines) == len(set(lines)) == 81


def test_only_the_newest_odometry_waits_for_the_next_and_the_end_writes_it(tmp_path):
    drive = Drive(tmp_path / 'run')
    drive.go(0.0, 4.0)
    stamps = [drive.positions()[1].odometry.stamps_ns]
    drive.session.close()
    stamps.append(drive.positions()[1].odometry.stamps_ns)
    assert [round((each[-1] - START) / SECOND, 6) for each in stamps] == [3.95, 4.0]
    assert len(stamps[1]) == 81


def test_an_image_is_not_placed_by_odometry_that_nothing_continues(tmp_path):
    drive = Drive(tmp_path / 'run', spacing_distance=0.01)
    drive.go(0.0, 4.0)
    drive.session.add_odometry(START + round(5.5 * SECOND), se2.compose(ORIGIN, [2.0, 0.0, 0.0]))
    drive.image(4.3)
    drive.pose(4.3)
    drive.work()
    last = drive.recording.last_image.stamp_ns
    assert last <= START + 4 * SECOND
    drive.go(4.05, 5.0, pose_every=None)
    positions, run = drive.positions()
    assert START + round(4.3 * SECOND) in run.stamps_ns
    np.testing.assert_allclose(positions, 0.5 * (run.stamps_ns - START) * 1e-9, atol=1e-6)


def test_at_the_end_what_waits_is_recorded_or_counted(tmp_path):
    drive = Drive(tmp_path / 'run')
    for tick in range(120):
        drive.odometry(tick / 20)
        if tick % 20 == 0:
            drive.pose(tick / 20)
            drive.image(tick / 20)
    drive.image(7.0)
    drive.session.close()
    assert drive.session.recorded == 6
    assert drive.session.dropped == {'still without odometry or pose at the end': 1}


def test_a_bag_that_starts_over_is_not_recorded_twice(tmp_path):
    drive = Drive(tmp_path / 'run')
    drive.go(0.0, 4.0)
    recorded = drive.session.recorded
    drive.go(0.0, 3.5)
    assert drive.session.recorded == recorded
    assert drive.session.dropped['not newer than the run'] > 5


def test_memory_stays_bounded_when_nothing_fits(tmp_path):
    drive = Drive(tmp_path / 'run', image_queue=10)
    for index in range(3000):
        drive.image(index * 0.05)
        drive.pose(index * 0.05)
    drive.work()
    assert len(drive.session._queue) <= 10 and len(drive.session._anchors._waiting) <= 201


def full_disk(monkeypatch, drive, name):
    """Let a recording fail as on a full disk, until the list that is returned is emptied."""
    failing = [1]
    append = getattr(drive.recording, name)

    def fail(*arguments):
        if failing:
            raise DatasetError('cannot record: No space left on device')
        return append(*arguments)

    monkeypatch.setattr(drive.recording, name, fail)
    return failing


@pytest.mark.parametrize('name', ['append_image', 'append_odometry'])
def test_what_a_full_disk_does_not_take_is_written_when_there_is_room(tmp_path, monkeypatch, name):
    monkeypatch.setattr(recording, 'RETRY_SECONDS', 0.0)
    drive, whole = Drive(tmp_path / 'run'), Drive(tmp_path / 'whole')
    for one in (drive, whole):
        one.go(0.0, 1.0)
    failing = full_disk(monkeypatch, drive, name)
    drive.go(1.05, 2.0)
    assert drive.session.trouble == 'cannot record: No space left on device'
    failing.clear()
    drive.go(2.05, 4.0)
    whole.go(1.05, 4.0)
    assert drive.session.trouble == '' and drive.told[-1] == 'recording goes on'
    for one in (drive, whole):
        one.session.close()
    assert drive.positions()[0].tolist() == whole.positions()[0].tolist()
    files = [(tmp_path / run / 'odom_scans' / 'odom.tdf').read_text() for run in ('run', 'whole')]
    assert files[0] == files[1]


def test_odometry_that_comes_while_a_write_fails_is_written_after_what_waits(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(recording, 'RETRY_SECONDS', 0.0)
    drive = Drive(tmp_path / 'run')
    append = drive.recording.append_odometry

    def fail_once(samples):
        monkeypatch.setattr(drive.recording, 'append_odometry', append)
        for seconds in (0.1, 0.15):
            drive.odometry(seconds)
        raise DatasetError('cannot record')

    monkeypatch.setattr(drive.recording, 'append_odometry', fail_once)
    for seconds in (0.0, 0.05):
        drive.odometry(seconds)
    drive.work()
    drive.session.close()
    assert len((tmp_path / 'run' / 'odom_scans' / 'odom.tdf').read_text().splitlines()) == 4


def test_at_the_end_nothing_waits_for_the_next_attempt(tmp_path):
    drive, whole = Drive(tmp_path / 'run'), Drive(tmp_path / 'whole')
    drive.session._retry_at = np.inf  # as just after a failure
    for one in (drive, whole):
        one.go(0.0, 2.0)
        one.session.close()
    assert drive.session.recorded == whole.session.recorded > 3
    assert drive.session.dropped == {}


def test_what_is_not_written_at_the_end_is_an_error_and_counted(tmp_path, monkeypatch):
    drive = Drive(tmp_path / 'run')
    drive.go(0.0, 1.0)
    full_disk(monkeypatch, drive, 'append_image')
    drive.go(1.05, 2.0)
    with pytest.raises(DatasetError, match='No space left'):
        drive.session.close()
    images = len(range(22, 41, 2))  # two images of three are not due
    assert set(drive.session.dropped) == {'could not be written'}
    assert images / 3 <= sum(drive.session.dropped.values()) <= images
    Drive(tmp_path / 'run').session.close()


def test_memory_stays_bounded_while_a_disk_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, 'RETRY_SECONDS', 0.0)
    monkeypatch.setattr(recording, 'MOST_UNWRITTEN', 20)
    drive = Drive(tmp_path / 'run', image_queue=5)
    full_disk(monkeypatch, drive, 'append_odometry')
    drive.go(0.0, 20.0)
    assert len(drive.session._unwritten) <= 21 and len(drive.session._queue) <= 5


def test_a_full_disk_is_told_on_diagnostics_until_there_is_room(ros, tmp_path):
    out = tmp_path / 'run'
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    poses = ros.node.create_publisher(PoseWithCovarianceStamped, 'pose', RELIABLE)
    robot, seconds = Robot(ros), [0.0]
    node = ros.start_node('recorder', out=out)
    ros.spin_until(lambda: 'recording into' in node.output)
    robot.wait_for_listeners()

    def drive_until(level):
        reports.clear()
        while not any(status.level == level for status in recording_states(reports)):
            stamp_ns, pose = robot.stamp_ns(seconds[0]), robot.pose(seconds[0])
            cov = 0.01 * np.eye(3)
            poses.publish(conversions.pose_with_covariance(stamp_ns, 'map', pose, cov))
            robot.drive(seconds[0], seconds[0] + 0.35, pace=0.01)
            seconds[0] += 0.4

    drive_until(DiagnosticStatus.OK)
    resource.prlimit(node.popen.pid, resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
    drive_until(DiagnosticStatus.ERROR)
    assert 'cannot record into' in recording_states(reports)[-1].message
    free = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(node.popen.pid, resource.RLIMIT_FSIZE, free)
    drive_until(DiagnosticStatus.OK)
    assert node.stop(signal.SIGINT) == 0
    run = open_dataset(out)
    assert len(run) > 3 and run.skipped == {}


def test_an_odometry_of_another_clock_is_told(ros, tmp_path):
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    node = ros.start_node('recorder', out=tmp_path / 'run', pose_type='none')
    robot = Robot(ros)
    robot.wait_for_listeners()
    says = ' s ahead of those of /odom as both arrive, expected at most 0.5 s: their clocks differ'
    robot.drive_until(lambda: says in newest(reports, ': input')[0], clock=-2.0)
    assert says in node.output


@pytest.mark.parametrize('transport', ['raw', 'compressed'])
def test_images_of_another_size_are_told_once_and_stay_on_diagnostics(ros, tmp_path, transport):
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    values = {'out': tmp_path / 'run', 'pose_type': 'none', 'image_transport': transport}
    node = ros.start_node('recorder', **values)
    ending = '/compressed' if transport == 'compressed' else ''
    robot = SizedRobot(ros, compressed=bool(ending))
    robot.wait_for_listeners()
    seconds = [0.0]

    def drive_until(condition):
        def holds():
            robot.drive(seconds[0], seconds[0] + 0.35)
            seconds[0] += 0.4
            return condition()

        ros.spin_until(holds)

    drive_until(lambda: newest(reports, ': recording')[1].get('images', '0') > '2')
    assert 'are now' not in node.output
    robot.size = (80, 60)
    says = f'images of /image{ending} are now 80x60, were 160x120: a map keeps one size per camera'
    drive_until(lambda: says in newest(reports, ': input')[0])
    before = int(newest(reports, ': recording')[1]['images'])
    drive_until(lambda: int(newest(reports, ': recording')[1]['images']) > before + 2)
    ros.spin(6.0)
    assert node.output.count(says) == 1 and says in newest(reports, ': input')[0]
    states = [s for s in reports[-1].status if s.name.endswith(': input')]
    assert states[0].level == DiagnosticStatus.WARN


class SizedRobot(Robot):
    """A robot whose camera can be set to another size."""

    def __init__(self, ros, compressed):
        super().__init__(ros)
        self.size, self.compressed = (160, 120), compressed
        if compressed:
            ros.node.destroy_publisher(self.images)
            self.images = ros.node.create_publisher(CompressedImage, 'image/compressed', RELIABLE)

    def send_image(self, seconds, image=None):
        image = cv2.resize(wall_image(self.pose(seconds)[0]), self.size)
        if self.compressed:
            stamp_ns, encoded = self.stamp_ns(seconds), encode_jpeg(image, 'test')
            message = conversions.compressed_image_message(encoded, stamp_ns, 'camera')
            self.images.publish(message)
        else:
            super().send_image(seconds, image)


def test_a_run_that_is_gone_on_with_in_another_size_is_told(tmp_path):
    record_three_seconds(tmp_path / 'run')
    told, last = [], ColdRecording(tmp_path / 'run').last_files()
    assert last == [JPEG]
    sizes = ImageSizes(['/image'], last, told.append)
    sizes.look([JPEG])
    assert told == []
    height, width = textured_image(0).shape[:2]
    small = encode_jpeg(np.zeros((60, 80), np.uint8), 'test')
    for files in ([small], [small], [b'no image']):
        sizes.look(files)
    assert len(told) == 1 and list(sizes.changes.values()) == told
    assert told[0].startswith(f'images of /image are now 80x60, were {width}x{height}: ')


def test_an_image_that_says_that_it_was_turned_has_its_sides_changed():
    told, sizes = [], {}
    watch = ImageSizes(['/image'], [], told.append)
    for orientation in (None, 1, 3, 6):
        # little-endian TIFF of one entry, the orientation, a short
        entry = struct.pack('<HHIHxx', 0x0112, 3, 1, orientation or 0)
        exif = b'Exif\0\0II*\0\x08\0\0\0\x01\0' + entry + bytes(4)
        head = b'\xff\xe1' + struct.pack('>H', len(exif) + 2) + exif
        data = JPEG if orientation is None else JPEG[:2] + head + JPEG[2:]
        height, width = decode_image(data, 'test').shape[:2]
        sizes[orientation] = (width, height)
        watch.look([data])
    assert sizes[1] == sizes[3] == sizes[None] == sizes[6][::-1] != sizes[6]
    width, height = sizes[None]
    assert len(told) == 1
    assert told[0].startswith(f'images of /image are now {height}x{width}, were {width}x{height}')


def test_the_sizes_of_two_cameras_are_their_own():
    told, small = [], encode_jpeg(np.zeros((60, 80), np.uint8), 'test')
    sizes = ImageSizes(['/front/image', '/rear/image'], [], told.append)
    for files in ([JPEG, small], [JPEG, small]):
        sizes.look(files)
    assert told == []
    sizes.look([JPEG, JPEG])
    assert len(told) == 1 and told[0].startswith('images of /rear/image are now')


def recording_states(reports):
    found = (status for report in reports for status in report.status)
    return [status for status in found if status.name.endswith(': recording')]


def test_poses_of_another_type_are_told_with_the_parameter(ros, tmp_path):
    ros.node.create_publisher(PoseStamped, 'pose', RELIABLE)
    node = ros.start_node('recorder', out=tmp_path / 'run', no_data_timeout=0.5)
    expected = 'published as geometry_msgs/msg/PoseStamped, expected geometry_msgs/msg/PoseWith'
    ros.spin_until(lambda: expected in node.output)
    assert 'CovarianceStamped: set pose_type' in node.output


def test_poses_that_cannot_be_used_are_told_and_counted(ros, tmp_path):
    publisher = ros.node.create_publisher(PoseWithCovarianceStamped, 'pose', RELIABLE)
    node = ros.start_node('recorder', out=tmp_path / 'run')
    sent = [
        conversions.pose_with_covariance(10**9, frame, np.zeros(3), np.diag(variances))
        for frame, variances in (('odom', (0, 0, 0)), ('/map', (0, 4, 0)))
    ]
    sent.append(conversions.pose_with_covariance(10**9, 'map', np.zeros(3), np.eye(3)))
    sent[-1].pose.covariance[0] = -1.0
    says = (
        "pose in frame 'odom' not used: expected 'map'",
        'its standard deviation is 2.00 m',
        'pose not used: expected a finite covariance',
    )

    def told():
        for message in sent:
            publisher.publish(message)
        return all(words in node.output for words in says)

    ros.spin_until(told)
    assert node.stop(signal.SIGINT) == 0
    counted = node.output.rpartition('poses dropped: ')[2]
    assert all(why in counted for why in ('in another frame', 'too uncertain', 'not usable'))


def test_a_second_recorder_in_the_same_folder_is_refused(ros, tmp_path):
    first = ros.start_node('recorder', out=tmp_path / 'run')
    ros.spin_until(lambda: 'recording into' in first.output)
    second = ros.start_node('recorder', out=tmp_path / 'run')
    assert second.wait() == 2
    assert 'is being recorded into: stop the other recorder' in second.output
    assert first.stop(signal.SIGKILL) != 0
    third = ros.start_node('recorder', out=tmp_path / 'run')
    ros.spin_until(lambda: 'recording into' in third.output)


def test_a_killed_recorder_loses_at_most_the_last_image_and_goes_on(ros, tmp_path):
    out = tmp_path / 'run'
    shown = ros.collect(PoseArray, 'recorder/recorded_poses', LATCHED)
    poses = ros.node.create_publisher(PoseWithCovarianceStamped, 'pose', RELIABLE)
    robot = Robot(ros)

    def drive_until(count, seconds):
        while not shown or len(shown[-1].poses) < count:
            message = conversions.pose_with_covariance(
                robot.stamp_ns(seconds), 'map', robot.pose(seconds), 0.01 * np.eye(3)
            )
            poses.publish(message)
            robot.drive(seconds, seconds + 0.35, pace=0.01)
            seconds += 0.4
        return seconds

    first = ros.start_node('recorder', out=out)
    ros.spin_until(lambda: 'recording into' in first.output)
    robot.wait_for_listeners()
    end = drive_until(8, 0.0)
    first.stop(signal.SIGKILL)
    before = len(open_dataset(out))
    assert before >= len(shown[-1].poses) - 1
    shown.clear()
    second = ros.start_node('recorder', out=out)
    ros.spin_until(lambda: 'going on with' in second.output)
    drive_until(6, end)
    assert second.stop(signal.SIGINT) == 0
    run = open_dataset(out)
    assert len(run) >= before + 6 and run.skipped.get('bad line in odom.tdf', 0) <= 1
    references = np.array([frame.reference for frame in run])
    expected = np.array([robot.pose((frame.stamp_ns - robot.start_ns) * 1e-9) for frame in run])
    np.testing.assert_allclose(references, expected, atol=1e-3)
    assert len(build_map([run], VISION)) == len(run)


def test_a_run_of_the_home_folder_is_recorded_and_played(ros, tmp_path):
    """No shell puts the folder in the place of ~ in a parameter file, nor in `out:=~/run`."""
    home = {'HOME': str(tmp_path)}
    recorder = ros.start_node('recorder', environment=home, out='~/run', pose_type='none')
    ros.spin_until(lambda: 'recording into' in recorder.output)
    assert recorder.stop() == 0 and (tmp_path / 'run').is_dir()
    write_tiny_cold_run(tmp_path / 'other')
    player = ros.start_node('player', environment=home, run='~/other')
    ros.spin_until(lambda: 'waiting for subscribers' in player.output)
    assert player.stop() == 0


@pytest.mark.parametrize(
    'values, says',
    [({}, "parameter 'out' is empty"), ({'out': '/proc/run'}, 'cannot record into /proc/run')],
)
def test_a_recorder_that_cannot_start_says_why(ros, values, says):
    node = ros.start_node('recorder', **values)
    assert node.wait() == 2
    assert says in node.output and 'Traceback' not in node.output
