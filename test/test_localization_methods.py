"""The methods that the filter is compared with: their formulas, parameters and interface."""

from dataclasses import fields, replace

from kbr_localization import se2
from kbr_localization.errors import ConfigurationError, LocalizationError
from kbr_localization.kernels.kernel_mean import KernelMean
from kbr_localization.kernels.rules import squared_bayes_rule, thresholded_bayes_rule
from kbr_localization.localization.config import length_scale
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.localizer import check_start, PoseEstimate, UNKNOWN_VARIANCE
from kbr_localization.localization.methods import registry
from kbr_localization.localization.methods.baselines import (
    DeadReckoning,
    DeadReckoningConfig,
    NearestNeighbourConfig,
    NearestNeighbourParticleFilter,
)
from kbr_localization.localization.methods.kmcf import KernelMonteCarloFilter, KmcfConfig
from kbr_localization.localization.methods.registry import (
    make_localizer,
    method_config,
    METHODS,
    with_values,
)
from kbr_localization.localization.motion import MotionNoise
from kbr_localization.vision import Describer
from map_helpers import map_along
import numpy as np
import pytest
from scipy.stats import multivariate_normal

RIVALS = [name for name in METHODS if name != 'kbr']


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
    assert localizer.estimate().updated
    localizer.predict(np.array([0.3, 0.0, 0.075]))
    assert not localizer.estimate().updated
    localizer.update_similarities(seen_from(ring, ring_pose(5.3)))
    estimate = localizer.estimate()
    assert isinstance(estimate, PoseEstimate)
    assert np.isfinite(estimate.pose).all() and np.isfinite(estimate.covariance).all()
    assert np.linalg.eigvalsh(estimate.covariance).min() > 0.0
    assert 0.0 <= estimate.confidence <= 1.0 + 1e-9
    assert estimate.status in ('localized', 'uncertain', 'not localized')
    drawn, particles = 0 if method in ('nearest', 'dead-reckoning') else 7, localizer.particles(7)
    assert particles.shape == (drawn, 3) and np.isfinite(particles).all()


@pytest.mark.parametrize('method', [name for name in METHODS if name != 'dead-reckoning'])
def test_every_method_finds_and_follows_the_robot_and_repeats_itself(ring, method):
    runs = []
    for _ in range(2):
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
        runs.append(errors)
    assert np.median(errors[10:]) < 0.35
    assert runs[0] == runs[1]


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


def test_dense_methods_refuse_a_large_map_and_say_what_to_do(ring):
    large = ring.subset(np.tile(np.arange(len(ring)), 8001 // len(ring) + 1))
    with pytest.raises(LocalizationError, match='kbr map prune MAP --max-images 8000'):
        make_localizer('kmcf', large)


def test_a_belief_that_leaves_the_map_is_anywhere_on_it(ring):
    localizer = make_localizer('fkbf', ring)
    localizer.initialize(np.array([0.0, 500.0, 0.0]), np.diag([0.1, 0.1, 0.05]) ** 2)
    np.testing.assert_allclose(localizer.alpha, 1.0 / len(ring))
    assert localizer.diagnostics['restarts'] == 1
    for _ in range(5):
        localizer.update(ring_pose(4.0))
    assert np.hypot(*(localizer.estimate().pose - ring_pose(4.0))[:2]) < 1.5


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
    localizer.predict(np.array([0.4, 0.0, 0.1]))
    assert localizer.alpha is None and len(localizer.points) == 60
    assert np.hypot(*(localizer.estimate().pose - ring_pose(8.4))[:2]) < 0.3


def test_kmcf_herds_poses_all_over_a_belief_on_several_places(ring):
    localizer = KernelMonteCarloFilter(ring, KmcfConfig(points=60), np.random.default_rng(0))
    apart = [np.hypot(*(ring.poses - ring_pose(place))[:, :2].T) for place in (5.0, 15.0)]
    alpha = 2.0 * np.exp(-0.5 * apart[0] ** 2) + np.exp(-0.5 * apart[1] ** 2)
    alpha /= alpha.sum()
    gram, chosen = localizer.kernels.gram_x, []
    for t in range(60):
        chosen.append(np.argmax(gram @ alpha - gram[chosen].sum(axis=0) / (t + 1)))
    np.testing.assert_array_equal(localizer.herded(alpha), ring.poses[chosen])


def test_the_likelihood_of_the_nearest_images_is_the_density_about_them(ring):
    config = NearestNeighbourConfig(neighbours=3, power=2.0, points=500)
    localizer = NearestNeighbourParticleFilter(ring, config, np.random.default_rng(0))
    localizer.initialize(ring_pose(3.0), 1e-4 * np.eye(3))
    poses, k_y = localizer.belief().poses, seen_from(ring, ring_pose(3.1))
    localizer.update_similarities(k_y)
    found = localizer.belief()
    nearest = np.argsort(-k_y)[:3]
    scale = np.diag([config.position_bandwidth] * 2 + [config.heading_bandwidth]) ** 2
    parts = []
    for index in nearest:
        offset = poses - ring.poses[index]
        offset[:, 2] = se2.wrap_angle(offset[:, 2])
        law = multivariate_normal(np.zeros(3), scale)
        parts.append(k_y[index] ** 2 * law.pdf(offset) / law.pdf(np.zeros(3)))
    plain = np.sum(parts, axis=0) / np.sum(k_y[nearest] ** 2) + config.outlier_rate
    np.testing.assert_allclose(found.weights, plain / plain.sum())


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


def test_the_spread_about_a_pose_that_was_chosen_is_the_second_moment_about_it(ring):
    points = np.array([[0.2, 0.1, 0.3], [0.5, -0.1, 0.3], [0.4, 0.4, 0.3]])
    belief, pose = Points(points, np.array([0.5, 0.3, 0.2])), np.array([0.0, 0.0, 0.1])
    localizer = KernelMonteCarloFilter(ring, KmcfConfig(covariance_scale=1.5))
    localizer.gaps = np.diag([0.01, 0.02, 0.03])
    apart = points - pose
    second = apart.T @ np.diag(belief.weights) @ apart
    estimate = localizer.summarize(belief, pose, chosen=pose)
    np.testing.assert_array_equal(estimate.pose, pose)
    np.testing.assert_allclose(estimate.covariance, 1.5 * (second + localizer.gaps))


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
    assert not localizer.wants_image() and not localizer.wants_image_after(increment)


@pytest.mark.parametrize('method', [m for m in RIVALS if fields(METHODS[m].config)])
def test_what_is_set_for_a_method_is_that_methods_alone(ring, method):
    name = 'noise_scale' if method == 'dead-reckoning' else 'covariance_scale'
    changed = with_values(method, ring, {name: 0.5})
    assert getattr(make_localizer(method, changed).config, name) == 0.5
    for other in set(RIVALS) - {method}:
        assert method_config(other, changed) == method_config(other, ring)
    assert changed.filter_config == ring.filter_config
    for values, says in (({name: -1.0}, name), ({'warp': 1.0}, "unknown parameter 'warp'")):
        with pytest.raises(ConfigurationError, match=says):
            with_values(method, ring, values)


def test_what_a_map_of_another_version_keeps_is_left_out_or_refused(ring):
    kept = replace(ring, baselines={'kmcf': {'points': 30, 'warp': 1}, 'gp-particle': {'x': 1}})
    assert method_config('kmcf', kept) == replace(method_config('kmcf', ring), points=30)
    with pytest.raises(ConfigurationError, match='delta'):
        make_localizer('fkbf', replace(ring, baselines={'fkbf': {'delta': -1.0}}))
    with pytest.raises(LocalizationError, match=r"unknown method 'gp-particle'.* entry point"):
        make_localizer('gp-particle', kept)


def test_lengths_shrink_with_the_map_and_that_of_kmcf_reaches_from_image_to_image(ring):
    def bandwidth(method, factor):
        scaled = replace(ring, poses=ring.poses * [factor, factor, 1.0])
        return method_config(method, scaled).position_bandwidth

    small = length_scale(ring.poses * [0.05, 0.05, 1.0])
    assert 0.05 < small < 1.0
    for method in ('algorithm1', 'fkbf', 'knn-particle'):
        assert bandwidth(method, 0.05) == pytest.approx(small * bandwidth(method, 1.0))
    assert bandwidth('kmcf', 0.75) == pytest.approx(6.0 * 0.75 * 0.4, rel=0.01)
    assert (bandwidth('kmcf', 4.0), bandwidth('kmcf', 0.05)) == (2.9, pytest.approx(small))


def test_a_package_adds_a_method_by_its_entry_point(ring, tmp_path, monkeypatch, caplog):
    (tmp_path / 'strangers.py').write_text(
        'from kbr_localization.localization.methods.baselines import NearestConfig, NearestImage\n'
        'from kbr_localization.localization.methods.registry import Method\n'
        "METHOD = Method('as nearest', NearestConfig, NearestImage)\n"
    )
    info = tmp_path / 'strangers-1.0.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: strangers\nVersion: 1.0\n')
    (info / 'entry_points.txt').write_text(
        '[kbr_localization.methods]\nstrange = strangers:METHOD\nbroken = no_such_module:METHOD\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = registry.plug_ins()
    assert list(found) == ['strange']
    assert 'method broken of no_such_module:METHOD is left out' in caplog.text
    monkeypatch.setitem(METHODS, 'strange', found['strange'])
    localizer = make_localizer('strange', ring)
    localizer.update(ring_pose(2.0))
    assert np.hypot(*(localizer.estimate().pose - ring_pose(2.0))[:2]) < 0.3
