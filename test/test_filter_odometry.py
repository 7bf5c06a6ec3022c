"""Systematic errors of the odometry, learnt on the points of a belief."""

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.localization.calibration import (
    Calibration,
    MotionNoise,
    moved,
    reported,
    SIZE,
)
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.hypotheses import Points
from kbr_localization.localization.filter.odometry import gross_errors, OdometryModel
from map_helpers import tiny_map
import numpy as np
import pytest

NOISE = MotionNoise(np.full(3, 1e-5), np.full(3, 1e-5), np.full(4, 1e-4))
TRUE = np.array([0.08, -0.03, 0.004, 0.008, 0.0, -0.008, 0.016])
TOLD = [0, 1, 5, 6]  # of `calibration.NAMES`: both offsets, the scale of turns, the drift
MAP = tiny_map(4)
KNOWN = Calibration(np.zeros(SIZE), 1e-4 * Calibration.unknown().covariance)


def calibration_of(how='learnt', factor=1.0, noise=NOISE, known=KNOWN):
    config = KbrConfig(noise_scale=factor, odometry_calibration=how, carried_rate=3e-5)
    return OdometryModel(replace(MAP, motion_noise=noise, calibration=known), config)


def wander(rng, steps=400):
    return np.column_stack(
        [rng.uniform(0.0, 0.3, steps), np.zeros(steps), rng.normal(0.0, 0.15, steps)]
    )


def test_noise_and_errors_of_steps_are_carried_to_the_last_frame():
    calibration = calibration_of()
    steps = [np.array([0.5, 0.1, 0.7]), np.array([0.4, 0.0, -0.3])]
    rng = np.random.default_rng(0)
    size = 200_000
    points, belief = np.zeros((size, 3)), Points(np.zeros((1, 3)), np.ones(1))
    for step in steps:
        calibration.predict(step, belief)
        deviations = np.sqrt(NOISE.variances(step))
        points = se2.compose(points, step)
        points = se2.compose(points, deviations * rng.standard_normal((size, 3)))
    end = se2.compose(*steps)
    errors = se2.between(end, points)
    np.testing.assert_allclose(calibration.noise, np.cov(errors.T), rtol=0.03, atol=1e-7)
    changed = [se2.compose(*(moved(s, p) for s in steps)) for p in 1e-6 * np.eye(SIZE)]
    slope = se2.between(end, np.array(changed)).T / 1e-6
    by_errors = calibration.total_noise(learn=True) - calibration.noise
    np.testing.assert_allclose(by_errors, slope @ calibration.covariance @ slope.T, atol=1e-6)


def test_what_is_known_of_the_odometry_is_forgotten_as_the_way_goes_on():
    calibration = calibration_of()
    before, belief = calibration.covariance.copy(), Points(np.zeros((1, 3)), np.ones(1))
    for _ in range(50):
        calibration.predict(np.array([2.0, 0.0, 0.0]), belief)
    calibration.sample_noise(belief, np.random.default_rng(0), learn=False)
    prior = KNOWN.prior_for_drive('learnt').covariance
    np.testing.assert_allclose(calibration.covariance, before + 100.0 * 3e-5 * prior)


def follow(calibration, belief, truth, motions, rng, told=TRUE):
    """Drive motions with wheels whose errors are `told`; images tell the pose to 2 cm."""
    for motion in motions:
        truth = se2.compose(truth, motion)
        calibration.predict(reported(motion, told), belief)
        calibration.sample_noise(belief, rng, learn=True)
        apart = se2.between(truth, belief.poses) / [0.02, 0.02, 0.01]
        weights = belief.weights * np.maximum(np.exp(-0.5 * np.sum(apart**2, axis=1)), 1e-300)
        belief.weights = weights / weights.sum()
        if belief.effective_size() < 250:
            belief = belief.resampled(500, rng)
    return belief, truth


def law_after(seed, motions, told=TRUE):
    """Law of the errors after a drive, and the standard deviations before it."""
    calibration, rng = calibration_of(), np.random.default_rng(seed)
    before = np.sqrt(np.diag(calibration.covariance))
    belief = Points.gaussian(np.zeros(3), 1e-6 * np.eye(3), 500, rng)
    belief, _ = follow(calibration, belief, np.zeros(3), motions(rng), rng, told)
    return calibration.estimate(belief), before


def test_points_that_follow_the_truth_learn_the_errors():
    law, before = law_after(2, lambda rng: wander(rng, 300))
    assert np.all(np.abs(law.values - TRUE) < 3.0 * law.deviations + 1e-3)
    assert np.all(law.deviations[TOLD] < 0.3 * before[TOLD])


def test_what_a_run_cannot_tell_stays_as_it_was():
    """Straight ahead nothing is to be seen of the offset and of the scale of turns."""
    ahead = np.tile([0.2, 0.0, 0.0], (200, 1))
    law, before = law_after(3, lambda rng: ahead, np.zeros(SIZE))
    *hidden, drift = TOLD
    assert np.all(law.deviations[hidden] > 0.6 * before[hidden])
    assert np.all(np.abs(law.values[hidden]) < before[hidden])
    assert law.deviations[drift] < 0.3 * before[drift]


def test_a_sideways_base_learns_the_scale_of_its_sideways_motion():
    def sideways(rng):
        motions = wander(rng, 200)
        motions[::2] = motions[::2][:, [1, 0, 2]]
        return motions

    laws = [law_after(seed, sideways, 0.02 * np.eye(SIZE)[4])[0] for seed in range(3)]
    assert np.mean([law.values[4] for law in laws]) == pytest.approx(0.02, abs=0.005)
    assert max(law.deviations[4] for law in laws) < 0.02 / 3.0


def test_a_new_start_goes_on_from_what_was_learnt():
    calibration, rng = calibration_of(), np.random.default_rng(5)
    belief = Points.gaussian(np.zeros(3), 1e-6 * np.eye(3), 500, rng)
    belief, truth = follow(calibration, belief, np.zeros(3), wander(rng, 200), rng)
    calibration.resume_from(calibration.estimate(belief))
    learnt = calibration.learnt
    other = calibration_of()
    other.resume_from(learnt)
    for begun in (calibration, other):
        fresh = Points.gaussian(truth, np.eye(3), 10, rng)
        begun.start(fresh)
        law = begun.estimate(fresh)
        np.testing.assert_allclose(law.values, learnt.values)
        np.testing.assert_allclose(law.covariance, learnt.covariance, atol=1e-12)


def test_what_was_learnt_before_a_break_is_unlearnt_where_it_holds_no_more():
    """Another load, another sensor, or the file of another robot: the opposite errors here."""
    sure = Calibration(-TRUE, 0.01 * Calibration.unknown().covariance)
    left = []
    for learnt in (sure, sure.prior_after_restart()):
        calibration, rng = calibration_of(), np.random.default_rng(2)
        calibration.resume_from(learnt)
        belief = Points.gaussian(np.zeros(3), 1e-6 * np.eye(3), 500, rng)
        calibration.start(belief)
        belief, _ = follow(calibration, belief, np.zeros(3), wander(rng, 100), rng)
        law = calibration.estimate(belief)
        left.append(np.abs(law.values - TRUE) / law.deviations)
    assert left[1][TOLD].max() < 0.3 * left[0][TOLD].max()


@pytest.mark.parametrize(('how', 'drift'), [('learnt', 0.005), ('mapped', 0.01), ('off', 0.0)])
def test_what_is_known_at_the_start(how, drift):
    values = np.zeros(SIZE)
    values[-1] = 0.01
    calibration = calibration_of(how, known=Calibration(values, KNOWN.covariance))
    assert calibration.expected[-1] == pytest.approx(drift, rel=1e-3)
    assert calibration.covariance.any() == (how == 'learnt')
    belief = Points(np.zeros((3, 3)), np.full(3, 1 / 3))
    described = calibration.diagnostics(belief)
    assert described['odometry_drift'] == pytest.approx(drift, rel=1e-3)
    assert (described['odometry_drift_sd'] > 0.0) == (how == 'learnt')
    calibration.resume_from(calibration.estimate(belief))
    assert (calibration.learnt is not None) == (how == 'learnt')


def test_a_heading_that_jumped_turns_the_motion_back():
    """Of the errors that are drawn, those of a jump make the reported motion the true one."""
    errors, turn = gross_errors(2000, np.random.default_rng(0))
    jumped = np.flatnonzero(turn[:, 2])
    assert 300 < jumped.size < 500
    step = np.array([0.2, 0.0, 0.0])
    for number in jumped[:5]:
        calibration = calibration_of('off')
        point = Points(turn[[number]], np.ones(1), errors[[number]])
        calibration.predict(step, point)
        angle = -turn[number, 2]
        expected = se2.compose(turn[number], [*0.2 * np.array([np.cos(angle), np.sin(angle)]), 0])
        np.testing.assert_allclose(point.poses[0], expected, atol=1e-6)
        np.testing.assert_allclose(point.poses[0, :2], [0.2, 0.0], atol=1e-6)
