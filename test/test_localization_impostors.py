"""What images that were taken elsewhere say of a place: no evidence for it."""

from dataclasses import replace

from corridor_helpers import belief_at, CONFIG, MAP, seen_at, STATISTICS
from kbr_localization.localization.kbr.confirmation import Confirmation, REMEMBERED
from kbr_localization.localization.kbr.hypotheses import Hypotheses
from kbr_localization.localization.kbr.impostors import Impostors
from kbr_localization.localization.kbr.likelihood import Likelihood
from kbr_localization.localization.kbr.seen_image import Place, SeenImage
from kbr_localization.localization.map.similarity import FullSimilarity, LocalSimilarity
from map_helpers import straight
import numpy as np
import pytest

NOTHING = FullSimilarity(np.full(50, 0.6))


class Excess:
    """An image of which impostors have so much."""

    excess = 0.0


def drive(images, beliefs, step=0.4):
    """Update by images at beliefs, `step` metres apart; the hypotheses after that."""
    hypotheses = Hypotheses(Likelihood(MAP, CONFIG), STATISTICS, CONFIG, np.random.default_rng(0))
    for seen, belief in zip(images, beliefs, strict=True):
        hypotheses.impostors.predict(np.array([step, 0.0, 0.0]))
        hypotheses.see(seen)
        posterior = hypotheses.weigh(belief, seen)
        hypotheses.update(belief, posterior, seen, step)
    return hypotheses


@pytest.mark.parametrize('largest', [1024, 30])
def test_an_image_kept_is_as_likely_at_a_place_as_one_that_is_compared_there(largest):
    model = Likelihood(MAP, CONFIG, largest_system=largest)
    first, second = seen_at(3.0), seen_at(8.0)
    kept = [model.seen(image) for image in (first, second)]
    for metres in (2.5, 8.2):
        points, weights = belief_at(metres).points, belief_at(metres).weights
        for image, known in zip((first, second), kept, strict=True):
            plain = model.match(points, weights, image)
            other = model.match(points, weights, NOTHING)
            for place in (plain.place, other.place):
                assert known.ratios_at([place])[0] == pytest.approx(
                    plain.likelihood_ratio, rel=2e-3, abs=2e-3
                )


@pytest.mark.parametrize('largest', [1024, 30])
def test_places_say_of_images_what_the_images_say_of_the_places(largest):
    model = Likelihood(MAP, CONFIG, largest_system=largest)
    images = [model.seen(seen_at(metres)) for metres in (3.0, 8.0, 17.0)]
    places = [model.match(*_of(belief_at(x)), NOTHING).place for x in (2.5, 7.6, 8.2)]
    places.insert(1, Place(np.zeros(0, dtype=np.intp), np.zeros(0)))  # out of the map's reach
    by_image = np.array([image.ratios_at(places) for image in images])
    by_place = np.array([place.ratios_of(images) for place in places])
    np.testing.assert_allclose(by_image, by_place.T, rtol=1e-12, atol=1e-12)
    one_by_one = [[_ratio(image, place) for place in places] for image in images]
    np.testing.assert_allclose(by_image, one_by_one, rtol=1e-12, atol=1e-12)
    assert not by_image[:, 1].any() and by_image[1, 3] > 2.0


def test_the_weights_of_an_image_in_several_parts_add_up():
    parts = [(np.array([2, 5]), np.array([0.1, 0.2])), (np.array([5, 7]), np.array([0.3, 0.4]))]
    place = Place.joined(parts)
    assert place.images.tolist() == [2, 5, 7] and place.values.tolist() == [0.1, 0.5, 0.4]


def test_of_a_large_map_the_likeliest_images_are_known():
    model = Likelihood(MAP, CONFIG, largest_system=30)
    values = seen_at(8.0).similarities
    candidates = np.arange(15, 26)
    image = LocalSimilarity(lambda i: values[i], candidates, 50, (candidates, values[candidates]))
    kept, match = model.seen(image), model.match(*_of(belief_at(8.0)), NOTHING)
    elsewhere = model.match(*_of(belief_at(3.0)), NOTHING)
    here, there = kept.ratios_at([match.place, elsewhere.place])
    assert here > 2.0 and there < 1e-3


def test_images_that_the_map_got_later_count_as_nothing():
    grown = Place(np.array([2, 3]), np.array([0.5, 0.5]))
    before = SeenImage(np.array([1.0, 2.0, 3.0, 0.0]), None, 1.0)
    assert before.ratios_at([grown]) == grown.ratios_of([before]) == 1.5


@pytest.mark.parametrize('largest, kept', [(1024, True), (30, False)])
def test_impostors_are_forgotten_when_a_map_outgrows_one_system(largest, kept):
    beliefs = [belief_at(8.0 + 0.1 * k) for k in range(6)]
    hypotheses = drive([seen_at(8.0 + 0.1 * k) for k in range(6)], beliefs)
    before = hypotheses.confirmation.total
    hypotheses.follow(Likelihood(MAP, CONFIG, largest_system=largest))
    seen, model = seen_at(8.0), hypotheses.likelihood
    match = model.match(*_of(belief_at(8.0)), seen)
    hypotheses.impostors.predict(np.array([5.0, 0.0, 0.0]))
    again = hypotheses.impostors.see(model.seen(seen), match, 0.7)
    assert (again.excess > 1.0) == kept
    hypotheses.confirmation.see(0.3, 0.0)
    assert (hypotheses.confirmation.total < before - 1.0) == kept


def test_impostors_are_the_images_taken_elsewhere_or_facing_another_way():
    model = Likelihood(MAP, CONFIG)
    image, match = seen_at(8.0), model.match(*_of(belief_at(8.0)), seen_at(8.0))
    impostors, kept = Impostors(CONFIG), model.seen(image)
    first = impostors.see(kept, match, 0.7)
    impostors.predict(np.array([1.0, 0.0, 0.0]))
    near = impostors.see(kept, match, 0.7)
    assert first.excess == near.excess == 0.0
    impostors.predict(np.array([0.0, 0.0, 1.2]))
    turned = impostors.see(kept, match, 0.7)
    expected = np.log(0.7 * match.likelihood_ratio + 1.0 - 0.7 * match.coverage)
    assert first.excess == near.excess
    assert [near.excess, turned.excess] == pytest.approx([expected] * 2)
    assert expected > 1.0
    # what is less likely there than an image that says nothing is no credit
    impostors.forget()
    place = impostors.see(kept, match, 0.7)
    impostors.predict(np.array([9.0, 0.0, 0.0]))
    impostors.see(model.seen(seen_at(17.0)), match, 0.7)
    assert place.excess == 0.0


def test_what_impostors_have_is_taken_off_the_evidence_also_later():
    confirmation, images = Confirmation(STATISTICS), [Excess() for _ in range(6)]
    for image in images:
        confirmation.see(1.3, 1.0, image)
    assert confirmation.total == pytest.approx(6.0) and confirmation.confirmed
    for image in images:
        image.excess = 0.6
    confirmation.see(0.3, 1.0)
    assert confirmation.total == pytest.approx(2.4) and not confirmation.confirmed
    # it is of these images, not of what somebody said
    confirmation.go_on()
    images[0].excess = 5.0
    confirmation.see(0.3, 1.0)
    assert confirmation.confirmed


def test_what_was_long_ago_is_settled():
    confirmation, first = Confirmation(STATISTICS), Excess()
    confirmation.see(1.3, 1.0, first)
    for _ in range(REMEMBERED - 1):
        confirmation.see(0.3, 1.0)
    assert confirmation.total == pytest.approx(1.0)
    first.excess = 0.5
    confirmation.see(0.3, 0.0)
    assert confirmation.total == pytest.approx(0.5)
    first.excess = 0.7
    confirmation.see(0.3, 0.0)
    assert confirmation.total == pytest.approx(0.5)


def test_a_place_that_all_images_of_a_run_are_like_is_not_confirmed():
    """Off the map nothing is weighed, so that a place confirmed before would stay so."""
    here = [belief_at(8.0 + 0.1 * k) for k in range(6)]
    away = [replace_x(belief_at(8.0), 30.0 + k) for k in range(12)]
    like_the_place = [seen_at(8.0 + 0.1 * k) for k in range(6)]
    before = drive(like_the_place, here).confirmation
    assert before.confirmed
    robot = drive([*like_the_place, *[NOTHING] * 12], here + away).confirmation
    assert robot.total == pytest.approx(before.total, abs=0.2) and robot.confirmed
    stranger = drive([*like_the_place, *[seen_at(8.2)] * 12], here + away).confirmation
    assert stranger.total < 0.5 and not stranger.confirmed


def _ratio(image, place):
    """How many times as likely an image is at a place as under the uniform law, by the formula."""
    known = range(len(image.values) - 1) if image.known is None else image.known
    values = dict(zip(known, image.values, strict=False))
    weighed = zip(place.images, place.values, strict=True)
    return max(sum(weight * values.get(at, 0.0) for at, weight in weighed), 0.0) / image.uniform


def _of(belief):
    return belief.points, belief.weights


def replace_x(belief, metres):
    """Put a belief elsewhere along the corridor."""
    moved = belief.points + straight(metres) - straight(8.0)
    return replace(belief, points=moved)
