from dataclasses import replace

from kbr_localization import se2
from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.filter import KernelBayesFilter
from kbr_localization.localization.observation import ObservationModel
from kbr_localization.localization.outliers import OutlierRate
from map_helpers import tiny_map
import numpy as np
import pytest

USUAL = 0.05


@pytest.fixture(scope='module')
def corridor():
    """Map of a straight way of 20 m with an image every 0.5 m."""
    poses = np.array([straight(x) for x in np.arange(0.0, 20.0, 0.5)])
    steps = np.concatenate([se2.between(poses[:-1], poses[1:]), np.full((1, 3), np.nan)])
    following = np.concatenate([poses[1:], np.full((1, 3), np.nan)])
    tiny = tiny_map(frames=len(poses))
    return replace(tiny, poses=poses, controls=steps, next_poses=following)


def straight(metres):
    return np.array([metres, 0.0, 0.0])


def rate_on(model, density, likeness=0.8, growth=50.0):
    """Outlier rate on a map of that density, whose images are that much like their neighbours."""
    model.density, model.likeness = density, likeness
    return OutlierRate(model, FilterConfig(outlier_rate=USUAL, outlier_growth=growth))


@pytest.fixture
def model(corridor):
    return ObservationModel(corridor, corridor.filter_config)


def test_the_rate_grows_as_the_best_match_gets_worse(model):
    rate = rate_on(model, density=0.3)
    rates = [rate.of(best) for best in np.linspace(0.95, 0.55, 9)]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(0.3 * USUAL)
    assert rates[-1] == 1.0
    # the plain formula between the two ends
    shortfall, even = 0.8 - 0.84, -0.02 - 0.08 + 0.175 * 0.3
    assert rate.of(0.84) == pytest.approx(USUAL * np.exp(50.0 * (shortfall - even)))


def test_a_map_without_gaps_takes_every_usual_image_alike(model):
    rate = rate_on(model, density=1.0)
    assert [rate.of(best) for best in (0.95, 0.85, 0.78)] == [USUAL] * 3


@pytest.mark.parametrize(('likeness', 'growth'), [(float('nan'), 50.0), (0.8, 0.0)])
def test_the_rate_stays_where_nothing_is_known_or_wanted(model, likeness, growth):
    rate = rate_on(model, 0.3, likeness, growth)
    assert [rate.of(best) for best in (0.95, 0.7, 0.4)] == [USUAL] * 3


def test_a_rate_above_the_largest_one_is_kept(model):
    rate = rate_on(model, 0.3)
    rate.config = replace(rate.config, outlier_rate=1.0, outlier_growth=1e4)
    assert rate.of(0.0) == 1.0


def test_what_the_light_of_a_run_takes_from_all_images_is_not_counted(model):
    """Matches that are all worse by the same are compared with each other."""
    bright, dark = rate_on(model, 0.3), rate_on(model, 0.3)
    matches = np.tile([0.86, 0.80, 0.76], 100)
    for best in matches:
        bright.see(best)
        dark.see(best - 0.1)
    for best in (0.9, 0.8, 0.75):
        assert dark.of(best - 0.1) == pytest.approx(bright.of(best), rel=0.02)
    assert dark.of(0.75) < 0.5 * rate_on(model, 0.3).of(0.75)
    dark.forget()
    assert dark.of(0.75) == rate_on(model, 0.3).of(0.75)


def drive_through_gap(corridor, growth):
    """Largest error of a drive of 20 m; images between 5 and 15 m show what is not mapped."""
    sparse = corridor.subset(np.flatnonzero((corridor.poses[:, 0] % 2.0) == 0.0))
    ways = sparse.poses[:, 0]
    config = replace(sparse.filter_config, outlier_growth=growth)
    localizer = KernelBayesFilter(sparse, config, np.random.default_rng(1))
    localizer.observation.density, localizer.observation.likeness = 0.3, 0.9
    localizer.initialize(straight(0.0), np.diag([0.05, 0.05, 0.01]) ** 2)
    errors = []
    for x in np.arange(0.0, 20.0, 0.1):
        if x > 0.0:
            localizer.predict(straight(0.1))
        if localizer.wants_image():
            known = x < 5.0 or x > 15.0
            shown = x if known else x + 1.2
            best = 0.92 if known else 0.84
            like = best - 0.4 * (1.0 - np.exp(-np.abs(ways - shown)))
            localizer.update_similarities(like)
        errors.append(abs(localizer.estimate().pose[0] - x))
    return float(np.max(errors))


def test_worse_images_than_usual_do_not_pull_the_belief_away(corridor):
    assert drive_through_gap(corridor, 50.0) < 0.7 * drive_through_gap(corridor, 0.0)


def test_images_that_say_nothing_prove_nothing(corridor):
    """A belief that began with nothing is not localized because of images like no other."""
    sparse = corridor.subset(np.arange(0, len(corridor), 8))
    localizer = KernelBayesFilter(sparse, sparse.filter_config, np.random.default_rng(1))
    localizer.initialize_globally()
    localizer.observation.density, localizer.observation.likeness = 0.3, 0.9
    for _ in range(40):
        like = np.full(len(sparse), 0.3)
        like[0] = 0.31
        localizer.update_similarities(like)
        localizer.predict(straight(0.4))
    assert localizer.recovery.explained == 0
