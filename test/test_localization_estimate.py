"""From a belief to the answer: mode, covariance, status."""

from dataclasses import replace

from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.estimate import calibrated, mode_of, Proof, summarize
from kbr_localization.localization.localizer import UNKNOWN_VARIANCE
import numpy as np
import pytest

CONFIG = KbrConfig()
SPACING = 0.3
SPREAD = np.diag([0.04, 0.01, 0.004])


def belief_of(*places, deviation=0.05):
    rng = np.random.default_rng(0)
    parts = [Belief.gaussian(p, deviation**2 * np.eye(3), 400, rng) for p in places]
    points = np.concatenate([part.points for part in parts])
    return Belief(points, np.full(len(points), 1 / len(points)))


def answer(belief, here=1.0, confirmed=True, log_likelihood=3.0, noise=None):
    noise = np.zeros((3, 3)) if noise is None else noise
    proof = Proof(here, confirmed, log_likelihood, SPACING, 0.0)
    return summarize(belief, CONFIG, noise, proof, {}, True)


def stated(spread, log_likelihood, heading=0.0, config=CONFIG, spacing=SPACING):
    proof = Proof(1.0, True, log_likelihood, spacing, 0.0)
    return calibrated(spread, np.zeros((3, 3)), heading, config, proof)


def test_a_belief_about_one_place_is_localized_once_confirmed():
    one = belief_of(np.array([1.0, 2.0, 0.5]))
    estimate = answer(one)
    assert estimate.localized and estimate.confidence == pytest.approx(1.0)
    np.testing.assert_allclose(estimate.pose, [1.0, 2.0, 0.5], atol=0.02)
    assert answer(one, confirmed=False).status == 'uncertain'
    assert answer(one, here=0.6).status == 'uncertain'
    lost = answer(one, here=0.2)
    assert lost.status == 'not localized'
    np.testing.assert_array_equal(np.diag(lost.covariance), UNKNOWN_VARIANCE)


def test_the_pose_is_the_mean_of_what_lies_within_the_radius_of_the_mode():
    points = np.repeat([[0.0, 0.0, 0.0], [0.9, 0.0, 0.0], [5.0, 0.0, 0.0]], [60, 30, 10], axis=0)
    belief, narrow = Belief(points, np.full(100, 0.01)), replace(CONFIG, position_bandwidth=0.2)
    np.testing.assert_allclose(mode_of(belief, narrow), 0.0, atol=1e-3)
    proof = Proof(1.0, True, 3.0, SPACING, 0.0)
    estimate = summarize(belief, narrow, np.zeros((3, 3)), proof, {}, True)
    np.testing.assert_allclose(estimate.pose, [0.3, 0.0, 0.0], atol=1e-9)
    assert estimate.confidence == pytest.approx(0.9)


def test_the_mode_is_that_of_a_gaussian_kernel_with_the_bandwidths_of_the_filter():
    rng = np.random.default_rng(1)
    x = np.concatenate([np.zeros(31), rng.normal(2.0, 0.5, 70)])
    belief = Belief(np.column_stack([x, np.zeros((101, 2))]), np.full(101, 1 / 101))
    grid = np.linspace(-1.0, 4.0, 5001)
    heights = np.exp(-0.5 * ((grid[:, np.newaxis] - x) / CONFIG.position_bandwidth) ** 2).sum(1)
    assert mode_of(belief, CONFIG)[0] == pytest.approx(grid[heights.argmax()], abs=0.03)


def test_the_mode_may_lie_between_cells_of_which_none_is_the_heaviest():
    # the cells that points are counted by end at zero
    points = np.array([[5.1, 0.1, 0.1], [-1e-3, 0.1, 0.1], [1e-3, 0.1, 0.1]])
    belief = Belief(points, np.array([0.4, 0.3, 0.3]))
    np.testing.assert_allclose(mode_of(belief, CONFIG), [0.0, 0.1, 0.1], atol=1e-3)


def test_mean_and_covariance_of_headings_go_across_pi():
    points = np.array([[1.0, 2.0, np.pi - 0.1], [1.0, 2.0, -np.pi + 0.3]])
    mean, covariance = Belief(points, np.full(2, 0.5)).moments(np.array([True, True]))
    np.testing.assert_allclose(mean, [1.0, 2.0, -np.pi + 0.1])
    np.testing.assert_allclose(covariance, np.diag([0.0, 0.0, 0.04]), atol=1e-12)


def test_two_headings_at_one_place_are_two_beliefs():
    both = belief_of(np.array([0.0, 0.0, 0.0]), np.array([0.0, 0.0, np.pi]))
    assert answer(both).status == 'uncertain'
    assert answer(both).confidence == pytest.approx(0.5)


def test_a_pose_that_was_given_is_stated_as_sure_as_it_was_given():
    np.testing.assert_array_equal(stated(SPREAD, None), SPREAD)
    wide = belief_of(np.zeros(3), deviation=0.3)
    covariance = answer(wide, log_likelihood=None).covariance
    assert covariance[0, 0] == pytest.approx(0.09, rel=0.2)


def test_the_covariance_grows_as_images_stand_out_less():
    sizes = [np.trace(stated(SPREAD, z)) for z in (4.0, 2.0, 0.5, -1.0)]
    assert sizes == sorted(sizes)
    # to either side a factor: what images share falls as L^2, what they do not stays
    sure, *shared = (stated(SPREAD, z)[1, 1] for z in (np.inf, 0.0, 1.0))
    assert shared[1] - sure == pytest.approx((shared[0] - sure) * np.exp(-2.0))
    assert sure < SPREAD[1, 1] < shared[0]
    doubled = stated(SPREAD, 2.0, config=KbrConfig(covariance_scale=2.0))
    np.testing.assert_allclose(doubled, 2.0 * stated(SPREAD, 2.0))


@pytest.mark.parametrize('heading', [0.0, np.pi / 2])
@pytest.mark.parametrize('cross_track', [0.0, 0.01, 1.2])
def test_the_covariance_is_the_sum_that_the_module_states(heading, cross_track):
    spread = np.array([[0.05, 0.01, 0.002], [0.01, 0.02, 0.003], [0.002, 0.003, 0.004]])
    moved = np.diag([0.03, 0.02, 0.001])
    across = spread[1, 1] if heading == 0.0 else spread[0, 0]
    for z, told in [(1.5, 1.5), (0.0, 0.0), (0.0, -2.0)]:  # z is 0 at least
        factor = 0.25 + 3.0 * np.exp(-2.0 * z)
        own = np.array([0.6**2 / 12, max(cross_track**2 / 4 - factor * across, 0.0), 0.04**2])
        in_map = np.diag(own if heading == 0.0 else own[[1, 0, 2]])
        motion = moved if heading == 0.0 else np.diag(np.diag(moved)[[1, 0, 2]])
        proof = Proof(1.0, True, told, 0.6, cross_track)
        found = calibrated(spread, motion, heading, replace(CONFIG, covariance_scale=1.7), proof)
        np.testing.assert_allclose(found, 1.7 * (factor * spread + in_map + motion), atol=1e-12)


@pytest.mark.parametrize('heading', [0.0, 0.7, -2.0])
def test_no_answer_is_surer_across_than_runs_of_the_map_lie_beside_each_other(heading):
    proof, across = Proof(1.0, True, 3.0, 0.6, 0.5), np.array([-np.sin(heading), np.cos(heading)])
    narrow, wide = (
        across @ calibrated(spread, np.zeros((3, 3)), heading, CONFIG, proof)[:2, :2] @ across
        for spread in (1e-4 * np.eye(3), np.eye(3))
    )
    assert narrow == pytest.approx(0.25**2)
    assert wide == pytest.approx(0.25 + 3.0 * np.exp(-6.0))


def test_a_mode_is_that_of_the_points_and_weights_of_now():
    points = np.array([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    belief = Belief(points, np.array([0.8, 0.2]))
    belief.mode(0.8, 0.3)[:] = 5.0
    np.testing.assert_allclose(belief.mode(0.8, 0.3), points[0], atol=1e-9)
    belief.reweigh(np.array([0.1, 0.9]))
    np.testing.assert_allclose(belief.mode(0.8, 0.3), points[1], atol=1e-9)
    belief.move(np.array([1.0, 0.0, 0.0]))
    np.testing.assert_allclose(belief.mode(0.8, 0.3), [10.0, 0.0, 0.0], atol=1e-9)
    assert belief.mode(20.0, 0.3)[0] < 9.9


def test_a_mode_between_the_points_is_looked_for_with_a_narrower_kernel():
    points = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    belief = Belief(points, np.array([0.4, 0.3, 0.3]))
    assert not belief.within(belief.mode(0.8, 0.3), 0.01).any()
    members, mass = belief.about_mode(0.01, 0.8, 0.3)
    assert members.tolist() == [True, False, False] and mass == pytest.approx(0.4)


def test_a_mode_among_points_without_weight_is_looked_for_with_a_narrower_kernel():
    points = np.array([[0.0, 0.0, 0.0], [0.5, 0.0, 0.0], [1.0, 0.0, 0.0]])
    belief = Belief(points, np.array([0.6, 0.0, 0.4]))
    assert belief.within(belief.mode(0.8, 0.3), 0.3).tolist() == [False, True, False]
    members, mass = belief.about_mode(0.3, 0.8, 0.3)
    assert members.tolist() == [True, False, False] and mass == pytest.approx(0.6)
    np.testing.assert_array_equal(belief.moments(members)[0], np.zeros(3))


def test_motion_since_the_last_update_widens_along_the_heading():
    belief = belief_of(np.array([0.0, 0.0, np.pi / 2]))
    noise = np.diag([0.09, 0.0, 0.0])
    grown = answer(belief, noise=noise).covariance - answer(belief).covariance
    np.testing.assert_allclose(grown, np.diag([0.0, 0.09, 0.0]), atol=0.001)


def test_what_images_share_lies_ahead_of_the_robot():
    round_ = 1e-3 * np.eye(3)
    ahead, aside = (stated(round_, 3.0, heading=turn) for turn in (0.0, np.pi / 2))
    assert ahead[0, 0] > 2.0 * ahead[1, 1]
    assert aside[1, 1] == pytest.approx(ahead[0, 0])
    assert aside[0, 0] == pytest.approx(ahead[1, 1])


def test_where_images_are_far_apart_less_is_known():
    near, far = (stated(SPREAD, 3.0, spacing=spacing) for spacing in (0.1, 1.0))
    assert far[0, 0] - near[0, 0] == pytest.approx((1.0 - 0.1**2) / 12.0)
    assert far[1, 1] == pytest.approx(near[1, 1])
