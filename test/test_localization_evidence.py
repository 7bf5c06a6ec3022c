"""What a belief explains of the images, and what becomes of one that explains nothing."""

from dataclasses import replace

from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.kbr.observation import ObservationModel
from kbr_localization.localization.kbr.recovery import Recovery
from kbr_localization.localization.map.similarity import FullSimilarity
from map_helpers import map_along, straight
import numpy as np
import pytest


@pytest.fixture(scope='module')
def corridor():
    """Map of a straight way of 20 m with an image every 0.25 m."""
    return map_along(np.array([straight(x) for x in np.arange(0.0, 20.0, 0.25)]))


def seen_from(kernel_map, x, best=0.9):
    """Kernel vector of an image as it looks `x` metres along the way."""
    return best - 0.3 + 0.3 * np.exp(-np.abs(kernel_map.poses[:, 0] - x) / 0.5)


def tracking(kernel_map, x, **changes):
    """Return a filter that has been told its pose."""
    config = replace(kernel_map.filter_config, **changes)
    localizer = KernelBayesFilter(kernel_map, config, np.random.default_rng(1))
    localizer.initialize(straight(x), np.diag([0.05, 0.05, 0.02]) ** 2)
    return localizer


@pytest.mark.parametrize('changes', [{}, {'odometry_supervision': 1.0}, {'outlier_growth': 0.0}])
def test_a_belief_that_explains_nothing_does_not_stay_localized(corridor, changes):
    """With recovery switched off nothing else tells that the robot is elsewhere."""
    localizer = tracking(corridor, 2.0, recovery_points=0, **changes)
    for _ in range(5):
        localizer.update_similarities(seen_from(corridor, 2.0))
    assert localizer.estimate().status == 'localized'
    for _ in range(15):
        localizer.update_similarities(seen_from(corridor, 16.0))
    estimate = localizer.estimate()
    assert estimate.status == 'not localized' and estimate.why['evidence'] < 0.025


def test_a_belief_in_a_gap_of_the_map_stays_localized(corridor):
    gap = corridor.subset(np.flatnonzero(np.abs(corridor.poses[:, 0] - 6.0) > 4.0))
    localizer = tracking(gap, 6.0)
    for _ in range(15):
        localizer.update_similarities(seen_from(gap, 16.0))
    assert localizer.estimate().status == 'localized'


def test_a_covered_lens_changes_nothing_about_the_status(corridor):
    localizer = tracking(corridor, 2.0, recovery_points=0)
    localizer.observation.likeness = 0.9
    for _ in range(50):
        localizer.update_similarities(seen_from(corridor, 16.0, best=0.31))
    assert localizer.estimate().status == 'localized'


def test_supervision_by_odometry_explains_no_image(corridor):
    """A robot that was carried away is found however much its odometry is believed."""
    for supervision in (0.0, 1.0):
        localizer = tracking(corridor, 2.0, odometry_supervision=supervision)
        for _ in range(40):
            localizer.update_similarities(seen_from(corridor, 16.0))
        assert localizer.why['recoveries'] == 1
        assert abs(localizer.estimate().pose[0] - 16.0) < 0.5


def test_factors_are_what_is_explained_and_what_every_place_gets(corridor):
    model = ObservationModel(corridor, corridor.filter_config)
    model.likeness = 1.2  # so that the image counts in part
    similarity = FullSimilarity(seen_from(corridor, 9.0, best=0.75))
    points = np.array([straight(x) for x in np.linspace(0.0, 20.0, 41)])
    trust = model.trust(0.75)
    assert 0.1 < trust < 0.9
    plain = np.minimum(model.evidence(points, similarity), 1.0)
    np.testing.assert_allclose(model.explained(points, similarity), trust * plain)
    expected = trust * (plain + 0.05) + 1.0 - trust
    np.testing.assert_allclose(model.factors(points, similarity, 0.05), expected)


@pytest.mark.parametrize('kernel', ['exponential', 'gaussian', 'matern', 'wrapped'])
def test_a_belief_far_from_all_images_that_are_like_it_explains_nothing(kernel):
    dense = map_along(np.array([straight(x) for x in np.arange(0.0, 16.0, 0.1)]))
    localizer = tracking(dense, 4.0, state_kernel=kernel, recovery_points=0)
    localizer.belief.points = localizer.belief.points + straight(0.5)
    localizer.update_similarities(seen_from(dense, 15.0))
    assert localizer.estimate().why['evidence'] < 0.8


def test_points_of_a_large_map_near_images_that_face_another_way_explain_nothing():
    """The image is like those of a place, where the points face the other way."""
    way = np.array([straight(x) for x in np.arange(0.0, 60.0, 0.25)])
    model = ObservationModel(map_along(way), FilterConfig(), largest_system=100)
    points = np.array([[x, 0.0, np.pi * (x > 20.0)] for x in np.linspace(0.0, 60.0, 400)])
    similarity = FullSimilarity(seen_from(model._kernel_map, 50.0))
    found = model.evidence(points, similarity)
    np.testing.assert_array_equal(found[points[:, 2] > 1.0], 0.0)


def test_a_recovery_keeps_the_drift_that_the_belief_has_learnt(corridor):
    config = corridor.filter_config
    model = ObservationModel(corridor, config)
    recovery = Recovery(model, config, np.random.default_rng(0))
    weights, drift = np.full(1000, 1e-12), np.zeros(1000)
    weights[:5], drift[:5] = 0.2, 0.05
    rival = Belief(np.tile(straight(2.0), (1000, 1)), weights / weights.sum(), drift)
    recovery.weigh(FullSimilarity(seen_from(corridor, 16.0)), rival, 0.0, 0.0, 0.05)
    assert recovery.belief.drift.mean() == pytest.approx(0.05, abs=1e-6)


def test_a_belief_that_faces_the_other_way_at_the_same_place_is_another_one(corridor):
    """The robot was turned round by hand: recovery takes over though the place is the same."""
    both = map_along(np.array([[x, 0.0, h] for h in (0.0, np.pi) for x in np.arange(0, 10, 0.25)]))
    localizer = tracking(both, 5.0)
    back = np.abs(np.abs(both.poses[:, 2]) - np.pi) < 0.1
    like = np.where(back, seen_from(both, 5.0), 0.6)
    for _ in range(30):
        localizer.update_similarities(like)
    assert localizer.why['recoveries'] == 1
    assert abs(abs(localizer.estimate().pose[2]) - np.pi) < 0.3


def test_trust_in_a_gap_fades_with_every_image_that_is_not_explained(corridor):
    sparse = corridor.subset(np.arange(0, len(corridor), 20))
    model = ObservationModel(sparse, sparse.filter_config)
    recovery = Recovery(model, sparse.filter_config, np.random.default_rng(0))
    recovery.trust_belief()
    credits = []
    for _ in range(4):
        recovery.witness(0.0)
        credits.append(recovery._credit(1.0))
    assert credits[0] > 0.2
    np.testing.assert_allclose(np.divide(credits[1:], credits[:-1]), 0.9)
    recovery.witness(1.0)
    assert recovery._credit(1.0) == 0.0
