"""A pose that somebody gave: as sure as it was given, and mended when it was beside the place."""

from kbr_localization import se2
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.kbr.starting import drawn_about
import numpy as np
import pytest
from test_localization_odometry_check import MAP, PATH, similarities

GIVEN = np.diag([0.25, 0.25, 0.068])  # what RViz sends


def given(beside, seed=0, stated=None, turned=0.0):
    """Localizer from a pose beside the place; `stated`: deviation of its position in metres."""
    rng = np.random.default_rng(seed)
    localizer = KernelBayesFilter(MAP, KbrConfig(points=600), rng)
    covariance = GIVEN if stated is None else np.diag([stated**2, stated**2, 0.01])
    localizer.initialize(PATH[50] + np.array([*beside, turned]), covariance)
    return localizer


def drive(localizer, metres=5.0):
    """Errors and estimates along the path from where the pose was given."""
    errors, estimates, end = [], [], 50 + round(metres / 0.2)
    for at in range(50, end):
        localizer.predict(se2.between(PATH[at - 1], PATH[at]) if at > 50 else np.zeros(3))
        if localizer.wants_image():
            localizer.update_similarities(similarities(PATH[at]))
        estimates.append(localizer.estimate())
        errors.append(float(np.hypot(*(estimates[-1].pose - PATH[at])[:2])))
    return np.array(errors), estimates


def test_before_an_image_it_is_as_sure_as_it_was_given():
    stated = given((0.0, 0.0)).estimate().covariance
    assert 0.15 < stated[0, 0] < 0.35 and 0.15 < stated[1, 1] < 0.35
    assert 0.04 < stated[2, 2] < 0.12


@pytest.mark.parametrize(('localized_mass', 'beside'), [(0.9, 0.1), (0.3, 0.5)])
def test_half_of_the_points_lie_farther_about_with_what_a_sure_pose_leaves(localized_mass, beside):
    config = KbrConfig(points=601, localized_mass=localized_mass)
    pose = np.array([1.0, 2.0, 0.5])
    belief = drawn_about(pose, 1e-8 * np.eye(3), config, np.random.default_rng(0))
    far = np.abs(belief.points - pose).max(axis=1) > 1e-3
    assert far.sum() == 300 and len(far) == 601
    assert belief.weights[far].sum() == pytest.approx(beside)


def test_an_image_that_says_nothing_makes_it_no_surer():
    localizer = given((0.0, 0.0))
    # as like each image as the mean of all is: centred it is like none more than another
    mean = MAP.describer.cross_gram(MAP.descriptors[:], MAP.descriptors[:]).mean(axis=0)
    for number in range(5):
        localizer.predict(np.array([0.4, 0.0, 0.0]))
        localizer.update_similarities(mean + 1e-4 * number)
    assert localizer.estimate().covariance[0, 0] > 0.13


def sure_and_wrong(errors, estimates):
    return [e.localized and error > 1.0 for e, error in zip(estimates, errors, strict=True)]


@pytest.mark.parametrize('beside', [(2.0, 0.0), (-2.0, 0.0), (0.0, 2.0), (-1.4, -1.4)], ids=str)
def test_a_click_beside_the_place_is_mended_within_five_metres_and_never_sure(beside):
    for seed in range(3):
        errors, estimates = drive(given(beside, seed), metres=8.0)
        assert errors[24:].max() < 1.0
        assert not any(sure_and_wrong(errors, estimates))


@pytest.mark.parametrize('stated', [0.1, 0.25], ids='{} m'.format)
@pytest.mark.parametrize('beside', [(2.0, 0.0), (-2.0, 0.0), (0.0, 2.0)], ids=str)
def test_a_click_beside_the_place_is_never_sure_however_sure_it_was_given(beside, stated):
    for seed in range(3):
        errors, estimates = drive(given(beside, seed, stated), metres=8.0)
        assert errors[0] > 1.5 and not any(sure_and_wrong(errors, estimates))


@pytest.mark.parametrize('stated', [0.1, 0.25], ids='{} m'.format)
def test_a_click_that_faces_the_other_way_is_never_sure(stated):
    for seed in range(3):
        localizer = given((0.0, 0.0), seed, stated, turned=np.pi)
        _, estimates = drive(localizer, metres=8.0)
        for at, estimate in enumerate(estimates, start=50):
            off = abs(se2.wrap_angle(estimate.pose[2] - PATH[at, 2]))
            assert off < 1.0 or not estimate.localized


def test_a_click_that_faces_where_the_map_shows_nothing_is_left_within_two_metres():
    for seed in range(3):
        localizer = given((0.0, 0.0), seed, turned=np.pi)
        errors, estimates = drive(localizer, metres=10.0)
        turned = [se2.wrap_angle(e.pose[2] - PATH[at, 2]) for at, e in enumerate(estimates, 50)]
        assert errors[10:].max() < 1.0 and np.abs(turned[10:]).max() < 0.5


def test_a_click_at_the_place_is_sure_as_soon_as_a_start_without_one():
    def images_until_sure(localizer):
        _, estimates = drive(localizer)
        first = next(i for i, estimate in enumerate(estimates) if estimate.localized)
        return sum(estimate.updated for estimate in estimates[: first + 1])

    for seed in range(5):
        anywhere = given((0.0, 0.0), seed)
        anywhere.initialize_globally()
        clicked = images_until_sure(given((0.2, 0.1), seed, 0.25))
        assert 2 <= clicked <= images_until_sure(anywhere)


def test_a_click_at_the_place_stays_right_and_is_sure():
    errors, estimates = drive(given((0.2, 0.1)))
    assert errors.max() < 0.6
    assert all(estimate.localized for estimate in estimates[15:])
