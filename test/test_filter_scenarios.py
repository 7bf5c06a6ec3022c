"""The filter on a ring: starts, look-alikes, kidnaps, wrong wheels, growth."""

from dataclasses import fields, replace
from functools import partial

from kbr_localization import se2
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.filter import KernelBayesLocalizer
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.map.kernel_map import MapStatistics
from map_helpers import map_along, on_circle
import numpy as np
import pytest

ring_pose = partial(on_circle, radius=10.0 / np.pi)  # a corridor of 20 m


@pytest.fixture(scope='module')
def kernel_map():
    """Map of the ring, 60 images."""
    return map_along(ring_pose(np.arange(60) / 3), closed=True)


def seen_from(kernel_map, pose, aliases=()):
    """Kernel vector of the image that would be seen at a pose: like those taken nearby."""
    similarity = np.full(len(kernel_map), 0.6)
    for place, height in [(pose, 0.3), *aliases]:
        difference = kernel_map.poses - place
        distance = np.hypot(difference[:, 0], difference[:, 1])
        turn = np.abs(se2.wrap_angle(difference[:, 2]))
        similarity = np.maximum(similarity, 0.6 + height * np.exp(-distance / 0.5 - turn))
    return similarity


def drive(localizer, kernel_map, start, metres, step=0.1, noise=0.0, rng=None, aliases=None):
    """Drive along the ring; returns the position error at each step and the last estimate."""
    errors = []
    rng = rng or np.random.default_rng(0)
    for done in np.arange(0.0, metres + 1e-9, step):
        truth = ring_pose(start + done)
        if done > 0:
            increment = se2.between(ring_pose(start + done - step), truth)
            localizer.predict(increment + noise * rng.standard_normal(3))
        if localizer.wants_image():
            others = [] if aliases is None else aliases(start + done)
            localizer.update_similarities(seen_from(kernel_map, truth, others))
        estimate = localizer.estimate()
        errors.append(np.hypot(*(estimate.pose - truth)[:2]))
    return np.array(errors), estimate


def make(kernel_map, **changes):
    config = replace(kernel_map.filter_config, **changes)
    measured = with_statistics(kernel_map)
    return KernelBayesLocalizer(measured, config, np.random.default_rng(1))


def test_between_updates_the_pose_moves_with_odometry_and_the_covariance_grows(kernel_map):
    localizer = make(kernel_map)
    localizer.initialize(ring_pose(0.0), np.diag([1e-4, 1e-4, 1e-4]))
    localizer.force_confirmed()
    localizer.update_similarities(seen_from(kernel_map, ring_pose(0.0)))
    before = localizer.estimate()
    increment = np.array([0.1, 0.0, 0.05])
    localizer.predict(increment)
    after = localizer.estimate()
    assert not localizer.wants_image()
    np.testing.assert_allclose(after.pose, se2.compose(before.pose, increment), atol=2e-3)
    noise = localizer.odometry.noise
    localizer.odometry.noise = np.zeros((3, 3))
    grown = after.covariance - localizer.estimate().covariance
    assert np.linalg.eigvalsh(noise).min() > 0.0
    np.testing.assert_allclose(np.linalg.eigvalsh(grown), np.linalg.eigvalsh(noise), rtol=1e-4)
    assert (before.updated, after.updated) == (True, False)


def test_two_look_alike_places_keep_two_modes_until_one_is_refuted(kernel_map):
    statistics = MapStatistics(1.6, 0.3, 1.0)
    localizer = make(replace(kernel_map, statistics=statistics))
    localizer.initialize_globally()

    def twin(metres):
        # the other side of the ring looks the same for two metres
        return [(ring_pose(metres + 10.0), 0.3)] if metres < 5.0 else []

    _, estimate = drive(localizer, kernel_map, 3.0, 1.5, aliases=twin)
    assert estimate.status != 'localized'
    localizer.predict(se2.between(ring_pose(4.5), ring_pose(5.1)))
    errors, estimate = drive(localizer, kernel_map, 5.1, 3.0, aliases=twin)
    assert errors[-1] < 0.3
    assert estimate.localized


def test_another_building_is_never_said_to_be_this_one(kernel_map):
    localizer, rng = make(kernel_map), np.random.default_rng(3)
    localizer.initialize_globally()
    for _ in range(30):
        localizer.update_similarities(0.6 + 0.05 * rng.random(60))
        assert not localizer.estimate().localized
        localizer.predict(np.array([0.2, 0.0, 0.0]))


def test_a_robot_that_comes_back_to_the_mapped_half_of_its_way_is_found(kernel_map):
    half = kernel_map.subset(np.arange(30))
    localizer = make(half)
    localizer.initialize(ring_pose(0.0), np.diag([0.01, 0.01, 0.01]))
    drive(localizer, half, 0.0, 19.0, step=0.2)
    errors, estimate = drive(localizer, half, 19.0, 8.0, step=0.2)
    assert errors[-1] < 0.3 and estimate.localized


def test_a_carried_robot_is_found_again(kernel_map):
    localizer = make(kernel_map)
    localizer.initialize(ring_pose(0.0), np.diag([0.01, 0.01, 0.01]))
    errors, _ = drive(localizer, kernel_map, 0.0, 3.0)
    assert errors.max() < 0.3
    wrong = 0
    for metres in np.arange(12.0, 17.0, 0.1):
        errors, estimate = drive(localizer, kernel_map, metres, 0.0)
        wrong += estimate.localized and errors[-1] > 1.0
        localizer.predict(se2.between(ring_pose(metres), ring_pose(metres + 0.1)))
    assert estimate.diagnostics['recoveries'] == 1 and errors[-1] < 0.4
    assert wrong <= 30  # for at most three metres


def test_normal_driving_raises_no_false_alarm(kernel_map):
    localizer = make(kernel_map)
    localizer.initialize_globally()
    _, estimate = drive(localizer, kernel_map, 0.0, 60.0, step=0.2, noise=0.002)
    assert estimate.diagnostics['recoveries'] == 0


def test_a_frozen_camera_says_nothing_and_is_counted_unless_the_robot_stands(kernel_map):
    for step, frozen in ((0.0, 0), (0.4, 9)):
        localizer = make(kernel_map, noise_scale=1e4)
        localizer.initialize(ring_pose(0.0), np.diag([0.01, 0.01, 0.01]))
        spread = []
        for _ in range(10):
            localizer.update(kernel_map.descriptors[0])
            spread.append(localizer.hypotheses.belief.poses[:, 2].std())
            localizer.predict(np.array([step, 0.0, 0.3125 * step]))
        assert localizer.estimate().diagnostics['frozen_images'] == frozen
    # by the noise of the odometry
    assert spread[8] > 1.1 * spread[0] and not localizer.estimate().localized


def test_a_click_beside_the_place_is_never_localized_before_it_is_found(kernel_map):
    localizer = make(kernel_map)
    localizer.initialize(ring_pose(9.0), np.diag([0.25, 0.25, 0.07]))
    for metres in np.arange(0.0, 6.0, 0.2):
        localizer.update_similarities(seen_from(kernel_map, ring_pose(metres)))
        estimate = localizer.estimate()
        error = np.hypot(*(estimate.pose - ring_pose(metres))[:2])
        assert error < 1.0 or not estimate.localized
        localizer.predict(se2.between(ring_pose(metres), ring_pose(metres + 0.2)))
    assert error < 0.3


def test_wheels_that_turn_the_other_way_are_found_out(kernel_map):
    localizer = make(kernel_map)
    localizer.initialize(ring_pose(0.0), np.diag([0.01, 0.01, 0.01]))
    drive(localizer, kernel_map, 0.0, 3.0)
    wrong = 0
    for metres in np.arange(3.0, 23.0, 0.2):
        step = se2.between(ring_pose(metres - 0.2), ring_pose(metres))
        localizer.predict(step * [1.0, -1.0, -1.0])
        localizer.update_similarities(seen_from(kernel_map, ring_pose(metres)))
        estimate = localizer.estimate()
        error = np.hypot(*(estimate.pose - ring_pose(metres))[:2])
        wrong += int(error > 1.0 and estimate.localized)
    assert wrong <= 8 and error < 0.5


def test_a_map_that_grows_is_followed(kernel_map):
    localizer = make(kernel_map.subset(np.arange(50)))
    localizer.initialize(ring_pose(0.0), np.diag([0.01, 0.01, 0.01]))
    assert localizer.follow_map(kernel_map)
    errors, _ = drive(localizer, kernel_map, 0.0, 10.0)
    assert errors.max() < 0.4


BOUNDS = {
    field.name: [type(field.default)(field.metadata[end]) for end in ('low', 'high')]
    for field in fields(KbrConfig)
    if np.isfinite([field.metadata['low'], field.metadata['high']]).all()
} | {'points': [10, 1000]}  # more only take long


@pytest.mark.parametrize('run', range(6))
def test_the_filter_works_with_its_parameters_at_their_bounds(kernel_map, run):
    """A third of them at the lowest, a third at the highest value; each bound in two runs."""
    numbers = [(run + number * (1 + run // 3)) % 3 for number in range(len(BOUNDS))]
    chosen = zip(BOUNDS.items(), numbers, strict=True)
    values = {name: bounds[end] for (name, bounds), end in chosen if end < 2}
    localizer = make(kernel_map, **values)
    localizer.initialize_globally()
    pose, turn, ahead = ring_pose(0.0), np.array([0.0, 0.0, 0.1]), np.array([0.15, 0.0, 0.05])
    for increment in [np.zeros(3)] + 10 * [turn] + 10 * [-turn] + 20 * [ahead] + 5 * [turn]:
        pose = se2.compose(pose, increment)
        localizer.predict(increment)
        if localizer.wants_image():
            localizer.update_similarities(seen_from(kernel_map, pose))
        estimate = localizer.estimate()
        assert not estimate.has_pose or np.isfinite(estimate.pose).all()
        assert np.linalg.eigvalsh(estimate.covariance).min() > 0.0
        assert np.isfinite(list(estimate.diagnostics.values())).all()
    assert estimate.diagnostics['updates'] > 0
