"""Systematic errors of the odometry, learnt on the points of a belief."""

from kbr_localization import se2
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.odometry import jacobian, NAMES, OdometryCalibration
from kbr_localization.localization.motion import MotionNoise
import numpy as np
import pytest

NOISE = MotionNoise(np.full(3, 1e-5), np.full(3, 1e-5), np.full(4, 1e-4), drift=0.01)
TRUE = np.array([0.05, -0.02, 0.001, 0.006, -0.005, 0.012])


def measured(motion, parameters):
    """Give what wheels report of a motion (3,), exactly but for second orders."""
    return np.linalg.solve(np.eye(3), motion - jacobian(motion) @ parameters)


def wander(rng, steps=400):
    return np.column_stack(
        [rng.uniform(0.0, 0.3, steps), np.zeros(steps), rng.normal(0.0, 0.15, steps)]
    )


def test_an_offset_moves_the_pose_as_a_lever_does():
    offset, turn = np.array([0.3, 0.1, 0.0]), np.array([0.2, 0.0, 0.4])
    exact = se2.compose(se2.compose(offset, turn), se2.inverse(offset))
    parameters = np.array([0.3, 0.1, 0.0, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(turn + jacobian(turn) @ parameters, exact, atol=1e-12)


def test_scales_mounting_and_drift_are_of_first_order():
    u = np.array([0.5, 0.1, 0.2])
    p = np.array([0.0, 0.0, 1e-4, 2e-4, 3e-4, 4e-4])
    cosine, sine = np.cos(1e-4), np.sin(1e-4)
    exact = np.array([[cosine, -sine], [sine, cosine]]) @ u[:2]
    exact[0] -= 2e-4 * u[0]
    exact[1] -= 2e-4 * u[1]
    turned = u[2] - 3e-4 * u[2] - 4e-4 * u[0]
    np.testing.assert_allclose(u + jacobian(u) @ p, [*exact, turned], atol=1e-7)


def test_the_noise_of_steps_is_carried_to_the_last_frame():
    calibration = OdometryCalibration(NOISE, 1.0, 'off')
    steps = [np.array([0.5, 0.1, 0.7]), np.array([0.4, 0.0, -0.3])]
    rng = np.random.default_rng(0)
    size = 200_000
    points = np.zeros((size, 3))
    for step in steps:
        calibration.predict(step, [])
        deviations = np.sqrt(NOISE.variances(step))
        points = se2.compose(points, step)
        points = se2.compose(points, deviations * rng.standard_normal((size, 3)))
    end = se2.compose(se2.compose(np.zeros(3), steps[0]), steps[1])
    errors = se2.between(end, points)
    np.testing.assert_allclose(calibration.noise, np.cov(errors.T), rtol=0.03, atol=1e-7)


def test_the_law_of_the_parameters_is_that_of_linear_regression():
    """Path known (one point follows the truth): the posterior is Bayesian least squares."""
    calibration = OdometryCalibration(NOISE, 1.0, 'learnt')
    prior, mean = calibration.covariance.copy(), calibration.mapped.copy()
    precision, weighted = np.linalg.inv(prior), np.zeros(6)
    rng = np.random.default_rng(1)
    belief = Belief(np.zeros((1, 3)), np.ones(1))
    forgotten = 0.0
    for motion in wander(rng, 30):
        u = measured(motion, TRUE)
        calibration.predict(u, [belief])
        error = se2.between(u + jacobian(u) @ (calibration.mapped + belief.odometry[0]), motion)
        noise = calibration.noise + 1e-12 * np.eye(3)
        # the filter draws errors: let it draw the true one
        total = noise + calibration._effects @ calibration.covariance @ calibration._effects.T
        whitened = np.linalg.solve(np.linalg.cholesky(total + 1e-12 * np.eye(3)), error)
        before = calibration.covariance.copy()
        forgotten += calibration._way
        calibration.disperse([belief], FixedDraw(whitened))
        assert np.all(np.linalg.eigvalsh(before - calibration.covariance) > -1e-5)
        precision = precision + jacobian(u).T @ np.linalg.solve(noise, jacobian(u))
        weighted = weighted + jacobian(u).T @ np.linalg.solve(
            noise, motion - u - jacobian(u) @ mean
        )
    plain = np.linalg.solve(precision, weighted)
    np.testing.assert_allclose(belief.odometry[0], plain, atol=2e-3)
    assert forgotten > 0.0


class FixedDraw:
    """A generator whose normal numbers are given."""

    def __init__(self, values):
        self.values = values

    def standard_normal(self, shape):
        return np.broadcast_to(self.values, shape)


def test_points_that_follow_the_truth_learn_the_parameters():
    calibration = OdometryCalibration(NOISE, 1.0, 'learnt')
    rng = np.random.default_rng(2)
    belief, truth = Belief.gaussian(np.zeros(3), 1e-6 * np.eye(3), 500, rng), np.zeros(3)
    deviations = np.sqrt(np.diag(calibration.covariance))
    for motion in wander(rng, 300):
        truth = se2.compose(truth, motion)
        calibration.predict(measured(motion, TRUE), [belief])
        calibration.disperse([belief], rng)
        apart = se2.between(truth, belief.points) / [0.02, 0.02, 0.01]
        belief.reweigh(np.exp(-0.5 * np.sum(apart**2, axis=1)))
        if belief.effective_size() < 250:
            belief = belief.resampled(500, rng)
    errors = (calibration.mean(belief) - TRUE) / deviations
    known = np.array([NAMES.index(name) for name in ('offset_x', 'offset_y', 'drift')])
    assert np.abs(errors[known]).max() < 1.0
    assert np.sqrt(np.diag(calibration.covariance))[-1] < 0.5 * deviations[-1]


@pytest.mark.parametrize(('how', 'drift'), [('learnt', 0.01), ('mapped', 0.01), ('off', 0.0)])
def test_what_is_known_at_the_start(how, drift):
    calibration = OdometryCalibration(NOISE, 1.0, how)
    assert calibration.mapped[-1] == drift
    assert calibration.covariance.any() == (how == 'learnt')
    belief = Belief(np.zeros((3, 3)), np.full(3, 1 / 3))
    assert calibration.described(belief)['odometry_drift'] == drift


def test_standing_still_changes_nothing():
    calibration = OdometryCalibration(NOISE, 10.0, 'learnt')
    belief = Belief(np.zeros((4, 3)), np.full(4, 0.25))
    before = calibration.covariance.copy()
    for _ in range(5):
        calibration.predict(np.zeros(3), [belief])
        calibration.disperse([belief], np.random.default_rng(0))
    np.testing.assert_allclose(belief.points, 0.0, atol=1e-4)
    np.testing.assert_allclose(calibration.covariance, before, rtol=1e-6)
