"""Algorithm 1 as printed, against plain NumPy."""

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.localization.calibration import Calibration
from kbr_localization.localization.methods.algorithm1 import Algorithm1, Algorithm1Config
from kbr_localization.localization.motion import MotionNoise
from map_helpers import map_along, straight
import numpy as np
import pytest

STEP = np.array([0.02, 0.015, 0.01, 0.012]) ** 2
PRINTED = Algorithm1Config(
    position_bandwidth=0.9,
    heading_bandwidth=0.5,
    state_ridge=0.05,
    delta=1e-3,
)


@pytest.fixture(scope='module')
def winding():
    """Map of a winding way, of which the printed variances of a step are known."""
    steps = np.column_stack([np.full(39, 0.4), np.zeros(39), 0.15 * np.sin(np.arange(39) / 3)])
    noise, known = replace(MotionNoise.default(), step=STEP), Calibration.unknown()
    known.values[-1], known.covariance[-1, -1] = 0.03, 0.015**2
    along = map_along(se2.chain(np.zeros(3), steps))
    return replace(along, motion_noise=noise, calibration=known)


def run_along(kernel_map, length=30):
    """Odometry increments, with a stop, and kernel vectors of a run along the map."""
    rng = np.random.default_rng(5)
    increments = se2.between(kernel_map.poses[: length - 1], kernel_map.poses[1:length])
    increments = increments + 0.02 * rng.standard_normal(increments.shape)
    increments[9:13] = 0.0
    truth = se2.chain(kernel_map.poses[0], increments)
    apart = np.linalg.norm(truth[:, np.newaxis, :2] - kernel_map.poses[:, :2], axis=-1)
    return increments, 0.4 + 0.4 * np.exp(-apart / 0.5) + 0.03 * rng.random(apart.shape)


def density(a, b, variance):
    """Gaussian densities (n, m) of points a (n, 4) about b (m, 4)."""
    scaled = np.sum((a[:, np.newaxis] - b) ** 2 / variance, axis=-1)
    return np.exp(-0.5 * scaled) / np.sqrt(np.prod(2 * np.pi * variance))


def printed_recursion(kernel_map, gram_y, increments, vectors):
    """[MbKSR] equations 27 to 31 in plain NumPy; weights (T, n)."""

    def embed(x, y, heading):
        return np.stack([x, y, np.cos(heading), np.sin(heading)], axis=-1)

    n, (x, y, heading) = len(kernel_map), kernel_map.poses.T
    bandwidth = np.array([0.9**2, 0.9**2, 0.5**2, 0.5**2])
    points = embed(x, y, heading)
    gram = density(points, points, bandwidth)
    ridge = PRINTED.state_ridge / np.sqrt(np.prod(2 * np.pi * bandwidth)) * np.eye(n)
    prior, weights = gram @ np.full(n, 1 / n), []
    for t, k_y in enumerate(vectors):
        if t:
            u, v, turn = increments[t - 1]
            east = x + u * np.cos(heading) - v * np.sin(heading)
            north = y + u * np.sin(heading) + v * np.cos(heading)
            moved = embed(east, north, heading + turn)
            prior = density(points, moved, bandwidth + STEP) @ weights[-1]
        mu = np.linalg.solve(gram + ridge, prior)
        product = np.diag(mu) @ gram_y
        squared = product @ product + PRINTED.delta * np.eye(n)
        weights.append(product @ np.linalg.solve(squared, mu * k_y))
    return np.array(weights)


def test_algorithm_1_is_the_printed_recursion_over_a_whole_run(winding):
    increments, vectors = run_along(winding)
    localizer = Algorithm1(winding, PRINTED)
    localizer.initialize_globally()
    found, answers = [], []
    for t, k_y in enumerate(vectors):
        if t:
            localizer.predict(increments[t - 1])
        assert localizer.wants_image()
        localizer.update_similarities(k_y)
        found.append(localizer.alpha)
        answers.append(localizer.estimate().pose)
    gram_y = winding.describer.cross_gram(winding.descriptors, winding.descriptors)
    plain = printed_recursion(winding, gram_y, increments, vectors)
    assert localizer.diagnostics['restarts'] == 0
    assert (plain < 0.0).any() and not np.allclose(plain.sum(axis=1), 1.0, rtol=1e-3)
    np.testing.assert_allclose(found, plain, rtol=0.0, atol=1e-9 * np.abs(plain).max())
    np.testing.assert_array_equal(answers, winding.poses[plain.argmax(axis=1)])


def test_a_robot_that_stands_still_is_predicted_with_the_noise_of_a_step(winding):
    localizer = Algorithm1(winding, PRINTED)
    localizer.initialize(winding.poses[20], 1e-2 * np.eye(3))
    before = localizer.alpha
    localizer.predict(np.zeros(3))
    assert np.abs(localizer.alpha - before).max() > 1e-3


def test_a_posterior_is_scaled_to_the_sum_1_where_that_is_chosen(winding):
    _, vectors = run_along(winding)
    weights = []
    for normalise in (False, True):
        localizer = Algorithm1(winding, replace(PRINTED, normalise=normalise))
        localizer.initialize(winding.poses[10], 1e-2 * np.eye(3))
        localizer.update_similarities(vectors[10])
        weights.append(localizer.alpha)
    assert weights[1].sum() == pytest.approx(1.0)
    np.testing.assert_allclose(weights[1], weights[0] / weights[0].sum())


def test_without_any_positive_weight_it_starts_again_from_the_image(winding):
    localizer = Algorithm1(winding, PRINTED)
    localizer.initialize(winding.poses[20], 1e-2 * np.eye(3))
    localizer.predict(straight(500.0))
    _, vectors = run_along(winding)
    localizer.update_similarities(vectors[10])
    assert localizer.diagnostics['restarts'] == 1
    assert np.abs(localizer.estimate().pose - winding.poses[10])[:2].max() < 1.0
