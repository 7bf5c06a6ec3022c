"""Three hypotheses for every image: here, elsewhere on the map, nothing that the map shows."""

from dataclasses import replace

from corridor_helpers import belief_at, CONFIG, MAP, seen_at, STATISTICS
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.confirmation import Confirmation, Evidence, UNCONFIRMED
from kbr_localization.localization.kbr.hypotheses import Hypotheses, new_after
from kbr_localization.localization.kbr.informative import Informative, margin
from kbr_localization.localization.kbr.likelihood import Likelihood, Match
from kbr_localization.localization.kbr.monitor import Monitor
from kbr_localization.localization.kbr.seen_image import Place
from kbr_localization.localization.kbr.starting import drawn_from_image
from kbr_localization.localization.map.similarity import FullSimilarity
from map_helpers import straight
import numpy as np
import pytest


def odds(probability):
    return probability / (1.0 - probability)


def make(**changes):
    config = replace(CONFIG, **changes)
    rng = np.random.default_rng(0)
    return Hypotheses(Likelihood(MAP, config), STATISTICS, config, rng)


def updated(hypotheses, belief, seen, way=0.4):
    """Update by an image; the belief keeps its object, with the weights after that."""
    prior = Belief(belief.points, belief.weights, belief.odometry)
    posterior = hypotheses.weigh(prior, seen)
    belief.weights = posterior.belief.weights
    hypotheses.update(prior, posterior, seen, way)
    return hypotheses.cohorts.found if hypotheses.elsewhere > 0.5 else None


def run(hypotheses, belief, places):
    """Update by images at places while the belief stays where it is; return what takes over."""
    for place in places:
        hypotheses.see(seen_at(place))
        found = updated(hypotheses, belief, seen_at(place))
        if found is not None:
            return found
    return None


def test_the_marginal_likelihood_is_that_of_the_mixture():
    hypotheses, belief = make(outlier_rate=0.1), belief_at(8.0)
    hypotheses.informative.see(0.05)
    weights, i = belief.weights, hypotheses.informative.probability
    posterior = hypotheses.weigh(belief, seen_at(8.0))
    match = posterior.match
    assert posterior.likelihood == pytest.approx(
        i * match.likelihood_ratio + 1.0 - i * match.coverage
    )
    floor = 0.1 * match.factors.max()
    place = (match.factors + floor) / (1.0 + floor)
    plain = weights * (i * match.likelihood_ratio * place + 1.0 - i * match.coverage)
    np.testing.assert_allclose(posterior.belief.weights, plain / plain.sum(), rtol=1e-9)


def test_an_image_of_another_place_hardly_moves_a_confirmed_belief():
    moved = {}
    for confirmed in (False, True):
        hypotheses, belief = make(), belief_at(8.0)
        hypotheses.see(seen_at(10.0))
        if confirmed:
            hypotheses.confirmation.go_on()
            assert hypotheses.confirmation.confirmed
        before = belief.weights @ belief.points[:, 0]
        posterior = hypotheses.weigh(belief, seen_at(10.0))
        match = posterior.match
        # the rule alone takes the tail of what is seen at 10 m for a slope
        assert match.best_on_map > 20.0 > match.factors.max() > 1.5
        moved[confirmed] = float(posterior.belief.weights @ belief.points[:, 0] - before)
    assert moved[False] > 5e-3 and 0.0 < moved[True] < 0.7 * moved[False]


def test_an_image_of_its_own_place_moves_a_confirmed_belief_as_any_other():
    weights = []
    for confirmed in (False, True):
        hypotheses, belief = make(), belief_at(8.0)
        hypotheses.see(seen_at(8.4))
        if confirmed:
            hypotheses.confirmation.go_on()
        weights.append(hypotheses.weigh(belief, seen_at(8.4)).belief.weights)
    np.testing.assert_allclose(weights[1], weights[0], rtol=1e-12)


def test_the_best_factor_on_the_map_is_that_of_a_place_where_all_is_alike():
    hypotheses, belief = make(state_ridge=1e-3), belief_at(8.0)
    match = hypotheses.likelihood.match(belief.points, belief.weights, seen_at(8.0))
    same = hypotheses.likelihood.match(
        belief.points, belief.weights, FullSimilarity(np.full(len(MAP.poses), 0.7))
    )
    assert same.best_on_map == pytest.approx(1.0, abs=0.1)
    assert match.best_on_map >= match.factors.max()


def test_what_has_left_the_map_does_not_keep_its_room_from_what_is_found_on_it():
    """A drive that begins where the map shows nothing: belief and other points have left it."""
    hypotheses, belief = make(), belief_at(-100.0)
    left = Belief.gaussian(straight(-50.0), np.eye(3), 300, np.random.default_rng(2))
    cohorts = hypotheses.cohorts
    cohorts.points, cohorts._of = left, np.repeat(np.arange(10), 30)
    cohorts._carried, cohorts.mass = np.ones(300), 0.4
    for _ in range(40):
        hypotheses.see(seen_at(10.0))
        found = updated(hypotheses, belief, seen_at(10.0), way=0.1)
        if found is not None:
            break
    assert found is not None and found.weights @ (found.points[:, 0] > 5.0) > 0.9


def test_all_hypotheses_are_weighed_with_one_probability_of_the_image():
    hypotheses, belief = make(), belief_at(3.0)
    hypotheses.see(seen_at(15.0))
    i = hypotheses.informative.probability
    updated(hypotheses, belief, seen_at(15.0))
    assert hypotheses.informative.probability == i
    hypotheses.see(seen_at(15.0))
    assert hypotheses.informative.probability < i


def test_points_drawn_about_an_image_are_a_sample_of_the_uniform_law_on_the_map():
    """Half of them are drawn where the image is likely; their weights make up for it."""
    config = replace(CONFIG, position_bandwidth=0.05)
    likelihood, seen = Likelihood(MAP, config), seen_at(8.0)
    born = drawn_from_image(likelihood, seen, 20_000, np.random.default_rng(0))
    nearest = np.rint(born.points[:, 0] / 0.4).astype(int)
    k_y = likelihood.image_kernel(seen.at(np.arange(50)), seen.best)
    proposal = 0.5 / 50 + 0.5 * k_y / k_y.sum()
    weights = 1.0 / proposal[nearest]
    np.testing.assert_allclose(born.weights, weights / weights.sum())
    assert np.bincount(nearest, minlength=50)[20] > 1000
    mass = np.bincount(nearest, weights=born.weights, minlength=50)
    np.testing.assert_allclose(mass, 1 / 50, rtol=0.25)


def test_what_is_born_drives_the_same_robot():
    hypotheses, belief = make(), belief_at(3.0)
    belief.odometry[:] = 0.01 * np.arange(7)
    run(hypotheses, belief, [15.0])
    odometry = hypotheses.alternatives.odometry
    np.testing.assert_array_equal(odometry, np.tile(0.01 * np.arange(7), (30, 1)))


def test_as_evidence_of_elsewhere_an_image_counts_no_more_than_after_half_a_bandwidth():
    found = []
    for way in (0.5 * CONFIG.position_bandwidth, 10.0 * CONFIG.position_bandwidth):
        hypotheses, belief = make(carried_rate=1e-9), belief_at(3.0)
        hypotheses.see(seen_at(15.0))
        updated(hypotheses, belief, seen_at(15.0), way)
        found.append(odds(hypotheses.elsewhere) / odds(hypotheses.confirmation.doubt))
        assert found[-1] == pytest.approx(hypotheses.here ** -(1.0 - np.exp(-0.5)), rel=1e-6)
    assert found[0] == pytest.approx(found[1], rel=1e-9) and found[0] > 1.2


def test_what_is_born_by_an_image_has_no_evidence_of_it():
    """Its points are a sample of the whole map, of which they may have seen the best part."""
    hypotheses, belief = make(), belief_at(3.0)
    hypotheses.see(seen_at(15.0))
    updated(hypotheses, belief, seen_at(15.0))
    power = new_after(0.4, hypotheses.config)
    expected = odds(hypotheses.confirmation.doubt) / hypotheses.here**power
    assert odds(hypotheses.elsewhere) == pytest.approx(expected, rel=1e-6)


def test_a_right_belief_stays_and_is_confirmed():
    hypotheses, belief = make(), belief_at(8.0)
    assert run(hypotheses, belief, [8.0] * 12) is None
    assert hypotheses.elsewhere < 1e-3
    assert hypotheses.confirmation.confirmed


def test_a_carried_robot_is_found_where_the_images_are():
    hypotheses, belief = make(), belief_at(3.0)
    found = run(hypotheses, belief, [15.0] * 25)
    assert found is not None and hypotheses.elsewhere > 0.5
    assert np.median(np.abs(found.points[:, 0] - 15.0)) < 1.0
    assert not hypotheses.confirmation.confirmed


def test_a_reliable_belief_on_the_map_is_left_for_a_place_as_sure_as_localized_asks_for():
    left = {}
    for evidence, metres in ((0.0, 3.0), (4.0, 3.0), (4.0, -4.0)):
        rng = np.random.default_rng(0)
        monitor = Monitor(Likelihood(MAP, CONFIG), STATISTICS, CONFIG, rng)
        belief, held = belief_at(metres), []
        for _ in range(40):
            # whatever the images say of it, the belief stays as confirmed as it is
            monitor.confirmation.total = evidence + 0.4
            monitor.hypotheses.see(seen_at(15.0))
            posterior = monitor.hypotheses.weigh(belief, seen_at(15.0))
            found = monitor.update(belief, posterior, seen_at(15.0), np.zeros((3, 3)), 0.4)
            belief = posterior.belief
            if found is not None:
                break
            held.append(monitor.hypotheses.elsewhere)
        left[evidence, metres] = monitor.hypotheses.elsewhere, max(held)
    for case in ((0.0, 3.0), (4.0, -4.0)):
        assert left[case][0] > 0.5 >= left[case][1]
    assert left[4.0, 3.0][0] > CONFIG.localized_mass >= left[4.0, 3.0][1] > 0.5


def test_a_place_that_looks_alike_does_not_hide_the_right_one():
    hypotheses, belief = make(), belief_at(3.0)
    # long enough for other points to be drawn about the wrong place, too short to go there
    assert run(hypotheses, belief, [9.0] * 3) is None
    found = run(hypotheses, belief, [15.0] * 12)
    assert found is not None
    assert np.median(np.abs(found.points[:, 0] - 15.0)) < 1.0


def test_a_belief_that_was_left_for_a_place_that_looks_alike_is_soon_found_again():
    after = {}
    for keeps in (True, False):
        hypotheses, belief = make(), belief_at(-4.0)  # in a gap of the map
        found = run(hypotheses, belief, [9.0] * 40)
        assert found is not None
        hypotheses.exchange(belief) if keeps else hypotheses.forget()
        forward = np.array([8.0, 0.0, 0.0])
        found.move(forward)
        for points in [hypotheses.alternatives] * keeps:
            points.move(forward)
        after[keeps] = next(i for i in range(40) if run(hypotheses, found, [4.0]) is not None)
    assert after[True] <= 3 < after[False]


def test_the_place_of_the_belief_itself_is_not_elsewhere():
    hypotheses, belief = make(carried_rate=0.5), belief_at(8.0)
    # so high a rate that points about the best match, which is here, would have half of the mass
    for _ in range(20):
        assert run(hypotheses, belief, [8.0]) is None
        assert hypotheses.elsewhere < 0.1
        there = hypotheses.alternatives
        assert there is None or not there.within(straight(8.0), CONFIG.localized_radius, 1.0).any()


def test_points_that_look_elsewhere_stay_few_and_their_weights_add_up():
    hypotheses, belief = make(carried_rate=1e-3), belief_at(8.0)
    hypotheses.cohorts.leave_out = lambda place: None
    sizes = []
    for place in np.linspace(8.0, 8.4, 20):
        assert run(hypotheses, belief, [place]) is None
        sizes.append(len(hypotheses.alternatives.points))
        assert hypotheses.alternatives.weights.sum() == pytest.approx(1.0)
    assert sizes[:3] == [30, 60, 90] and sizes[-1] == max(sizes) == 300


def test_with_a_rate_of_zero_nothing_is_looked_for():
    hypotheses = make(carried_rate=0.0)
    assert run(hypotheses, belief_at(3.0), [15.0] * 40) is None
    assert hypotheses.alternatives is None


def test_a_belief_in_a_gap_of_the_map_is_excused():
    hypotheses, away = make(), belief_at(-30.0)
    excused = hypotheses.weigh(away, seen_at(8.0))
    assert excused.match.coverage < 1e-3
    assert excused.likelihood == pytest.approx(1.0, abs=0.01)
    assert hypotheses.weigh(belief_at(3.0), seen_at(15.0)).likelihood < 0.5


def test_images_all_alike_confirm_nothing():
    hypotheses, belief = make(), belief_at(8.0)
    for _ in range(30):
        same = FullSimilarity(np.full(len(MAP), 0.5))
        hypotheses.see(same)
        updated(hypotheses, belief, same)
    assert not hypotheses.confirmation.confirmed
    assert abs(hypotheses.confirmation.mean) < 0.2


def test_the_margin_is_that_over_another_place():
    poses = np.array([straight(0.0), straight(1.0), straight(9.0), [0.2, 0.0, 3.0]])
    seen, config = FullSimilarity(np.array([0.9, 0.8, 0.5, 0.6])), KbrConfig()
    assert margin(poses, seen, config) == pytest.approx(0.3)
    assert np.isnan(margin(poses[:2], FullSimilarity(np.array([0.9, 0.8])), config))
    # nine metres apart are places of a radius of four, but not of one of five
    seen = FullSimilarity(np.array([0.9, 0.8, 0.5]))
    assert margin(poses[:3], seen, replace(config, localized_radius=4.0)) == pytest.approx(0.4)
    assert np.isnan(margin(poses[:3], seen, replace(config, localized_radius=5.0)))


def test_a_clear_match_never_tells_less_than_a_vague_one():
    law = Informative(STATISTICS)
    for _ in range(100):
        law.see(0.01 * STATISTICS.margin_elsewhere)
    vague = law.shows
    law.see(5.0 * STATISTICS.margin_here)
    assert law.shows >= vague


def test_margins_tell_images_of_the_map_from_others():
    law = Informative(STATISTICS)
    law.see(0.002)
    elsewhere = law.shows
    law.forget()
    law.see(0.06)
    assert elsewhere < 0.5 and law.shows > 0.99
    law.see(float('nan'))
    assert law.shows == 1.0


def test_under_other_light_smaller_margins_are_learnt():
    law = Informative(STATISTICS)
    law.see(0.015)
    first = law.shows
    for _ in range(60):
        law.see(0.015)
    assert law.shows > first


def test_images_that_the_belief_does_not_explain_count_less():
    law = Informative(STATISTICS)
    before = law.probability
    for _ in range(30):
        law.learn(Match(np.ones(1), 0.0, 1.0, 0.0, 1.0, Place(np.zeros(0, int), np.zeros(0))))
        law.see(np.nan)
    assert law.probability < 0.5 * before
    law.forget()
    assert law.probability == before


def test_a_belief_is_confirmed_by_more_than_the_map_gives_a_wrong_one():
    confirmation = Confirmation(STATISTICS)
    for _ in range(30):
        confirmation.see(0.29, 1.0)
    assert not confirmation.confirmed and confirmation.mean == pytest.approx(0.29)
    for _ in range(10):
        confirmation.see(2.0, 1.0)
    assert confirmation.confirmed
    before = confirmation.mean
    for _ in range(50):
        confirmation.see(0.0, 0.0)  # in a gap of the map nothing is asked
    assert confirmation.confirmed and confirmation.mean == pytest.approx(before)


def test_evidence_is_a_cumulative_sum():
    seen = [(1.3, 0.5), (-2.0, 0.3), (0.8, 1.0), (2.3, 0.4)]
    evidence = Evidence(0.3)
    total = 0.0
    for log_likelihood, weight in seen:
        evidence.see(log_likelihood, weight)
        total = max(total + weight * (log_likelihood - 0.3), 0.0)
        assert evidence.total == pytest.approx(total)
    assert total > 1.0
    evidence.forget()
    assert evidence.total == evidence.mean == evidence.weight == 0.0


def test_what_images_tell_of_a_place_beside_the_heading_is_their_mean_and_of_one_place():
    hypotheses, belief, logs = make(), belief_at(8.0), []
    for _ in range(3):
        hypotheses.see(seen_at(8.0))
        posterior = hypotheses.weigh(belief, seen_at(8.0))
        i, match = hypotheses.informative.probability, posterior.match
        assert posterior.facing == pytest.approx(i * match.facing_ratio + 1.0 - i * match.coverage)
        logs.append(np.log(posterior.facing))
        hypotheses.update(belief, posterior, seen_at(8.0), 0.4)
    assert min(logs) <= hypotheses.facing.mean <= max(logs)
    hypotheses.exchange(belief)
    assert hypotheses.facing.weight == 0.0


def test_what_spoke_against_a_place_is_to_be_made_up_for_at_the_next_one():
    confirmation = Confirmation(STATISTICS)
    limit = confirmation.limit
    confirmation.see(confirmation.reference - limit, 1.0)
    assert confirmation.total == pytest.approx(-limit)
    against = confirmation.doubt
    assert odds(against) == pytest.approx(odds(UNCONFIRMED) * np.exp(limit))
    for _ in range(5):
        confirmation.see(confirmation.reference - limit, 1.0)
    lowest = confirmation.total
    assert lowest == pytest.approx(-2.0 * limit), 'a robot that comes onto the map is found'
    assert confirmation.doubt > against
    confirmation.begin_elsewhere()
    assert confirmation.total == lowest and confirmation.weight == confirmation.mean == 0.0
    confirmation.see(confirmation.reference + 2.9 * limit, 1.0)
    assert not confirmation.confirmed and confirmation.total > 0.0
    confirmation.begin_elsewhere()
    assert confirmation.total == 0.0, 'nothing speaks for a place that was only now found'
    confirmation.see(confirmation.reference + 1.1 * limit, 1.0)
    assert confirmation.confirmed
    confirmation.forget()
    confirmation.see(confirmation.reference + 1.1 * limit, 1.0)
    assert confirmation.confirmed, 'a new drive'


def test_an_image_counts_by_the_way_since_the_last_one():
    assert new_after(0.0, CONFIG) == 0.0
    assert new_after(0.4, CONFIG) == pytest.approx(1.0 - np.exp(-0.5))
    hypotheses, belief = make(), belief_at(8.0)
    updated(hypotheses, belief, seen_at(8.0))
    assert hypotheses.weight == pytest.approx(new_after(0.4, CONFIG) * hypotheses.coverage)
    before = hypotheses.confirmation.total
    updated(hypotheses, belief, seen_at(8.0), 0.0)  # the same view again
    assert hypotheses.confirmation.total == before


def test_the_less_evidence_there_is_the_more_likely_is_another_place():
    confirmation = Confirmation(STATISTICS)
    assert confirmation.doubt == pytest.approx(UNCONFIRMED)
    for confirmation.total in [-1.0, 1.0, 2.0, 4.0]:
        expected = odds(UNCONFIRMED) * np.exp(-confirmation.total)
        assert odds(confirmation.doubt) == pytest.approx(expected)
    for _ in range(100):
        confirmation.see(20.0, 1.0)
    assert confirmation.doubt == pytest.approx(1e-6)


def test_evidence_stops_so_that_a_robot_that_is_carried_away_is_missed_as_soon():
    missed = []
    for images in (10, 1000):
        confirmation = Confirmation(STATISTICS)
        for _ in range(images):
            confirmation.see(20.0, 1.0)
        # odds of 1e-6 against 0.003
        assert confirmation.total == pytest.approx(confirmation.limit + np.log(0.003 / 1e-6))
        missed.append(0)
        while confirmation.confirmed:
            confirmation.see(-1.0, 1.0)
            missed[-1] += 1
    assert missed == [7, 7]


def test_points_elsewhere_are_drawn_with_the_doubt_or_with_the_hazard_of_the_way():
    for evidence, rate in [(0.0, 3e-5), (1.0, 3e-5), (50.0, 3e-5), (50.0, 0.01)]:
        hypotheses, belief = make(carried_rate=rate), belief_at(8.0)
        hypotheses.confirmation.total = evidence
        hypotheses.cohorts.weigh = lambda *image: None
        hypotheses.cohorts.leave_out = lambda place: None
        updated(hypotheses, belief, seen_at(8.0))
        carried = 1.0 - np.exp(-rate * 0.4)
        doubt = hypotheses.confirmation.doubt
        assert hypotheses.elsewhere == pytest.approx(max(carried, doubt))


def test_a_belief_that_was_confirmed_counts_as_such_until_images_refute_it():
    confirmation = Confirmation(STATISTICS)
    confirmation.go_on()
    assert confirmation.confirmed
    told = []
    for _ in range(8):
        confirmation.see(-1.0, 1.0)
        told.append(confirmation.confirmed)
    # log(0.003 / 1e-6) nats are lost by 1.3 at each image
    assert told == [True] * 6 + [False] * 2
