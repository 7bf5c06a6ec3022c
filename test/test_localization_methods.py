"""The methods that the filter is compared with: their formulas and interface."""

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.kernels.kernel_mean import KernelMean
from kbr_localization.kernels.rules import squared_bayes_rule, thresholded_bayes_rule
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.localizer import check_start, PoseEstimate, UNKNOWN_VARIANCE
from kbr_localization.localization.methods.baselines import DeadReckoning
from kbr_localization.localization.methods.configs import (
    DeadReckoningConfig,
    GaussianProcessConfig,
    KernelKalmanConfig,
    KmcfConfig,
    MethodConfig,
)
from kbr_localization.localization.methods.gp_particle import (
    GaussianProcessParticleFilter,
    ImageComponents,
    PoseRegression,
)
from kbr_localization.localization.methods.kernel_kalman import KernelKalmanFilter
from kbr_localization.localization.methods.kmcf import KernelMonteCarloFilter
from kbr_localization.localization.methods.registry import make_localizer, METHODS
from kbr_localization.localization.methods.summary import summarize_about
from kbr_localization.localization.motion import MotionNoise
from kbr_localization.vision import Describer
from map_helpers import map_along, random_poses
import numpy as np
import pytest
from scipy.stats import multivariate_normal


def ring_pose(metres, radius=4.0):
    angle = np.asarray(metres) / radius
    return np.stack(
        [radius * np.cos(angle), radius * np.sin(angle), se2.wrap_angle(angle + np.pi / 2)],
        axis=-1,
    )


@pytest.fixture(scope='module')
def ring():
    """Map of a ring of 25 m whose images are alike where the poses are close."""
    closed = map_along(ring_pose(np.arange(0.0, 25.0, 0.4)), closed=True)
    noise = MotionNoise.default()
    return replace(closed, describer=Near(), descriptors=closed.poses, motion_noise=noise)


class Near(Describer):
    """A describer whose descriptors are poses."""

    kind, size, dtype = 'near', 3, np.dtype(np.float64)

    def describe(self, image):
        return image

    def cross_gram(self, left, right):
        difference = left[:, np.newaxis] - right
        turn = np.abs(se2.wrap_angle(difference[..., 2]))
        return 0.4 + 0.5 * np.exp(-np.hypot(difference[..., 0], difference[..., 1]) / 0.7 - turn)

    def state(self):
        return {}


def seen_from(kernel_map, pose):
    return kernel_map.describer.cross_gram(pose[np.newaxis], kernel_map.descriptors)[0]


@pytest.mark.parametrize('method', METHODS)
def test_every_method_has_the_whole_interface(ring, method):
    localizer = make_localizer(method, ring, seed=3)
    assert localizer.estimate().covariance[0, 0] == UNKNOWN_VARIANCE
    localizer.initialize(ring_pose(3.0), np.diag([0.1, 0.1, 0.05]) ** 2)
    localizer.initialize_globally()
    localizer.predict(np.zeros(3))
    assert localizer.wants_image()
    localizer.update(ring_pose(5.0))
    localizer.predict(np.array([0.3, 0.0, 0.075]))
    localizer.update_similarities(seen_from(ring, ring_pose(5.3)))
    estimate = localizer.estimate()
    assert isinstance(estimate, PoseEstimate)
    assert np.isfinite(estimate.pose).all() and np.isfinite(estimate.covariance).all()
    assert np.linalg.eigvalsh(estimate.covariance).min() > 0.0
    assert 0.0 <= estimate.confidence <= 1.0 + 1e-9
    assert estimate.status in ('localized', 'uncertain', 'not localized')
    drawn, particles = 0 if method in ('nearest', 'dead-reckoning') else 7, localizer.particles(7)
    assert particles.shape == (drawn, 3) and np.isfinite(particles).all()


@pytest.mark.parametrize('method', METHODS)
def test_an_answer_says_whether_an_image_entered_since_the_last_increment(ring, method):
    localizer = make_localizer(method, ring, seed=1)
    localizer.initialize_globally()
    assert not localizer.estimate().updated
    localizer.update(ring_pose(3.0))
    assert localizer.estimate().updated
    localizer.predict(np.array([0.3, 0.0, 0.075]))
    assert not localizer.estimate().updated


def test_particles_are_where_the_answer_is_between_two_images(ring):
    localizer = make_localizer('algorithm1-adapted', ring, seed=1)
    localizer.initialize_globally()
    assert localizer.particles(3).shape == (0, 3)
    localizer.update(ring_pose(4.0))
    before = localizer.particles(3)
    increment = np.array([0.3, 0.0, 0.075])
    localizer.predict(increment)
    np.testing.assert_allclose(localizer.particles(3), se2.compose(before, increment))


@pytest.mark.parametrize('method', [name for name in METHODS if name != 'dead-reckoning'])
def test_every_method_finds_and_follows_the_robot(ring, method):
    localizer = make_localizer(method, ring, seed=1)
    localizer.initialize_globally()
    rng, errors, before = np.random.default_rng(0), [], ring_pose(3.0)
    for done in np.arange(3.0, 15.0, 0.2):
        truth = ring_pose(done)
        localizer.predict(se2.between(before, truth) + 0.002 * rng.standard_normal(3))
        before = truth
        if localizer.wants_image():
            localizer.update(truth)
        errors.append(np.hypot(*(localizer.estimate().pose - truth)[:2]))
    assert np.median(errors[10:]) < 0.35


@pytest.mark.parametrize('method', METHODS)
def test_way_before_the_first_image_says_nothing_of_where_it_was_taken(ring, method):
    localizer = make_localizer(method, ring, seed=1)
    localizer.initialize_globally()
    for done in np.arange(0.0, 8.0, 0.4):
        localizer.predict(se2.between(ring_pose(done), ring_pose(done + 0.4)))
    for seen in (8.0, 8.4):
        localizer.update(ring_pose(seen))
        assert np.hypot(*(localizer.estimate().pose - ring_pose(seen))[:2]) < 0.6
        localizer.predict(se2.between(ring_pose(8.0), ring_pose(8.4)))


@pytest.mark.parametrize('method', METHODS)
def test_every_method_starts_from_a_covariance_that_is_one_but_for_rounding(ring, method):
    localizer = make_localizer(method, ring)
    asymmetric, negative = np.diag([0.2, 0.2, 0.1]), np.diag([0.2, 0.2, -1e-8])
    asymmetric[0, 1] = 1e-8
    for covariance in (asymmetric, negative):
        check_start(ring_pose(3.0), covariance)
        localizer.initialize(ring_pose(3.0), covariance)
        localizer.predict(np.array([0.4, 0.0, 0.1]))
        np.testing.assert_allclose(localizer.estimate().pose, ring_pose(3.4), atol=0.3)


@pytest.mark.parametrize('method', ['kmcf', 'kernel-kalman', 'gp-particle'])
def test_the_same_seed_gives_the_same_run(ring, method):
    poses = []
    for _ in range(2):
        localizer = make_localizer(method, ring, seed=4)
        localizer.initialize_globally()
        for metres in np.arange(2.0, 4.0, 0.5):
            localizer.update(ring_pose(metres))
            localizer.predict(np.array([0.5, 0.0, 0.125]))
        poses.append(localizer.estimate().pose)
    np.testing.assert_array_equal(*poses)


@pytest.mark.parametrize(
    ('name', 'rule'), [('squared', squared_bayes_rule), ('thresholded', thresholded_bayes_rule)]
)
def test_kmcf_corrects_by_the_kernel_bayes_rule_of_its_sample(ring, name, rule):
    config = KmcfConfig(bayes_rule=name, delta=1e-3, points=50)
    localizer = KernelMonteCarloFilter(ring, config, np.random.default_rng(0))
    localizer.initialize(ring_pose(3.0), np.diag([0.3, 0.3, 0.1]) ** 2)
    points, n = localizer.points, len(ring)
    k_y = seen_from(ring, ring_pose(3.2))
    localizer.update_similarities(k_y)

    def gaussian(a, b):
        a, b = se2.to_plane_and_circle(a), se2.to_plane_and_circle(b)
        h, c = config.position_bandwidth, config.heading_bandwidth
        scaled = np.sum(((a[:, np.newaxis] - b) / [h, h, c, c]) ** 2, axis=-1)
        return np.exp(-0.5 * scaled) / ((2 * np.pi) ** 2 * h * h * c * c)

    gram = gaussian(ring.poses, ring.poses)
    prior = gaussian(ring.poses, points).mean(axis=1)
    mu = np.linalg.solve(gram + config.state_ridge * gram[0, 0] * np.eye(n), prior)
    images = Near().cross_gram(ring.poses, ring.poses)
    gram_y, observed = (np.exp((s - 1) / config.sharpening) for s in (images, k_y))
    weights = rule(gram_y, mu, observed, config.delta)
    plain = weights / weights.sum()
    np.testing.assert_allclose(localizer.alpha, plain, atol=1e-6 * np.abs(plain).max())


def test_kmcf_herds_map_poses_and_moves_them(ring):
    localizer = KernelMonteCarloFilter(ring, KmcfConfig(points=60), np.random.default_rng(0))
    localizer.initialize(ring_pose(8.0), np.diag([0.2, 0.2, 0.1]) ** 2)
    localizer.update(ring_pose(8.0))
    herded = localizer.herded(localizer.alpha)
    kernels = localizer.kernels
    mean = KernelMean(kernels.kernel, kernels.points, localizer.alpha)
    np.testing.assert_allclose(se2.to_plane_and_circle(herded), mean.herd(60), atol=1e-9)
    apart = np.abs(herded[:, np.newaxis] - ring.poses)[..., :2].sum(axis=-1).min(axis=1)
    assert herded.shape == (60, 3) and apart.max() < 1e-9
    localizer.predict(np.array([0.4, 0.0, 0.1]))
    assert localizer.alpha is None and len(localizer.points) == 60
    moved = localizer.estimate().pose
    assert np.hypot(*(moved - ring_pose(8.4))[:2]) < 0.3


def test_kmcf_herds_poses_all_over_a_belief_on_several_places(ring):
    localizer = KernelMonteCarloFilter(ring, KmcfConfig(points=60), np.random.default_rng(0))
    apart = [np.hypot(*(ring.poses - ring_pose(place))[:, :2].T) for place in (5.0, 15.0)]
    alpha = 2.0 * np.exp(-0.5 * apart[0] ** 2) + np.exp(-0.5 * apart[1] ** 2)
    alpha /= alpha.sum()
    gram, chosen = localizer.kernels.gram_x, []
    for t in range(60):
        chosen.append(np.argmax(gram @ alpha - gram[chosen].sum(axis=0) / (t + 1)))
    herded = localizer.herded(alpha)
    np.testing.assert_array_equal(herded, ring.poses[chosen])
    at = np.hypot(*(herded - ring_pose(15.0))[:, :2].T) < 4.0
    assert len(set(chosen)) > 5 and at.mean() == pytest.approx(1 / 3, abs=0.1)


def test_a_gaussian_at_the_map_is_as_wide_as_it_was_given(ring):
    """Its kernel mean is N(x; pose, h^2 + J C J^T) on (x, y, cos, sin)."""
    kernels = KernelMonteCarloFilter(ring, KmcfConfig()).kernels
    h, a = KmcfConfig().position_bandwidth, KmcfConfig().heading_bandwidth
    pose = ring_pose(3.0) + np.array([0.3, -0.2, 0.1])
    covariance = np.array([[4.0, 1.0, 0.2], [1.0, 2.0, -0.1], [0.2, -0.1, 0.3]])
    turn = np.zeros((4, 3))
    turn[:2, :2], turn[2:, 2] = np.eye(2), [-np.sin(pose[2]), np.cos(pose[2])]
    law = multivariate_normal(
        se2.to_plane_and_circle(pose), np.diag([h, h, a, a]) ** 2 + turn @ covariance @ turn.T
    )
    found = kernels.gaussian_at_map(pose, covariance)
    np.testing.assert_allclose(found, law.pdf(kernels.points), rtol=1e-6)


def test_the_spread_about_a_pose_that_was_chosen_is_the_second_moment_about_it():
    points = np.array([[0.2, 0.1, 0.3], [0.5, -0.1, 0.3], [0.4, 0.4, 0.3]])
    belief, pose = Points(points, np.array([0.5, 0.3, 0.2])), np.array([0.0, 0.0, 0.1])
    config, gaps = MethodConfig(covariance_scale=1.5), np.diag([0.01, 0.02, 0.03])
    apart = points - pose
    second = apart.T @ np.diag(belief.weights) @ apart
    estimate = summarize_about(pose, belief, config, {}, True, gaps)
    np.testing.assert_array_equal(estimate.pose, pose)
    np.testing.assert_allclose(estimate.covariance, 1.5 * (second + gaps))


def test_dead_reckoning_goes_aside_by_what_it_does_not_know_of_its_heading(ring):
    localizer = DeadReckoning(ring, DeadReckoningConfig(odometry_calibration='off'))
    pose, covariance = np.array([1.0, 2.0, 0.5]), np.diag([0.01, 0.02, 0.04])
    covariance[0, 2] = covariance[2, 0] = 0.005
    localizer.initialize(pose, covariance)
    increment = np.array([2.0, 0.3, 0.4])
    localizer.predict(increment)

    def moved(start):
        return se2.compose(start, increment)

    steps = 1e-6 * np.eye(3)
    jacobian = np.stack([(moved(pose + s) - moved(pose - s)) / 2e-6 for s in steps], axis=1)
    turn = se2.rotation(pose[2])
    noise = 10.0 * np.diag(ring.motion_noise.variances(increment))
    expected = jacobian @ covariance @ jacobian.T + turn @ noise @ turn.T
    np.testing.assert_allclose(localizer.estimate().covariance, expected, rtol=1e-6)


def test_the_kernel_kalman_gain_is_that_of_the_dense_rule(ring):
    """[KKR]: Q = S B^T (G_Y B S B^T + kappa I)^-1 on all images, against r numbers."""
    config = KernelKalmanConfig(delta=0.3, subspace=25)
    localizer = KernelKalmanFilter(ring, config, np.random.default_rng(0))
    localizer.initialize_globally()
    mean, covariance = localizer.mean.copy(), localizer.covariance.copy()
    readout, gram_y = localizer.subspace.readout, localizer.kernels.gram_y
    k_y = localizer.kernels.image_kernel(seen_from(ring, ring_pose(4.0)))
    localizer.correct(k_y)
    n = len(ring)
    inner = gram_y @ readout @ covariance @ readout.T + 0.3 * np.eye(n)
    gain = covariance @ readout.T @ np.linalg.inv(inner)
    expected = mean + gain @ (k_y - gram_y @ readout @ mean)
    np.testing.assert_allclose(localizer.mean, expected, rtol=1e-7, atol=1e-9)
    left = covariance - gain @ gram_y @ readout @ covariance
    np.testing.assert_allclose(localizer.covariance, left, rtol=1e-6, atol=1e-9)


def test_features_of_the_subspace_reproduce_the_kernel_and_its_mean(ring):
    config = KernelKalmanConfig(subspace=len(ring), state_ridge=0.02)
    subspace = KernelKalmanFilter(ring, config).subspace
    h, a = config.position_bandwidth, config.heading_bandwidth
    points = se2.to_plane_and_circle(ring.poses)
    scale = np.array([h, h, a, a]) ** 2
    gram = np.exp(-0.5 * np.sum((points[:, np.newaxis] - points) ** 2 / scale, axis=-1))
    np.testing.assert_allclose(subspace.features @ subspace.features.T, gram, atol=1e-3)
    readout = np.linalg.solve(gram + 0.02 * np.eye(len(ring)), gram)
    np.testing.assert_allclose(subspace.readout @ subspace.features.T, readout, atol=1e-3)
    rng, variances = np.random.default_rng(0), np.array([0.01, 0.01, 0.004, 0.004])
    drawn = points[:3, np.newaxis] + np.sqrt(variances) * rng.standard_normal((3, 20000, 4))
    cross = np.exp(-0.5 * np.sum((drawn[:, :, np.newaxis] - points[:9]) ** 2 / scale, axis=-1))
    expected = subspace.expected(ring.poses[:3], variances) @ subspace.features[:9].T
    np.testing.assert_allclose(expected, cross.mean(axis=1), atol=0.02)


def test_the_kernel_kalman_transition_moves_the_belief_and_widens_it(ring):
    traces = []
    for noise_scale in (0.01, 300.0):
        config = KernelKalmanConfig(noise_scale=noise_scale)
        localizer = KernelKalmanFilter(ring, config, np.random.default_rng(0))
        localizer.initialize(ring_pose(8.0), np.diag([0.2, 0.2, 0.1]) ** 2)
        localizer.predict(np.array([0.8, 0.0, 0.2]))
        localizer.move()
        localizer._increment = np.zeros(3)
        assert np.hypot(*(localizer.estimate().pose - ring_pose(8.8))[:2]) < 0.3
        assert np.linalg.eigvalsh(localizer.covariance).min() > -1e-10
        traces.append(np.trace(localizer.covariance))
    assert traces[1] > 2.0 * traces[0]


def test_the_process_predicts_by_the_dense_formulas():
    rng = np.random.default_rng(2)
    poses, queries = random_poses(rng, 40, 2.0), random_poses(rng, 9, 2.0)
    values = rng.standard_normal((40, 3))
    mean, variance = PoseRegression(poses, values, 0.8, 0.4, 0.1).at(queries)
    scale = np.array([0.8, 0.8, 0.4, 0.4])
    x, z = (se2.to_plane_and_circle(p) / scale for p in (poses, queries))

    def kernel(a, b):
        return np.exp(-0.5 * np.sum((a[:, np.newaxis] - b) ** 2, axis=-1))

    inverse = np.linalg.inv(kernel(x, x) + 0.1 * np.eye(40))
    np.testing.assert_allclose(mean, kernel(z, x) @ inverse @ values, atol=1e-9)
    plain = 1.1 - np.diag(kernel(z, x) @ inverse @ kernel(x, z))
    np.testing.assert_allclose(variance, plain, atol=1e-9)


def test_components_are_those_of_the_centred_features():
    rng = np.random.default_rng(3)
    features = rng.standard_normal((30, 5)) * [3.0, 2.0, 1.5, 1.0, 0.5]
    new = rng.standard_normal(5)
    components = ImageComponents(features @ features.T, 3)
    centred = features - features.mean(axis=0)
    _, spread, axes = np.linalg.svd(centred, full_matrices=False)
    plain = (centred @ axes[:3].T * np.sqrt(30) / spread[:3])[:, ::-1]
    signs = np.sign(np.sum(plain * components.values, axis=0))
    np.testing.assert_allclose(components.values, plain * signs, atol=1e-9)
    projected = ((new - features.mean(axis=0)) @ axes[:3].T * np.sqrt(30) / spread[:3])[::-1]
    np.testing.assert_allclose(components.of(features @ new), projected * signs, atol=1e-9)


def test_the_likelihood_is_the_gaussian_density_of_the_components(ring):
    config = GaussianProcessConfig(components=4, power=0.7, outlier_rate=0.01)
    localizer = GaussianProcessParticleFilter(ring, config, np.random.default_rng(0))
    points, k_y = ring_pose(np.arange(0.0, 6.0, 0.3)), seen_from(ring, ring_pose(3.0))
    mean, variance = localizer.regression.at(points)
    seen = localizer.components.of(k_y)
    density = np.prod(
        np.exp(-0.5 * (seen - mean) ** 2 / variance[:, np.newaxis])
        / np.sqrt(variance)[:, np.newaxis],
        axis=1,
    )
    expected = (density / density.max()) ** 0.7 + 0.01
    np.testing.assert_allclose(localizer.likelihood(points, k_y), expected, rtol=1e-9)
    assert abs(int(np.argmax(expected)) - 10) <= 1
