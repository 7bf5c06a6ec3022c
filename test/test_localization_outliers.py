from dataclasses import replace

from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.kbr.observation import ObservationModel
from kbr_localization.localization.kbr.outliers import OutlierRate
from kbr_localization.localization.map.similarity import FullSimilarity, LocalSimilarity
from map_helpers import map_along, straight
import numpy as np
import pytest

USUAL, GROWTH = 0.05, 35.0


@pytest.fixture(scope='module')
def corridor():
    """Map of a straight way of 20 m with an image every 0.5 m."""
    return map_along(np.array([straight(x) for x in np.arange(0.0, 20.0, 0.5)]))


@pytest.fixture
def model(corridor):
    return ObservationModel(corridor, corridor.filter_config)


def rate_on(model, density, likeness=0.8, growth=GROWTH):
    """Outlier rate on a map of that density, whose images are that much like their neighbours."""
    model.density, model.likeness = density, likeness
    return OutlierRate(model, FilterConfig(outlier_rate=USUAL, outlier_growth=growth))


def match(best, lead=0.03):
    """Image that is most like one of the map, somewhat less those around, and less by the lead."""
    values = np.full(40, best - lead)
    values[19:22] = best - 0.001, best, best - 0.001
    return FullSimilarity(values)


def first_rate(model, similarity, density=0.3, **changes):
    return rate_on(model, density, **changes).take_in(similarity)


def test_the_rate_grows_as_the_best_match_gets_worse(model):
    rates = [first_rate(model, match(best)) for best in np.linspace(0.95, 0.55, 9)]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(0.3 * USUAL)
    assert rates[-1] == 1.0
    # the plain formula between the two ends
    doubt, even = (0.8 - 0.83) - 0.03, -0.05 - 0.08 + 0.175 * 0.3
    expected = USUAL * np.exp(GROWTH * (doubt - even))
    assert first_rate(model, match(0.83)) == pytest.approx(expected)


def test_the_rate_grows_as_other_places_match_as_well(model):
    rates = [first_rate(model, match(0.82, lead)) for lead in (0.1, 0.06, 0.03, 0.01)]
    assert rates == sorted(rates) and rates[0] < 0.5 * rates[-1]


def test_neighbours_of_the_best_match_are_no_other_places(model, corridor):
    """The same image, whose second best match is 0.5 m or 5 m away."""
    values = match(0.84, 0.06).similarities
    near, far = values.copy(), values.copy()
    near[22] = far[30] = 0.839
    known, ambiguous = (first_rate(model, FullSimilarity(like)) for like in (near, far))
    assert known == first_rate(model, FullSimilarity(values)) < ambiguous
    # on a map of one place there are no others
    small = corridor.subset(np.arange(3))
    alone = ObservationModel(small, small.filter_config)
    expected = USUAL * np.exp(GROWTH * (0.8 - 0.86 + 0.05 + 0.08 - 0.175 * 0.3))
    values = FullSimilarity(np.array([0.7, 0.86, 0.8]))
    assert first_rate(alone, values) == pytest.approx(expected)


def test_a_map_without_gaps_takes_every_usual_image_alike(model):
    rates = [first_rate(model, match(best), 1.0) for best in (0.95, 0.85, 0.78)]
    assert rates == [USUAL] * 3


@pytest.mark.parametrize(('likeness', 'growth'), [(float('nan'), GROWTH), (0.8, 0.0)])
def test_the_rate_stays_where_nothing_is_known_or_wanted(model, likeness, growth):
    for best in (0.95, 0.7, 0.4):
        assert first_rate(model, match(best), likeness=likeness, growth=growth) == USUAL


def test_a_rate_above_the_largest_one_is_kept(model):
    rate = rate_on(model, 0.3, growth=1e4)
    rate.config = replace(rate.config, outlier_rate=1.0)
    assert rate.take_in(match(0.0)) == 1.0


def test_what_the_light_of_a_run_takes_from_all_images_is_not_counted(model):
    """Matches that are all worse by the same are compared with each other."""
    usual = np.tile([0.86, 0.80, 0.76], 100)

    def after(darker, best):
        rate = rate_on(model, 0.3)
        for value in usual:
            rate.take_in(match(value - darker))
        found = rate.take_in(match(best - darker))
        rate.forget()
        assert rate.take_in(match(0.84)) == first_rate(model, match(0.84))
        return found

    for best in (0.86, 0.8, 0.75):
        assert after(0.1, best) == pytest.approx(after(0.0, best), rel=0.02)
    assert after(0.1, 0.85) < 0.5 * first_rate(model, match(0.75))


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
            places = [x] if known else [x + 1.2, (x + 10.0) % 20.0]
            best = 0.92 if known else 0.84
            like = best - 0.4 * (1.0 - np.exp(-np.min([np.abs(ways - p) for p in places], axis=0)))
            localizer.update_similarities(like)
        errors.append(abs(localizer.estimate().pose[0] - x))
    return float(np.max(errors))


def test_worse_images_than_usual_do_not_pull_the_belief_away(corridor):
    assert drive_through_gap(corridor, GROWTH) < 0.7 * drive_through_gap(corridor, 0.0)


@pytest.mark.parametrize('growth', [0.0, GROWTH])
def test_images_that_say_nothing_prove_nothing(corridor, growth):
    """A belief that began with nothing is not localized because of images like no other."""
    sparse = corridor.subset(np.arange(0, len(corridor), 8))
    config = replace(sparse.filter_config, outlier_growth=growth)
    localizer = KernelBayesFilter(sparse, config, np.random.default_rng(1))
    localizer.initialize_globally()
    localizer.observation.density, localizer.observation.likeness = 0.3, 0.9
    for _ in range(100):
        like = np.full(len(sparse), 0.3)
        like[0] = 0.31
        localizer.update_similarities(like)
        localizer.predict(straight(0.4))
    assert localizer.recovery.explained == 0


def test_candidates_that_all_lie_at_one_place_are_a_clear_match(model, corridor):
    """Of a large map only the best matches are known: places beyond them match less than all."""
    values = 0.7 + 0.1 * np.exp(-np.abs(corridor.poses[:, 0] - 10.0))

    def rate(candidates):
        return first_rate(model, LocalSimilarity(lambda i: values[i], candidates, len(values)))

    assert rate(np.arange(40)) < rate(np.arange(18, 23)) < rate(np.array([19, 20]))
    # a small map that shows one place alone is no clearer match for that
    small = OutlierRate(model, FilterConfig(localized_radius=50.0))
    assert small.take_in(FullSimilarity(values)) > rate(np.array([19, 20]))
