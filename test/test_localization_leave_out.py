"""What a map says of itself when places are left out of it."""

from dataclasses import replace
import functools

import h5py
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr import leave_out
from kbr_localization.localization.kbr.confirmation import Confirmation, UNCONFIRMED
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.kbr.leave_out import measure, with_statistics
from kbr_localization.localization.map.describing import GramDescriber
from kbr_localization.localization.map.kernel_map import KernelMap
from map_helpers import map_along, straight, tiny_map
import numpy as np
import pytest


def corridor(alike, images=120, seed=0):
    """
    Map of a straight way of 0.3 m steps; images are like those nearby.

    `alike`: height of what an image shares with those 9 m on, 18 m on and so forth, where the way
    looks the same again.
    """
    poses = np.array([straight(0.3 * i) for i in range(images)])
    distance = np.abs(poses[:, :1] - poses[:, 0])
    table = 0.55 + 0.2 * np.exp(-distance / 0.5)
    again = np.abs((distance + 4.5) % 9.0 - 4.5)
    table += np.where(distance > 4.5, alike * np.exp(-again / 0.5), 0.0)
    noise = 0.004 * np.random.default_rng(seed).standard_normal(table.shape)
    table = table + noise + noise.T
    np.fill_diagonal(table, 1.0)
    return replace(
        map_along(poses),
        describer=GramDescriber(table),
        descriptors=np.arange(images)[:, np.newaxis],
    )


@pytest.fixture(scope='module')
def plain():
    return corridor(0.0)


@pytest.fixture(scope='module')
def measured(plain):
    return measure(plain)


@pytest.fixture(scope='module')
def tiny():
    return with_statistics(tiny_map())


def test_images_lead_where_the_map_shows_their_place(measured):
    assert measured.margin_here > 0.08
    assert 0.0 < measured.margin_elsewhere < 0.03


def test_a_map_whose_halves_look_alike_asks_for_more(measured):
    assert measure(corridor(0.15)).evidence_limit > 3.0 * measured.evidence_limit


def test_the_same_map_gives_the_same_statistics(plain, measured):
    assert measure(plain) == measured


def test_statistics_are_measured_once_and_stay_with_the_map(plain, measured, tiny, tmp_path):
    known = with_statistics(replace(plain, statistics=None))
    assert known.statistics == measured
    assert with_statistics(known) is known
    assert known.subset(np.arange(10)).statistics is None
    tiny.save(tmp_path / 'map.h5')
    assert KernelMap.load(tmp_path / 'map.h5').statistics == tiny.statistics


@pytest.mark.parametrize('change', ['other', 'fewer', 'more'])
def test_statistics_of_a_package_of_another_age_are_measured_again(tiny, tmp_path, change):
    tiny.save(tmp_path / 'map.h5')
    with h5py.File(tmp_path / 'map.h5', 'r+') as file:
        values = file['statistics'].attrs
        if change != 'more':
            del values['typical_log_likelihood']
        if change != 'fewer':
            values['of_another_age'] = 1.0
    read = KernelMap.load(tmp_path / 'map.h5')
    assert read.statistics is None
    assert with_statistics(read).statistics == tiny.statistics


@pytest.mark.parametrize('images', [1, 2, 5])
def test_the_smallest_maps_have_statistics(images):
    found = measure(corridor(0.0, images))
    assert np.isfinite([found.margin_here, found.margin_elsewhere]).all()
    assert np.isfinite(found.evidence_limit)


def drive(kernel_map, rows, images):
    """Statuses along images of a map, localized on another one of them."""
    localizer = KernelBayesFilter(with_statistics(kernel_map), rng=np.random.default_rng(0))
    localizer.initialize_globally()
    told = []
    for row in rows:
        if told:
            localizer.predict(np.array([0.3, 0.0, 0.0]))
        if localizer.wants_image():
            localizer.update(images[row])
        told.append(localizer.estimate().status)
    return told


@functools.cache
def halves(alike, seed=0):
    """Statuses after 5 m on the half of a corridor that is not mapped, and on that which is."""
    whole = corridor(alike, seed=seed)
    half = with_statistics(whole.subset(np.arange(60)))
    ways = range(60, 120), range(60)
    return [drive(half, rows, whole.descriptors)[17:] for rows in ways]


def test_on_a_map_of_another_place_nothing_is_localized():
    """One half of a way whose halves look alike is driven, the other half is mapped."""
    told = [halves(0.15, seed) for seed in range(6)]
    elsewhere, here = (np.array(side) == 'localized' for side in zip(*told, strict=True))
    assert np.mean(elsewhere) <= 0.02 and np.sum(elsewhere.sum(axis=1) <= 1) >= 5
    assert np.all(here.mean(axis=1) > 0.8)


@pytest.mark.parametrize('alike', [0.05, 0.1, 0.15])
def test_however_much_another_place_looks_alike_it_is_hardly_ever_localized(alike):
    told = [halves(alike, seed) for seed in range(3)]
    elsewhere = [status for unmapped, _ in told for status in unmapped]
    assert elsewhere.count('localized') < 0.05 * len(elsewhere)
    for _, here in told:
        assert here.count('localized') > 0.8 * len(here)


def test_no_image_is_evidence_while_a_map_is_measured(plain, monkeypatch):
    """What is measured is how much evidence a wrong place has; a guess at it would decide."""
    see, doubts = Confirmation.see, []

    def noted(confirmation, *image):
        see(confirmation, *image)
        doubts.append(confirmation.doubt)
        assert not confirmation.confirmed

    monkeypatch.setattr(Confirmation, 'see', noted)
    measure(plain)
    assert len(doubts) > 100
    np.testing.assert_allclose(doubts, UNCONFIRMED)


def test_the_limit_is_the_most_evidence_of_a_wrong_stay():
    first, second = np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[0.2, 10.0]])
    found = leave_out._evidence([second, first])
    typical = (2.0 * 1.0 + 1.0 * 2.0 + 10.0 * 0.2) / 13.0
    likeliest = (2.0 * 1.0 + 1.0 * 2.0 + 1.0 * 0.2) / 4.0
    most = 1.0 * (2.0 - likeliest)  # the image before it speaks against the place
    assert found['typical_log_likelihood'] == pytest.approx(typical)
    assert found['reference_log_likelihood'] == pytest.approx(likeliest)
    assert found['evidence_limit'] == pytest.approx(most)


def test_stays_that_weigh_less_than_a_mean_takes_count_as_far_as_they_go():
    found = leave_out._evidence([np.array([[1.0, 0.5], [2.0, 0.5]]), np.array([[0.4, 0.0]])])
    assert found['reference_log_likelihood'] == pytest.approx(1.5 / 4.0)


def test_evidence_falls_where_much_is_seen_and_a_glimpse_does_not_decide():
    rng = np.random.default_rng(0)
    stays = [np.column_stack([rng.normal(0.4, 1.0, 50), rng.random(50)]) for _ in range(5)]
    reference = leave_out._evidence(stays)['reference_log_likelihood']
    means = [stay[:, 0] @ stay[:, 1] / stay[:, 1].sum() for stay in stays]
    assert reference == pytest.approx(max(means))
    for stay in stays:
        assert stay[:, 1] @ (stay[:, 0] - reference) <= 1e-12
    glimpse = np.array([[3.0, 0.1]])
    with_it = leave_out._evidence([*stays, glimpse])['reference_log_likelihood']
    assert with_it - reference == pytest.approx(0.1 / 4.0 * (3.0 - reference))


def test_a_map_that_is_one_place_asks_for_next_to_nothing():
    found = leave_out._evidence([])
    assert found['typical_log_likelihood'] == found['reference_log_likelihood'] == 0.0
    assert 0.0 < found['evidence_limit'] < 0.3


def test_a_drive_ends_where_its_run_does_or_goes_to_the_other_side():
    kernel_map = replace(
        corridor(0.0, images=8),
        run_index=np.array([0, 0, 0, 0, 1, 1, 1, 0]),
        run_names=('one', 'two'),
        stamps_ns=np.array([0, 1, 3, 4, 0, 1, 2, 2]),
    )
    side = np.array([1, 1, 1, 1, 1, 0, 1, 0], dtype=bool)
    legs = leave_out._legs(kernel_map, side)
    assert [leg.tolist() for leg in legs] == [[0, 1], [2, 3], [4], [6]]


def test_frames_that_the_map_left_out_are_filled_in():
    """A robot takes them all the same: 0.7 times as far apart as the frames of the runs."""
    frames = np.array([straight(0.5 * number) for number in range(8)])
    left_out = map_along(frames).subset(np.array([0, 1, 4, 7]))
    views = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 1.0], [0.0, 0.0]])
    filled, seen = leave_out._filled(left_out, np.arange(3), views[:3], KbrConfig())
    between = np.linspace(0.5, 2.0, 6)  # 1.5 m in steps of at most 0.35 m
    np.testing.assert_allclose(filled[:, 0], [0.0, *between])
    np.testing.assert_allclose(seen[:, 0], [0.0, *(1.0 - 0.5 * (between - 0.5) / 1.5)])
    # no more often than images update the belief
    config = KbrConfig(update_min_d=0.6)
    filled, _ = leave_out._filled(left_out, np.arange(3), views[:3], config)
    np.testing.assert_allclose(filled[:, 0], [0.0, 0.5, 1.0, 1.5, 2.0])


def test_a_map_of_all_frames_is_driven_as_it_is():
    frames = np.array([straight(metres) for metres in (0.0, 0.9, 2.9, 3.2)])
    views = np.zeros((4, 2))
    filled, _ = leave_out._filled(map_along(frames), np.arange(4), views, KbrConfig())
    np.testing.assert_array_equal(filled, frames)
