"""Which images and odometry the recorder writes; no messages involved."""

from helpers import textured_image
from kbr_localization import se2
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.cold import ColdRecording
from kbr_localization.errors import DatasetError
from kbr_localization.ros.buffers import Outcome
from kbr_localization.ros.config import RecorderConfig
from kbr_localization.ros.recorder import RecordingSession
import numpy as np
import pytest

SECOND = 1_000_000_000
START = 1_600_000_000 * SECOND
ORIGIN = np.array([2.0, -1.0, 3.0])


class Drive:
    """A session fed with a drive along x at 0.5 m/s whose odometry has another origin."""

    def __init__(self, path, **config):
        self.told = []
        self.recording = ColdRecording(path)
        self.log = lambda level, text: self.told.append(text)
        config = RecorderConfig(**config)
        self.session = RecordingSession(self.recording, config, self.log)

    def odometry(self, seconds, origin=ORIGIN):
        pose = se2.compose(origin, np.array([0.5 * seconds, 0.0, 0.0]))
        return self.session.add_odometry(START + round(seconds * SECOND), pose)

    def pose(self, seconds, deviation=0.1):
        pose = np.array([0.5 * seconds, 0.0, 0.0])
        self.session.add_pose(START + round(seconds * SECOND), pose, deviation)

    def image(self, seconds, load=lambda: textured_image(0)):
        self.session.add_image(START + round(seconds * SECOND), load)

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

    def recorded(self):
        """Seconds and x of the images of the run, NaN without a pose."""
        run = open_dataset(self.recording.path)
        poses = [np.full(3, np.nan) if f.reference is None else f.reference for f in run]
        return (run.stamps_ns - START) * 1e-9, np.array(poses)[:, 0]


@pytest.mark.parametrize('pose_every', [1.0, 4.0])
def test_images_are_spaced_and_get_the_pose_of_their_stamp(tmp_path, pose_every):
    drive = Drive(tmp_path / 'run', spacing_distance=0.25)
    drive.go(0.0, 8.0, pose_every)
    drive.session.close()
    seconds, positions = drive.recorded()
    steps = np.diff(positions)  # an image every 0.05 m
    assert len(steps) > 10 and steps.min() > 0.247 and steps.max() < 0.3 + 1e-6
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


def test_after_a_jump_of_the_odometry_the_next_pose_counts(tmp_path):
    drive, elsewhere = Drive(tmp_path / 'run', spacing_distance=0.0), np.array([50.0, 0.0, 0.0])
    drive.go(0.0, 2.0)
    drive.go(2.05, 4.0, pose_every=None, origin=elsewhere)
    drive.pose(4.0)
    drive.go(4.05, 5.0, pose_every=None, origin=elsewhere)
    drive.session.close()
    seconds, positions = drive.recorded()
    assert np.sum(seconds > 2.05) > 20 and 'odometry' in drive.told[0]
    np.testing.assert_allclose(positions, 0.5 * seconds, atol=1e-6)


def test_what_is_not_recorded_is_counted_and_told(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr('time.monotonic', lambda: now[0])

    def broken():
        raise DatasetError('no image')

    drive = Drive(tmp_path / 'run', max_position_sd=0.2, spacing_distance=0.0)
    drive.pose(0.0)
    drive.pose(0.0, deviation=0.3)
    assert 'expected at most max_position_sd, 0.2 m' in drive.told[0]
    said = []
    for second in range(10):
        drive.go(float(second), second + 0.95)
        now[0] += 1.0
        said.append(drive.session.stall(now[0], images_arrive=True))
    assert not any(said)
    drive.pose(20.0)
    assert 'ahead of the odometry' in drive.told[-1]
    dropped = {'before the odometry': 1, 'too uncertain': 1, 'of another time': 1}
    assert drive.session.poses_dropped == dropped
    drive.image(9.92, broken)
    drive.image(11.0)
    for _ in range(6):
        now[0] += 1.0
        drive.image(8.0)
        said.append(drive.session.stall(now[0], images_arrive=True))
    assert not any(said[:-2]) and 'older than the last one used' in said[-1]
    drive.session.close()
    dropped = drive.session.dropped
    assert dropped['broken image'] == dropped['still without odometry at the end'] == 1
    assert sum(dropped.values()) + drive.recording.count == 108


def test_a_run_without_poses_is_recorded_by_the_odometry(tmp_path):
    drive = Drive(tmp_path / 'run', spacing_distance=0.25, pose_type='none')
    drive.go(0.0, 8.0, pose_every=None)
    drive.session.close()
    run = open_dataset(tmp_path / 'run')
    assert len(run) > 10 and all(frame.reference is None for frame in run)
    assert not (tmp_path / 'run/localization/poses.tum').exists()


def test_a_run_is_continued_with_a_reset_odometry(tmp_path):
    for start, origin in ((0.0, ORIGIN), (4.0, np.array([100.0, 50.0, 0.0]))):
        drive = Drive(tmp_path / 'run')
        drive.go(start, start + 3.0, origin=origin)
        drive.session.close()
    run = open_dataset(tmp_path / 'run')
    assert len(run) > 10
    steps = se2.between(run.odometry.poses[:-1], run.odometry.poses[1:])
    assert np.hypot(*steps[:, :2].T).max() < 0.1
    again = Drive(tmp_path / 'run')  # a bag that starts over
    again.go(0.0, 3.0)
    again.session.close()
    assert again.session.dropped['not newer than the run'] > 5
    again = open_dataset(tmp_path / 'run')
    assert [frame.name for frame in again] == [frame.name for frame in run]
    np.testing.assert_array_equal(again.odometry.stamps_ns, run.odometry.stamps_ns)
    np.testing.assert_array_equal(again.fixes.stamps_ns, run.fixes.stamps_ns)


def test_a_clock_that_is_set_back_costs_that_time_and_nothing_of_the_run(tmp_path):
    drive = Drive(tmp_path / 'run')
    drive.go(0.0, 10.0)
    drive.go(5.0, 12.0, origin=np.array([-4.0, 2.0, 1.0]))
    drive.session.close()
    assert drive.session.dropped['not newer than the run'] > 40
    seconds, positions = drive.recorded()
    assert seconds[-1] > 11.5
    np.testing.assert_allclose(positions, 0.5 * seconds, atol=1e-6)


def test_a_pose_stamp_in_the_future_keeps_no_other_out(tmp_path):
    drive = Drive(tmp_path / 'run')
    drive.go(0.0, 4.0)
    drive.pose(3600.0)
    drive.go(4.05, 8.0)
    drive.session.close()
    assert drive.session.poses_dropped == {'of another time': 1}
    seconds, positions = drive.recorded()
    np.testing.assert_allclose(positions, 0.5 * seconds, atol=1e-6)


@pytest.mark.parametrize('ahead', [0.8, 5.0])
def test_an_odometry_stamp_in_the_future_costs_nothing(tmp_path, ahead):
    drive = Drive(tmp_path / 'run')
    drive.go(0.0, 4.0)
    stray = START + round((4.0 + ahead) * SECOND)
    drive.session.add_odometry(stray, se2.compose(ORIGIN, [2.0, 0.0, 0.0]))
    drive.go(4.05, 10.0)
    drive.session.close()
    assert Outcome.OUTLIER_REMOVED.value in drive.session.odometry_counts
    seconds, positions = drive.recorded()
    assert len(positions) >= 24  # one in 0.2 m
    assert np.diff(open_dataset(tmp_path / 'run').odometry.stamps_ns).max() < 0.11 * SECOND
    if ahead > 1.0:  # a nearer one is part of the track
        np.testing.assert_allclose(positions, 0.5 * seconds, atol=1e-6)


@pytest.mark.parametrize('name', ['append_image', 'write'])
def test_of_a_full_disk_images_are_counted_and_the_rest_is_written_later(
    tmp_path, monkeypatch, name
):
    drive = Drive(tmp_path / 'run')
    append, full = getattr(drive.recording, name), [True]

    def fail(*arguments):
        if full:
            raise DatasetError('cannot record: No space left on device')
        return append(*arguments)

    monkeypatch.setattr(drive.recording, name, fail)
    drive.go(0.0, 1.0)
    assert drive.session.write_error == 'cannot record: No space left on device'
    full.clear()
    drive.go(1.05, 3.0)
    drive.session.close()
    assert drive.session.write_error == '' and 'recording again' in drive.told
    assert set(drive.session.dropped) == {'could not be written'}
    run = open_dataset(tmp_path / 'run')
    assert len(run) >= 4 and run.odometry.stamps_ns[0] == START
    assert np.diff(run.odometry.stamps_ns).max() < 0.06 * SECOND
    np.testing.assert_array_equal(run.fixes.stamps_ns, START + SECOND * np.arange(4))
