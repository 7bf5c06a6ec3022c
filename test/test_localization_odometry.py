"""What runs with known poses tell of an odometry: systematic errors, noise, delay."""

from dataclasses import replace

import h5py
from helpers import textured_image
from kbr_localization import se2
from kbr_localization.cli.map_commands import describe_map
from kbr_localization.datasets import Frame, OdometryTrack
from kbr_localization.datasets.odometry_noise import OdometryNoise, reported_steps
from kbr_localization.datasets.tracks import known_pose
from kbr_localization.errors import LocalizationError, MapError
from kbr_localization.localization.calibration import (
    Calibration,
    in_metres,
    LIMITS,
    MotionNoise,
    moved,
    moved_with_effects,
    PRIOR_DEVIATIONS,
    reported,
    SIZE,
)
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.motion import (
    calibrate_run,
    combined,
    common_delay,
    correct_delay,
    is_significant_delay,
    measure_delay,
    measure_odometry,
    MIN_DELAY_S,
    variance_between,
)
from map_helpers import TINY_VISION, TinyRun
import numpy as np
import pytest

TRUE = np.array([-0.18, 0.05, 0.02, 0.015, 0.0, -0.02, 0.027])
STEPS = np.random.default_rng(0).normal(size=(40, 3)) * [0.3, 0.2, 0.5]
EXACT, NOISY = OdometryNoise(0.0, 0.0, 0.0, 0.0), OdometryNoise(yaw_bias=0.0)
STILL = np.zeros((40, 3))


def corridors(seed, metres=80.0, turning=True, aside=0.0):
    """Drive ahead in steps of 10 cm, with corners and sideways where asked for."""
    rng, count = np.random.default_rng(seed), int(10 * metres)
    steps = np.zeros((count, 3))
    steps[:, 0] = 0.1
    first = 20
    while turning and first < count:
        steps[slice(first, first + 15), 2] = rng.choice([-1.0, 1.0]) * np.pi / 30
        first += int(rng.integers(30, 70))
    steps[:, 1] = aside * 0.1 * np.sin(np.arange(count) / 17)
    return steps


def tracks(steps, values, seed=0, noise=NOISY):
    """Odometry with errors of these values, and the truth."""
    random = reported_steps(steps, 100_000_000, noise, np.random.default_rng(seed)) - steps
    odometry = se2.chain([3.0, -2.0, 1.0], reported(steps, values) + random)
    return odometry, se2.chain(np.zeros(3), steps)


# the model of systematic errors


def test_what_is_reported_is_what_was_moved():
    np.testing.assert_allclose(moved(reported(STEPS, TRUE), TRUE), STEPS, atol=1e-12)
    np.testing.assert_array_equal(moved(np.zeros(3), TRUE), np.zeros(3))


def test_the_model_is_that_of_the_renderer():
    noise = OdometryNoise(0.0, 0.0, 0.0, 0.03, 0.2, -0.1, 0.05, 1.02, 0.97)
    steps = np.tile([0.002, 0.0, 0.001], (50, 1))
    values = np.array([0.2, -0.1, 0.05, 1 - 1 / 1.02, 0.0, 1 - 1 / 0.97, 0.03 / 0.97 / 1.02])
    told = reported_steps(steps, 100_000_000, noise, np.random.default_rng(0))
    np.testing.assert_allclose(moved(told, values), steps, rtol=2e-3, atol=2e-6)


@pytest.mark.parametrize('turn', [1.0, 1e-6])
def test_effects_are_the_derivatives(turn):
    steps = STEPS * [1.0, 1.0, turn]
    values, size = TRUE + np.array([0.0, 0.0, 0.4, 0.0, 0.05, 0.0, 0.0]), 1e-5
    _, found = moved_with_effects(steps, values)
    for column, change in enumerate(size * np.eye(SIZE)):
        apart = se2.between(moved(steps, values - change), moved(steps, values + change))
        np.testing.assert_allclose(found[..., column], apart / (2 * size), atol=1e-5)


def test_scaled_positions_have_motions_that_are_scaled():
    """What an odometry reports of a drive stays, whatever its metres are taken for."""
    rng = np.random.default_rng(3)
    covariance, delay = np.diag(rng.uniform(0.1, 1.0, SIZE)), np.array([0.1, 0.01])
    known = Calibration(rng.normal(size=SIZE) * 0.05, covariance, delay)
    scaled = known.in_metres(1.03)
    np.testing.assert_array_equal(scaled.delay, delay)
    expected = moved(STEPS, known.values) * np.array([1.03, 1.03, 1.0])
    np.testing.assert_allclose(moved(STEPS, scaled.values), expected, atol=1e-12)
    step = 1e-6 * np.eye(SIZE)
    slope = [(in_metres(known.values + each, 1.03) - scaled.values) / 1e-6 for each in step]
    carried = np.transpose(slope) @ covariance @ slope
    np.testing.assert_allclose(scaled.covariance, carried, atol=1e-9)


def test_another_drive_may_be_of_another_robot():
    known = Calibration(TRUE, 1e-10 * np.eye(SIZE))
    another = known.prior_for_drive('learnt')
    others = np.random.default_rng(0).uniform(-LIMITS, LIMITS, (100_000, SIZE))
    # the map's robot or any other, as likely; the variance is that of any other
    np.testing.assert_allclose(another.values, 0.5 * (TRUE + others.mean(axis=0)), atol=2e-3)
    spread = np.sqrt(np.mean((others - another.values) ** 2, axis=0))
    np.testing.assert_allclose(another.deviations, spread, rtol=2e-2)
    for how, values in (('mapped', TRUE), ('off', np.zeros(SIZE))):
        np.testing.assert_allclose(known.prior_for_drive(how).values, values, atol=1e-5)
        assert not known.prior_for_drive(how).covariance.any()
    # what exceeds the laws is how the kind is built
    backwards = Calibration(TRUE + np.pi, 1e-8 * np.eye(SIZE)).prior_for_drive('learnt')
    np.testing.assert_allclose(backwards.values, TRUE + np.pi - 0.5 * LIMITS, atol=1e-3)
    nothing = Calibration(TRUE, 1e4 * np.eye(SIZE)).prior_for_drive('learnt')
    np.testing.assert_allclose(nothing.values, np.zeros(SIZE), atol=1e-6)
    np.testing.assert_allclose(nothing.deviations, PRIOR_DEVIATIONS, rtol=1e-3)


def test_words_say_on_which_side_and_what_is_not_observable():
    sure = np.diag(np.full(SIZE, 1e-6))
    facts = Calibration(TRUE, sure, np.array([-0.05, 0.002])).described()
    assert (facts['drift']['value'], facts['drift']['observable']) == (0.027, True)
    for name, words in (
        ('drift', '0.0270 ± 0.0010 rad to the left'),
        ('offset_x', '0.1800 ± 0.0010 m behind'),
        ('forward_scale', '1.50 ± 0.10 % too many metres ahead'),
        ('delay', '0.050 ± 0.002 s ahead of those of the poses'),
    ):
        assert words in facts[name]['words']
    straight = calibrate_run(*tracks(corridors(7, turning=False), np.zeros(SIZE), 7))
    assert straight.observable().tolist() == [False, False, True, True, False, False, True]
    words = {name: one['words'] for name, one in straight.described().items()}
    assert 'hardly turn' in words['offset_x'] and 'sideways' in words['lateral_scale']


# the errors of a run, and of several


@pytest.mark.parametrize(
    ('seed', 'mounting', 'aside'), [(0, 0.0, 0.0), (1, np.pi, 0.0), (8, 0.0, 1.0)]
)
def test_errors_are_recovered_within_what_is_stated(seed, mounting, aside):
    slipping = OdometryNoise(yaw_bias=0.0, slip_rate=0.03)
    values = TRUE + np.array([0.0, 0.0, mounting, 0.0, 0.04 * aside, 0.0, 0.0])
    found, noise = measure_odometry([tracks(corridors(seed, aside=aside), values, seed, slipping)])
    errors = found.values - values
    errors[2] = se2.wrap_angle(errors[2])
    assert np.all(np.abs(errors) < 3.5 * found.deviations)
    assert np.all(found.deviations[[0, 1, 3, 5, 6]] < [0.02, 0.02, 0.005, 0.005, 0.003])
    assert found.observable().tolist() == [True] * 4 + [bool(aside)] + [True] * 2
    assert (noise.per_metre_aside is not None) == bool(aside)
    if aside:
        ahead, left = noise.variances(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
        np.testing.assert_allclose(ahead, noise.per_metre)
        np.testing.assert_allclose(left, noise.per_metre_aside)


def test_stated_deviations_of_errors_are_right_with_a_noisy_reference():
    """The scales are not too small although both tracks are noisy."""
    found, seen = [], [0, 1, 2, 3, 5, 6]
    for seed in range(8):
        odometry, truth = tracks(corridors(seed), TRUE, seed)
        truth += np.random.default_rng(seed).normal(size=truth.shape) * [0.02, 0.02, 0.01]
        one = calibrate_run(odometry[::4], truth[::4])
        found.append(((one.values - TRUE) / one.deviations)[seen])
    assert 0.5 < np.sqrt(np.mean(np.square(found))) < 1.4
    assert np.abs(np.mean(found, axis=0)).max() < 1.0


def test_jumps_of_the_reference_change_little():
    odometry, truth = tracks(corridors(4), TRUE, 4)
    steady, jumping = calibrate_run(odometry, truth), truth.copy()
    jumping[250:, :2] += [1.5, -2.0]
    jumping[600:, 0] -= 4.0
    found, noise = measure_odometry([(odometry, jumping)])
    assert np.all(np.abs(found.values - steady.values) < 2.0 * steady.deviations)
    assert noise.per_metre.max() < 1e-3


def test_runs_that_tell_nothing_leave_what_any_rig_has_and_nan_is_refused():
    for length in (30, 1, 0, None):
        found, noise = measure_odometry([] if length is None else [(STILL[:length],) * 2])
        np.testing.assert_array_equal(found.values, np.zeros(SIZE))
        np.testing.assert_allclose(found.deviations, PRIOR_DEVIATIONS)
        np.testing.assert_array_equal(noise.per_metre, MotionNoise.default().per_metre)
    broken = STILL.copy()
    broken[7, 1] = np.nan
    for track in ((STILL, broken), (broken, STILL)):
        with pytest.raises(LocalizationError, match='expected finite poses, got 1 of 40 frames'):
            measure_odometry([track])


@pytest.mark.parametrize('seed', [1, 5])
def test_odometry_that_has_nothing_to_do_with_the_run_tells_nothing(seed):
    """As that of a broken gyroscope, whose heading is always the same."""
    odometry, reference = tracks(corridors(seed), np.zeros(7), seed)
    odometry[:, 2] = 0.7
    calibration, noise = measure_odometry([(odometry, reference)])
    assert np.isfinite(noise.step).all() and np.isfinite(noise.per_metre).all()
    assert np.all(np.abs(calibration.covariance) <= 100.0)
    assert np.linalg.eigvalsh(calibration.covariance)[0] > 0.0


def test_what_runs_differ_by_more_than_by_chance_is_a_variance_between_them():
    values = np.array([[0.0, 0.0, 0.0], [2.0, 3.0, 1.0]])
    variances = np.array([[1.0, 1.0, 1.0], [1.0, 0.5, 1.0]])
    # weights 1 and 2 about a mean of 2: (4 + 2 - 1) / (3 - 5 / 3); the last is less than chance
    np.testing.assert_allclose(variance_between(values, variances), [1.0, 3.75, 0.0])
    joined = combined([Calibration(2.0 * at * np.eye(SIZE)[0], np.eye(SIZE)) for at in (0.0, 1.0)])
    np.testing.assert_allclose(joined.values, np.eye(SIZE)[0], atol=1e-12)
    # the mean of two of variance 1 + 1, and another run differs from it by 1 once more
    np.testing.assert_allclose(joined.covariance, np.diag([2.0, *[0.5] * 6]), atol=1e-12)


# the noise about the errors


def test_maximum_likelihood_recovers_the_variances_that_made_the_odometry():
    rng, per_metre, runs = np.random.default_rng(4), np.array([9e-4, 4e-4, 2e-4]), []
    for _ in range(6):
        steps = np.stack([np.full(4000, 0.02), np.zeros(4000), rng.normal(0, 0.02, 4000)], axis=-1)
        errors = rng.standard_normal(steps.shape) * np.sqrt(0.02 * per_metre)
        runs.append([se2.chain(np.zeros(3), s) for s in (se2.compose(steps, errors), steps)])
    _, noise = measure_odometry(runs)
    turn_per_metre = np.sqrt(2 / np.pi)  # of the steps above
    total = noise.per_metre + turn_per_metre * noise.per_radian
    # heading noise adds sideways error within a window: a third of its variance for a metre
    expected = per_metre + np.array([0.0, per_metre[2] / 3, 0.0])
    np.testing.assert_allclose(total, expected, rtol=0.3)


@pytest.mark.parametrize('heading', [0.0, 0.3])
def test_a_base_that_goes_to_the_side_alone_tells_nothing_of_the_noise_ahead(heading):
    rng, start = np.random.default_rng(0), [0.0, 0.0, heading]
    odometry, slip = np.array([[0.0, 0.05, 0.0]] * 1500), 0.003 * rng.standard_normal((1500, 3))
    both = [se2.chain(start, steps) for steps in (odometry, se2.compose(odometry, slip))]
    _, noise = measure_odometry([tuple(both)])
    np.testing.assert_array_equal(noise.per_metre, MotionNoise.default().per_metre)
    np.testing.assert_allclose(noise.per_metre_aside[:2], 0.003**2 / 0.05, rtol=1.0)


@pytest.mark.parametrize('drift', [0.0, 0.05])
def test_the_variances_of_a_step_are_those_of_the_odometry_as_it_is(drift):
    """[MbKSR] section 6.3 knows no systematic errors: Algorithm 1 moves by the plain odometry."""
    rng = np.random.default_rng(0)
    steps = np.column_stack([np.full(400, 0.2), np.zeros(400), rng.normal(0.0, 0.03, 400)])
    odometry = steps + rng.normal(0.0, 1e-3, steps.shape)
    odometry[:, 2] += drift * odometry[:, 0]
    both = (se2.chain(np.zeros(3), each) for each in (odometry, steps))
    found = measure_odometry([tuple(both)])[1].step
    # cos and sin share the error of the heading
    assert found[2] + found[3] == pytest.approx(1e-6 + (0.2 * drift) ** 2, rel=0.2)
    np.testing.assert_allclose(found[:2], 1e-6, rtol=0.3)


# the delay

COLD = OdometryNoise(offset_x=-0.18, forward_scale=1.015, yaw_bias=0.027, slip_rate=0.02)
TICK_NS = 50_000_000


def drive(turning=True):
    """Poses at 20 Hz of a drive along corridors and round corners at 1 m/s."""
    steps = np.repeat(corridors(0, 240.0, turning), 2, axis=0) / 2.0
    return se2.chain(np.zeros(3), steps)


def late(truth, delay, seed=0, noise=COLD):
    """Odometry of a drive, its stamps `delay` seconds late."""
    steps = se2.between(truth[:-1], truth[1:])
    told = reported_steps(steps, TICK_NS, noise, np.random.default_rng(seed))
    stamps = np.arange(len(truth)) * TICK_NS + round(1e9 * delay)
    return OdometryTrack(stamps, se2.chain(np.array([3.0, -2.0, 1.0]), told))


def images(truth):
    """Stamps and true poses of images at 2.5 Hz."""
    chosen = np.arange(0, len(truth), 8)
    return chosen * TICK_NS, truth[chosen]


@pytest.mark.parametrize(
    ('delay', 'every', 'tick'),
    [
        *[(-4.0, 1, 0.0), (-0.1, 2, 0.0), (0.0, 1, 0.0), (0.0, 1, 0.025), (0.05, 1, 0.0)],
        *[(0.47, 2, 0.0), (0.52, 1, 0.0), (3.0, 8, 0.0)],
    ],
)
def test_a_delay_is_recovered_at_any_rate_and_resolution_of_the_odometry(delay, every, tick):
    truth = drive()
    track = late(truth, delay)
    stamps, poses = track.stamps_ns[::every], track.poses[::every]
    if tick:
        poses[:, 2] = se2.wrap_angle(np.floor(np.unwrap(poses[:, 2]) / tick) * tick)
    found = measure_delay(OdometryTrack(stamps, poses), *images(truth))
    assert abs(found[0] - delay) < max(4.0 * found[1], 0.002)
    assert found[1] < 0.01
    assert is_significant_delay(found) == (abs(delay) > MIN_DELAY_S)


@pytest.mark.parametrize('seed', range(2))
def test_a_robot_that_weaves_is_not_late_by_a_round(seed):
    """Its odometry fits as well, or by chance somewhat better, a whole round later."""
    times = np.arange(0.0, 200.0, 0.05)
    steps = np.zeros((len(times) - 1, 3))
    steps[:, 0] = 0.02
    steps[:, 2] = 0.015 * np.sin(2.0 * np.pi * times[1:] / 5.0)
    truth, rng = se2.chain(np.zeros(3), steps)[::10], np.random.default_rng(seed)
    stamps = np.arange(len(truth)) * 10 * TICK_NS
    told = truth + np.cumsum(0.003 * rng.standard_normal(truth.shape), axis=0)
    poses = truth + 0.003 * rng.standard_normal(truth.shape)
    found = measure_delay(OdometryTrack(stamps, told), stamps, poses)
    assert found is not None and abs(found[0]) < 4.0 * found[1] < 0.02


def test_stated_deviations_of_delays_are_right():
    truth = drive()
    seen = images(truth)
    found = np.array([measure_delay(late(truth, 0.05, seed), *seen) for seed in range(20)])
    errors = (found[:, 0] - 0.05) / found[:, 1]
    assert 0.6 < np.sqrt(np.mean(errors**2)) < 1.6


@pytest.mark.parametrize('seed', range(2))
def test_a_robot_that_goes_straight_on_tells_no_delay_though_its_poses_leap(seed):
    rng = np.random.default_rng(seed)
    steps = np.tile([0.15, 0.0, 0.0], (79, 1))
    stamps, truth = np.arange(80) * 8 * TICK_NS, se2.chain(np.zeros(3), steps)
    told = se2.chain(np.zeros(3), steps + 0.005 * rng.standard_normal(steps.shape))
    truth[30:, 2] += 2.5
    assert not is_significant_delay(measure_delay(OdometryTrack(stamps, told), stamps, truth))
    straight = drive(turning=False)
    assert not is_significant_delay(measure_delay(late(straight, 0.1, seed), *images(straight)))


def test_a_delay_beyond_those_that_are_looked_for_is_none():
    steps = np.tile([0.04, 0.0, 0.0], (5000, 1))
    slowly = np.repeat(np.random.default_rng(0).normal(size=250), 20)
    steps[:, 2] = 0.02 * np.convolve(slowly, np.full(20, 0.05), 'same')
    truth = se2.chain(np.zeros(3), steps)
    assert measure_delay(late(truth, 10.2), *images(truth))[0] == pytest.approx(10.2, abs=0.01)
    assert measure_delay(late(truth, 10.7), *images(truth)) is None


def test_odometry_is_corrected_for_its_delay_and_stays_where_it_is_beyond_its_ends():
    truth = drive()
    stamps, poses = images(truth)
    right = correct_delay(late(truth, 0.1, noise=EXACT), stamps, (0.1, 0.001))
    steps = [se2.between(line[:-1], line[1:])[:-1] for line in (right, poses)]
    np.testing.assert_allclose(steps[0], steps[1], atol=1e-9)
    stamps = 10**9 * np.arange(4)
    track = OdometryTrack(stamps, np.column_stack([np.arange(4.0), np.zeros((4, 2))]))
    for delay, x in ((1.5, [1.5, 2.5, 3.0, 3.0]), (-1.5, [0.0, 0.0, 0.5, 1.5])):
        np.testing.assert_allclose(correct_delay(track, stamps, (delay, 0.1))[:, 0], x)


def test_runs_that_differ_in_their_delay_widen_its_deviation():
    alike = common_delay([(0.05, 0.002), None, (0.051, 0.002)])
    unlike = common_delay([(0.0, 0.002), (0.1, 0.002)])
    assert alike[0] == pytest.approx(0.0505)
    assert alike[1] < 0.002 and unlike[1] > 0.05
    assert common_delay([None]) is None


def late_run(delay, seed=0):
    """Drive along corridors with an odometry that is so many seconds late."""
    run, truth, image = TinyRun(1, f'late by {delay} s'), drive(), textured_image(0)
    run.odometry = late(truth, delay, seed)
    stamps, poses = (each[8:-8] for each in images(truth))  # what all delays have odometry of
    run.frames = [
        Frame(int(stamp), image, run.odometry.at(int(stamp)), pose)
        for stamp, pose in zip(stamps, poses, strict=True)
    ]
    return run


def test_poses_that_the_late_odometry_has_moved_do_not_hide_that_it_is():
    run, fixes = late_run(0.2), images(drive())
    run.reference = OdometryTrack(fixes[0][8:-8:3], fixes[1][8:-8:3])
    run.frames = [
        replace(frame, reference=known_pose(run.reference, frame.stamp_ns, run.odometry))
        for frame in run.frames
    ]
    built = build_map([run], vision=TINY_VISION, max_images=5)
    np.testing.assert_allclose(built.calibration.delay[0], 0.2, atol=0.02)


def test_a_map_of_late_odometry_says_so_and_measures_its_errors_at_the_right_time(
    caplog, tmp_path
):
    in_time = build_map([late_run(0.0)], vision=TINY_VISION, max_images=5)
    assert abs(in_time.calibration.delay[0]) < 0.005
    assert not caplog.records
    runs = [late_run(0.1), late_run(0.1, 1)]
    built = build_map(runs, vision=TINY_VISION, max_images=5)
    known = built.calibration
    np.testing.assert_allclose(known.delay[0], 0.1, atol=0.005)
    assert 'late by 0.1 s is 0.1' in caplog.text
    assert abs(known.values[0] - COLD.offset_x) < 4.0 * known.deviations[0] < 0.03
    late_noise, noise = (one.motion_noise.per_radian[2] for one in (built, in_time))
    assert late_noise < 4.0 * noise + 1e-4
    built.save(tmp_path / 'map.h5')
    loaded = KernelMap.load(tmp_path / 'map.h5')
    np.testing.assert_array_equal(loaded.calibration.delay, built.calibration.delay)
    assert 'behind' in describe_map(loaded)['odometry']['delay']['words']
    with h5py.File(tmp_path / 'map.h5', 'r+') as file:
        file['calibration/delay'][1] = -0.1
    with pytest.raises(MapError, match='calibration/delay'):
        KernelMap.load(tmp_path / 'map.h5')
