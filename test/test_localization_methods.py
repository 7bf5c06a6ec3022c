"""The methods that the filter is compared with: their formulas, parameters and interface."""

from dataclasses import replace
from functools import partial

from kbr_localization import se2
from kbr_localization.errors import ConfigurationError, LocalizationError
from kbr_localization.localization.calibration import Calibration, MotionNoise, SIZE
from kbr_localization.localization.config import length_scale
from kbr_localization.localization.localizer import check_start, PoseEstimate, UNKNOWN_VARIANCE
from kbr_localization.localization.map.kernel_map import MapStatistics
from kbr_localization.localization.methods import registry
from kbr_localization.localization.methods.baselines import (
    DeadReckoning,
    NearestNeighbourParticleFilter,
)
from kbr_localization.localization.methods.on_map import (
    Algorithm1,
    FullyNonparametricFilter,
    KernelMonteCarloFilter,
)
from kbr_localization.localization.methods.registry import (
    make_localizer,
    method_config,
    METHODS,
)
from kbr_localization.vision import Describer
from map_helpers import map_along, on_circle, straight
import numpy as np
import pytest

ring_pose = partial(on_circle, radius=4.0)


@pytest.fixture(scope='module')
def ring():
    """Map of a ring of 25 m whose images are alike where the poses are close."""
    closed = map_along(ring_pose(np.arange(0.0, 25.0, 0.4)), closed=True)
    noise = MotionNoise.default()
    changes = {'describer': Near(), 'descriptors': closed.poses, 'motion_noise': noise}
    return replace(closed, statistics=MapStatistics(1.6, 0.3, 1.0), **changes)


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


@pytest.mark.parametrize('method', METHODS)
def test_every_method_has_the_whole_interface(ring, method):
    localizer = make_localizer(method, ring, seed=3)
    np.testing.assert_array_equal(np.diag(localizer.estimate().covariance), UNKNOWN_VARIANCE)
    assert localizer.estimate().status == 'not localized'
    localizer.initialize(ring_pose(3.0), np.diag([0.1, 0.1, 0.05]) ** 2)
    localizer.initialize_globally()
    localizer.predict(np.zeros(3))
    assert localizer.wants_image()
    localizer.update(ring_pose(5.0))
    assert localizer.estimate().updated
    localizer.predict(np.array([0.3, 0.0, 0.075]))
    assert not localizer.estimate().updated
    localizer.update_similarities(ring.similarities(ring_pose(5.3)))
    estimate = localizer.estimate()
    assert isinstance(estimate, PoseEstimate)
    assert np.isfinite(estimate.pose).all() and np.isfinite(estimate.covariance).all()
    assert np.linalg.eigvalsh(estimate.covariance).min() > 0.0
    assert 0.0 <= estimate.confidence <= 1.0 + 1e-9
    assert estimate.status in ('localized', 'uncertain', 'not localized')
    drawn, particles = 0 if method in ('nearest', 'dead-reckoning') else 7, localizer.particles(7)
    assert particles.shape == (drawn, 3) and np.isfinite(particles).all()
    localizer.initialize_globally()  # whatever the way was
    assert localizer.wants_image()


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


def test_the_prediction_of_fkbf_is_the_printed_formula(ring):
    localizer, n = FullyNonparametricFilter(ring), len(ring)
    uniform, increment = np.full(n, 1 / n), ring.controls[0]
    x, following = (se2.to_plane_and_circle(poses) for poses in (ring.poses, ring.next_poses))
    kernel, controls = localizer.kernel, localizer.control_kernel
    ridge = localizer.config.state_ridge * kernel.peak(4) * np.eye(n)
    joint = kernel.gram(x) * controls.gram(ring.controls)
    seen = controls.cross_gram(ring.controls, increment[np.newaxis])[:, 0]
    weights = np.linalg.solve(joint + ridge, kernel.gram(x) @ uniform * seen)
    moved = kernel.cross_gram(x, following) @ (weights / weights.sum())
    plain = np.linalg.solve(kernel.gram(x) + ridge, moved)
    np.testing.assert_allclose(localizer.predicted(uniform, increment), plain, rtol=1e-8)


def test_the_images_of_kmcf_are_sharpened(ring):
    localizer = KernelMonteCarloFilter(ring, KernelMonteCarloFilter.parameters(sharpening=0.02))
    images = Near().cross_gram(ring.poses, ring.poses)
    np.testing.assert_allclose(localizer.gram_y, np.exp((images - 1.0) / 0.02))


def test_the_nearest_images_count_by_a_power_of_their_similarity(ring):
    config = NearestNeighbourParticleFilter.parameters(neighbours=2, power=2.0, points=500)
    localizer = NearestNeighbourParticleFilter(ring, config, np.random.default_rng(0))
    localizer.initialize_globally()
    similarities = np.zeros(len(ring))
    similarities[[10, 30]] = 0.8, 0.4
    localizer.update_similarities(similarities)
    found = localizer.belief()
    masses = [found.weights @ se2.within(found.poses, ring.poses[at], 1.0) for at in (10, 30)]
    assert masses[0] / masses[1] == pytest.approx(4.0, rel=0.3)


def test_dead_reckoning_goes_by_the_odometry_that_the_map_knows(ring):
    known = Calibration(0.05 * np.eye(SIZE)[3], 1e-8 * np.eye(SIZE))
    increment = np.array([2.0, 0.0, 0.0])
    localizer = DeadReckoning(replace(ring, calibration=known))
    localizer.initialize(np.array([1.0, 2.0, 0.5 * np.pi]), np.diag([0.0, 0.0, 0.04]))
    localizer.predict(increment)
    estimate, motion = localizer.estimate(), 0.95 * increment  # 5% too many metres
    np.testing.assert_allclose(estimate.pose[:2], [1.0, 2.0 + 1.9], atol=1e-4)
    # it goes aside by what it does not know of its heading
    ahead, aside, turn = 10.0 * ring.motion_noise.variances(motion)
    expected = [1.9**2 * 0.04 + aside, ahead, 0.04 + turn]
    np.testing.assert_allclose(np.diag(estimate.covariance), expected, rtol=1e-4)
    assert not localizer.wants_image()


def test_what_a_map_of_another_version_keeps_is_left_out_or_refused(ring):
    kept = replace(ring, baselines={'kmcf': {'points': 30, 'warp': 1}, 'gp-particle': {'x': 1}})
    assert method_config('kmcf', kept) == replace(method_config('kmcf', ring), points=30)
    with pytest.raises(ConfigurationError, match='delta'):
        make_localizer('fkbf', replace(ring, baselines={'fkbf': {'delta': -1.0}}))
    with pytest.raises(LocalizationError, match=r"unknown method 'gp-particle'.* entry point"):
        make_localizer('gp-particle', kept)


def test_lengths_shrink_with_the_map(ring):
    small = replace(ring, poses=ring.poses * [0.05, 0.05, 1.0])
    widths = [method_config('fkbf', each).position_bandwidth for each in (small, ring)]
    scale = length_scale(small.poses)
    assert widths[0] == pytest.approx(scale * widths[1]) and scale < 0.5


def test_a_package_adds_a_method_by_its_entry_point(ring, tmp_path, monkeypatch, caplog):
    (tmp_path / 'strangers.py').write_text(
        'from kbr_localization.localization.methods.baselines import NearestImage\n'
        'from kbr_localization.localization.methods.registry import Method\n'
        "METHOD = Method('as nearest', NearestImage.parameters, NearestImage)\n"
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


STEP = np.array([0.02, 0.015, 0.01, 0.012]) ** 2
PRINTED = Algorithm1.parameters(
    position_bandwidth=0.9, heading_bandwidth=0.5, state_ridge=0.05, delta=1e-3
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


def printed_recursion(kernel_map, gram_y, increments, vectors):
    """[MbKSR] equations 27 to 31 in plain NumPy; weights (T, n)."""

    def embed(x, y, heading):
        return np.stack([x, y, np.cos(heading), np.sin(heading)], axis=-1)

    def density(a, b, variance):
        scaled = np.sum((a[:, np.newaxis] - b) ** 2 / variance, axis=-1)
        return np.exp(-0.5 * scaled) / np.sqrt(np.prod(2 * np.pi * variance))

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
    weights = np.maximum(plain[-1], 0.0) / np.maximum(plain[-1], 0.0).sum()
    apart = winding.poses - answers[-1]
    near = (np.hypot(*apart[:, :2].T) <= 1.0) & (np.abs(apart[:, 2]) <= 1.0)
    second = apart[near].T @ np.diag(weights[near] / weights[near].sum()) @ apart[near]
    stated = localizer.estimate().covariance
    np.testing.assert_allclose(stated, second + localizer.gaps, atol=1e-3)
    assert localizer.gaps[0, 0] == pytest.approx(0.25 * 0.4**2, rel=0.01)


def test_without_any_positive_weight_it_starts_again_from_the_image(winding):
    localizer = Algorithm1(winding, PRINTED)
    localizer.initialize(winding.poses[20], 1e-2 * np.eye(3))
    localizer.predict(straight(500.0))
    _, vectors = run_along(winding)
    localizer.update_similarities(vectors[10])
    assert localizer.diagnostics['restarts'] == 1
    assert np.abs(localizer.estimate().pose - winding.poses[10])[:2].max() < 1.0
