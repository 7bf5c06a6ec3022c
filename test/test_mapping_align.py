"""Maps moved to known poses: which of these are of which images."""

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.map.kernel_map import MapStatistics
from kbr_localization.localization.mapping.align import (
    align,
    describe_alignment,
    fit_motion,
    move_map,
)
from map_helpers import map_along
import numpy as np
import pytest

SECOND_NS = 10**9
FRAME = np.array([5.0, -6.0, 1.0])


@pytest.fixture(scope='module')
def bend():
    """Drive a bend with an image every second, by a simulated clock that shows 12 at the first."""
    angles = np.linspace(0.0, 1.5, 30)
    poses = np.column_stack([8.0 * np.sin(angles), 8.0 * (1.0 - np.cos(angles)), angles])
    return replace(map_along(poses), stamps_ns=SECOND_NS * np.arange(12, 42, dtype=np.int64))


def test_times_of_a_simulated_clock_are_those_of_the_images(bend):
    there = move_map(bend, FRAME)
    moved, found = align(bend, bend.stamps_ns[3:20], there.poses[3:20])
    np.testing.assert_allclose(moved.poses, there.poses, atol=1e-6)
    assert 'warning' not in describe_alignment(found)[1]
    # known poses of other times
    _, wrong = align(bend, bend.stamps_ns[[3, 9, 19]], there.poses[[9, 19, 3]])
    assert '; warning: that is ' in describe_alignment(wrong)[1]


def test_noise_and_bandwidths_are_in_the_new_metres(shared_map):
    own, known = shared_map, MapStatistics(0.7, 0.3, 1.1)
    chosen = replace(
        own,
        statistics=known,
        filter_config=replace(own.filter_config, position_bandwidth=0.7, localized_radius=3.0),
        baselines={'fkbf': {'position_bandwidth': 0.5, 'delta': 0.1}},
    )
    scaled = move_map(chosen, FRAME, 2.0)
    assert scaled.statistics is None and move_map(chosen, FRAME).statistics == known
    assert scaled.filter_config == replace(chosen.filter_config, position_bandwidth=1.4)
    assert se2.travelled(scaled.poses)[-1] == pytest.approx(2.0 * se2.travelled(own.poses)[-1])
    calibrated = own.calibration.in_metres(2.0)
    np.testing.assert_array_equal(scaled.calibration.values, calibrated.values)
    assert scaled.baselines == {'fkbf': {'position_bandwidth': 1.0, 'delta': 0.1}}
    steps = own.controls[np.isfinite(own.controls[:, 0])]
    np.testing.assert_allclose(
        scaled.motion_noise.variances(steps), own.motion_noise.variances(steps) * [4.0, 4.0, 1.0]
    )
    # of a step the odometry shows half of the metres now
    assert scaled.motion_noise.step[:2].sum() > 0.5 * np.mean(np.sum(steps[:, :2] ** 2, axis=1))


def test_a_time_at_which_two_runs_were_at_other_places_is_refused(bend):
    both = replace(
        map_along(np.concatenate([bend.poses, bend.poses[::-1]])),
        stamps_ns=np.tile(bend.stamps_ns, 2),
        run_index=np.repeat(np.arange(2, dtype=np.int32), len(bend)),
        run_names=('one', 'two'),
    )
    known = se2.compose(FRAME, bend.poses)
    with pytest.raises(MapError, match=r'2 of 30 known poses .* of one of its runs only'):
        align(both, bend.stamps_ns, known)
    # of a run that was given twice it does not matter which of them is meant
    twice = replace(both, poses=np.tile(bend.poses, (2, 1)))
    moved, _ = align(twice, bend.stamps_ns, known)
    np.testing.assert_allclose(moved.poses, np.tile(known, (2, 1)), atol=1e-6)


def test_a_pose_known_at_an_image_counts_beside_a_gap_and_those_within_it_are_told(bend):
    """As where a map was pruned: the images of both ends of a gap are known."""
    thin = bend.subset(np.concatenate([np.arange(4), np.arange(len(bend) - 4, len(bend))]))
    known = se2.compose(FRAME, bend.poses)
    moved, found = align(thin, bend.stamps_ns, known)
    np.testing.assert_allclose(moved.poses[4:], known[-4:], atol=1e-6)
    np.testing.assert_array_equal(found.stamps_ns, thin.stamps_ns)
    left = len(bend) - len(thin)
    assert f'{left} other known poses are left out: the map has no' in describe_alignment(found)[2]


@pytest.mark.parametrize('scale', [1.0, 1.3])
def test_motion_and_scale_between_known_poses_and_those_of_the_map_are_found(scale):
    poses = np.random.default_rng(0).normal(size=(20, 3)) * [5.0, 5.0, 1.0] + [30.0, -9.0, 0.0]
    known = se2.compose(FRAME, poses * np.array([scale, scale, 1.0]))
    found = fit_motion(poses, known, scaled=True)
    np.testing.assert_allclose(found.motion, FRAME, atol=1e-9)
    assert found.scale == pytest.approx(scale) and found.rms < 1e-9
    kept = fit_motion(poses, known)
    assert (kept.scale, kept.free_scale) == (1.0, found.scale)
