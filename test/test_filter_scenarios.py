from dataclasses import fields, replace

from kbr_localization import se2
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.filter import KernelBayesLocalizer
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.localizer import UNKNOWN_VARIANCE
from kbr_localization.localization.map.kernel_map import MapStatistics
from kbr_localization.localization.methods.on_map import FullyNonparametricFilter
from kbr_localization.localization.methods.registry import make_localizer, METHODS
from map_helpers import map_along
import numpy as np
import pytest


@pytest.fixture(scope='module')
def kernel_map():
    """Map of a ring corridor of 20 m: an image is alike another where the poses are close."""
    angle = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    radius = 20 / (2 * np.pi)
    poses = np.stack(
        [radius * np.cos(angle), radius * np.sin(angle), se2.wrap_angle(angle + np.pi / 2)],
        axis=-1,
    )
    return map_along(poses, closed=True)


def seen_from(kernel_map, pose, aliases=()):
    """Kernel vector of the image that would be seen at a pose: like those taken nearby."""
    similarity = np.full(len(kernel_map), 0.6)
    for place, height in [(pose, 0.3), *aliases]:
        difference = kernel_map.poses - place
        distance = np.hypot(difference[:, 0], difference[:, 1])
        turn = np.abs(se2.wrap_angle(difference[:, 2]))
        similarity = np.maximum(similarity, 0.6 + height * np.exp(-distance / 0.5 - turn))
    return similarity


def ring_pose(metres):
    radius = 20 / (2 * np.pi)
    angle = metres / radius
    return np.array(
        [radius * np.cos(angle), radius * np.sin(angle), se2.wrap_angle(angle + np.pi / 2)]
    )


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


@pytest.mark.parametrize('method', [name for name in METHODS if name != 'dead-reckoning'])
def test_every_method_follows_the_robot_round_the_ring(kernel_map, method):
    localizer = make_localizer(method, kernel_map)
    localizer.initialize_globally()
    errors, estimate = drive(localizer, kernel_map, 3.0, 12.0, step=1 / 3, noise=0.002)
    assert np.median(errors[5:]) < 0.35
    assert np.isfinite(estimate.covariance).all()
    np.testing.assert_allclose(estimate.covariance, estimate.covariance.T, rtol=1e-9)


def test_dead_reckoning_only_drifts(kernel_map):
    localizer = make_localizer('dead-reckoning', kernel_map)
    localizer.initialize_globally()
    errors, estimate = drive(localizer, kernel_map, 3.0, 12.0)
    assert errors[-1] < 0.3
    assert estimate.covariance[0, 0] > 1e-3


def test_no_pose_before_there_is_a_belief(kernel_map):
    for method in METHODS:
        estimate = make_localizer(method, kernel_map).estimate()
        assert not estimate.localized
        np.testing.assert_array_equal(np.diag(estimate.covariance), UNKNOWN_VARIANCE)


def test_an_initial_pose_is_believed(kernel_map):
    for method in METHODS:
        localizer = make_localizer(method, kernel_map)
        localizer.initialize(ring_pose(5.0), np.diag([0.04, 0.04, 0.01]))
        difference = localizer.estimate().pose - ring_pose(5.0)
        difference[2] = se2.wrap_angle(difference[2])
        np.testing.assert_allclose(difference, 0.0, atol=0.15)


def test_between_updates_the_pose_moves_with_odometry_and_the_covariance_grows(kernel_map):
    localizer = make(kernel_map)
    localizer.initialize(ring_pose(0.0), np.diag([1e-4, 1e-4, 1e-4]))
    localizer.confirm()
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


def test_an_estimate_says_whether_an_image_has_entered_since_the_last_motion(kernel_map):
    localizer = make(kernel_map)
    localizer.initialize_globally()
    localizer.update_similarities(seen_from(kernel_map, ring_pose(4.0)))
    assert localizer.estimate().updated and localizer.estimate().updated
    localizer.predict(np.zeros(3))
    assert not localizer.estimate().updated


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


def test_a_carried_robot_is_found_again(kernel_map):
    localizer = make(kernel_map)
    localizer.initialize(ring_pose(0.0), np.diag([0.01, 0.01, 0.01]))
    errors, _ = drive(localizer, kernel_map, 0.0, 3.0)
    assert errors.max() < 0.3
    errors, estimate = drive(localizer, kernel_map, 12.0, 5.0)
    assert estimate.diagnostics['recoveries'] == 1
    assert errors[-10:].max() < 0.4


def test_normal_driving_raises_no_false_alarm(kernel_map):
    localizer = make(kernel_map)
    localizer.initialize_globally()
    _, estimate = drive(localizer, kernel_map, 0.0, 60.0, noise=0.002)
    assert estimate.diagnostics['recoveries'] == 0


def test_a_frozen_camera_says_nothing_and_is_counted(kernel_map):
    localizer = make(kernel_map)
    localizer.initialize(ring_pose(0.0), np.diag([0.01, 0.01, 0.01]))
    for _ in range(10):
        localizer.update(kernel_map.descriptors[0])
        localizer.predict(np.array([0.4, 0.0, 0.125]))
    assert localizer.estimate().diagnostics['frozen_images'] == 9
    assert not localizer.estimate().localized


def test_an_image_seen_again_where_the_robot_stands_is_no_sign_of_a_frozen_camera(kernel_map):
    localizer = make(kernel_map)
    localizer.initialize(ring_pose(4.0), np.diag([0.01, 0.01, 0.01]))
    for _ in range(5):
        localizer.update(kernel_map.descriptors[0])
    assert localizer.estimate().diagnostics['frozen_images'] == 0


def test_the_same_seed_gives_the_same_run(kernel_map):
    runs = []
    for _ in range(2):
        localizer = make(kernel_map)
        localizer.initialize_globally()
        runs.append(drive(localizer, kernel_map, 1.0, 3.0)[0])
    np.testing.assert_array_equal(*runs)


def test_the_nonparametric_prediction_is_the_printed_formula(kernel_map):
    localizer = FullyNonparametricFilter(kernel_map)
    increment = kernel_map.controls[0]
    predicted = localizer.predicted(np.full(60, 1 / 60), increment)
    config, kernel = localizer.config, localizer.kernel
    x, following = (
        se2.to_plane_and_circle(poses) for poses in (kernel_map.poses, kernel_map.next_poses)
    )
    ridge = config.state_ridge * kernel.peak(4) * np.eye(60)
    controls = localizer.control_kernel
    joint = kernel.gram(x) * controls.gram(kernel_map.controls)
    seen = controls.cross_gram(kernel_map.controls, increment[np.newaxis])[:, 0]
    weights = np.linalg.solve(joint + ridge, kernel.gram(x) @ np.full(60, 1 / 60) * seen)
    plain = np.linalg.solve(
        kernel.gram(x) + ridge, kernel.cross_gram(x, following) @ (weights / weights.sum())
    )
    np.testing.assert_allclose(predicted, plain, rtol=1e-8)


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


EXTREMES = [
    (field.name, type(field.default)(bound))
    for field in fields(KbrConfig)
    for bound in (field.metadata['low'], field.metadata['high'])
    if bound not in (-np.inf, np.inf, 100_000)  # so many points only take long
]


@pytest.mark.parametrize(('name', 'value'), EXTREMES)
def test_the_filter_works_with_every_parameter_at_its_bounds(kernel_map, name, value):
    localizer = make(kernel_map, **{name: value})
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
