"""The answer made of a belief: pose, covariance, and how sure it is."""

from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.summary import summarize
import numpy as np
import pytest

WIDE = FilterConfig(position_bandwidth=4.0)


def clusters(*places, size=50):
    """Belief on clusters of a few centimetres, the heaviest last."""
    spread = 0.05 * np.random.default_rng(0).standard_normal((size, 3))
    points = np.concatenate([np.array(place) + spread for place in places])
    weights = np.repeat(np.arange(len(places)) + 10.0, size)
    return Belief(points, weights / weights.sum())


def answer(belief, config=WIDE):
    return summarize(belief, config, np.zeros(3), 1.0, {}, True)


@pytest.mark.parametrize('x', [-4.0, 4.0])
def test_between_two_clusters_where_nothing_is_the_heavier_one_is_answered(x):
    belief = clusters((10.0, 5.0, 1.0), (10.0 + x, 5.0, 1.0))
    assert not belief.within(belief.mode(WIDE.mode_bandwidth), WIDE.localized_radius).any()
    estimate = answer(belief)
    np.testing.assert_allclose(estimate.pose, [10.0 + x, 5.0, 1.0], atol=0.05)
    assert estimate.confidence == pytest.approx(11 / 21) and not estimate.localized


def test_a_single_cluster_is_answered_whatever_the_bandwidth():
    estimate = answer(clusters((10.0, 5.0, 1.0)))
    np.testing.assert_allclose(estimate.pose, [10.0, 5.0, 1.0], atol=0.05)
    assert estimate.confidence == pytest.approx(1.0)


def test_of_two_headings_at_one_place_the_heavier_one_is_answered():
    """A mean of both would face where nobody believes that the robot faces."""
    estimate = answer(clusters((10.0, 5.0, -1.5), (10.0, 5.0, 1.5)), FilterConfig())
    np.testing.assert_allclose(estimate.pose, [10.0, 5.0, 1.5], atol=0.05)
    assert estimate.confidence == pytest.approx(11 / 21) and not estimate.localized


def test_a_belief_about_the_heading_where_it_wraps_is_one():
    estimate = answer(clusters((10.0, 5.0, np.pi)), FilterConfig())
    assert estimate.confidence == pytest.approx(1.0)
