from dataclasses import replace

from kbr_localization import se2
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.drift import DriftFilter
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.map.file import read_map, write_map
from kbr_localization.localization.methods.adapted import AdaptedAlgorithm1
from kbr_localization.localization.methods.baselines import DeadReckoning
from kbr_localization.localization.methods.nonparametric import FullyNonparametricFilter
from kbr_localization.localization.motion import (
    estimate_noise,
    MotionNoise,
    PendingNoise,
    without_drift,
)
from kbr_localization.localization.pipeline import make_localizer
from map_helpers import map_along, tiny_map
import numpy as np
import pytest

DRIFT = 0.02
NOISE = MotionNoise(
    np.array([1e-4, 5e-5, 5e-5]), np.array([1e-5, 1e-5, 1e-4]), np.full(4, 1e-4), DRIFT, 0.005
)


def track(rng, drift, metres=60.0, jump=0.0):
    """Odometry of a robot that drives curves, and the reference, with a jump in its heading."""
    steps = np.zeros((round(metres / 0.05), 3))
    steps[:, 0], steps[:, 2] = 0.05, rng.normal(0.0, 0.02, len(steps))
    reference = se2.chain(np.zeros(3), steps)
    reference[len(steps) // 2, 2] += jump
    errors = rng.normal(0.0, np.sqrt(0.05 * 5e-5), len(steps))
    steps[:, 2] += drift * steps[:, 0] + errors
    return se2.chain([3.0, -2.0, 1.0], steps), reference


def test_runs_tell_the_drift_and_the_variance_about_it():
    rng = np.random.default_rng(0)
    tracks = [track(rng, drift) for drift in (0.018, 0.022)]
    noise = estimate_noise(tracks)
    assert noise.drift == pytest.approx(0.02, abs=0.004)
    assert noise.drift_deviation > 0.005
    turning = 0.02 * np.sqrt(2 / np.pi) / 0.05  # radians per metre
    total = noise.per_metre[2] + turning * noise.per_radian[2]
    assert total == pytest.approx(5e-5, rel=0.5)  # with the drift it would be 4.5e-4


def test_a_jump_of_the_reference_is_no_drift():
    rng = np.random.default_rng(1)
    assert estimate_noise([track(rng, 0.01, jump=3.0)]).drift == pytest.approx(0.01, abs=0.004)


def test_a_run_driven_backwards_drifts_the_other_way_round():
    rng = np.random.default_rng(2)
    odometry, reference = track(rng, 0.02)
    noise = estimate_noise([track(rng, 0.02), (odometry[::-1], reference[::-1])])
    assert noise.drift == pytest.approx(0.02, abs=0.004)  # windows backwards are left out


def test_short_runs_and_empty_ones_tell_nothing():
    assert estimate_noise([(np.zeros((0, 3)), np.zeros((0, 3)))]).drift == 0.0
    noise = estimate_noise([track(np.random.default_rng(3), 0.02, metres=6.0)])
    assert (noise.drift, noise.drift_deviation) == (0.0, MotionNoise.default().drift_deviation)


def test_the_turn_is_taken_out_per_metre_forward():
    steps = np.array([[2.0, 0.1, 0.5], [-1.0, 0.0, 0.5], [0.0, 0.0, 0.5]])
    np.testing.assert_allclose(without_drift(steps, 0.1)[:, 2], [0.3, 0.6, 0.5])
    each = without_drift(steps[0], np.array([0.0, 0.1]))
    np.testing.assert_allclose(each, [[2.0, 0.1, 0.5], [2.0, 0.1, 0.3]])


def test_points_carry_the_drift_that_a_kalman_filter_finds_on_their_path():
    """Points are drawn without images; each then knows the drift of its own path."""
    rng, q, way = np.random.default_rng(4), 2e-4, 0.4
    drift = DriftFilter(NOISE, 'learnt')
    belief = Belief(np.zeros((20000, 3)), np.full(20000, 1 / 20000))
    mean, variance = np.zeros(20000), NOISE.drift_deviation**2
    for _ in range(30):
        drift.add(np.array([way, 0.0, 0.0]))
        errors = rng.standard_normal((20000, 3)) * np.sqrt([0.0, 0.0, q])
        drift.share(errors, belief, q, rng)
        drift.settle(q)
        # the heading of a point turned by -w (d - d_mapped) + noise beyond its prediction
        innovation = -errors[:, 2]
        gain = variance * way / (way**2 * variance + q)
        mean = mean + gain * innovation
        variance = (1.0 - gain * way) * variance + NOISE.drift_deviation**2 * way / 1000.0
    np.testing.assert_allclose(belief.drift, mean, atol=1e-12)
    assert drift.variance == pytest.approx(variance)
    # what is between the points and what each of them does not know make up the prior
    assert np.var(belief.drift) + variance == pytest.approx(NOISE.drift_deviation**2, rel=0.03)


@pytest.mark.parametrize(('how', 'expected'), [('off', 0.0), ('mapped', DRIFT)])
def test_a_drift_that_is_not_learnt_stays(how, expected):
    drift = DriftFilter(NOISE, how)
    belief = Belief(np.zeros((5, 3)), np.full(5, 0.2))
    step = np.array([1.0, 0.0, 0.0])
    drift.add(step)
    assert drift.corrected(step, belief)[2] == pytest.approx(-expected)
    errors = np.ones((5, 3))
    drift.share(errors, belief, 1e-3, np.random.default_rng(0))
    drift.settle(1e-3)
    np.testing.assert_array_equal(errors, np.ones((5, 3)))
    assert drift.mean(belief) == expected


def ring_pose(metres, radius=4.0):
    angle = np.asarray(metres) / radius
    return np.stack(
        [radius * np.cos(angle), radius * np.sin(angle), se2.wrap_angle(angle + np.pi / 2)],
        axis=-1,
    )


@pytest.fixture(scope='module')
def ring():
    """Map of a ring of 25 m without knowledge of the odometry's drift."""
    noise = replace(NOISE, drift=0.0, drift_deviation=0.03)
    closed = map_along(ring_pose(np.arange(0.0, 25.0, 0.25)), closed=True)
    return replace(closed, motion_noise=noise)


def heading_errors(localizer, kernel_map, drift, metres):
    """Errors (n,) of the heading of a robot whose odometry drifts and that sees where it is."""
    localizer.initialize(ring_pose(0.0), np.diag([0.1, 0.1, 0.05]) ** 2)
    errors, before = [], ring_pose(0.0)
    for done in np.arange(0.1, metres, 0.1):
        truth = ring_pose(done)
        increment = se2.between(before, truth)
        increment[2] += drift * increment[0]
        before = truth
        localizer.predict(increment)
        if localizer.wants_image():
            difference = kernel_map.poses - truth
            apart = np.hypot(*difference[:, :2].T) / 0.5
            turned = np.abs(se2.wrap_angle(difference[:, 2])) / 0.5
            localizer.update_similarities(0.6 + 0.3 * np.exp(-apart - turned))
        errors.append(se2.wrap_angle(localizer.estimate().pose[2] - truth[2]))
    return np.array(errors)


def test_the_filter_learns_a_drift_that_the_map_does_not_know(ring):
    """The heading no longer lags on one side of the truth, and the drift is told."""
    errors, told = {}, {}
    for how in ('learnt', 'off'):
        config = replace(ring.filter_config, odometry_drift=how)
        localizer = KernelBayesFilter(ring, config, np.random.default_rng(1))
        errors[how] = heading_errors(localizer, ring, 0.05, 100.0)[600:]
        told[how] = localizer.estimate().why['odometry_drift']
    assert abs(errors['learnt'].mean()) < 0.6 * abs(errors['off'].mean())
    assert told['learnt'] == pytest.approx(0.05, abs=0.015)
    assert told['off'] == 0.0


@pytest.mark.parametrize('method', ['kbr', 'knn-particle', 'kmcf', 'dead-reckoning'])
def test_who_follows_the_odometry_takes_the_mapped_drift_out(ring, method):
    known = replace(ring, motion_noise=replace(NOISE, drift=0.05))
    plain = make_localizer(method, ring, seed=1)
    told = make_localizer(method, known, seed=1)
    lag = abs(heading_errors(plain, ring, 0.05, 20.0)[40:].mean())
    assert abs(heading_errors(told, known, 0.05, 20.0)[40:].mean()) < 0.7 * lag


def test_learnt_controls_are_compared_as_they_are(ring):
    """The map's controls drift like those of the run."""
    known = replace(ring, motion_noise=replace(NOISE, drift=0.05))
    step = np.array([0.2, 0.0, 0.05])
    moved = {}
    for kind in (FullyNonparametricFilter, AdaptedAlgorithm1):
        localizer = kind(known)
        localizer.initialize_globally()
        localizer.predict(step)
        moved[kind] = localizer._increment[2]
    assert moved[FullyNonparametricFilter] == pytest.approx(step[2])
    assert moved[AdaptedAlgorithm1] == pytest.approx(0.04)


def test_a_new_start_forgets_what_was_learnt(ring):
    localizer = KernelBayesFilter(ring, ring.filter_config, np.random.default_rng(1))
    heading_errors(localizer, ring, 0.05, 30.0)
    assert abs(localizer.estimate().why['odometry_drift']) > 0.01
    localizer.initialize(ring_pose(0.0), 1e-2 * np.eye(3))
    assert localizer.estimate().why['odometry_drift'] == 0.0


def test_the_map_file_keeps_the_drift_and_an_older_one_has_none(ring, tmp_path):
    import h5py

    known = replace(tiny_map(), motion_noise=NOISE)
    write_map(known, tmp_path / 'map.h5')
    assert read_map(tmp_path / 'map.h5').motion_noise.drift == DRIFT
    with h5py.File(tmp_path / 'map.h5', 'a') as file:
        for name in ('drift', 'drift_deviation'):
            del file['motion_noise'].attrs[name]
    older = read_map(tmp_path / 'map.h5').motion_noise
    assert (older.drift, older.drift_deviation) == (0.0, MotionNoise.default().drift_deviation)


def test_dead_reckoning_without_drift_follows_the_ring(ring):
    known = replace(ring, motion_noise=replace(NOISE, drift=0.05))
    localizer = DeadReckoning(known)
    assert np.abs(heading_errors(localizer, known, 0.05, 20.0)).max() < 1e-6


def test_errors_of_slipping_wheels_tell_nothing_of_drift():
    """The Cauchy law draws errors of a turn and more; no drift is so large."""
    rng, drift = np.random.default_rng(0), DriftFilter(NOISE, 'learnt')
    belief = Belief(np.zeros((5000, 3)), np.full(5000, 1 / 5000))
    pending = PendingNoise(NOISE, 1.0, 'cauchy')
    for _ in range(30):
        increment = np.array([0.5, 0.0, 0.0])
        pending.add(increment)
        drift.add(increment)
        variance, errors = float(pending.variances[2]), pending.draw(5000, rng)
        drift.share(errors, belief, variance, rng)
        drift.settle(variance)
        pending.clear()
    assert np.abs(belief.drift).max() < 12 * NOISE.drift_deviation
