"""An odometry that is grossly wrong is found out by the images, and a right one is not."""

import copy
from dataclasses import replace
import functools

from kbr_localization import se2
from kbr_localization.localization.calibration import NAMES
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.map.similarity import FullSimilarity
from map_helpers import map_along, TINY_VISION
import numpy as np
import pytest

STEP = 0.2
LATE = round(5.0 / STEP)  # frames after the first five metres


def winding(count=300):
    """Poses (n, 3) of a drive with turns to both sides, `STEP` metres each."""
    turns = 0.12 * np.sign(np.sin(np.arange(count) * STEP / 2.5))
    steps = np.column_stack([np.full(count, STEP), np.zeros(count), turns])
    return se2.chain(np.zeros(3), steps)


PATH = winding()
DEFAULT_MAP = map_along(PATH[::2])
# its images have a part in the centring alone, but one in what a single seed does
MAP = map_along(PATH[::2], vision=replace(TINY_VISION, relative_counts=False))


def similarities(pose):
    """Of an image at a pose (3,) with those of the map: alike within a metre or so."""
    apart = se2.between(pose, MAP.poses)
    return 0.55 + 0.15 * np.exp(-np.hypot(apart[:, 0], apart[:, 1]) - np.abs(apart[:, 2]))


@functools.cache
def drive(*factors):
    """Localize along the path by an odometry whose steps (n, 3) are multiplied by factors (3,)."""
    return drive_by(np.array(factors))


def drive_by(factors, seed=0, kernel_map=MAP):
    """Localize with factors (3,) or, of each step, (n, 3); returns localizer and estimates."""
    rng = np.random.default_rng(seed)
    localizer = KernelBayesFilter(kernel_map, KbrConfig(points=300), rng)
    localizer.initialize_globally()
    estimates = []
    steps = se2.between(PATH[:-1], PATH[1:]) * factors
    for pose, step in zip(PATH[1:], steps, strict=True):
        localizer.predict(step)
        if localizer.wants_image():
            localizer.update_similarities(similarities(pose))
        estimates.append(localizer.estimate())
    return localizer, estimates


def driven(*factors):
    """Localizer after such a drive, for a test that goes on with it; the map stays shared."""
    return copy.deepcopy(drive(*factors)[0], {id(one): one for one in (MAP, MAP.centring)})


def errors(estimates):
    poses = np.array([estimate.pose for estimate in estimates])
    return np.hypot(*(poses - PATH[1:])[:, :2].T)


@pytest.mark.parametrize(
    'factors, column, found',
    [
        ((1.5, 1.5, 1.0), 'forward_scale', 1 / 3),
        ((0.6, 0.6, 1.0), 'forward_scale', -2 / 3),
        ((1.0, -1.0, -1.0), 'turn_scale', 2.0),
    ],
    ids=['half as far again', 'too short', 'mirrored'],
)
def test_a_grossly_wrong_odometry_is_never_called_localized_and_wrong(factors, column, found):
    localizer, estimates = drive(*factors)
    wrong = [
        estimate.localized and error > 1.0
        for estimate, error in zip(estimates, errors(estimates), strict=True)
    ]
    late = wrong[LATE:]
    assert np.mean(late) < 0.01
    assert localizer.monitor.check.refuted and estimates[-1].status != 'localized'
    assert estimates[-1].diagnostics['odometry_wrong'] > 0.99
    led = localizer.monitor.check.led
    means = led.weights @ led.odometry
    assert means[NAMES.index(column)] == pytest.approx(found, abs=0.1)


def too_far_for_a_while():
    """Return factors (n, 3) of an odometry that counts 1.6 times too far for 20 m."""
    factors = np.ones((len(PATH) - 1, 3))
    factors[50:150] = 1.6, 1.6, 1.0
    return factors


@pytest.mark.parametrize('kernel_map', [MAP, DEFAULT_MAP], ids=['counts', 'relative counts'])
def test_an_odometry_that_is_right_again_is_called_right_again(kernel_map):
    """
    Most filters tell within 10 m; which are led on for a while depends on what they draw.

    Of 48 drives 44 tell soon and 46 at last.
    """
    soon, late = [], []
    for seed in range(14):
        _, estimates = drive_by(too_far_for_a_while(), seed, kernel_map)
        wrong = np.array([estimate.diagnostics['odometry_wrong'] for estimate in estimates])
        assert wrong[:50].max() < 0.9 < wrong[149]
        localized = np.mean([estimate.localized for estimate in estimates[200:250]])
        soon.append(wrong[200:250].max() < 0.3 and localized > 0.9)
        late.append(wrong[-1] < 0.3)
    assert sum(soon) >= 8 and sum(late) >= 12


def test_points_of_another_odometry_are_weighed_by_an_image_as_the_belief_is():
    """
    Or they explain a straight corridor ever better, though they are where the belief is.

    A belief that is weighed with outliers is wider than points that are not.
    """
    monitor = driven(1.0, 1.0, 1.0).monitor
    check, hypotheses = monitor.check, monitor.hypotheses
    assert monitor.confirmation.confirmed
    seen = hypotheses.likelihood.centring.of(FullSimilarity(similarities(PATH[-1])))
    prior = Belief.gaussian(PATH[-1], np.diag([0.3, 0.3, 0.2]) ** 2, 300, np.random.default_rng(0))
    posterior = hypotheses.weigh(prior, seen)
    check.led, check.wrong = prior.reweighed(np.ones(300)), 0.3
    likelihood = check.see(seen, posterior.likelihood, posterior.belief)
    assert likelihood == pytest.approx(posterior.likelihood)
    assert check.wrong == pytest.approx(0.3)
    np.testing.assert_allclose(check.led.weights, posterior.belief.weights)


def test_points_that_leave_a_belief_weigh_what_is_left_of_it():
    """
    Others would be a belief that never dies.

    Nobody believes in the belief here, and what leaves it has next to no weight.
    """
    localizer = driven(1.5, 1.5, 1.0)
    check = localizer.monitor.check
    lightest = []
    for pose in winding(310)[-10:]:
        believed, before = 1.0 - check.wrong, len(check.led.points)
        localizer.predict(np.array([STEP, 0.0, 0.12]))
        localizer.update_similarities(similarities(pose))
        if len(check.led.points) == before + 1:
            lightest.append(check.led.weights[-1] / believed)
        assert check.led.weights.sum() == pytest.approx(1.0)
    assert lightest and max(lightest) < 1e-3


def test_what_a_wrong_odometry_teaches_is_not_kept_for_later_starts():
    localizer = driven(1.5, 1.5, 1.0)
    kept = localizer.odometry.learnt
    for pose in PATH[-8:]:
        localizer.confirm()
        localizer.predict(np.array([STEP, 0.0, 0.0]))
        localizer.update_similarities(similarities(pose))
    assert localizer.confirmation.confirmed and localizer.odometry.learnt is kept


@pytest.mark.parametrize('factor', [1.0, 1.02, 0.97])
def test_an_odometry_that_is_a_little_wrong_is_not_found_fault_with(factor):
    _, estimates = drive(factor, factor, 1.0)
    assert max(estimate.diagnostics['odometry_wrong'] for estimate in estimates) < 0.9
    assert all(estimate.localized for estimate in estimates[LATE:])
    assert errors(estimates)[LATE:].max() < 1.0


def test_it_is_forgotten_with_a_new_start():
    localizer = driven(1.5, 1.5, 1.0)
    assert localizer.monitor.check.refuted
    localizer.initialize_globally()
    assert localizer.monitor.check.wrong == 0.0 and not localizer.monitor.check.refuted


def test_a_robot_that_stands_still_does_not_make_the_odometry_seem_wrong():
    localizer = driven(1.0, 1.0, 1.0)
    before = localizer.monitor.check.wrong
    for _ in range(50):
        localizer.predict(np.zeros(3))
        localizer.update_similarities(similarities(PATH[-1]) + 1e-9 * localizer.rng.random())
    assert localizer.monitor.check.wrong <= max(before, 0.1)


def test_a_right_odometry_is_not_refuted_by_a_start_that_turns():
    """Points of a start are spread anew at every image, and so are those led astray."""
    places = np.stack(np.meshgrid(np.arange(-1.2, 1.3, 0.6), np.arange(-1.2, 1.3, 0.6)), axis=-1)
    headings = np.arange(-3.0, 3.0, 0.6)
    room = np.array([[*place, turn] for place in places.reshape(-1, 2) for turn in headings])
    kernel_map = map_along(room)
    steps = np.concatenate(
        [np.tile([0.005, 0.0, 0.1], (250, 1)), np.tile([0.1, 0, 0.15], (60, 1))]
    )
    localizer = KernelBayesFilter(kernel_map, KbrConfig(points=300), np.random.default_rng(0))
    localizer.initialize_globally()
    pose, wrong, statuses = np.array([0.3, 0.1, 0.2]), [], []
    for step in steps:
        pose = se2.compose(pose, step)
        localizer.predict(step)
        if localizer.wants_image():
            apart = se2.between(pose, room)
            alike = np.exp(-np.hypot(apart[:, 0], apart[:, 1]) - np.abs(apart[:, 2]))
            localizer.update_similarities(0.55 + 0.15 * alike)
        estimate = localizer.estimate()
        wrong.append(estimate.diagnostics['odometry_wrong'])
        statuses.append(estimate.status)
    assert max(wrong) < 0.1
    assert statuses[-40:].count('localized') == 40


def test_a_mass_of_nothing_calls_every_confirmed_pose_localized():
    localizer = driven(1.0, 1.0, 1.0)
    localizer.hypotheses.config = replace(localizer.config, localized_mass=0.0)
    assert 0.0 <= localizer.monitor.check.wrong < 0.5
    assert localizer.monitor.reliable
