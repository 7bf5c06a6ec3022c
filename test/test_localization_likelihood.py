"""What an image says about the points of a belief, against the plain formulas."""

from dataclasses import fields, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from kbr_localization import se2
from kbr_localization.kernels.off_map import off_map_bayes_rule
from kbr_localization.localization.config import KbrConfig, sensible_config
from kbr_localization.localization.kbr import likelihood
from kbr_localization.localization.kbr.likelihood import LARGEST_SYSTEM, Likelihood
from kbr_localization.localization.kbr.local_solver import Part
from kbr_localization.localization.kbr.pose_search import PoseSearch
from kbr_localization.localization.kbr.state_kernel import StateKernel
from kbr_localization.localization.map.describing import GramDescriber
from kbr_localization.localization.map.similarity import FullSimilarity, LocalSimilarity
from map_helpers import random_poses, tiny_map
import numpy as np
import pytest

TINY = tiny_map(40)
CONFIG = KbrConfig()


def random_map(seed, images=40, size=2.0):
    """Images of a tiny run, at poses in a square."""
    rng = np.random.default_rng(seed)
    rows = (
        rng.permutation(len(TINY))[:images]
        if images <= len(TINY)
        else rng.integers(len(TINY), size=images)
    )
    # histograms of few words: kernel values of 0.5 and more, pairs of images that are nearly alike
    words = rng.dirichlet(np.ones(8), images // 2 + 1).repeat(2, axis=0)[:images]
    words = 0.97 * words + 0.03 * rng.dirichlet(np.ones(8), images)
    table = np.sum([np.minimum.outer(column, column) for column in words.T], axis=0)
    known = replace(
        TINY.subset(rows),
        describer=GramDescriber(table),
        descriptors=np.arange(images)[:, np.newaxis],
        poses=random_poses(rng, images, size),
    )
    return known, rng


def centred(gram):
    """Cosines of features from whose Gram matrix their mean is taken out."""
    centre = np.eye(len(gram)) - 1.0 / len(gram)
    products = centre @ gram @ centre
    lengths = np.sqrt(np.diag(products))
    return products / np.outer(lengths, lengths)


def exponential(a, b, config):
    h, angle = config.position_bandwidth, config.heading_bandwidth
    left, right = (se2.to_plane_and_circle(p) / [h, h, angle, angle] for p in (a, b))
    return np.exp(-np.linalg.norm(left[:, np.newaxis] - right, axis=-1))


@given(st.integers(0, 10**6), st.sampled_from([1e-4, 0.05, 1.0, 1e9]))
@settings(max_examples=20, deadline=None)
def test_factors_ratio_and_coverage_are_those_of_the_plain_formulas(seed, delta):
    kernel_map, rng = random_map(seed)
    config = replace(CONFIG, delta=delta)
    model = Likelihood(kernel_map, config)
    x, points = kernel_map.poses, kernel_map.poses[:30] + 0.2 * rng.standard_normal((30, 3))
    gamma, vector = rng.dirichlet(np.ones(30)), kernel_map.describer.gram[7] - 0.1
    system = np.linalg.inv(exponential(x, x, config) + model.ridge * np.eye(len(x)))
    smoother = system @ exponential(x, points, config)
    k = np.exp((vector - vector.max()) / config.image_bandwidth**2)
    gram = np.exp((centred(kernel_map.describer.gram) - 1.0) / config.image_bandwidth**2)
    weights = np.maximum(off_map_bayes_rule(smoother, gram, gamma, k, delta), 0.0)
    match = model.match(points, gamma, FullSimilarity(vector))
    np.testing.assert_allclose(gamma * match.factors, weights / weights.sum(), atol=0.02)
    uniform = (system @ exponential(x, x, config)).mean(axis=1)
    ratios = np.maximum(smoother.T @ k / (uniform @ k), 0.0)
    assert match.likelihood_ratio == pytest.approx(gamma @ ratios, rel=0.02, abs=0.02)
    found, covered = model.ratios(points, FullSimilarity(vector))
    np.testing.assert_allclose(found, ratios, rtol=0.02, atol=0.02 * ratios.max())
    np.testing.assert_allclose(
        covered,
        np.minimum(np.clip(smoother.sum(axis=0), 0, 1) * (1 + config.state_ridge), 1),
        atol=0.02,
    )
    coverage = gamma @ np.clip(smoother.sum(axis=0), 0, 1) * (1 + config.state_ridge)
    assert match.coverage == pytest.approx(min(coverage, 1.0), abs=0.02)


def test_the_least_ridge_still_gives_the_plain_weights_and_ratio():
    """Also of a map whose images are all there twice: the system is singular but for the ridge."""
    kernel_map = TINY.subset(np.repeat(np.arange(40), 2))
    least = next(f.metadata['low'] for f in fields(KbrConfig) if f.name == 'state_ridge')
    config = replace(CONFIG, state_ridge=least)
    model, x = Likelihood(kernel_map, config), kernel_map.poses
    points, gamma = x[::2] + np.array([0.03, 0.02, 0.01]), np.full(40, 1 / 40)
    vector = kernel_map.similarities(kernel_map.descriptors[20])
    system = np.linalg.inv(exponential(x, x, config) + model.ridge * np.eye(len(x)))
    smoother = system @ exponential(x, points, config)
    every = np.arange(len(x))
    seen = model.centring.of(FullSimilarity(vector))
    known = model.match(points, gamma, seen)
    k_y = model.image_kernel(seen.at(every), seen.best)
    gram = model.image_kernel(model.centring.gram(every, every))
    weights = np.maximum(off_map_bayes_rule(smoother, gram, gamma, k_y, config.delta), 0.0)
    np.testing.assert_allclose(gamma * known.factors, weights / weights.sum(), atol=2e-3)
    uniform = (system @ exponential(x, x, config)).mean(axis=1)
    ratio = gamma @ smoother.T @ k_y / (uniform @ k_y)
    assert known.likelihood_ratio == pytest.approx(ratio, rel=2e-3)


def test_what_was_kept_of_other_images_changes_nothing():
    kernel_map, rng = random_map(2)
    config = replace(CONFIG, delta=1e-4)  # which couples many images
    model, gamma = Likelihood(kernel_map, config), rng.dirichlet(np.ones(40))
    for vector in kernel_map.describer.gram[::3]:
        seen = FullSimilarity(vector)
        again = model.match(kernel_map.poses, gamma, seen)
        first = Likelihood(kernel_map, config).match(kernel_map.poses, gamma, seen)
        np.testing.assert_allclose(again.factors, first.factors, rtol=1e-6)
        assert again.likelihood_ratio == first.likelihood_ratio


def test_factors_have_mean_one_and_say_nothing_off_the_map():
    kernel_map, rng = random_map(1)
    model = Likelihood(kernel_map, CONFIG)
    gamma = rng.dirichlet(np.ones(40))
    match = model.match(kernel_map.poses, gamma, FullSimilarity(np.linspace(0.5, 0.9, 40)))
    assert gamma @ match.factors == pytest.approx(1.0)
    far = model.match(
        kernel_map.poses + np.array([90.0, 0.0, 0.0]),
        gamma,
        FullSimilarity(np.linspace(0.5, 0.9, 40)),
    )
    np.testing.assert_array_equal(far.factors, 1.0)
    assert (far.likelihood_ratio, far.coverage) == (0.0, 0.0)


def test_rounding_lets_no_map_cover_more_than_all_of_a_belief():
    """What is left of it, off the map, would be negative, and so the mass that looks alike."""
    kernel_map, rng = random_map(0, size=0.2)
    model, seen = Likelihood(kernel_map, CONFIG), FullSimilarity(kernel_map.describer.gram[7])
    points = kernel_map.poses[rng.integers(40, size=1000)]
    points = points[model.ratios(points, seen)[1] == 1.0]
    laws = rng.dirichlet(np.ones(len(points)), 200)
    assert max(law.sum() for law in laws) > 1.0
    assert max(model.match(points, law, seen).coverage for law in laws) == 1.0


def test_an_image_that_is_like_every_other_is_as_likely_as_one_that_says_nothing():
    kernel_map, _ = random_map(2)
    match = Likelihood(kernel_map, CONFIG).match(
        kernel_map.poses, np.full(40, 1 / 40), FullSimilarity(np.full(40, 0.6))
    )
    assert match.likelihood_ratio == pytest.approx(1.0, rel=1e-3)


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_the_facing_ratio_is_that_to_the_law_on_places_that_face_alike(seed):
    kernel_map, rng = random_map(seed)
    model, x = Likelihood(kernel_map, CONFIG), kernel_map.poses
    points = x[:30] + 0.2 * rng.standard_normal((30, 3))
    gamma, similarity = rng.dirichlet(np.ones(30)), FullSimilarity(kernel_map.describer.gram[7])
    k_y = model.image_kernel(similarity.at(np.arange(40)), similarity.best)
    gram = exponential(x, x, CONFIG)
    system = np.linalg.inv(gram + model.ridge * np.eye(40))
    law, sector = system @ gram @ np.full(40, 1 / 40), np.deg2rad(5.0)
    turned = [np.zeros_like(points), np.zeros_like(x)]
    for middles, poses in zip(turned, (points, x), strict=True):
        middles[:, 2] = sector * (np.floor(poses[:, 2] / sector) + 0.5)
    facing = exponential(*turned, CONFIG) * law
    means = (facing @ k_y) / facing.sum(axis=1) * law.sum()
    values = np.maximum(exponential(points, x, CONFIG) @ system @ k_y, 0.0)
    found = model.match(points, gamma, similarity).facing_ratio
    assert found == pytest.approx(gamma @ (values / means), rel=0.02, abs=0.02)


def test_what_an_image_tells_of_the_heading_alone_does_not_make_a_place_likely():
    """In the middle of a room, where images of all places that face alike are alike."""
    rng = np.random.default_rng(0)
    corner = np.array([[x, y] for x in range(6) for y in range(6)], dtype=float)
    headings = np.arange(12) * (np.pi / 6.0)
    poses = np.array([[*place, heading] for place in corner for heading in headings])
    kernel_map = replace(random_map(2)[0].subset(np.arange(len(poses)) % 40), poses=poses)
    model = Likelihood(kernel_map, CONFIG)
    apart = np.abs(se2.wrap_angle(poses[:, 2] - headings[3]))
    seen = FullSimilarity(np.where(apart < 0.1, 0.6, 0.1) + 0.01 * rng.standard_normal(len(poses)))
    here = np.array([[2.0, 3.0, headings[3]]])
    match = model.match(here, np.ones(1), seen)
    assert match.likelihood_ratio > 5.0
    assert match.facing_ratio == pytest.approx(1.0, abs=0.4)
    # where all face alike it is the same
    alike = np.column_stack([poses[:, :2], np.full(len(poses), headings[3])])
    match = Likelihood(replace(kernel_map, poses=alike), CONFIG).match(here, np.ones(1), seen)
    assert match.facing_ratio == pytest.approx(match.likelihood_ratio)


def test_the_same_holds_of_a_map_that_is_solved_in_parts():
    poses = np.array([[0.2 * i, 0.0, 0.0] for i in range(300)])
    kernel_map = replace(random_map(2)[0].subset(np.arange(300) % 40), poses=poses)
    model = Likelihood(kernel_map, CONFIG, largest_system=200)
    inside = slice(50, 250)
    similarity = FullSimilarity(np.full(300, 0.6))
    match = model.match(poses[inside], np.full(200, 1 / 200), similarity)
    assert not model.is_whole
    assert match.likelihood_ratio == pytest.approx(1.0, rel=0.05)
    ratios, covered = model.ratios(poses[inside], similarity)
    assert match.likelihood_ratio == pytest.approx(np.mean(ratios))
    assert match.coverage == pytest.approx(np.mean(covered))


def test_a_robot_that_stood_still_does_not_make_the_map_know_less():
    way = np.array([[0.2 * i, 0.0, 0.0] for i in range(200)])
    covered = []
    for standing in (0, 90, 800):
        poses = np.concatenate([np.tile(way[:1], (standing, 1)), way])
        kernel_map = random_map(2)[0].subset(np.arange(len(poses)) % 40)
        model = Likelihood(replace(kernel_map, poses=poses), CONFIG)
        match = model.match(
            way[100:150], np.full(50, 1 / 50), FullSimilarity(np.full(len(poses), 0.6))
        )
        covered.append(match.coverage)
    assert covered[1:] == pytest.approx(2 * covered[:1], rel=0.05)


def test_a_map_that_is_thinned_where_it_is_crowded_knows_its_places_no_less():
    """Of four images for every one in a system: n epsilon counts those that are left."""
    kernel_map, rng = random_map(0, images=2400, size=1.5)
    similarity = FullSimilarity(np.full(2400, 0.6))
    points, weights = random_poses(rng, 300, 1.5), np.full(300, 1 / 300)
    covered = []
    for largest in (600, 2400):
        model = Likelihood(kernel_map, CONFIG, largest_system=largest)
        covered.append(model.match(points, weights, similarity).coverage)
    assert covered[0] == pytest.approx(covered[1], abs=0.1) and covered[0] > 0.5


@pytest.mark.parametrize('metres', [0.0, 50.0, 2000.0])
def test_the_kernel_of_single_precision_is_right_however_wide_a_belief_is(metres):
    rng, kernel = np.random.default_rng(0), StateKernel(CONFIG)
    poses = random_poses(rng, 50, 2.0) + metres * rng.uniform(-1, 1, (50, 1)) * [1.0, 1.0, 0.0]
    points = np.concatenate([poses, poses + 0.1 * rng.standard_normal((50, 3))])
    found = kernel.quick_cross_gram(poses, points)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, kernel.cross_gram(poses, points), atol=0.01)


def test_a_constant_shift_of_the_kernel_vector_changes_nothing():
    """Other light makes all images less like the map: the rule goes by their differences."""
    kernel_map, rng = random_map(3)
    model, vector = Likelihood(kernel_map, CONFIG), 0.6 + 0.1 * rng.random(40)
    gamma = rng.dirichlet(np.ones(40))
    one, other = (
        model.match(kernel_map.poses, gamma, FullSimilarity(v)) for v in (vector, vector - 0.2)
    )
    np.testing.assert_allclose(one.factors, other.factors, rtol=1e-4)
    assert one.likelihood_ratio == pytest.approx(other.likelihood_ratio, rel=1e-6)


@given(st.integers(0, 10**6), st.floats(0.2, 0.6))
@settings(max_examples=15, deadline=None)
def test_local_systems_err_less_than_their_bound(seed, bandwidth):
    # as crowded as one of LARGEST_SYSTEM images in a square of 18 m, which takes long to invert
    kernel_map, rng = random_map(seed, images=301, size=4.9)
    config = KbrConfig(position_bandwidth=bandwidth, image_bandwidth=0.22, delta=1e9)
    points = kernel_map.poses[5] + rng.standard_normal((30, 3)) * [0.3, 0.3, 0.2]
    vector = rng.random(len(kernel_map))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(likelihood, 'LARGEST_SYSTEM', 300)
        local = Likelihood(kernel_map, config, largest_system=300)
        whole = Likelihood(kernel_map, config, largest_system=len(kernel_map))
    np.testing.assert_array_equal(local.kernel.reach, StateKernel(config, True).reach)
    near = local.in_reach(points)
    assert len(near) < len(kernel_map) and whole.is_whole and not local.is_whole
    found, exact = (
        m._compared(points, Part(near, local.ridge), FullSimilarity(vector))[2][0]
        for m in (local, whole)
    )
    others = np.setdiff1d(np.arange(len(kernel_map)), near)
    a, o, kernel = kernel_map.poses[near], kernel_map.poses[others], local.kernel
    system = kernel.gram(a) + local.ridge * np.eye(len(a))
    b = np.linalg.solve(system, kernel.cross_gram(a, points))
    missed = np.linalg.norm(kernel.cross_gram(o, points) - kernel.cross_gram(o, a) @ b, axis=0)
    # `whole` leaves out the images out of reach as well, here as values that are zero
    size = np.linalg.norm(local.image_kernel(vector, float(vector.max())))
    slack = 1e-5 * np.abs(exact).max() + np.abs(b).sum(axis=0) * 1e-12
    assert np.all(np.abs(found - exact) <= missed * size / local.ridge + slack)


def test_a_map_too_large_for_one_system_has_a_kernel_that_ends_sooner():
    half = np.array([[0.0, 0.0, 0.0], [0.8 * np.log(2.0), 0.0, 0.0]])
    reach = {}
    for images in (LARGEST_SYSTEM, LARGEST_SYSTEM + 1):
        model = Likelihood(random_map(0, images, 20.0)[0], KbrConfig())
        assert model.kernel.gram(half)[0, 1] == pytest.approx(0.5, abs=2e-3)
        reach[images] = model.kernel.reach[0]
    assert reach[LARGEST_SYSTEM + 1] < 0.5 * reach[LARGEST_SYSTEM]


def spacing(poses):
    kernel_map = random_map(2)[0].subset(np.arange(len(poses)) % 40)
    return Likelihood(replace(kernel_map, poses=poses), CONFIG).spacing


@pytest.mark.parametrize('metres', [0.4, 5.0, 10.0, 20.0])
@pytest.mark.parametrize('images', [40, LARGEST_SYSTEM + 1])
def test_images_are_as_far_apart_as_the_next_ones_that_look_the_same_way(metres, images):
    """Not as far as the kernel sees, and not as those of the drive back, which stand between."""
    way = np.column_stack([metres * np.arange(images // 2), np.zeros((images // 2, 2))])
    back = way[::-1] + np.array([0.5 * metres, 0.0, np.pi])
    assert spacing(np.concatenate([way[:1], way, back])) == pytest.approx(metres)


def test_images_without_another_that_looks_the_same_way_are_no_distance_apart():
    one, back, ahead = np.zeros(3), np.array([1.0, 0.0, np.pi]), np.array([30.0, 0.0, 0.1])
    assert spacing(one[np.newaxis]) == 0.0
    assert spacing(np.stack([one, one])) == spacing(np.stack([one, back])) == 0.0
    assert spacing(np.stack([one, one, back, ahead])) == 30.0


def test_of_a_crowd_that_looks_the_other_way_the_nearest_that_does_not_is_found():
    rng = np.random.default_rng(4)
    poses = random_poses(rng, 250, 3.0)
    poses[:, 2] = np.where(np.arange(250) < 20, 0.0, np.pi)
    apart = np.hypot(*(poses[:, np.newaxis, :2] - poses[:, :2]).T)
    apart[(apart == 0.0) | (poses[:, np.newaxis, 2] != poses[:, 2])] = np.inf
    found, nearest = spacing(poses), apart.min(axis=0)
    assert nearest[:20].min() <= found <= nearest[:20].max()


def test_a_robot_that_stood_for_most_of_the_images_does_not_make_the_map_a_dense_one():
    way = np.column_stack([2.0 * np.arange(20.0), np.zeros((20, 2))])
    stood = way[10] + 1e-3 * np.random.default_rng(0).standard_normal((400, 3))
    poses = np.concatenate([way, stood])
    assert spacing(poses) == pytest.approx(2.0, abs=0.01)
    assert sensible_config(poses).localized_radius == pytest.approx(4.0, abs=0.02)


@given(st.integers(0, 10**6), st.sampled_from([0.3, 1.5, 2.0]))
@settings(max_examples=20, deadline=None)
def test_no_pose_in_reach_is_missed(seed, chord):
    rng = np.random.default_rng(seed)
    poses, points = random_poses(rng, 300, 12.0), random_poses(rng, 5, 4.0)
    search = PoseSearch(poses, 1.2, chord)
    offset = poses[:, np.newaxis] - points
    turned = 2.0 * np.abs(np.sin(0.5 * offset[..., 2]))
    inside = (np.hypot(offset[..., 0], offset[..., 1]) <= 1.2) & (turned <= chord)
    needed = np.flatnonzero(inside.any(axis=1))
    for found in (search.near(points), search.about(points)):
        assert np.all(np.diff(found) > 0) and np.isin(needed, found).all()


def test_a_map_that_is_solved_as_a_whole_asks_for_values_that_are_not_known():
    kernel_map, rng = random_map(3)
    points, gamma, vector = kernel_map.poses[:9], np.full(9, 1 / 9), rng.random(40)
    vector[4] = 1.0
    similarities = (
        FullSimilarity(vector),
        LocalSimilarity(
            lambda indices: vector[indices], np.array([7]), 40, (np.array([4]), vector[[4]])
        ),
    )
    full, local = (
        Likelihood(kernel_map, CONFIG).match(points, gamma, one) for one in similarities
    )
    np.testing.assert_array_equal(full.factors, local.factors)
    assert full.likelihood_ratio == local.likelihood_ratio


def cross_track(*runs):
    poses = np.concatenate(runs)
    kernel_map = random_map(2)[0].subset(np.arange(len(poses)) % 40)
    run_index = np.repeat(np.arange(len(runs)), [len(run) for run in runs])
    names = tuple(f'run{number}' for number in range(len(runs)))
    several = replace(kernel_map, poses=poses, run_index=run_index, run_names=names)
    return Likelihood(several, CONFIG).cross_track


def straight(images, beside, metres=0.5, from_x=0.0):
    x = from_x + metres * np.arange(images)
    return np.column_stack([x, np.full(images, beside), np.zeros(images)])


@pytest.mark.parametrize('images', [20, LARGEST_SYSTEM])
def test_runs_along_one_way_are_as_far_apart_as_they_lie_beside_each_other(images):
    assert cross_track(straight(images, 0.0), straight(images, 0.3)) == pytest.approx(0.3)
    # however far along the next image is
    assert cross_track(straight(images, 0.0), straight(images, 0.3, 0.5, 0.25)) == pytest.approx(
        0.3
    )


def test_the_root_mean_square_counts():
    near, far = straight(20, 0.3), straight(20, -0.4, 0.5, 50.0)
    along = np.concatenate([straight(20, 0.0), straight(20, 0.0, 0.5, 50.0)])
    assert cross_track(along, np.concatenate([near, far])) == pytest.approx(np.sqrt(0.125))


def test_one_run_or_runs_that_never_pass_one_place_tell_nothing():
    forth = straight(20, 0.0)
    back = forth[::-1] + np.array([0.0, 0.2, np.pi])
    assert cross_track(forth) == 0.0
    assert cross_track(forth, straight(20, 0.0, 0.5, 60.0)) == 0.0
    assert cross_track(forth, back) == 0.0
    assert cross_track(forth, straight(20, CONFIG.localized_radius + 0.01)) == 0.0


def test_places_of_one_bend_have_nothing_across():
    angles = np.linspace(0.0, 2.0, 40)
    bend = np.column_stack([2.0 * np.sin(angles), 2.0 - 2.0 * np.cos(angles), angles])
    assert cross_track(bend[::2], bend[1::2]) == pytest.approx(0.0, abs=1e-9)
    outer = np.column_stack([2.2 * np.sin(angles), 2.0 - 2.2 * np.cos(angles), angles])
    assert cross_track(bend, outer) == pytest.approx(0.2)
