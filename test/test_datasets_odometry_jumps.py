"""Odometry in files that jumps is taken as the node takes messages that do."""

from contextlib import nullcontext

from bag_helpers import bag, drive, image, images, odometry, SECOND
from kbr_localization import se2
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.bag_writer import write_bag
from kbr_localization.datasets.cold import write_cold_run
from kbr_localization.datasets.frame import Frame, OdometryTrack, Skipped
from kbr_localization.datasets.tracks import (
    known_pose,
    make_run,
    refuse_repeated_times,
    without_jumps,
)
from kbr_localization.errors import DatasetError
from kbr_localization.localization.mapping.trajectories import odometry_breaks
import numpy as np
import pytest

HALF = 100
"""Of the 200 poses of a track."""


def winding(speed=0.5, hertz=20.0):
    """Poses (200, 3) of a drive that bends, and its stamps from 100 s on."""
    count = np.arange(2 * HALF)
    turns = 0.3 * np.sin(count / 15.0) / hertz
    chain = np.column_stack([np.full(2 * HALF, speed / hertz), np.zeros(2 * HALF), turns])[1:]
    stamps = (100 * SECOND + count * SECOND / hertz).astype(np.int64)
    return OdometryTrack(stamps, se2.chain(np.array([3.0, -2.0, 1.0]), chain))


def restarted(track, origin=(0.0, 0.0, 0.0)):
    """Let a track begin at another origin from its middle on."""
    poses = track.poses.copy()
    moved = se2.between(np.broadcast_to(poses[HALF], (HALF, 3)), poses[HALF:])
    poses[HALF:] = se2.compose(np.array(origin), moved)
    return OdometryTrack(track.stamps_ns, poses)


def increments(track):
    return se2.between(track.poses[:-1], track.poses[1:])


@pytest.mark.parametrize('speed', [0.0, 2.9, 30.0])
@pytest.mark.parametrize('hertz', [1.0, 200.0])
def test_what_does_not_jump_is_left_as_it_is(speed, hertz):
    track = winding(speed, hertz)
    assert without_jumps(track) == (track, ())


@pytest.mark.parametrize('origin', [(0.0, 0.0, 0.0), (500.0, 0.0, -2.0), (3.0, -2.0, -2.5)])
def test_a_driver_that_was_started_again_moves_nothing(origin):
    track = winding()
    going_on, notes = without_jumps(restarted(track, origin))
    assert notes == ('the odometry jumped once: taken as reset, without motion',)
    expected = increments(track)
    expected[HALF - 1] = 0.0
    np.testing.assert_allclose(increments(going_on), expected, atol=1e-9)
    np.testing.assert_array_equal(going_on.stamps_ns, track.stamps_ns)
    assert going_on.resets_ns == (track.stamps_ns[HALF],)


@pytest.mark.parametrize('seconds', [0.3, 1.0])
def test_a_driver_that_was_started_again_near_its_origin_is_told_by_the_pause(seconds):
    track = winding()
    poses = se2.compose(se2.inverse(se2.compose(track.poses[HALF], [0.7, 0.0, 0.0])), track.poses)
    stamps = track.stamps_ns.copy()
    stamps[HALF:] += int(seconds * SECOND)
    _, notes = without_jumps(restarted(OdometryTrack(stamps, poses)))
    assert notes and 'jumped once' in notes[0]


@pytest.mark.parametrize('strays', [[HALF], [HALF, HALF + 1], np.s_[1::2]])
def test_poses_of_another_driver_are_left_out(strays):
    """Two that were sent by mistake, or one by turns for the whole drive."""
    track, kept = winding(), np.delete(np.arange(2 * HALF), strays)
    poses = track.poses.copy()
    poses[strays] += [50.0, 0.0, 0.0]
    cleaned, (note,) = without_jumps(OdometryTrack(track.stamps_ns, poses))
    left_out = 2 * HALF - len(kept)
    assert note == f'outliers of the odometry, left out: {left_out}'
    np.testing.assert_array_equal(cleaned.stamps_ns, track.stamps_ns[kept])
    np.testing.assert_allclose(cleaned.poses, track.poses[kept])


@pytest.mark.parametrize(
    ('stamps', 'over'),
    [
        ([*range(20), *range(10, 20)], True),
        ([*range(20, 30), *range(10)], False),  # of another time, but of none twice
        ([*np.arange(0, 10, 0.1), *np.arange(9.5, 20, 0.1)], False),
        ([*range(10), 1, 2, *range(10, 20)], False),
    ],
)
def test_stamps_that_go_back_for_long_and_over_the_same_times_are_refused(stamps, over):
    expected = pytest.raises(DatasetError, match='it go back') if over else nullcontext()
    with expected:
        refuse_repeated_times('it', [round(stamp * SECOND) for stamp in stamps])


ON_MAP = np.array([5.0, 1.0, -2.0])


def known(track, indices):
    """Poses on a map of some samples of a track."""
    return OdometryTrack(track.stamps_ns[indices], se2.compose(ON_MAP, track.poses[indices]))


@pytest.mark.parametrize('every', [8, 60, 80])
def test_sparse_known_poses_are_moved_by_the_odometry(every):
    track = winding()
    frames = [Frame(int(stamp_ns) + 1000, None) for stamp_ns in track.stamps_ns[:-1]]
    sparse = known(track, np.s_[::every])
    run = make_run('drive', frames, track, Skipped(), sparse)
    expected = se2.compose(ON_MAP, track.at(run.stamps_ns))
    np.testing.assert_allclose([f.reference for f in run], expected, atol=0.01)
    # an odometry that was made of them says nothing about the time between them
    made = make_run('drive', frames, track, Skipped(), sparse, synthetic=True)
    assert all(frame.reference is None for frame in made) == (every > 20)


def test_a_robot_that_stood_and_drove_on_has_the_poses_of_its_odometry():
    track = winding()
    poses = np.repeat(track.poses[::20], [191, *[1] * 9], axis=0)  # 9.5 s, then 0.5 m at once
    track = OdometryTrack(track.stamps_ns, poses)
    sparse = known(track, [0, 100, 191])
    for index in (50, 160, 188, 190):
        found = known_pose(sparse, int(track.stamps_ns[index]), track)
        np.testing.assert_allclose(found, se2.compose(ON_MAP, poses[index]), atol=1e-9)


def test_no_known_pose_is_moved_across_a_reset_or_a_gap_of_the_odometry_or_for_long():
    track = winding()
    before = known(track, [HALF - 10])

    def reached(odometry):
        """Seconds from the pose on for which it is known."""
        stamps = odometry.stamps_ns[odometry.stamps_ns >= before.stamps_ns[0]]
        found = [at for at in stamps.tolist() if known_pose(before, at, odometry) is not None]
        return (found[-1] - found[0]) / SECOND

    assert reached(track) == 2.0
    assert reached(without_jumps(restarted(track))[0]) == 0.45
    shifted = track.stamps_ns + np.where(np.arange(2 * HALF) >= HALF, 3 * SECOND, 0)
    assert reached(OdometryTrack(shifted, track.poses)) == 0.45
    pieces = OdometryTrack(track.stamps_ns[::HALF], track.poses[::HALF])
    assert known_pose(before, int(before.stamps_ns[0]) + SECOND, pieces) is None


def test_copies_of_a_run_are_cut_where_it_is(tmp_path):
    pushed = [*drive(3.0), *[('/odom', odometry((20 + i) * SECOND, 0.0), None) for i in range(9)]]
    more = [('/image', image(second * SECOND), None) for second in (24, 25, 26)]
    run = open_dataset(bag(tmp_path / 'bag', pushed, images(), more))
    write_bag(run, tmp_path / 'copy')
    write_cold_run(tmp_path / 'cold', run, run.odometry, notes=run.notes)
    for copy in (run, open_dataset(tmp_path / 'copy'), open_dataset(tmp_path / 'cold')):
        ((cut, _),) = odometry_breaks(copy.odometry, np.array([f.stamp_ns for f in copy]), 0)
        assert (cut, copy.notes) == (3, run.notes)
        assert copy.odometry.resets_ns == run.odometry.resets_ns != ()
        np.testing.assert_allclose(copy.odometry.poses, run.odometry.poses, atol=1e-5)
