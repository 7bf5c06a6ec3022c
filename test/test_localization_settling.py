from dataclasses import replace

from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.kbr.settling import Settling
from map_helpers import map_along, straight
import numpy as np
import pytest


def test_the_spread_is_that_of_the_kernel_and_falls_to_nothing():
    config = FilterConfig(start_spread=0.5, position_bandwidth=0.8, heading_bandwidth=0.2)
    settling = Settling(config)
    np.testing.assert_array_equal(settling.variances, np.zeros(3))
    settling.begin()
    np.testing.assert_allclose(settling.variances, np.square([0.4, 0.4, 0.1]))
    before = settling.variances
    for _ in range(40):
        settling.calm()
        assert np.all(settling.variances <= before)
        before = settling.variances
    np.testing.assert_array_equal(settling.variances, np.zeros(3))
    settling.begin()
    settling.stop()
    np.testing.assert_array_equal(settling.variances, np.zeros(3))


@pytest.fixture(scope='module')
def corridor():
    """Map of a straight way of 15 m."""
    return map_along(np.array([straight(x) for x in np.arange(0.0, 15.0, 0.25)]))


def error_after(corridor, spread, metres=6.0):
    """Error of a filter whose start left it a single point, half a metre behind the truth."""
    # on a map without other places nothing else than the spread helps
    config = replace(corridor.filter_config, start_spread=spread, recovery_points=0)
    localizer = KernelBayesFilter(corridor, config, np.random.default_rng(2))
    localizer.initialize_globally()
    for x in np.arange(1.0, 1.0 + metres, 0.1):
        if x > 1.0:
            localizer.predict(straight(0.1))
        if localizer.wants_image():
            apart = np.abs(corridor.poses[:, 0] - x)
            localizer.update_similarities(0.6 + 0.3 * np.exp(-apart / 0.5))
        if x == 1.0:
            alone = np.tile(straight(0.5), (config.points, 1))
            localizer.belief = Belief(alone, np.full(config.points, 1.0 / config.points))
    return abs(localizer.estimate().pose[0] - x)


def test_a_start_with_few_points_gets_to_the_truth(corridor):
    spread = FilterConfig().start_spread
    assert error_after(corridor, spread) < min(0.1, 0.5 * error_after(corridor, 0.0))


def test_a_given_pose_is_not_spread(corridor):
    localizer = KernelBayesFilter(corridor, corridor.filter_config, np.random.default_rng(2))
    localizer.initialize(straight(3.0), 1e-6 * np.eye(3))
    apart = np.abs(corridor.poses[:, 0] - 3.0)
    localizer.update_similarities(0.6 + 0.3 * np.exp(-apart / 0.5))
    assert np.ptp(localizer.belief.points[:, 0]) < 0.01


@pytest.mark.parametrize('start_share', [0.6, 1.0])
def test_the_spread_stays_until_the_filter_is_sure(corridor, start_share):
    config = replace(corridor.filter_config, start_share=start_share)
    localizer = KernelBayesFilter(corridor, config, np.random.default_rng(1))
    localizer.initialize_globally()
    spread = []
    for _ in range(6):
        localizer.update_similarities(np.full(len(corridor), 0.8))
        spread.append(localizer._settling.variances[0])
    assert localizer.estimate().confidence < 0.9
    assert spread[0] > 0.0 and spread == [spread[0]] * 6


def test_a_recovery_is_as_unsure_as_a_start(corridor):
    localizer = KernelBayesFilter(corridor, corridor.filter_config, np.random.default_rng(1))
    localizer.initialize_globally()
    localizer.update_similarities(np.full(len(corridor), 0.8))
    anywhere = localizer.belief
    localizer.initialize(straight(3.0), 1e-2 * np.eye(3))
    localizer._recover(anywhere)
    most = localizer._settling.variances[0]
    localizer.update_similarities(np.full(len(corridor), 0.8))
    assert localizer._settling.variances[0] == most > 0.0
