"""Systematic errors of the odometry: the model, and what runs tell of them."""

from kbr_localization import se2
from kbr_localization.datasets.odometry_noise import OdometryNoise, reported_steps
from kbr_localization.localization.calibration import (
    Calibration,
    effects,
    in_metres,
    LIMITS,
    moved,
    NAMES,
    reported,
    SIZE,
    UNLIKE,
)
from kbr_localization.localization.calibration_fit import (
    calibrate_run,
    combined,
    fit_variance,
    variance_between,
)
from kbr_localization.localization.calibration_report import described
from kbr_localization.localization.motion import measure_odometry
import numpy as np
import pytest

TRUE = np.array([-0.18, 0.05, 0.02, 0.015, 0.0, -0.02, 0.027])
STEPS = np.random.default_rng(0).normal(size=(40, 3)) * [0.3, 0.2, 0.5]
STEP_NS = 100_000_000


def corridors(seed, metres=80.0, turning=True, aside=0.0):
    """Drive ahead in steps of 10 cm, with corners and sideways where asked for."""
    rng, count = np.random.default_rng(seed), int(10 * metres)
    steps = np.zeros((count, 3))
    steps[:, 0] = 0.1
    first = 20
    while turning and first < count:
        last = first + 15
        steps[first:last, 2] = rng.choice([-1.0, 1.0]) * np.pi / 30
        first += int(rng.integers(30, 70))
    if aside:
        steps[:, 1] = aside * 0.1 * np.sin(np.arange(count) / 17)
    return steps


def tracks(steps, values, seed=0, noise=None):
    """Odometry with errors of these values, and the truth."""
    rng = np.random.default_rng(seed)
    noise = noise or OdometryNoise(yaw_bias=0.0)
    random = reported_steps(steps, STEP_NS, noise, rng) - steps
    odometry = se2.chain([3.0, -2.0, 1.0], reported(steps, values) + random)
    return odometry, se2.chain(np.zeros(3), steps)


def test_what_is_reported_is_what_was_moved():
    np.testing.assert_allclose(moved(reported(STEPS, TRUE), TRUE), STEPS, atol=1e-12)
    np.testing.assert_array_equal(moved(np.zeros(3), TRUE), np.zeros(3))


def test_an_offset_moves_the_pose_as_a_lever_does():
    offset, turn = np.array([0.3, 0.1, 0.0]), np.array([0.2, 0.0, 0.4])
    exact = se2.compose(se2.compose(offset, turn), se2.inverse(offset))
    values = np.array([0.3, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(moved(turn, values), exact, atol=1e-12)


def test_the_model_is_that_of_the_renderer():
    noise = OdometryNoise(0.0, 0.0, 0.0, 0.03, 0.2, -0.1, 0.05, 1.02, 0.97)
    steps = np.tile([0.002, 0.0, 0.001], (50, 1))
    values = np.array([0.2, -0.1, 0.05, 1 - 1 / 1.02, 0.0, 1 - 1 / 0.97, 0.03 / 0.97 / 1.02])
    told = reported_steps(steps, STEP_NS, noise, np.random.default_rng(0))
    np.testing.assert_allclose(moved(told, values), steps, rtol=2e-3, atol=2e-6)


@pytest.mark.parametrize('steps', [STEPS, STEPS * [1.0, 1.0, 1e-6]])
def test_effects_are_the_derivatives(steps):
    values, size = TRUE + np.array([0.0, 0.0, 0.4, 0.0, 0.05, 0.0, 0.0]), 1e-5
    found = effects(steps, values)
    for column, change in enumerate(size * np.eye(SIZE)):
        apart = se2.between(moved(steps, values - change), moved(steps, values + change))
        np.testing.assert_allclose(found[..., column], apart / (2 * size), atol=1e-5)


def test_without_noise_the_errors_are_found_exactly():
    calm = OdometryNoise(0.0, 0.0, 0.0, 0.0)
    found = calibrate_run(*tracks(corridors(1), TRUE, noise=calm))
    np.testing.assert_allclose(found.values, TRUE, atol=1e-6)


@pytest.mark.parametrize('seed', range(3))
def test_errors_are_recovered_within_what_is_stated(seed):
    slipping = OdometryNoise(yaw_bias=0.0, slip_rate=0.03)
    track = tracks(corridors(seed), TRUE, seed, slipping)
    found = calibrate_run(*track)
    assert np.all(np.abs(found.values - TRUE) < 3.5 * found.deviations)
    assert np.all(found.deviations[[0, 1, 3, 5, 6]] < [0.02, 0.02, 0.005, 0.005, 0.003])
    assert found.observable().tolist() == [True] * 4 + [False] + [True] * 2


def test_jumps_of_the_reference_change_little():
    odometry, truth = tracks(corridors(4), TRUE, 4)
    steady = calibrate_run(odometry, truth)
    jumping = truth.copy()
    jumping[250:, :2] += [1.5, -2.0]
    jumping[600:, 0] -= 4.0
    found, noise = measure_odometry([(odometry, jumping)])
    assert np.all(np.abs(found.values - steady.values) < 2.0 * steady.deviations)
    assert noise.per_metre.max() < 1e-3


def test_a_run_without_turns_says_that_the_offset_is_not_observable():
    values = np.zeros(SIZE)
    found = calibrate_run(*tracks(corridors(7, turning=False), values, 7))
    hidden = [NAMES.index(name) for name in ('offset_x', 'offset_y', 'turn_scale')]
    assert not found.observable()[hidden].any()
    assert found.observable()[[3, 6]].all()
    assert 'hardly turn' in described(found)['offset_x']['words']
    of_odometry = described(found, of_odometry=True)
    assert 'made of this odometry' in of_odometry['offset_x']['words']
    assert 'sideways' in of_odometry['lateral_scale']['words']


def test_a_base_that_moves_sideways_tells_its_lateral_scale_and_noise():
    values = TRUE + 0.04 * (np.arange(SIZE) == 4)
    track = tracks(corridors(8, aside=1.0), values, 8)
    found, noise = measure_odometry([track])
    assert np.all(np.abs(found.values - values) < 3.5 * found.deviations)
    assert found.observable().all()
    assert noise.per_metre_aside.shape == (3,)
    ahead, aside = noise.variances(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    np.testing.assert_allclose(ahead, noise.per_metre)
    np.testing.assert_allclose(aside, noise.per_metre_aside)


def test_runs_of_one_rig_tell_more_and_those_of_two_less():
    other = TRUE + np.array([0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    one = calibrate_run(*tracks(corridors(9), TRUE, 9))
    same, _ = measure_odometry([tracks(corridors(s), TRUE, s) for s in (9, 10, 11)])
    mixed, _ = measure_odometry([tracks(corridors(9), TRUE, 9), tracks(corridors(10), other, 1)])
    assert same.deviations[-1] < 1.2 * one.deviations[-1]
    assert 0.1 < mixed.deviations[0] < 0.4
    assert TRUE[0] < mixed.values[0] < other[0]


def test_runs_that_tell_nothing_leave_what_any_rig_has():
    still = np.zeros((30, 3))
    for given in ([], [(still, still)], [(still[:1], still[:1])], [(still[:0], still[:0])]):
        found, _ = measure_odometry(given)
        np.testing.assert_array_equal(found.values, np.zeros(SIZE))
        np.testing.assert_allclose(found.deviations, UNLIKE)


@pytest.mark.parametrize('seed', [1, 5, 7])
def test_odometry_that_has_nothing_to_do_with_the_run_tells_nothing(seed):
    """As that of a broken gyroscope, whose heading is always the same."""
    odometry, reference = tracks(corridors(seed), np.zeros(7), seed)
    odometry[:, 2] = 0.7
    calibration, noise = measure_odometry([(odometry, reference)])
    assert np.isfinite(noise.step).all() and np.isfinite(noise.per_metre).all()
    assert np.all(np.abs(calibration.covariance) <= 100.0)
    assert np.linalg.eigvalsh(calibration.covariance)[0] > 0.0


def test_another_drive_may_be_of_another_robot():
    known = Calibration(TRUE, 1e-8 * np.eye(SIZE))
    another = known.for_another_drive()
    np.testing.assert_allclose(another.values, 0.5 * TRUE, atol=1e-5)
    np.testing.assert_allclose(another.deviations, np.hypot(UNLIKE, 0.5 * TRUE), rtol=1e-3)
    np.testing.assert_allclose(known.for_a_drive('mapped').values, TRUE, atol=1e-5)
    nothing = Calibration(TRUE, 1e4 * np.eye(SIZE)).for_another_drive()
    np.testing.assert_allclose(nothing.values, np.zeros(SIZE), atol=1e-6)
    np.testing.assert_allclose(nothing.deviations, UNLIKE, rtol=1e-3)


def test_the_mean_and_variance_for_another_drive_are_those_of_robots_drawn_at_random():
    rng = np.random.default_rng(0)
    known = Calibration(TRUE, 1e-10 * np.eye(SIZE)).for_another_drive()
    others = rng.uniform(-LIMITS, LIMITS, (100_000, SIZE))
    # the map's robot or any other, as likely; the variance is that of any other
    np.testing.assert_allclose(known.values, 0.5 * (TRUE + others.mean(axis=0)), atol=2e-3)
    spread = np.sqrt(np.mean((others - known.values) ** 2, axis=0))
    np.testing.assert_allclose(known.deviations, spread, rtol=2e-2)


def test_what_exceeds_the_laws_is_how_the_kind_is_built():
    backwards = np.array([1.0, -0.5, np.pi, 0.2, 0.0, 0.1, -0.3])
    another = Calibration(backwards, 1e-8 * np.eye(SIZE)).for_another_drive()
    expected = backwards - 0.5 * np.sign(backwards) * LIMITS
    np.testing.assert_allclose(another.values, expected, atol=1e-3)


def test_words_say_on_which_side():
    facts = described(Calibration(TRUE, np.diag(np.full(SIZE, 1e-6))))
    assert (
        facts['offset_x']['words']
        == 'the wheels lie 0.1800 ± 0.0010 m behind the point of the poses'
    )
    assert (
        facts['forward_scale']['words'] == 'the wheels count 1.50 ± 0.10 % too many metres ahead'
    )
    assert facts['drift'] == {
        'value': 0.027,
        'sd': pytest.approx(1e-3),
        'observable': True,
        'words': 'the wheels turn 0.0270 ± 0.0010 rad to the left with every metre',
    }


def test_scaled_positions_have_motions_that_are_scaled():
    """What an odometry reports of a drive stays, whatever its metres are taken for."""
    rng = np.random.default_rng(3)
    reports = rng.normal(size=(50, 3)) * np.array([0.3, 0.1, 0.2])
    covariance, delay = np.diag(rng.uniform(0.1, 1.0, SIZE)), np.array([0.1, 0.01])
    known = Calibration(rng.normal(size=SIZE) * 0.05, covariance, delay)
    scaled = known.in_metres(1.03)
    np.testing.assert_array_equal(scaled.delay, delay)
    expected = moved(reports, known.values) * np.array([1.03, 1.03, 1.0])
    np.testing.assert_allclose(moved(reports, scaled.values), expected, atol=1e-12)
    step = 1e-6 * np.eye(SIZE)
    slope = [(in_metres(known.values + each, 1.03) - scaled.values) / 1e-6 for each in step]
    slope = np.array(slope).T
    np.testing.assert_allclose(scaled.covariance, slope @ known.covariance @ slope.T, atol=1e-9)


def test_what_runs_differ_by_more_than_by_chance_is_a_variance_between_them():
    values = np.array([[0.0, 0.0, 0.0], [2.0, 3.0, 1.0]])
    variances = np.array([[1.0, 1.0, 1.0], [1.0, 0.5, 1.0]])
    # weights 1 and 2 about a mean of 2: (4 + 2 - 1) / (3 - 5 / 3); the last is less than chance
    np.testing.assert_allclose(variance_between(values, variances), [1.0, 3.75, 0.0])
    runs = [Calibration(2.0 * place * np.eye(SIZE)[0], np.eye(SIZE)) for place in (0.0, 1.0)]
    joined = combined(runs)
    np.testing.assert_allclose(joined.values, np.eye(SIZE)[0], atol=1e-12)
    # the mean of two of variance 1 + 1, and another run differs from it by 1 once more
    np.testing.assert_allclose(joined.covariance, np.diag([2.0, *[0.5] * 6]), atol=1e-12)


def test_rates_of_a_variance_are_the_likeliest():
    rng = np.random.default_rng(0)
    amounts = rng.uniform(0.0, 1.0, (200, 2)) ** 4 + 1e-3
    squared = amounts @ [0.01, 4.0] * rng.standard_normal(200) ** 2
    rates = fit_variance(amounts, squared)
    variance = amounts @ rates
    assert rates.min() > 0.0
    # where the derivative of sum(log variance + squared / variance) by the rates is zero
    left = amounts / variance[:, np.newaxis]
    np.testing.assert_allclose(left.T @ (squared / variance), left.sum(axis=0), rtol=1e-5)
