"""How wide the filter's covariance is stated, and why."""

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.localization.config import FilterConfig, sensible_config
from kbr_localization.localization.kbr.calibration import Calibration
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.kbr.observation import ObservationModel
from map_helpers import tiny_map
import numpy as np
import pytest


@pytest.fixture(scope='module')
def kernel_map():
    """Map of images every 0.2 m along a line."""
    return tiny_map(frames=40)


def calibration(kernel_map, **changes):
    config = replace(kernel_map.filter_config, **changes)
    return Calibration(ObservationModel(kernel_map, config))


def plain_likeness(kernel_map):
    """Median of the best values among the neighbours, over all pairs of images."""
    poses, config = kernel_map.poses, kernel_map.filter_config
    scale = np.array([config.position_bandwidth] * 2 + [config.heading_bandwidth] * 2)
    embedded = se2.to_plane_and_circle(poses) / scale
    distance = np.linalg.norm(embedded[:, np.newaxis] - embedded, axis=2)
    values = kernel_map.describer.cross_gram(kernel_map.descriptors, kernel_map.descriptors)
    # the Gaussian that is a half where the exponential kernel is
    closeness = 0.5 ** ((distance / np.log(2.0)) ** 2)
    others = (closeness <= 0.8) & (distance < 5.0)
    return np.median([row[near].max() for row, near in zip(values, others, strict=True)])


def test_likeness_is_what_neighbours_usually_have(kernel_map):
    likeness = calibration(kernel_map).observation.likeness
    assert likeness == pytest.approx(plain_likeness(kernel_map), rel=0.02)


def test_images_that_the_map_does_not_show_widen_the_covariance(kernel_map):
    usual = calibration(kernel_map)
    narrow = usual.widening
    usual.see(usual.observation.likeness + 0.03)
    assert usual.widening == narrow
    for _ in range(40):
        usual.see(usual.observation.likeness - 0.015)
    assert usual.widening / narrow == pytest.approx(np.exp(1.4), rel=1e-3)
    for _ in range(50):
        usual.see(0.0)
    assert usual.widening / narrow == pytest.approx(100.0, rel=0.03)
    usual.forget()
    assert usual.widening == narrow


def test_gaps_widen_it_too(kernel_map):
    sparse = kernel_map.subset(np.arange(0, 40, 8))
    assert calibration(sparse).widening > 1.5 * calibration(kernel_map).widening


def test_a_map_of_one_image_has_no_neighbours_to_compare_with(kernel_map):
    lonely = calibration(kernel_map.subset(np.array([3])))
    lonely.see(0.1)
    assert np.isnan(lonely.observation.likeness) and np.isfinite(lonely.widening)


def test_the_answer_is_wider_by_that_factor(kernel_map):
    localizer = KernelBayesFilter(kernel_map)
    localizer.initialize(kernel_map.poses[5], np.diag([0.01, 0.01, 0.01]))
    before, known = localizer.estimate(), localizer.calibration.widening
    for _ in range(20):
        localizer.calibration.see(localizer.observation.likeness - 0.15)
    ratio = localizer.estimate().covariance / before.covariance
    expected = localizer.calibration.widening / known
    np.testing.assert_allclose(np.diag(ratio), expected, rtol=1e-9)


def test_a_small_map_has_narrow_kernels_in_position_and_wider_ones_in_heading():
    poses = np.array([[0.0, 0.0, 0.0], [0.2, 0.1, 0.3], [0.1, 0.3, -0.2]])
    usual, small = FilterConfig(), sensible_config(poses)
    assert small.position_bandwidth < 0.5 * usual.position_bandwidth
    shrunk = small.position_bandwidth / usual.position_bandwidth
    assert small.heading_bandwidth == pytest.approx(
        usual.heading_bandwidth * min(1.0 / shrunk, 3.0)
    )
    assert small.update_min_d == pytest.approx(usual.update_min_d * shrunk**2)
    assert sensible_config(30.0 * poses) == usual


def test_a_covered_lens_says_nothing_about_the_pose(kernel_map):
    localizer = KernelBayesFilter(kernel_map)
    localizer.initialize(kernel_map.poses[5], np.diag([0.01, 0.01, 0.01]))
    before = localizer.estimate()
    dark = np.where(np.arange(40) == 30, 0.06, 0.01)  # most like an image far from here
    for _ in range(20):
        localizer.update_similarities(dark)
    after = localizer.estimate()
    np.testing.assert_allclose(after.pose, before.pose, atol=1e-3)
    assert localizer.why['recoveries'] == 0
    assert after.covariance[0, 0] > 50 * before.covariance[0, 0]


def test_trust_is_whole_for_what_the_map_shows_and_falls_smoothly(kernel_map):
    model = ObservationModel(kernel_map, kernel_map.filter_config)
    trust = [model.trust(model.likeness - short) for short in (-0.2, 0.0, 0.35, 0.45, 0.9)]
    assert trust[:3] == [1.0, 1.0, pytest.approx(1.0)]
    assert trust[3] == pytest.approx(np.exp(-1.0)) and trust[4] < 1e-8


def test_what_was_seen_outlasts_the_growth_of_the_map(kernel_map):
    localizer = KernelBayesFilter(kernel_map)
    localizer.initialize(kernel_map.poses[5], np.diag([0.01, 0.01, 0.01]))
    fresh = localizer.calibration.widening
    localizer.calibration.see(localizer.observation.likeness - 0.15)
    before = localizer.calibration.widening
    localizer.follow_map(replace(kernel_map))
    assert localizer.calibration.widening == before > 2 * fresh
