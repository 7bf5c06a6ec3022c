"""Points elsewhere: the robot may be there, or off the map where it looks like there."""

from corridor_helpers import belief_at, CONFIG, MAP, seen_at, STATISTICS
from kbr_localization.localization.kbr.cohorts import Cohorts, UsualLikelihood
from kbr_localization.localization.kbr.likelihood import Likelihood
from kbr_localization.localization.kbr.monitor import Monitor
import numpy as np
import pytest
from scipy.stats import norm

STEP = 0.4
COHORT = Cohorts(CONFIG).size
ALIKE_EVERY, ALIKE_FOR = 100.0, 10.0
TELLS_NOTHING = UsualLikelihood(1.0, 1.0)


def points_at(metres):
    return belief_at(metres, COHORT)


def drive(begins, steps, seen, leap=0.0):
    """
    Drive on from metres of the map, seeing what a place of it shows, and be asked for another.

    `seen`: the places that an image after so many steps is like. `leap`: metres that the belief
    goes at once where the map ends. Returns the step after which it was left, None for never.
    """
    rng = np.random.default_rng(0)
    monitor = Monitor(Likelihood(MAP, CONFIG), STATISTICS, CONFIG, rng)
    belief = belief_at(begins)
    monitor.confirmation.go_on()
    for step in range(steps):
        ends = abs(begins + STEP * step - MAP.poses[-1, 0] + 1.0) < 0.5 * STEP
        way = STEP + leap * ends
        moving = [belief, *filter(None, [monitor.hypotheses.alternatives])]
        for points in moving:
            points.move(np.array([way if points is belief else STEP, 0.0, 0.0]))
        image = seen_at(*seen(step))
        monitor.hypotheses.see(image)
        posterior = monitor.hypotheses.weigh(belief, image)
        found = monitor.update(belief, posterior, image, np.zeros((3, 3)), way)
        belief = posterior.belief
        if found is not None:
            return step
    return None


def continued(step, others=()):
    """
    Return what a corridor shows that goes on, beyond the map, as it began.

    There it is as like what is so many metres further on, too.
    """
    place = 14.0 + STEP * (step + 1)
    return (place,) if place < 20.0 else (place - 18.0, *(place - 18.0 + np.array(others)))


@pytest.mark.parametrize('others', [(4.0,), (4.0, 7.0)])
def test_a_belief_that_is_driven_off_the_map_is_not_left_where_that_looks_alike(others):
    assert drive(14.0, 50, lambda step: continued(step, others)) is None


def test_one_that_sees_off_the_map_what_one_place_shows_is_left_for_it():
    left = drive(14.0, 50, continued)
    assert left is not None and left > 14


def test_one_that_leaps_off_the_map_is_left():
    left = drive(14.0, 50, continued, leap=3.0)
    assert left is not None and left > 11


def test_one_that_leaves_the_map_with_images_that_contradict_it_is_left():
    left = drive(14.0, 50, lambda step: (2.0 + STEP * max(step - 8, 0),))
    assert left is not None and left > 8


def test_how_likely_images_are_tells_a_place_from_a_likeness():
    log_likelihood = np.array([-1.0, 1.0, 2.5, 3.0])
    right, alike = norm(3.0, np.sqrt(0.5)), norm(2.0, np.sqrt(0.5))
    expected = right.logpdf(log_likelihood) - alike.logpdf(log_likelihood)
    told = UsualLikelihood(right=3.0, wrong=1.0).carried_log_odds(log_likelihood)
    np.testing.assert_allclose(told, expected, atol=1e-12)


def test_where_the_right_place_is_no_likelier_than_wrong_ones_nothing_is_told():
    for wrong in (0.7, 0.8, np.finfo(np.float64).max):
        told = UsualLikelihood(right=0.7, wrong=wrong).carried_log_odds(np.array([-3.0, 5.0]))
        np.testing.assert_array_equal(told, 0.0)


def test_older_cohorts_are_told_apart_and_their_mass_stays():
    """Two cohorts, as likely as the right place and a likeness; the newest is of this image."""
    usual, rng = UsualLikelihood(right=3.0, wrong=1.0), np.random.default_rng(0)
    cohorts, untold = Cohorts(CONFIG), Cohorts(CONFIG)
    for either in (cohorts, untold):
        for metres in (3.0, 9.0, 15.0):
            either.join(points_at(metres), 0.01, 1.0, 1.0)
    before, power = cohorts._carried, 0.3
    likely = np.exp(np.repeat([3.0, 2.0, 0.0], COHORT))
    seen = likely, np.ones(3 * COHORT), 1.0, power
    cohorts.weigh(*seen, usual, rng)
    untold.weigh(*seen, TELLS_NOTHING, rng)
    assert cohorts.mass == pytest.approx(untold.mass)
    odds = cohorts._carried / (1.0 - cohorts._carried) * (1.0 - before) / before
    np.testing.assert_allclose(np.log(odds[::COHORT]), [power, -power, 0.0], atol=1e-9)


def test_what_looks_alike_for_long_is_where_the_robot_is():
    """Likelihoods for which a likeness would have to go on for a hundred metres."""
    cohorts = Cohorts(CONFIG)
    told = []
    for _ in range(300):
        cohorts.join(points_at(3.0), 1e-5, 1.0, STEP)
        size = len(cohorts.points.points)
        seen = np.full(size, 20.0), np.ones(size), 1.0, 0.2
        cohorts.weigh(*seen, TELLS_NOTHING, np.random.default_rng(0))
        told.append(cohorts.elsewhere)
    assert max(told[: int(30 / STEP)]) < 0.1
    assert told[-1] > 0.5


def test_masses_go_from_one_hypothesis_to_another_as_their_rates_say():
    cohorts, hazard, unmapped = Cohorts(CONFIG), 0.02, 0.75
    carried = alike = 0.0
    alone = 1.0
    for _ in range(6):
        cohorts.join(points_at(3.0), hazard, unmapped, STEP)
        lasting = unmapped * np.exp(-STEP / ALIKE_FOR)
        alone, alike = alone + (1.0 - lasting) * alike, lasting * alike
        carried += hazard * (alone + alike)
        alone, alike = (1.0 - hazard) * alone, (1.0 - hazard) * alike
        begins = unmapped * (1.0 - np.exp(-STEP / ALIKE_EVERY)) * alone
        alone, alike = alone - begins, alike + begins
        assert cohorts.elsewhere == pytest.approx(carried)
        assert cohorts.mass == pytest.approx(carried + alike)
        assert alone + alike + carried == pytest.approx(1.0)
        assert cohorts.points.weights.sum() == pytest.approx(1.0)


def test_on_the_map_nothing_looks_like_another_place():
    cohorts = Cohorts(CONFIG)
    for _ in range(5):
        cohorts.join(points_at(3.0), 0.01, 1.0, 10.0)
    assert cohorts.elsewhere < 0.5 * cohorts.mass
    cohorts.join(points_at(3.0), 0.01, 0.0, 10.0)
    assert cohorts.elsewhere == pytest.approx(cohorts.mass)


def test_a_belief_that_was_left_is_carried_for_sure():
    cohorts = Cohorts(CONFIG)
    cohorts.join(points_at(3.0), 0.3, 1.0, 50.0)
    before = cohorts.elsewhere
    cohorts.exchange(points_at(9.0), np.random.default_rng(0))
    assert cohorts.mass == pytest.approx(1.0 - before)
    assert cohorts.elsewhere == pytest.approx(cohorts.mass)
    np.testing.assert_allclose(cohorts.found.weights, cohorts.points.weights)


def test_rounding_makes_no_place_surer_than_sure():
    """What is left of a belief that is exchanged would be negative, and has no power."""
    rng, highest, least = np.random.default_rng(0), 0.0, 1.0
    for _ in range(100):
        cohorts = Cohorts(CONFIG)
        cohorts.exchange(points_at(3.0), rng)
        cohorts.mass, cohorts.points.weights = 1.0, rng.dirichlet(np.ones(COHORT))
        highest = max(highest, cohorts.points.weights @ np.ones(COHORT))
        assert cohorts.elsewhere <= 1.0
        cohorts.exchange(points_at(3.0), rng)
        least = min(least, cohorts.mass)
    assert highest > 1.0 and least >= 0.0


def test_what_is_found_is_where_the_robot_may_have_been_carried():
    """Not where it looks alike: two cohorts, one of each kind."""
    cohorts = Cohorts(CONFIG)
    cohorts.join(points_at(3.0), 0.01, 0.0, STEP)
    cohorts.join(points_at(9.0), 0.0, 1.0, 50.0)
    there = cohorts.found.points[:, 0] < 6.0
    assert cohorts.found.weights[there].sum() == pytest.approx(1.0)
    assert cohorts.points.weights[there].sum() < 0.1
