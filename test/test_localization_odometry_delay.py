"""Odometry whose stamps are late: the delay is measured, said, and put right in a map."""

import h5py
from helpers import textured_image
from kbr_localization import se2
from kbr_localization.cli.map_commands import describe_map
from kbr_localization.datasets import Frame, OdometryTrack
from kbr_localization.datasets.odometry_noise import OdometryNoise, reported_steps
from kbr_localization.errors import MapError
from kbr_localization.localization.calibration import Calibration, UNLIKE
from kbr_localization.localization.calibration_report import described
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.odometry_delay import (
    common_delay,
    is_late,
    LATE_S,
    measure_delay,
    put_right,
)
from map_helpers import tiny_map, TINY_VISION, TinyRun
import numpy as np
import pytest

RATE, IMAGES_EVERY = 20, 8
STEP_NS = 10**9 // RATE
COLD = OdometryNoise(offset_x=-0.18, forward_scale=1.015, yaw_bias=0.027, slip_rate=0.02)


def corridors(seconds=240.0, turns=True):
    """Poses at 20 Hz of a drive along corridors and round corners at 0.8 m/s."""
    times = np.arange(0.0, seconds, 1.0 / RATE)
    steps = np.zeros((len(times) - 1, 3))
    steps[:, 0] = 0.8 / RATE
    for number, corner in enumerate(np.arange(3.0, seconds - 6.0, 5.0) if turns else ()):
        rate = np.interp(times[1:], corner + np.array([0.0, 0.3, 2.0, 2.3]), [0, 0.8, 0.8, 0])
        steps[:, 2] += (-1.0 if number % 3 else 1.0) * rate / RATE
    return se2.chain(np.zeros(3), steps)


def late(truth, delay, seed=0, hz=RATE, noise=COLD, tick=None):
    """Odometry of a drive, its stamps `delay` seconds late."""
    steps = se2.between(truth[:-1], truth[1:])
    told = reported_steps(steps, STEP_NS, noise, np.random.default_rng(seed))
    poses = se2.chain(np.array([3.0, -2.0, 1.0]), told)
    if tick is not None:
        poses[:, 2] = se2.wrap_angle(np.floor(np.unwrap(poses[:, 2]) / tick) * tick)
    stamps = np.arange(len(truth), dtype=np.int64) * STEP_NS + round(1e9 * delay)
    every = RATE // hz
    return OdometryTrack(stamps[::every], poses[::every])


def images(truth):
    """Stamps and true poses of images at 2.5 Hz."""
    chosen = np.arange(0, len(truth), IMAGES_EVERY)
    return chosen * STEP_NS, truth[chosen]


@pytest.mark.parametrize(
    ('delay', 'every'),
    [(-4.0, 1), (-0.1, 2), (0.0, 1), (0.05, 1), (0.3, 8), (0.47, 2), (0.52, 1), (3.0, 8)],
)
def test_a_delay_is_recovered_at_any_rate_of_the_odometry(delay, every):
    truth = corridors()
    track = late(truth, delay)
    found = measure_delay(
        OdometryTrack(track.stamps_ns[::every], track.poses[::every]), *images(truth)
    )
    assert abs(found[0] - delay) < max(4.0 * found[1], 0.002)
    assert found[1] < 0.01
    assert is_late(found) == (abs(delay) > LATE_S)


@pytest.mark.parametrize('seed', range(2))
def test_a_robot_that_weaves_is_not_late_by_a_round(seed):
    """Its odometry fits as well, or by chance somewhat better, a whole round later."""
    times = np.arange(0.0, 200.0, 0.05)
    steps = np.zeros((len(times) - 1, 3))
    steps[:, 0] = 0.02
    steps[:, 2] = 0.015 * np.sin(2.0 * np.pi * times[1:] / 5.0)
    truth, rng = se2.chain(np.zeros(3), steps)[::10], np.random.default_rng(seed)
    stamps = np.arange(len(truth), dtype=np.int64) * 10 * STEP_NS
    told = truth + np.cumsum(0.003 * rng.standard_normal(truth.shape), axis=0)
    poses = truth + 0.003 * rng.standard_normal(truth.shape)
    found = measure_delay(OdometryTrack(stamps, told), stamps, poses)
    assert found is not None and abs(found[0]) < 4.0 * found[1] < 0.02


def test_stated_deviations_of_delays_are_right():
    truth = corridors()
    seen = images(truth)
    found = np.array([measure_delay(late(truth, 0.05, seed), *seen) for seed in range(20)])
    errors = (found[:, 0] - 0.05) / found[:, 1]
    assert 0.6 < np.sqrt(np.mean(errors**2)) < 1.6


def test_coarse_ticks_are_no_delay():
    truth = corridors()
    found = measure_delay(late(truth, 0.0, tick=0.025), *images(truth))
    assert found is not None
    assert not is_late(found)
    assert abs(found[0]) < 0.008


def test_a_run_that_does_not_turn_tells_no_delay():
    truth = corridors(turns=False)
    found = measure_delay(late(truth, 0.1), *images(truth))
    assert not is_late(found)


@pytest.mark.parametrize('seed', range(3))
def test_a_leap_of_the_poses_of_a_robot_that_goes_straight_on_tells_no_delay(seed):
    rng = np.random.default_rng(seed)
    steps = np.tile([0.15, 0.0, 0.0], (79, 1))
    stamps, truth = np.arange(80) * IMAGES_EVERY * STEP_NS, se2.chain(np.zeros(3), steps)
    told = se2.chain(np.zeros(3), steps + 0.005 * rng.standard_normal(steps.shape))
    truth[30:, 2] += 2.5
    assert not is_late(measure_delay(OdometryTrack(stamps, told), stamps, truth))


def test_a_delay_beyond_those_that_are_looked_for_is_none():
    steps = np.tile([0.04, 0.0, 0.0], (5000, 1))
    slowly = np.repeat(np.random.default_rng(0).normal(size=250), 20)
    steps[:, 2] = 0.02 * np.convolve(slowly, np.full(20, 0.05), 'same')
    truth = se2.chain(np.zeros(3), steps)
    assert measure_delay(late(truth, 10.2), *images(truth))[0] == pytest.approx(10.2, abs=0.01)
    assert measure_delay(late(truth, 10.7), *images(truth)) is None


def test_a_robot_that_turns_evenly_tells_no_delay():
    steps = np.tile([0.04, 0.0, 0.2 / RATE], (4000, 1))
    truth = se2.chain(np.zeros(3), steps)
    exact = OdometryNoise(0.0, 0.0, 0.0, 0.0)
    assert measure_delay(late(truth, 0.0, noise=exact), *images(truth)) is None


@pytest.mark.parametrize('poses', [0, 1, 20])
def test_a_short_run_tells_no_delay(poses):
    truth = corridors()[:poses] if poses else np.zeros((0, 3))
    track = OdometryTrack(np.arange(poses, dtype=np.int64) * STEP_NS, truth)
    assert measure_delay(track, track.stamps_ns, truth) is None
    stamps, reference = images(corridors())
    assert measure_delay(track, stamps, reference) is None


def test_odometry_is_put_right():
    truth = corridors()
    stamps, poses = images(truth)
    track = late(truth, 0.1, noise=OdometryNoise(0.0, 0.0, 0.0, 0.0))
    right = put_right(track, stamps, (0.1, 0.001))
    steps = [se2.between(line[:-1], line[1:])[:-1] for line in (right, poses)]
    np.testing.assert_allclose(steps[0], steps[1], atol=1e-9)


def test_runs_that_differ_in_their_delay_widen_its_deviation():
    alike = common_delay([(0.05, 0.002), None, (0.051, 0.002)])
    unlike = common_delay([(0.0, 0.002), (0.1, 0.002)])
    assert alike is not None
    assert unlike is not None
    assert alike[0] == pytest.approx(0.0505)
    assert alike[1] < 0.002
    assert unlike[1] > 0.05
    assert common_delay([None]) is None


def test_a_delay_is_said_in_words():
    known = Calibration(np.zeros(7), np.diag(UNLIKE**2), np.array([-0.05, 0.002]))
    words = described(known)['delay']['words']
    assert words == 'the stamps of the odometry are 0.050 ± 0.002 s ahead of those of the poses'
    assert 'delay' not in described(Calibration.unknown())


class LateRun(TinyRun):
    """A drive along corridors, its odometry so many seconds late."""

    def __init__(self, delay, seed=0):
        truth = corridors()
        self.odometry = late(truth, delay, seed)
        stamps, poses = images(truth)
        inside = (stamps > 3 * 10**9) & (stamps < stamps[-1] - 3 * 10**9)
        image = textured_image(0)
        self.name, self.skipped = f'late by {delay} s', {}
        self.frames = [
            Frame(int(stamp), image, self.odometry.at(int(stamp)), pose)
            for stamp, pose in zip(stamps[inside], poses[inside], strict=True)
        ]


def build(*runs):
    return build_map(runs, vision=TINY_VISION, max_images=5)


def test_a_map_of_late_odometry_says_so_and_measures_its_errors_at_the_right_time(caplog):
    built = build(LateRun(0.1), LateRun(0.1, 1))
    known = built.calibration
    np.testing.assert_allclose(known.delay[0], 0.1, atol=0.005)
    assert 'late by 0.1 s is 0.1' in caplog.text
    assert abs(known.values[0] - COLD.offset_x) < 4.0 * known.deviations[0] < 0.03
    late_noise, noise = (one.motion_noise.per_radian[2] for one in (built, build(LateRun(0.0))))
    assert late_noise < 4.0 * noise + 1e-4


def test_a_map_of_odometry_in_time_keeps_it_as_it_is(caplog):
    known = build(LateRun(0.0)).calibration
    assert abs(known.delay[0]) < 0.005
    assert not caplog.records


def test_a_map_file_keeps_the_delay(tmp_path):
    built = build(LateRun(0.1))
    built.save(tmp_path / 'map.h5')
    loaded = KernelMap.load(tmp_path / 'map.h5')
    np.testing.assert_array_equal(loaded.calibration.delay, built.calibration.delay)
    assert 'behind' in describe_map(loaded)['odometry']['delay']['words']


@pytest.mark.parametrize('delay', [np.array([np.nan, 0.1]), np.array([0.1, -0.1]), np.zeros(3)])
def test_a_delay_that_cannot_be_is_refused(tmp_path, delay):
    tiny_map().save(tmp_path / 'map.h5')
    with h5py.File(tmp_path / 'map.h5', 'r+') as file:
        file['calibration']['delay'] = delay
    with pytest.raises(MapError, match='calibration/delay'):
        KernelMap.load(tmp_path / 'map.h5')


def test_beyond_its_ends_a_late_odometry_stays_where_it_is():
    stamps = 10**9 * np.arange(4, dtype=np.int64)
    track = OdometryTrack(stamps, np.column_stack([np.arange(4.0), np.zeros((4, 2))]))
    np.testing.assert_allclose(put_right(track, stamps, (1.5, 0.1))[:, 0], [1.5, 2.5, 3.0, 3.0])
    np.testing.assert_allclose(put_right(track, stamps, (-1.5, 0.1))[:, 0], [0.0, 0.0, 0.5, 1.5])
