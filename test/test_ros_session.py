"""The session between messages and answers, with a real map and a real localizer."""

from dataclasses import replace
import threading
from unittest.mock import Mock

from helpers import START_NS, straight_reference, wall_image
from kbr_localization import se2
from kbr_localization.localization.calibration import Calibration, PRIOR_DEVIATIONS, SIZE
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.registry import make_localizer
from kbr_localization.localization.pipeline import Tracker
from kbr_localization.ros.config import NodeConfig
from kbr_localization.ros.saved_pose import SavedPose
from kbr_localization.ros.session import GivenPose, Session
import numpy as np
import pytest

SECOND = 1_000_000_000
ORIGIN = np.array([2.0, -1.0, 3.0])
COVARIANCE = np.diag([0.01, 0.01, 0.01])
GREY = np.full((96, 128), 128, np.uint8)
"""An image that says nothing."""
TOO_SMALL = np.zeros((48, 64), np.uint8)


class Drive:
    """A session on a map of the wall, fed second by second; answers are kept by stamp."""

    def __init__(self, world, start=None, saved=None, **values):
        kernel_map = KernelMap.load(world.map_file)
        gate = replace(kernel_map.filter_config, update_min_d=0.25, update_min_a=0.2)
        self.kernel_map = replace(kernel_map, filter_config=gate)
        self.told, self.answers, self.resets = [], {}, []
        self.log = lambda level, text: self.told.append(text)
        transforms, config = Mock(), NodeConfig(**values)
        transforms.clear.side_effect = lambda: self.resets.append('reset')
        self.session = Session(self.make_tracker, config, self.log, transforms, start, saved)
        self.dropped = lambda: dict(self.session.dropped)

    def make_tracker(self):
        return Tracker(self.kernel_map, make_localizer('kbr', self.kernel_map))

    def odometry(self, seconds, pose=None):
        if pose is None:
            pose = se2.compose(ORIGIN, straight_reference(seconds))
        return self.session.add_odometry(stamp(seconds), pose)

    def image(self, seconds, image=None):
        view = wall_image(straight_reference(seconds)[0]) if image is None else image
        self.session.add_image(stamp(seconds), view if callable(view) else lambda: view)

    def give(self, pose, seconds=None):
        given_ns = None if seconds is None else stamp(seconds)
        given = GivenPose(np.asarray(pose), COVARIANCE, given_ns)
        self.session.request(lambda: self.session.start_from(given))

    def ask(self, command):
        self.session.request(getattr(self.session, command))

    def work(self):
        while (answer := self.session.work(0.0)) is not None:
            self.answers[answer.stamp_ns] = answer

    def go(self, start, end, image_every=0.4):
        for tick in range(round(start * 20), round(end * 20) + 1):
            self.odometry(tick / 20)
            if tick % round(image_every * 20) == 0:
                self.image(tick / 20)
            self.work()

    def blind(self, start, end):
        """Drive on to an image that says nothing; return the answer to it."""
        self.image(end, GREY)
        self.go(start, end, image_every=100)
        return self.answers[stamp(end)]

    def error(self, seconds):
        pose = self.answers[stamp(seconds)].estimate.pose
        return float(np.hypot(*(pose - straight_reference(seconds))[:2]))


def stamp(seconds):
    return START_NS + round(seconds * SECOND)


@pytest.fixture
def drive(tiny_world):
    return Drive(tiny_world)


def test_it_localizes_from_nothing_and_the_transform_joins_map_and_raw_odometry(drive):
    drive.go(0.0, 6.0)
    assert len(drive.answers) == 16 and drive.error(6.0) < 0.2
    answer = drive.answers[stamp(6.0)]
    assert answer.estimate.localized and not drive.told
    base = se2.compose(answer.odom_in_map, se2.compose(ORIGIN, straight_reference(6.0)))
    np.testing.assert_allclose(base, answer.estimate.pose, atol=1e-9)


def test_a_given_pose_with_an_old_stamp_is_carried_forward(tiny_world):
    drive = Drive(tiny_world, initialize_globally=False)
    drive.go(0.0, 4.0)
    assert not drive.answers and drive.dropped()['no belief yet'] == 11
    assert drive.session.needs_initial_pose
    drive.give(straight_reference(1.0), 1.0)
    drive.image(4.04, GREY)
    drive.odometry(4.05)
    drive.work()
    assert drive.error(4.04) < 0.2 and not drive.session.needs_initial_pose


@pytest.mark.parametrize('given_s', [-100.0, 100.0, None])
def test_a_given_pose_without_odometry_at_its_stamp_is_taken_as_new(drive, given_s):
    drive.go(0.0, 4.0)
    drive.give(straight_reference(4.4), given_s)
    drive.go(4.05, 4.4)
    assert drive.error(4.4) < 0.2
    assert any('taken as if it were new' in text for text in drive.told) == (given_s is not None)


@pytest.mark.parametrize(('x', 'says'), [(1e4, 'refused: x 10000.00 m'), (40.0, 'may not be')])
def test_a_given_pose_off_the_map_is_told_and_far_off_it_refused(tiny_world, x, says):
    drive = Drive(tiny_world, GivenPose(np.array([x, 0.0, 0.0]), COVARIANCE))
    drive.go(0.0, 0.0)
    assert any(says in text for text in drive.told)
    pose = drive.answers[stamp(0.0)].estimate.pose
    assert (pose[0] > 20.0) == ('refused' not in says)


def test_a_global_start_takes_the_place_of_a_pose_that_was_given_before(drive):
    drive.go(0.0, 4.0)
    drive.give([70.0, 0.0, 0.0])
    drive.ask('start_globally')
    drive.answers.clear()
    drive.go(4.4, 8.0)
    assert max(drive.error(0.4 * tick) for tick in range(11, 21)) < 10.0


def test_a_saved_pose_comes_before_a_global_start_unless_it_is_old(tiny_world):
    odometry = se2.compose(ORIGIN, straight_reference(2.0))
    saved = SavedPose(stamp(2.0), np.array([30.0, 5.0, 0.0]), COVARIANCE, odometry, 'map')
    drive = Drive(tiny_world, saved=saved)
    drive.go(3.0, 3.2, image_every=0.2)
    pose = drive.answers[stamp(3.0)].estimate.pose
    assert np.hypot(*(pose - np.array([30.5, 5.0, 0.0]))[:2]) < 0.3
    old = Drive(tiny_world, saved=saved, saved_pose_max_age=0.5)
    old.go(3.0, 6.0)
    assert old.error(6.0) < 0.2
    assert 'saved pose not used: it is 1 s old, expected 0 to 0.5 s' in str(old.told)


def test_a_jump_back_in_time_starts_anew(drive):
    drive.go(0.0, 8.0)
    drive.answers.clear()
    drive.go(0.0, 6.0, image_every=0.05)
    assert drive.dropped() == {'older than the last one used': 2}
    assert len(drive.resets) == 1 and drive.error(6.0) < 0.3
    assert sum('forgotten' in text for text in drive.told) == 1


def test_a_restarted_odometry_driver_does_not_move_the_robot(drive):
    drive.go(0.0, 4.0)
    for tick in range(1, 41):
        seconds = 4.0 + tick / 20
        drive.odometry(seconds, np.array([0.5 * (seconds - 4.05), 0.0, 0.0]))
        if tick % 8 == 0:
            drive.image(seconds)
        drive.work()
    assert drive.error(6.0) < 0.3 and len(drive.resets) == 1
    answer = drive.answers[stamp(6.0)]
    base = se2.compose(answer.odom_in_map, np.array([0.5 * 1.95, 0.0, 0.0]))
    np.testing.assert_allclose(base, answer.estimate.pose, atol=1e-6)


def test_images_that_a_reset_overtakes_are_counted(drive):
    def reset():
        for tick in range(3):
            drive.odometry(tick / 20)

    def load():
        reset()
        return GREY

    drive.go(0.0, 2.4)
    answered = drive.session.answered
    drive.session.request(reset)
    for count, image in enumerate((GREY, load), start=1):
        drive.odometry(2.95)
        drive.image(3.0, image)
        drive.odometry(3.05)
        drive.work()
        assert drive.dropped() == {'before a reset': count}
    assert drive.session.answered == answered


def test_an_image_that_cannot_be_used_is_answered_only_where_there_is_a_pose(drive):
    for seconds in (0.0, 0.4, 0.8):
        drive.odometry(seconds)
        drive.image(seconds, TOO_SMALL)
        drive.work()
    assert drive.session.answered == 0 and drive.dropped() == {'unusable image': 3}
    assert 'image of 64x48 pixels' in drive.session.tracker.last_error
    drive.go(1.2, 4.0)
    assert drive.session.answered == 8
    drive.odometry(4.6)
    drive.image(4.6, TOO_SMALL)
    drive.work()
    assert drive.session.answered == 9 and drive.dropped() == {'unusable image': 4}


def test_an_unexpected_error_is_survived(drive):
    """And the thread that met it goes on."""

    def impossible():
        raise ZeroDivisionError

    drive.go(0.0, 2.4, image_every=0.8)
    drive.image(2.95, impossible)
    drive.odometry(3.0)
    answered, seconds = threading.Event(), 3.0
    drive.session.start(lambda answer: answered.set())
    while not answered.wait(0.1):
        seconds += 0.05
        assert seconds < 20.0
        drive.odometry(seconds)
        drive.image(seconds)
    drive.session.stop()
    drive.go(seconds + 0.05, seconds + 3.0, image_every=0.2)
    assert drive.session.last.estimate.localized
    assert drive.dropped()['internal error'] == 1
    assert any('ZeroDivisionError' in text for text in drive.told)


def test_another_tracker_takes_over_the_belief(drive):
    drive.go(0.0, 6.0)
    assert drive.answers[stamp(6.0)].estimate.localized
    drive.ask('replace_tracker')
    # images have confirmed it, so another parameter does not stop the robot
    assert drive.blind(6.05, 6.2).estimate.localized and drive.error(6.2) < 0.3


def test_on_another_map_the_belief_starts_anew_or_from_a_pose_given_after_the_switch(drive):
    drive.go(0.0, 4.0)
    drive.ask('replace_tracker')
    drive.ask('start_on_new_map')
    assert not drive.blind(4.05, 4.2).estimate.localized
    drive.give(np.zeros(3))
    drive.ask('start_on_new_map')
    drive.give(straight_reference(4.0), 4.0)
    drive.blind(4.25, 4.4)
    assert drive.error(4.4) < 0.3


def test_what_was_learnt_of_the_odometry_outlives_every_new_start(drive):
    drive.go(0.0, 6.0)
    learnt = drive.answers[stamp(6.0)].estimate.odometry
    for tick, command in enumerate(('start_globally', 'forget_belief', 'replace_tracker', '')):
        if command:
            drive.ask(command)
        else:
            drive.give(straight_reference(6.0))
        drive.go(6.4 + tick * 0.4, 6.4 + tick * 0.4)
        begun = drive.answers[stamp(6.4 + tick * 0.4)].estimate.odometry
        np.testing.assert_allclose(begun.values, learnt.values, atol=2e-3)


def test_a_saved_pose_brings_what_was_learnt_of_the_odometry(tiny_world):
    learnt = Calibration(np.full(SIZE, 0.01), 1e-6 * np.eye(SIZE))
    saved = SavedPose(stamp(-1.0), straight_reference(0.0), COVARIANCE, ORIGIN, 'id')
    drive = Drive(tiny_world, saved=replace(saved, learnt=learnt))
    drive.go(0.0, 0.4)
    diagnostics = drive.answers[stamp(0.4)].estimate.diagnostics
    assert diagnostics['odometry_offset_x'] == pytest.approx(0.01, abs=1e-3)
    # tyres and load may be others by now
    assert diagnostics['odometry_offset_x_sd'] > 0.9 * PRIOR_DEVIATIONS[0]
    drive.ask('start_on_new_map')
    drive.work()
    drive.go(0.8, 1.2)
    diagnostics = drive.answers[stamp(1.2)].estimate.diagnostics
    assert diagnostics['odometry_offset_x'] == pytest.approx(0.0, abs=1e-3)
