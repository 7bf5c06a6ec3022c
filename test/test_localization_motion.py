from hypothesis import given
from hypothesis import strategies as st
from kbr_localization import se2
from kbr_localization.errors import LocalizationError
from kbr_localization.localization import motion
import numpy as np
import pytest

coordinates = st.floats(-50, 50)
poses = st.tuples(coordinates, coordinates, st.floats(-3.1, 3.1)).map(np.array)


def rotation_translation_rotation(start, end):
    """Decompose a motion into turn, way, turn ([PR] table 5.6)."""
    dx, dy = (end - start)[:2]
    way = np.hypot(dx, dy)
    first = np.arctan2(dy, dx) - start[2]
    return first, way, end[2] - start[2] - first


def moved(pose, first, way, second):
    """Move a pose without noise: f(x, u) of [MbKSR] section 6.3."""
    x, y, heading = pose
    direction = heading + first
    return x + way * np.cos(direction), y + way * np.sin(direction), direction + second


@given(poses, poses, poses)
def test_composing_the_increment_is_the_motion_of_the_papers(start, end, pose):
    decomposed = np.array(moved(pose, *rotation_translation_rotation(start, end)))
    composed = se2.compose(pose, se2.between(start, end))
    np.testing.assert_allclose(decomposed[:2], composed[:2], atol=1e-9)
    np.testing.assert_allclose(se2.wrap_angle(decomposed[2] - composed[2]), 0.0, atol=1e-9)


def noisy_tracks(per_metre, per_radian, runs, rng):
    tracks = []
    for _ in range(runs):
        steps = np.stack([np.full(4000, 0.02), np.zeros(4000), rng.normal(0, 0.02, 4000)], axis=-1)
        way, turn = np.abs(steps[:, [0]]), np.abs(steps[:, [2]])
        noise = rng.standard_normal(steps.shape) * np.sqrt(way * per_metre + turn * per_radian)
        tracks.append((integrate(se2.compose(steps, noise)), integrate(steps)))
    return tracks


def integrate(steps):
    track = [np.zeros(3)]
    for step in steps:
        track.append(se2.compose(track[-1], step))
    return np.array(track)


def test_maximum_likelihood_recovers_the_variances_that_made_the_odometry():
    rng = np.random.default_rng(4)
    per_metre = np.array([9e-4, 4e-4, 2e-4])
    noise = motion.estimate_noise(noisy_tracks(per_metre, np.zeros(3), runs=6, rng=rng))
    turn_per_metre = np.sqrt(2 / np.pi)  # of the steps above
    total = noise.per_metre + turn_per_metre * noise.per_radian
    # heading noise adds sideways error within a window: a third of its variance for a metre
    expected = per_metre + np.array([0.0, per_metre[2] / 3, 0.0])
    np.testing.assert_allclose(total, expected, rtol=0.3)


def test_runs_too_short_give_the_default_noise():
    track = np.zeros((3, 3))
    noise = motion.estimate_noise([(track, track)])
    np.testing.assert_array_equal(noise.per_metre, motion.MotionNoise.default().per_metre)
    assert motion.estimate_noise([]).step.shape == (4,)


@pytest.mark.parametrize('heading', [0.0, 0.3])
def test_a_base_that_goes_to_the_side_alone_tells_nothing_of_the_noise_ahead(heading):
    rng = np.random.default_rng(0)
    odometry, slip = np.array([[0.0, 0.05, 0.0]] * 1500), 0.003 * rng.standard_normal((1500, 3))
    tracks = [
        se2.compose([0.0, 0.0, heading], integrate(steps))
        for steps in (odometry, se2.compose(odometry, slip))
    ]
    noise = motion.estimate_noise([tuple(tracks)])
    np.testing.assert_array_equal(noise.per_metre, motion.MotionNoise.default().per_metre)
    np.testing.assert_allclose(noise.per_metre_aside[:2], 0.003**2 / 0.05, rtol=1.0)


def test_tracks_of_different_length_are_refused():
    with pytest.raises(LocalizationError, match=r'\(5, 3\).*\(4, 3\)'):
        motion.estimate_noise([(np.zeros((5, 3)), np.zeros((4, 3)))])


def test_poses_that_are_no_numbers_are_refused():
    poses = np.zeros((40, 3))
    with pytest.raises(LocalizationError, match=r'expected \(n, 3\) of both'):
        motion.estimate_noise([(np.zeros(3), np.zeros(3))])
    poses[7, 1] = np.nan
    for track in ((poses, np.zeros((40, 3))), (np.zeros((40, 3)), poses)):
        with pytest.raises(LocalizationError, match='expected finite poses, got 1 of 40 frames'):
            motion.measure_odometry([track])
