"""Each step of the filter that can be switched does what its formula says."""

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.localization.config import FilterConfig, SMALLEST_BANDWIDTH
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.kbr.observation import ObservationModel
from kbr_localization.localization.kbr.recovery import Recovery
from kbr_localization.localization.kbr.state_kernel import as_gaussian, StateKernel
from kbr_localization.localization.map.similarity import FullSimilarity
from kbr_localization.localization.motion import MotionNoise, PendingNoise
from map_helpers import tiny_map
import numpy as np
import pytest


@pytest.fixture(scope='module')
def kernel_map():
    """Map of images a third of a metre apart."""
    return tiny_map()


def some_poses(count, seed=0):
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.uniform(0, 2, (count, 2)), rng.uniform(-np.pi, np.pi, count)])


@pytest.mark.parametrize('name', ['gaussian', 'matern', 'exponential', 'wrapped'])
def test_a_state_kernel_is_one_at_itself_and_turns_with_the_circle(name):
    kernel = StateKernel(replace(FilterConfig(), state_kernel=name))
    poses = some_poses(12)
    gram = kernel.gram(poses)
    np.testing.assert_allclose(np.diag(gram), 1.0, atol=1e-9)
    assert np.linalg.eigvalsh(gram).min() > -1e-10
    turned = poses + np.array([0.0, 0.0, 2 * np.pi])
    np.testing.assert_allclose(kernel.cross_gram(turned, poses), gram, atol=1e-9)


def test_state_kernels_follow_their_formulas():
    config = FilterConfig()
    h, a = config.position_bandwidth, config.heading_bandwidth
    left, right = some_poses(5, seed=1), some_poses(7, seed=2)
    difference = left[:, np.newaxis] - right
    way = np.hypot(difference[..., 0], difference[..., 1])
    chord = 2 * np.sin(difference[..., 2] / 2)
    distance = np.hypot(way / h, chord / a)
    root = np.sqrt(3.0) * distance
    turns = difference[..., 2, np.newaxis] + 2 * np.pi * np.arange(-3, 4)
    wrapped = np.exp(-0.5 * (turns / a) ** 2).sum(axis=-1)
    wrapped /= np.exp(-0.5 * (2 * np.pi * np.arange(-3, 4) / a) ** 2).sum()
    expected = {
        'gaussian': np.exp(-0.5 * distance**2),
        'matern': (1 + root) * np.exp(-root),
        'exponential': np.exp(-distance),
        'wrapped': np.exp(-0.5 * (way / h) ** 2) * wrapped,
    }
    for name, values in expected.items():
        kernel = StateKernel(replace(config, state_kernel=name))
        np.testing.assert_allclose(kernel.cross_gram(left, right), values, rtol=1e-8, atol=1e-12)
        quick = kernel.quick_cross_gram(left, right)
        np.testing.assert_allclose(quick, values, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize('name', ['gaussian', 'matern', 'exponential', 'wrapped'])
def test_closeness_is_a_half_where_the_state_kernel_is(name):
    config = FilterConfig(state_kernel=name, position_bandwidth=0.7)
    apart = np.linspace(0.0, 2.0, 2001)
    poses = np.column_stack([apart, np.zeros((len(apart), 2))])
    values = StateKernel(config).cross_gram(poses[:1], poses)[0]
    half = np.argmin(np.abs(values - 0.5))
    closeness = StateKernel(as_gaussian(config)).cross_gram(poses[:1], poses[[half]])
    assert closeness[0, 0] == pytest.approx(0.5, abs=2e-3)


@pytest.mark.parametrize('width', ['position_bandwidth', 'heading_bandwidth'])
def test_the_smallest_bandwidth_that_is_allowed_can_be_used(kernel_map, width):
    config = replace(FilterConfig(), **{width: SMALLEST_BANDWIDTH})
    assert 0.0 <= ObservationModel(kernel_map, config).density <= 1.0


@pytest.mark.parametrize('delta', [0.03, 1.0])
def test_the_importance_weighted_rule_agrees_with_the_dense_formula(kernel_map, delta):
    config = replace(FilterConfig(), delta=delta, sharpening=0.2)
    model = ObservationModel(kernel_map, config)
    rng = np.random.default_rng(3)
    points = kernel_map.poses[rng.integers(len(kernel_map), size=40)]
    points = points + rng.normal(0, 0.05, points.shape)
    gamma = rng.dirichlet(np.ones(40))
    values = kernel_map.similarities(kernel_map.descriptors[4])
    similarity = FullSimilarity(values)
    factors = model.factors(points, similarity, 0.0, gamma)

    everything = kernel_map.poses
    gram = model.kernel.gram(everything) + model.ridge * np.eye(len(everything))
    smoother = np.linalg.solve(gram, model.kernel.cross_gram(everything, points))
    images = np.exp(
        (kernel_map.describer.cross_gram(kernel_map.descriptors, kernel_map.descriptors) - 1) / 0.2
    )
    d = np.diag(np.sqrt(gamma))
    k = np.maximum(smoother.T @ np.exp((values - values.max()) / 0.2), 0.0)
    inner = d @ smoother.T @ images @ smoother @ d + delta * np.eye(40)
    weights = np.maximum(d @ np.linalg.solve(inner, d @ k), 0.0)
    expected = np.minimum(delta * weights / gamma, 1.0)
    np.testing.assert_allclose(factors, expected, rtol=2e-3, atol=2e-4)


def test_the_importance_weighted_rule_tends_to_its_limit(kernel_map):
    points = kernel_map.poses[::2]
    similarity = FullSimilarity(kernel_map.similarities(kernel_map.descriptors[9]))
    model = ObservationModel(kernel_map, replace(FilterConfig(), delta=1e7))
    gamma = np.full(len(points), 1.0 / len(points))
    np.testing.assert_allclose(
        model.factors(points, similarity, 0.01, gamma),
        model.factors(points, similarity, 0.01),
        rtol=1e-5,
    )


def test_pending_noise_composes_over_increments():
    noise = MotionNoise(np.array([4e-4, 1e-4, 1e-4]), np.array([1e-4, 1e-4, 1e-3]), np.ones(4))
    step = np.array([0.05, 0.0, 0.02])
    for law, spread in [('gaussian', 'variances'), ('cauchy', 'quartiles')]:
        many, one = PendingNoise(noise, 2.0, law), PendingNoise(noise, 2.0, law)
        for _ in range(10):
            many.add(step)
        one.add(10 * step)
        drawn = [p.draw(4000, np.random.default_rng(0)) for p in (many, one)]
        np.testing.assert_allclose(drawn[0], drawn[1], rtol=1e-9, err_msg=f'{law} {spread}')


def test_cauchy_noise_has_the_quartiles_of_the_gaussian_over_a_metre():
    noise = MotionNoise.default()
    spreads = []
    for law in ('gaussian', 'cauchy'):
        pending = PendingNoise(noise, 1.0, law)
        pending.add(np.array([1.0, 0.0, 0.0]))
        drawn = pending.draw(40000, np.random.default_rng(1))
        spreads.append(np.quantile(np.abs(drawn), 0.5, axis=0))
    np.testing.assert_allclose(spreads[0], spreads[1], rtol=0.05)


def test_supervision_keeps_the_belief_at_the_odometrys_prediction(kernel_map):
    """An image that points elsewhere moves a supervised belief less."""
    seen = kernel_map.similarities(kernel_map.descriptors[16])
    centre = kernel_map.poses[8]
    shifts = []
    for weight in (0.0, 5.0):
        config = replace(kernel_map.filter_config, odometry_supervision=weight, recovery_points=0)
        localizer = KernelBayesFilter(kernel_map, config, np.random.default_rng(0))
        localizer.initialize(centre, np.diag([0.2, 0.2, 0.01]))
        before = localizer.estimate().pose
        localizer.update_similarities(seen)
        mean = np.average(localizer.belief.points, axis=0, weights=localizer.belief.weights)
        shifts.append(np.hypot(*(mean - before)[:2]))
    assert shifts[1] < 0.7 * shifts[0]


def recovery_on(kernel_map, **changes):
    config = replace(FilterConfig(), **changes)
    return Recovery(ObservationModel(kernel_map, config), config, np.random.default_rng(0))


def test_a_map_with_gaps_expects_fewer_kidnappings(kernel_map):
    rates = []
    for count in (30, 20, 3):
        small = kernel_map.subset(np.linspace(0, 29, count).astype(int))
        recovery = recovery_on(small, position_bandwidth=0.3, recovery_rate=0.01)
        recovery.trust_belief()
        rates.append(recovery.rate)
    assert 0.01 >= rates[0] > rates[1] > rates[2] > 0
    assert recovery_on(kernel_map, recovery_rate=0.0).rate == 0.0


def test_a_pose_that_was_given_is_trusted_more_than_a_global_start(kernel_map):
    sparse = kernel_map.subset(np.linspace(0, 29, 4).astype(int))
    localizer = KernelBayesFilter(sparse, FilterConfig(position_bandwidth=0.3))
    localizer.initialize(sparse.poses[0], 0.01 * np.eye(3))
    given = localizer.recovery.rate
    localizer.initialize_globally()
    assert given < 1e-3 * localizer.recovery.rate


def test_coverage_is_one_on_the_map_and_nothing_in_a_gap(kernel_map):
    model = ObservationModel(kernel_map, FilterConfig())
    gap = kernel_map.poses[:3] + np.array([0.0, 30.0, 0.0])
    np.testing.assert_allclose(model.coverage(kernel_map.poses[3:-3]), 1.0, atol=0.01)
    np.testing.assert_allclose(model.coverage(gap), 0.0, atol=1e-9)
    large = ObservationModel(kernel_map, FilterConfig(), largest_system=5)
    np.testing.assert_allclose(large.coverage(kernel_map.poses), 1.0)
    np.testing.assert_allclose(large.coverage(gap), 0.0, atol=1e-9)
    np.testing.assert_array_equal(large.coverage(gap + np.array([0.0, 900.0, 0.0])), 0.0)


@pytest.mark.parametrize('largest_system', [5, 1024])
def test_a_belief_that_has_left_the_map_has_no_evidence(kernel_map, largest_system):
    model = ObservationModel(kernel_map, FilterConfig(), largest_system=largest_system)
    similarity = FullSimilarity(kernel_map.similarities(kernel_map.descriptors[4]))
    far = kernel_map.poses[:7] + np.array([0.0, 300.0, 0.0])
    np.testing.assert_array_equal(model.evidence(far, similarity), 0.0)
    np.testing.assert_allclose(model.factors(far, similarity, 0.05), 0.05)


@pytest.mark.parametrize('trusted', [False, True])
def test_a_belief_that_has_explained_images_is_not_given_up_in_a_gap(kernel_map, trusted):
    """The robot is beside the map of few images; the best match is far away all the time."""
    sparse = kernel_map.subset(np.array([0, 12, 24, 29]))
    recovery = recovery_on(sparse, position_bandwidth=0.3)
    in_gap = Belief(sparse.poses[:1] + np.array([0.0, 5.0, 0.0]), np.ones(1))
    familiar = FullSimilarity(np.array([0.9, 0.3, 0.3, 0.3]))
    elsewhere = FullSimilarity(np.array([0.3, 0.3, 0.3, 0.6]))

    def takes_over(similarity, explained):
        recovery.witness(explained)
        share = recovery.in_gap(in_gap)
        assert share == pytest.approx(1.0, abs=1e-6)
        return recovery.weigh(similarity, in_gap, explained, share, 0.05) is not None

    assert not any(takes_over(familiar, 1.0) for _ in range(12 if trusted else 0))
    assert any(takes_over(elsewhere, 0.0) for _ in range(9)) != trusted


@pytest.mark.parametrize(
    'changes',
    [
        {'state_kernel': 'matern'},
        {'state_kernel': 'exponential'},
        {'state_kernel': 'wrapped'},
        {'motion_law': 'cauchy'},
        {'importance_weighted': True},
        {'odometry_supervision': 0.2},
    ],
)
def test_the_filter_localizes_with_every_switch(kernel_map, changes):
    config = replace(kernel_map.filter_config, **changes)
    localizer = KernelBayesFilter(kernel_map, config, np.random.default_rng(0))
    localizer.initialize_globally()
    localizer.update(kernel_map.descriptors[0])
    for before, after, descriptor in zip(
        kernel_map.poses[:-1], kernel_map.poses[1:], kernel_map.descriptors[1:], strict=True
    ):
        localizer.predict(se2.between(before, after))
        if localizer.wants_image():
            localizer.update(descriptor)
    error = np.hypot(*(localizer.estimate().pose - kernel_map.poses[-1])[:2])
    assert error < 0.3
    assert isinstance(localizer.belief, Belief)


def test_a_place_within_the_localized_radius_is_no_other_place(kernel_map):
    """On a map as small as the radius nobody can have been carried elsewhere."""
    config = replace(kernel_map.filter_config, localized_radius=50.0, recovery_rate=0.5)
    localizer = KernelBayesFilter(kernel_map, config, np.random.default_rng(0))
    localizer.initialize(kernel_map.poses[2], 1e-4 * np.eye(3))
    for _ in range(6):
        localizer.update(kernel_map.descriptors[-1])
    assert localizer.why['recoveries'] == 0
    config = replace(config, localized_radius=1.0)
    localizer = KernelBayesFilter(kernel_map, config, np.random.default_rng(0))
    localizer.initialize(kernel_map.poses[2], 1e-4 * np.eye(3))
    for _ in range(6):
        localizer.update(kernel_map.descriptors[-1])
    assert localizer.why['recoveries'] == 1
