"""The parts of the kernel Bayes filter against plain formulas."""

from dataclasses import replace
import functools

from kbr_localization import se2
from kbr_localization.kernels.rules import off_map_bayes_rule
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.consecutive import (
    compare_with_odometry,
    ConsecutiveImages,
    moments,
)
from kbr_localization.localization.filter.filter import KernelBayesLocalizer
from kbr_localization.localization.filter.hypotheses import (
    evidence,
    Hypotheses,
    OFF_MAP,
    Points,
    RecentImages,
    sample_about,
    sample_from_image,
)
from kbr_localization.localization.filter.image_model import (
    ImageModel,
    PoseKernel,
    PoseSearch,
    RunMean,
    SCALES,
    SHARE,
)
from kbr_localization.localization.filter.wrong_places import statistics_of
from kbr_localization.localization.map.decay import SimilarityDecay, with_sensible_config
from kbr_localization.localization.map.similarity import Similarity
from map_helpers import map_along, random_poses, straight, TinyRun
import numpy as np
import pytest

CONFIG = KbrConfig()
KERNEL = PoseKernel(CONFIG)
MAP = map_along(np.array([straight(0.4 * i) for i in range(50)]))
NOISE = np.array([[0.09, 0.02, 0.0], [0.02, 0.04, 0.01], [0.0, 0.01, 0.02]])


def seen_at(*metres):
    """Kernel values of an image at metres of the corridor; of several, similar to all of them."""
    distance = np.abs(np.subtract.outer(MAP.poses[:, 0], metres)).min(axis=1)
    return Similarity.from_vector(0.55 + 0.15 * np.exp(-distance / 0.5))


def gram(*poses, noise=None):
    """Kernel matrix of poses and points, under noise of these."""
    return PoseKernel(CONFIG, noise).gram(*map(se2.to_plane_and_circle, poses))


def sets_of(*places, size=40):
    rng = np.random.default_rng(0)
    spread = np.diag([0.02, 0.02, 0.002])
    points = [Points.gaussian(straight(at), spread, size, rng) for at in places]
    poses = np.concatenate([p.poses for p in points])
    return Points(poses, np.full(len(poses), 1.0 / len(poses)))


def hypotheses_at(*places, size=30):
    return functools.reduce(
        Hypotheses.joined, [Hypotheses.single(sets_of(at, size=size), 0.0) for at in places]
    )


# the kernel of poses and the prediction


def test_without_noise_the_kernel_is_the_mixture_on_plane_and_circle():
    rng = np.random.default_rng(0)
    left, right = random_poses(rng, 30, 1.0), random_poses(rng, 20, 1.0)
    z, u = (se2.to_plane_and_circle(poses) / KERNEL.bandwidths for poses in (left, right))
    square = ((z[:, np.newaxis] - u) ** 2).sum(axis=2)
    plain = sum(
        a * np.exp(-0.5 * square / w**2) for a, w in zip([SHARE, 1.0 - SHARE], SCALES, strict=True)
    )
    np.testing.assert_allclose(gram(left, right), plain, atol=2e-6)
    np.testing.assert_allclose(plain, np.exp(-np.sqrt(square)), atol=0.08)


def drift(metres):
    """Noise of a drift over a straight way: position and heading err together."""
    v = 0.017 * np.array([0.0, 0.5 * metres**2, metres])
    return np.outer(v, v) + 1e-6 * np.eye(3)


@pytest.mark.parametrize('noise', [NOISE, drift(5.0), drift(20.0), drift(150.0)])
def test_the_prediction_is_the_mean_of_the_kernel_under_the_noise(noise):
    rng, point = np.random.default_rng(4), np.array([0.3, -0.2, 2.0])
    drawn = se2.compose(point, rng.multivariate_normal(np.zeros(3), noise, 100_000))
    poses = drawn[:20]
    found = gram(poses, point[np.newaxis], noise=noise)[:, 0]
    assert np.isfinite(found).all() and found.min() >= 0.0
    if noise[2, 2] < 0.1:  # later the moments of the noise tell too little
        np.testing.assert_allclose(found, gram(poses, drawn).mean(axis=1), atol=0.02)


def test_pairs_are_entries_of_the_matrix_and_all_that_are_in_reach():
    rng = np.random.default_rng(3)
    poses, points = random_poses(rng, 200, 5.0), random_poses(rng, 60, 5.0)
    search = PoseSearch(KERNEL, se2.to_plane_and_circle(poses))
    left_out = gram(poses, points, noise=NOISE)
    i, j, values = search.pairs(se2.to_plane_and_circle(points), PoseKernel(CONFIG, NOISE))
    np.testing.assert_allclose(values, left_out[i, j], atol=2e-6)
    left_out[i, j] = 0.0
    assert left_out.max() < 0.01 and len(i) < left_out.size
    near = search.near(se2.to_plane_and_circle(points[:1]), KERNEL)
    assert set(np.flatnonzero(gram(poses, points[:1])[:, 0] > 0.005)) <= set(near)


# the likelihood of an image


def plain_b(model, places, poses):
    """B (n, m) of the conditional kernel mean ([MbKSR] eq. 7), by images at places (n, 3)."""
    system = gram(places, places) + model._ridge * np.eye(len(places))
    return np.linalg.solve(system, gram(places, poses).astype(float))


def test_likelihood_and_coverage_are_those_of_the_plain_formula():
    """Both for points at one place and for points anywhere."""
    model, points = ImageModel(MAP, CONFIG), sets_of(3.1, 8.0)
    seen, no_noise = seen_at(3.0), np.zeros((3, 3))
    k_y = np.exp((seen.values_at(seen.evaluated) - seen.best) / CONFIG.image_bandwidth**2)
    b, on_map = (plain_b(model, MAP.poses, poses) for poses in (points.poses, MAP.poses))
    whole = 1.0 + CONFIG.state_ridge
    crowds = gram(MAP.poses, MAP.poses).sum(axis=1)
    mean = np.average(k_y @ on_map, weights=1.0 / crowds)
    for close in (40, 80):
        r, c = model.evaluate(points.poses, points.weights, close, seen, no_noise)
        np.testing.assert_allclose(r, k_y @ b / mean, rtol=0.02, atol=0.02)
        np.testing.assert_allclose(c, np.clip(b.sum(axis=0) * whole, 0, 1), atol=0.01)


def test_the_prior_of_a_place_is_the_same_however_long_the_robot_stood_there():
    stands = MAP.subset(np.sort(np.concatenate([np.arange(len(MAP)), np.full(40, 5)])))
    places = ImageModel(stands, CONFIG).uniform_on_places(np.arange(len(stands)))
    near = np.abs(stands.poses[:, 0] - MAP.poses[5, 0]) < 0.5
    apart = np.abs(stands.poses[:, 0] - MAP.poses[25, 0]) < 0.5
    assert places.sum() == pytest.approx(1.0)
    assert near.sum() > 4 * apart.sum()
    assert places[near].sum() == pytest.approx(places[apart].sum(), rel=0.5)


@pytest.mark.parametrize('delta', [0.01, 1.0])
def test_a_finite_delta_is_the_kernel_bayes_rule_off_the_map(delta):
    model = ImageModel(MAP, replace(CONFIG, delta=delta))
    points, seen = sets_of(3.1), seen_at(3.0)
    weights = np.random.default_rng(0).dirichlet(np.ones(40))
    r, _ = model.evaluate(points.poses, weights, 40, seen, np.zeros((3, 3)))
    near = model.in_reach(points.poses)
    smoother = plain_b(model, MAP.poses[near], points.poses)
    gram_y = np.exp((model.centring.gram(near, near) - 1.0) / CONFIG.image_bandwidth**2)
    k_y = np.exp((seen.values_at(near) - seen.best) / CONFIG.image_bandwidth**2)
    plain = off_map_bayes_rule(smoother, 0.5 * (gram_y + gram_y.T), weights, k_y, delta)
    found = weights * r
    np.testing.assert_allclose(found / found.sum(), plain / plain.sum(), rtol=0.02, atol=1e-4)


def test_what_a_run_sees_everywhere_is_subtracted():
    mean, values = RunMean(3, radius=2.0, prior=4.0), np.array([0.5, 0.2, 0.1])
    seen, every = Similarity.from_vector(values), np.arange(3)
    np.testing.assert_allclose(mean.subtract(seen, straight(0.0)).values_at(every), values)
    # still the same place
    np.testing.assert_allclose(mean.subtract(seen, straight(1.0)).values_at(every), values)
    expected = values - 2.0 * values / (4.0 + 2.0)
    np.testing.assert_allclose(mean.subtract(seen, straight(5.0)).values_at(every), expected)


# points


def test_mode_and_moments_of_points_with_two_hills():
    rng = np.random.default_rng(3)
    left = Points.gaussian(np.array([0.0, 0.0, 3.1]), np.diag([0.01, 0.04, 0.01]), 300, rng)
    right = Points.gaussian(np.array([9.0, 0.0, 0.0]), np.diag([0.01, 0.01, 0.01]), 300, rng)
    weights = np.repeat([0.7, 0.3], 300) / 300
    both = Points(np.concatenate([left.poses, right.poses]), weights)
    pose, covariance, mass = both.moments(se2.within(both.poses, both.mode(KERNEL.widths), 1.0))
    assert mass == pytest.approx(0.7)
    np.testing.assert_allclose(pose, [0.0, 0.0, 3.1], atol=0.05)
    np.testing.assert_allclose(np.diag(covariance), [0.01, 0.04, 0.01], rtol=0.3)


def test_resampling_keeps_the_law_of_every_hypothesis():
    rng = np.random.default_rng(0)
    hypotheses = hypotheses_at(1.0, 5.0, 9.0, size=2000)
    weights = rng.dirichlet(np.ones(2000), 3)
    odometry = rng.standard_normal((6000, 7))
    hypotheses.points = Points(hypotheses.points.poses, weights.ravel(), odometry)
    found = hypotheses.resampled(5000, rng)
    assert found.sizes.tolist() == [5000, 30, 30]
    for number, error in enumerate((0.02, 0.3, 0.3)):
        before, after = (s.select(np.array([number])).points for s in (hypotheses, found))
        for name in ('poses', 'odometry'):
            mean = weights[number] @ getattr(before, name)
            np.testing.assert_allclose(
                after.weights @ getattr(after, name), mean, atol=3.0 * error
            )
    np.testing.assert_allclose(found.sums(found.points.weights), 1.0)


# hypotheses


def test_weighing_has_the_likelihood_of_the_mixture_for_its_mean():
    model, hypotheses, no_noise = (
        ImageModel(MAP, CONFIG),
        hypotheses_at(3.0, 8.0),
        np.zeros((3, 3)),
    )
    before = hypotheses.points.weights
    r, c = model.evaluate(hypotheses.points.poses, before / 2.0, 0, seen_at(3.0), no_noise)
    hypotheses.weigh(model, seen_at(3.0), no_noise, 0.8, 0.0)
    for number, part in enumerate((slice(30), slice(30, 60))):
        factors = 0.8 * r[part] + 1.0 - 0.8 * c[part].mean()
        assert hypotheses.likelihood[number] == pytest.approx(factors.mean())
        found = hypotheses.points.weights[part]
        np.testing.assert_allclose(found, before[part] * factors / factors.mean(), rtol=1e-6)


def test_evidence_of_a_wrong_place_is_none_on_average():
    k = 1.7
    assert evidence(np.exp(k), 1.0, k) == pytest.approx(0.0)
    assert evidence(1.0, 0.0, k) == pytest.approx(0.0)
    assert evidence(np.exp(k + 1.0), 1.0, k) == pytest.approx(1.0)


def test_the_prior_of_a_place_is_its_mean_coverage():
    hypothesis = Hypotheses.single(sets_of(1.0), 2.0)
    assert hypothesis.posterior()[0] == pytest.approx(2.0)
    hypothesis.coverage = np.zeros(1)
    hypothesis.update_log_odds(1.0, 2.0, 10.0)
    assert hypothesis.posterior()[0] == pytest.approx(2.0 + np.log(OFF_MAP))


def test_log_odds_have_a_highest_value_and_an_image_does_not_count_for_its_own_hypothesis():
    hypotheses = hypotheses_at(1.0, 5.0)
    hypotheses.likelihood = np.full(2, 100.0)
    hypotheses.update_log_odds(1.0, 2.0, 1.5)
    gained = float(evidence(100.0, 1.0, 2.0))
    np.testing.assert_allclose(hypotheses.log_odds, [1.5, 1.5 - gained])
    hypotheses.update_log_odds(1.0, 2.0, 1.5)
    np.testing.assert_allclose(hypotheses.log_odds, [1.5, 1.5 - gained])


def test_the_likeliest_hypothesis_is_believed_and_those_at_one_place_together():
    hypotheses = hypotheses_at(1.0, 5.0, 5.0, 1.0)
    hypotheses.log_odds = np.array([1.5, 1.0, 1.0, -3.0])
    near = np.arange(120) >= 90  # the last one is where the belief is
    found, changed = hypotheses.choose(near)
    assert changed and len(found.sizes) == 3
    assert found.log_odds[0] == pytest.approx(1.0 + np.log(2.0))
    assert found.belief.poses[:, 0].mean() == pytest.approx(5.0, abs=0.2)


def test_the_share_of_informative_images_is_learnt():
    recent = RecentImages()
    for _ in range(200):
        recent.learn(likelihood=1.0 - 0.5 * recent.informative, coverage=0.5, weight=0.2)
    low = recent.informative
    for _ in range(200):
        recent.learn(likelihood=20.0, coverage=1.0, weight=0.2)
    assert low < 0.6 and recent.informative > 0.9
    assert recent.enough and recent.log_likelihood == pytest.approx(np.log(20.0), abs=0.3)


def test_points_from_an_image_are_where_it_could_be():
    model = ImageModel(MAP, CONFIG)
    points = sample_from_image(model, seen_at(3.0, 12.0), 4000, np.random.default_rng(0))
    near = [se2.within(points.poses, straight(at), 1.5).mean() for at in (3.0, 12.0)]
    assert min(near) > 0.15
    # weighted they are a sample of the uniform law on the map
    assert points.weights @ points.poses[:, 0] == pytest.approx(9.8, abs=0.6)


@pytest.mark.parametrize(('mass', 'beside'), [(0.9, 0.1), (0.3, 0.5)])
def test_half_of_the_points_of_a_given_pose_lie_farther_about(mass, beside):
    config = KbrConfig(points=601, localized_mass=mass)
    pose = np.array([1.0, 2.0, 0.5])
    points = sample_about(pose, 1e-8 * np.eye(3), config, np.random.default_rng(0))
    far = np.abs(points.poses - pose).max(axis=1) > 1e-3
    assert (far.sum(), len(points)) == (300, 601)
    assert points.weights[far].sum() == pytest.approx(beside)


# consecutive images


def test_lengths_of_the_filter_follow_how_slowly_the_images_of_a_map_change():
    wide, close = (map_along(np.array([straight(x * i) for i in range(60)])) for x in (1.2, 0.1))
    length = with_sensible_config(wide).decay.length
    config = with_sensible_config(wide).filter_config
    assert length > 1.6 and config.position_bandwidth == pytest.approx(length)
    assert config.update_min_d == pytest.approx(0.25 * length)
    assert config.localized_radius == pytest.approx(0.75 * length)
    # as between walls where images change soon; a value that is given stays
    assert with_sensible_config(close).filter_config.position_bandwidth == 0.8
    chosen = with_sensible_config(wide, {'position_bandwidth': 0.5}).filter_config
    assert (chosen.position_bandwidth, chosen.update_min_d) == (0.5, config.update_min_d)


LAW = SimilarityDecay(top=0.55, length=1.0, angle=0.5, spread=0.1)


def test_the_law_of_pairs_is_found_in_pairs_of_its_own():
    rng = np.random.default_rng(0)
    d, a = rng.uniform(0, 4, 4000), rng.uniform(0, 1, 4000)
    values = 0.55 * np.exp(-d / 1.3 - a / 0.5) + 0.05 * rng.standard_normal(4000)
    law = SimilarityDecay.fit(d, a, values)
    assert law.length == pytest.approx(1.3, rel=0.1) and law.angle == pytest.approx(0.5, rel=0.1)
    assert law.top == pytest.approx(0.55, abs=0.03) and law.spread == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize(
    ('value', 'metres', 'wrong'),
    [(0.45, 0.2, False), (0.95, 0.0, False), (0.95, 0.5, True), (0.05, 0.0, True)],
    ids=['drives', 'stands', 'wheels spin', 'odometry frozen'],
)
def test_similarity_and_way_agree_or_the_odometry_is_wrong(value, metres, wrong):
    ratio, _ = compare_with_odometry(LAW, value, metres, 0.0)
    assert (ratio > 0.0) == wrong


def test_the_law_of_a_run_is_learnt_from_pairs_that_agree_with_the_odometry():
    rng, of_run = np.random.default_rng(0), SimilarityDecay(0.5, 0.7, 0.8, 0.1)
    learnt, misled = (ConsecutiveImages(replace(MAP, decay=LAW)) for _ in range(2))
    for d, a in rng.uniform(0.0, [0.5, 0.4], (300, 2)):
        learnt.learn(rng.normal(*moments(of_run, d, a)), d, a, right=1.0)
        misled.learn(0.9, d, a, right=0.0)
    right, found, other = (
        moments(decay, 0.3, 0.2)[0] for decay in (of_run, learnt.decay, misled.decay)
    )
    assert found == pytest.approx(right, abs=0.03)
    assert learnt.decay.length < LAW.length and learnt.decay.angle > LAW.angle
    assert other == pytest.approx(moments(LAW, 0.3, 0.2)[0], abs=0.02)


@pytest.mark.parametrize(('sd', 'good'), [(0.0, 10), (4.0, 10), (4.0, 0)])
def test_one_image_again_and_again_while_the_odometry_drives_is_a_wrong_one(sd, good):
    images, rng = ConsecutiveImages(MAP), np.random.default_rng(0)
    image = TinyRun()[9].load_image()
    again = [image + sd * rng.standard_normal(image.shape) for _ in range(8)]
    stuck = [MAP.describer.describe(np.clip(noisy, 0, 255).astype(np.uint8)) for noisy in again]
    before, after = MAP.descriptors[:good], MAP.descriptors[10:30]
    for number, descriptor in enumerate([*before, *stuck, *after]):
        images.update(descriptor, straight(0.4 * number), 0.5)
        if number == good + 7:
            assert images.probability > 0.9 and images.repeated == (sd == 0.0)
    assert images.probability < 0.1


# the covariance, and what a map says about wrong places


def test_the_stated_covariance_is_that_of_the_points_and_from_the_first_image_on_of_the_map():
    localizer = KernelBayesLocalizer(MAP, replace(CONFIG, covariance_scale=2.0))
    localizer.initialize(straight(8.0), np.diag([0.04, 0.04, 0.01]))
    for floor in (np.zeros(3), np.array([0.4**2 / 12.0, 0.0, 0.04**2])):
        belief, stated = localizer.hypotheses.belief, localizer.estimate()
        mode = belief.mode(localizer.model.kernel.widths)
        near = se2.within(belief.poses, mode, CONFIG.localized_radius)
        _, spread, _ = belief.moments(near)
        np.testing.assert_allclose(stated.covariance, 2.0 * (spread + np.diag(floor)), atol=2e-3)
        localizer.step(seen_at(8.0))


def test_the_reference_makes_the_likeliest_stays_no_evidence_and_the_limit_is_what_they_reach():
    rng = np.random.default_rng(0)
    stays = [
        np.column_stack([np.full(60, 0.3), np.exp(rng.normal(at, 0.5, 60)), np.ones(60)])
        for at in (0.5, 1.0, 3.0)
    ]
    found = statistics_of(stays)
    k = found.reference_log_likelihood
    likeliest = stays[2][:, 0] * evidence(stays[2][:, 1], 1.0, k)
    assert likeliest.sum() == pytest.approx(0.0, abs=1e-6)
    peak = max(np.sum(likeliest[first:]) for first in range(60))
    assert found.evidence_limit > 0.17 and peak < found.evidence_limit + np.abs(likeliest).sum()
    assert found.typical_log_likelihood == pytest.approx(1.5, abs=0.3)
