"""Localizers that are driven over frames, and which images they want."""

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.errors import DatasetError, LocalizationError
from kbr_localization.localization.localizer import UpdateGate
from kbr_localization.localization.methods.registry import make_localizer
from kbr_localization.localization.pipeline import localize, Tracker
from map_helpers import TinyRun
import numpy as np
import pytest


@pytest.fixture
def tracker(shared_map):
    tracker = Tracker(shared_map, make_localizer('kbr', shared_map))
    tracker.initialize_globally()
    return tracker


def test_images_are_loaded_for_updates_only_which_may_be_asked_for(tracker):
    frame, loaded, after = TinyRun(1)[0], [], []

    def load():
        loaded.append(frame.load_image())
        return loaded[-1]

    for number in range(5):
        if number == 2:
            tracker.localizer.request_update()
        estimate = tracker.process(frame.stamp_ns + number, load, frame.odometry)
        assert estimate.updated == (number in (0, 2))
        after.append(len(loaded))
    assert after == [1, 1, 2, 2, 2] and tracker.used == 2


def test_a_new_start_does_not_take_the_way_since_the_last_image(tracker):
    start, nothing = np.array([1.0, 0.0, 0.0]), 1e-6 * np.eye(3)
    grey = np.full((96, 128), 128, np.uint8)
    for metres in (0.0, 30.0):
        tracker.initialize(start, nothing)
        estimate = tracker.process(0, grey, np.array([metres, 0.0, 0.0]))
        np.testing.assert_allclose(estimate.pose[:2], start[:2], atol=0.5)


def test_odometry_that_is_not_finite_is_refused(tracker):
    with pytest.raises(LocalizationError, match='expected finite numbers'):
        tracker.process(0, np.zeros((96, 128), np.uint8), np.array([0.0, np.nan, 0.0]))


SURE, ZERO = np.diag([0.01, 0.01, 0.01]), [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ('pose', 'covariance', 'says'),
    [
        ([np.nan, 0.0, 0.0], SURE, r'finite x, y, heading to start from, got \[nan, 0'),
        ([0.0, 0.0], SURE, r'finite x, y, heading to start from, got \[0\.0, 0\.0\]'),
        (ZERO, np.nan * SURE, r'finite covariance \(3, 3\)'),
        (ZERO, SURE + np.triu(SURE[:1]), 'symmetric'),
        (ZERO, 0.01 * (1.9 * np.eye(3) - 0.9), 'negative in no direction'),
    ],
)
def test_a_start_from_what_is_no_pose_is_refused_and_changes_nothing(
    tracker, pose, covariance, says
):
    frames = list(TinyRun(2))
    tracker.initialize(frames[0].reference, SURE)
    with pytest.raises(LocalizationError, match=says):
        tracker.initialize(np.array(pose), covariance)
    estimate = tracker.process(0, frames[0].load_image, frames[0].odometry)
    assert np.hypot(*(estimate.pose - frames[0].reference)[:2]) < 0.2


def test_a_start_from_a_reference_pose_needs_one(shared_map):
    run = TinyRun(3)
    run.frames[0] = replace(run.frames[0], reference=None)
    with pytest.raises(LocalizationError, match='no reference pose'):
        localize(shared_map, run, init='reference')


def broken():
    raise DatasetError('no such image')


def test_a_lazy_image_error_does_not_lose_the_motion(tracker):
    frames = list(TinyRun(10))
    tracker.initialize(frames[0].reference, SURE)
    for frame in frames:
        estimate = tracker.process(frame.stamp_ns, broken, frame.odometry)
    assert np.hypot(*(estimate.pose - frames[-1].reference)[:2]) < 0.2
    assert tracker.skipped == {'broken image': 10}
    assert tracker.last_error == 'no such image'


def test_a_pose_in_doubt_stays_so_until_an_image_is_used(shared_map):
    tracker, said = Tracker(shared_map, make_localizer('nearest', shared_map)), []
    tracker.initialize(np.zeros(3), SURE)
    good, sure, unsure = TinyRun(1)[0].load_image, 0.01, 1.0
    for image, variance in [(good, sure), *[(broken, v) for v in (sure, unsure, sure)], (good, 0)]:
        tracker.localizer.covariance = variance * np.eye(3)
        said.append(tracker.process(0, image, np.zeros(3)).status)
    assert said == ['localized', 'localized', 'uncertain', 'uncertain', 'localized']


def used(gate, steps):
    """Count the ways (metres or radians) between updates for images after each of the steps."""
    ways, way = [], np.zeros(3)
    gate.restart()
    for step in steps:
        gate.add(step)
        way = way + step
        if gate.due:
            ways.append(way)
            way = np.zeros(3)
            gate.restart()
    return np.array(ways)


@pytest.mark.parametrize('axis, wanted', [(0, 0.4), (2, 0.15)])
def test_the_image_nearest_to_the_wanted_way_counts(axis, wanted):
    """Waiting for a full way would let a camera that is just short of it skip every other one."""
    gate = UpdateGate(0.4, 0.15)
    for share in (0.99, 0.74, 0.26, 0.13, 0.02):
        step = np.zeros(3)
        step[axis] = share * wanted
        ways = used(gate, [step] * 500)[:, axis]
        np.testing.assert_allclose(ways, ways[0])
        assert abs(ways[0] - wanted) <= 0.5 * step[axis] + 1e-9


@pytest.mark.parametrize('axis', [0, 1, 2], ids=['ahead', 'aside', 'heading'])
def test_a_pose_that_jitters_about_one_place_makes_no_way(axis):
    gate = UpdateGate(0.4, 0.15)
    poses = np.zeros((500, 3))
    wanted = (0.4, 0.4, 0.15)[axis]
    poses[1:, axis] = 0.02 * wanted * np.random.default_rng(0).standard_normal(499)
    assert len(used(gate, list(se2.between(poses[:-1], poses[1:])))) == 0
    assert gate.metres < 0.1 * 0.4


def test_driving_to_and_fro_counts_as_way_and_a_rest_after_a_long_step_does_not():
    gate = UpdateGate(0.4, 0.15)
    steps = [np.array([0.1, 0.0, 0.0]), np.array([-0.1, 0.0, 0.0])] * 50
    assert len(used(gate, steps)) == 25
    assert len(used(gate, [np.array([3.0, 0.0, 1.0]), *[np.zeros(3)] * 50])) == 1
    # the way is that of every step however small
    for _ in range(30):
        gate.add(np.array([0.01, 0.0, 0.001]))
    assert gate.metres == pytest.approx(0.3, rel=1e-3)
    gate.restart()
    assert gate.metres == 0.0
