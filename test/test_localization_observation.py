"""What makes an update quick on a map that is solved as a whole, against the plain formulas."""

from dataclasses import replace
import functools

from hypothesis import given, settings
from hypothesis import strategies as st
from kbr_localization.kernels.kernels import GaussianKernel, MaternKernel
from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.kbr.observation import ObservationModel
from kbr_localization.localization.kbr.pose_system import PoseSystem
from kbr_localization.localization.kbr.recovery import draw_from_image
from kbr_localization.localization.kbr.state_kernel import StateKernel
from kbr_localization.localization.map.similarity import FullSimilarity
from kbr_localization.se2 import to_plane_and_circle
from map_helpers import map_along, random_poses, straight, tiny_map
import numpy as np
import pytest

seeds = st.integers(0, 10**6)


@given(seeds, st.floats(0.2, 200.0), st.floats(0.05, 10.0))
@settings(max_examples=40, deadline=None)
def test_a_whole_map_is_solved_by_half_of_its_inverse(seed, size, ridge):
    rng = np.random.default_rng(seed)
    poses, values = random_poses(rng, 120, size), rng.random(120)
    kernel = StateKernel(FilterConfig())
    system = PoseSystem(kernel, poses, ridge)
    dense = np.linalg.solve(kernel.gram(poses) + ridge * np.eye(120), values)
    tolerance = 1e-10 * values.sum() + 1e-12 * np.abs(dense).max()
    np.testing.assert_allclose(system.solve_whole(values), dense, rtol=0, atol=tolerance)
    np.testing.assert_allclose(system.solve(np.arange(120), values), dense, rtol=1e-9, atol=1e-12)


_PLAIN = {
    'gaussian': GaussianKernel,
    'matern': functools.partial(MaternKernel, smoothness=1.5),
    'exponential': functools.partial(MaternKernel, smoothness=0.5),
}


@pytest.mark.parametrize('name', _PLAIN)
@given(seed=seeds, size=st.floats(0.2, 500.0), origin=st.floats(-1e6, 1e6))
@settings(max_examples=40, deadline=None)
def test_the_state_kernel_by_a_matrix_product_is_the_plain_kernel(name, seed, size, origin):
    rng = np.random.default_rng(seed)
    config = FilterConfig(state_kernel=name, position_bandwidth=0.3, heading_bandwidth=0.2)
    left, right = random_poses(rng, 50, size), random_poses(rng, 20, size)
    left[:20] = right + rng.normal(0.0, 0.1, right.shape)
    left[:, :2] += origin
    right[:, :2] += origin
    plain = _PLAIN[name](np.array([0.09, 0.09, 0.04, 0.04]), normalised=False)
    expected = plain.cross_gram(to_plane_and_circle(left), to_plane_and_circle(right))
    found = StateKernel(config).cross_gram(left, right)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize('name', ['gaussian', 'matern', 'exponential', 'wrapped'])
def test_no_pose_and_no_point_make_an_empty_matrix(name):
    kernel, poses = StateKernel(FilterConfig(state_kernel=name)), np.zeros((4, 3))
    assert kernel.cross_gram(poses, poses[:0]).shape == (4, 0)
    assert kernel.cross_gram(poses[:0], poses).shape == (0, 4)


def test_evidence_of_a_whole_map_is_the_conditional_kernel_mean():
    rng = np.random.default_rng(5)
    kernel_map = replace(tiny_map(40), poses=random_poses(rng, 40, 1.0))
    model = ObservationModel(kernel_map, kernel_map.filter_config)
    values = rng.random(40)
    points = kernel_map.poses[:40] + rng.normal(0.0, 0.05, (40, 3))
    gram = model.kernel.gram(kernel_map.poses) + model.ridge * np.eye(40)
    solved = np.linalg.solve(gram, model.sharpened(values, values.max()))
    active = model.in_reach(points)
    cross = model.kernel.cross_gram(points, kernel_map.poses[active])
    expected = np.maximum(cross @ solved[active], 0.0)
    for _ in range(2):  # the second time from what was kept
        found = model.evidence(points, FullSimilarity(values))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)
    ones = np.linalg.solve(gram, np.ones(40))[active]
    known = np.minimum((1.0 + model.ridge) * np.maximum(cross @ ones, 0.0), 1.0)
    np.testing.assert_allclose(model.coverage(points), known, rtol=0, atol=1e-8)


def test_poses_that_do_not_matter_are_left_out_at_next_to_no_loss():
    rng = np.random.default_rng(8)
    kernel_map = replace(tiny_map(400), poses=random_poses(rng, 400, 3.0))
    model = ObservationModel(kernel_map, kernel_map.filter_config)
    # like an image: a few places are much alike, the others hardly
    values = 0.3 + 0.5 * np.exp(-np.linalg.norm(kernel_map.poses[:, :2], axis=1))
    points = random_poses(rng, 300, 3.0)
    assert len(model.in_reach(points)) == 400
    gram = model.kernel.gram(kernel_map.poses) + model.ridge * np.eye(400)
    solved = np.linalg.solve(gram, model.sharpened(values, values.max()))
    expected = np.maximum(model.kernel.cross_gram(points, kernel_map.poses) @ solved, 0.0)
    found = model.evidence(points, FullSimilarity(values))
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-3 * expected.max())
    assert expected.max() > 0.05


def test_points_are_drawn_from_the_conditional_mean_of_the_pose():
    rng = np.random.default_rng(6)
    kernel_map = tiny_map(60)
    model = ObservationModel(kernel_map, kernel_map.filter_config)
    values = rng.uniform(0.5, 0.6, 60)
    drawn = draw_from_image(model, FullSimilarity(values), 500, np.random.default_rng(7))
    likely = model.sharpened(values, values.max())
    proposal = 0.5 / 60 + 0.5 * likely / likely.sum()
    chosen = np.random.default_rng(7).choice(60, size=500, p=proposal)
    weights = 1.0 / proposal[chosen]
    np.testing.assert_allclose(drawn.weights, weights / weights.sum(), rtol=1e-12)


@pytest.mark.parametrize('step', [1.0, 2.0, 8.0])
def test_images_of_the_same_places_taken_again_fill_no_gaps(step):
    way = np.array([straight(x) for x in np.arange(0.0, 32.0, step)])
    once, twice = (
        ObservationModel(map_along(poses), FilterConfig()).density
        for poses in (way, np.repeat(way, 2, axis=0))
    )
    assert twice == pytest.approx(once)


def test_a_robot_that_stood_for_long_has_not_filled_the_gaps_of_its_map():
    stood = np.zeros((40, 3)) + 1e-3 * np.random.default_rng(0).standard_normal((40, 3))
    way = np.array([straight(x) for x in np.arange(2.0, 62.0, 2.0)])
    density = ObservationModel(map_along(np.vstack([stood, way])), FilterConfig()).density
    assert density < 0.01


def test_a_map_without_gaps_has_density_one():
    way = np.array([straight(x) for x in np.arange(0.0, 5.0, 0.02)])
    assert ObservationModel(map_along(way), FilterConfig()).density == pytest.approx(1.0, abs=0.02)
