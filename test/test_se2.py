from hypothesis import given
from hypothesis import strategies as st
from kbr_localization import se2
from kbr_localization.errors import KbrError
import numpy as np
import pytest

coordinates = st.floats(-100, 100)
poses = st.tuples(coordinates, coordinates, st.floats(-10, 10)).map(np.array)


def assert_poses_equal(actual, expected):
    np.testing.assert_allclose(actual[..., :2], expected[..., :2], atol=1e-9)
    np.testing.assert_allclose(se2.wrap_angle(actual[..., 2] - expected[..., 2]), 0, atol=1e-9)


@given(poses, poses, poses)
def test_motions_are_a_group_and_projection_undoes_the_embedding(a, b, c):
    assert_poses_equal(se2.compose(se2.compose(a, b), c), se2.compose(a, se2.compose(b, c)))
    assert_poses_equal(se2.compose(a, se2.inverse(a)), np.zeros(3))
    assert_poses_equal(se2.compose(se2.inverse(a), a), np.zeros(3))
    assert_poses_equal(se2.compose(a, se2.between(a, b)), b)
    assert_poses_equal(se2.from_plane_and_circle(se2.to_plane_and_circle(a)), a)


@given(st.floats(-1e6, 1e6))
def test_wrapped_angles_lie_in_the_half_open_interval(angle):
    wrapped = se2.wrap_angle(angle)
    assert -np.pi <= wrapped < np.pi
    np.testing.assert_allclose(np.exp(1j * wrapped), np.exp(1j * angle), atol=1e-7)


def test_half_turns_that_rounding_moved_lie_in_the_interval_as_well():
    half_turns = np.arange(-2001, 2003, 2) * np.pi
    for angles in (half_turns, np.nextafter(half_turns, 0.0), np.nextafter(half_turns, 1e9)):
        wrapped = se2.wrap_angle(angles)
        assert np.all((wrapped >= -np.pi) & (wrapped < np.pi))


def test_interpolation_turns_along_the_shorter_arc():
    stamps = np.array([0, 1_000_000_000])
    track = np.array([[0.0, 0.0, 3.0], [1.0, 2.0, -3.0]])
    middle = se2.interpolate(stamps, track, 500_000_000)
    assert_poses_equal(middle, np.array([0.5, 1.0, -np.pi]))
    assert se2.interpolate(stamps, track, np.array([0, 1_000_000_000])).shape == (2, 3)


def test_a_track_ends_where_it_ends():
    with pytest.raises(KbrError, match=r'spans \[0\.000, 1\.000\] s'):
        se2.interpolate(np.array([0, 1_000_000_000]), np.zeros((2, 3)), 2_000_000_000)
    assert_poses_equal(se2.interpolate(np.array([5]), np.ones((1, 3)), 5), np.ones(3))


def test_wrapping_keeps_what_is_no_angle_and_the_ends():
    assert np.isnan(se2.wrap_angle(np.nan))
    ends = np.pi * np.array([-3.0, -1.0, 1.0, 3.0])
    np.testing.assert_array_equal(se2.wrap_angle(ends), -np.pi)
    assert se2.wrap_angle(1e-20) == 1e-20
