"""Not on this map: over a long way the images fit worse than those of other places do."""

from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.kbr.leave_out import with_statistics
from kbr_localization.localization.kbr.map_fit import MapFit
from kbr_localization.localization.localizer import NOT_ON_THIS_MAP, UNKNOWN_VARIANCE
from kbr_localization.localization.map.map_statistics import MapStatistics
import numpy as np
import pytest
from test_localization_leave_out import corridor

STEP = np.array([0.3, 0.0, 0.0])


@pytest.fixture(scope='module')
def known():
    return with_statistics(corridor(0.15))


def localize(kernel_map, views):
    """Estimates for the kernel vectors of a drive straight on, `STEP` each."""
    localizer = KernelBayesFilter(kernel_map, KbrConfig(points=300), np.random.default_rng(0))
    localizer.initialize_globally()
    estimates = []
    for view in views:
        localizer.predict(STEP)
        if localizer.wants_image():
            localizer.update_similarities(view)
        estimates.append(localizer.estimate())
    return estimates


def own_views(kernel_map, night=1.0):
    """Images of the map's own drive; at night everything that they have of their own shrinks."""
    table, rng = kernel_map.describer.gram, np.random.default_rng(5)
    views = 0.55 + night * (table - 0.55) + 0.002 * rng.standard_normal(table.shape)
    views[np.diag_indices(len(views))] = 0.55 + 0.2 * night
    return views


def foreign_views(kernel_map):
    """Images of another building: alike to something, at random, wherever they are taken."""
    rng, n = np.random.default_rng(6), len(kernel_map)
    return 0.55 + 0.02 * rng.standard_normal((120, n))


def test_in_another_building_it_is_said(known):
    estimates = localize(known, foreign_views(known))
    assert not any(estimate.localized for estimate in estimates[20:])
    assert estimates[-1].status == NOT_ON_THIS_MAP
    assert not estimates[-1].has_pose
    assert estimates[-1].covariance[0, 0] == UNKNOWN_VARIANCE
    assert estimates[-1].diagnostics['map_confirmed'] == 0.0


def test_a_place_that_all_images_are_like_is_no_proof_of_the_map(known):
    views = 0.55 + 0.01 * np.random.default_rng(6).standard_normal((120, len(known)))
    views += 0.08 * np.exp(-0.5 * ((known.poses[:, 0] - 2.0) / 0.4) ** 2)
    estimates = localize(known, views)
    assert not any(estimate.diagnostics['map_confirmed'] for estimate in estimates)
    assert not any(estimate.localized for estimate in estimates)


@pytest.mark.parametrize('night', [1.0, 0.5])
def test_on_the_right_map_it_is_not_said_by_day_and_by_night(known, night):
    estimates = localize(known, own_views(known, night))
    assert all(estimate.status != NOT_ON_THIS_MAP for estimate in estimates)
    assert estimates[-1].localized and estimates[-1].diagnostics['map_confirmed'] == 1.0


def test_a_covered_camera_is_no_proof_against_the_map(known):
    rng = np.random.default_rng(7)
    dark = 0.55 + 0.01 * rng.standard_normal(len(known))
    views = dark + 1e-6 * rng.standard_normal((150, len(known)))
    estimates = localize(known, views)
    assert all(estimate.status != NOT_ON_THIS_MAP for estimate in estimates)
    assert not any(estimate.localized for estimate in estimates[20:])


def test_a_map_whose_images_are_all_equal_localizes_nobody():
    plain = corridor(0.0)
    plain.describer.gram[:] = 1.0
    estimates = localize(with_statistics(plain), np.ones((120, len(plain))))
    assert not any(estimate.localized for estimate in estimates)
    rng = np.random.default_rng(8)
    estimates = localize(with_statistics(plain), 1.0 - 1e-9 * rng.random((120, len(plain))))
    assert not any(estimate.localized for estimate in estimates)


def seen(fit, count, log_likelihood, coverage=1.0):
    for number in range(count):
        fit.see(log_likelihood, coverage, number % 7)
    return fit


def test_proof_takes_a_way_and_outlives_a_recovery():
    statistics = MapStatistics(
        evidence_limit=6.0, typical_log_likelihood=0.4, reference_log_likelihood=0.8
    )
    fit = MapFit(statistics)
    assert not seen(fit, 8, 0.0).refuted
    assert seen(fit, 8, 0.0).refuted
    assert not seen(fit, 40, 1.2).refuted, 'the robot has come onto the map'
    assert not MapFit(statistics).confirmed
    assert not seen(MapFit(statistics), 8, 1.2).confirmed
    assert seen(MapFit(statistics), 30, 1.2).confirmed
    assert not seen(MapFit(statistics), 30, 0.7).confirmed
    assert not seen(MapFit(statistics), 60, 0.0, coverage=0.1).refuted, 'a gap of the map'
    fit.forget()
    assert fit.mean == 0.0 and not fit.refuted


def test_an_image_that_only_repeats_the_one_before_counts_once():
    fit = MapFit(MapStatistics(typical_log_likelihood=0.4))
    for _ in range(200):
        fit.see(0.0, 1.0, 3)
    assert not fit.refuted
