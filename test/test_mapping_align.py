"""Maps moved to known poses and onto other maps: which poses are those of which images."""

from dataclasses import replace

from command import invoke
from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.evaluation import write_tum
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.grow import NewImage, with_images
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.mapping.align import align, move_map
from kbr_localization.localization.mapping.onto import align_onto
from kbr_localization.trajectory import Trajectory
from map_helpers import map_along
from mapping_helpers import RingRun, ROUND, trajectory_error, VISION
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


class Posed(RingRun):
    """A run whose true poses are known."""

    def __init__(self, run):
        vars(self).update(vars(run))

    def __getitem__(self, index):
        return replace(super().__getitem__(index), reference=self.true[index])


@pytest.fixture(scope='module')
def ring():
    """Drive one and a half rounds, with a map of the true poses."""
    run = RingRun(metres=1.5 * ROUND)
    return run, build_map([Posed(run)], VISION)


def test_times_of_a_simulated_clock_are_those_of_the_images(bend):
    there = move_map(bend, FRAME)
    by_stamps, _ = align(bend, bend.stamps_ns[3:20], there.poses[3:20])
    by_map, _ = align_onto(bend, there)
    for moved in (by_stamps, by_map):
        np.testing.assert_allclose(moved.poses, there.poses, atol=1e-6)


def test_typed_seconds_count_from_the_first_image_whatever_its_clock(bend, tmp_path):
    bend.save(tmp_path / 'map.h5')
    known = se2.compose(FRAME, bend.poses)
    typed = [f'--at={i},{known[i, 0]},{known[i, 1]}' for i in (2, 9, 25)]
    write_tum(tmp_path / 'known.tum', Trajectory(bend.stamps_ns[4:20], known[4:20]))
    for given in (typed, ['--tum', tmp_path / 'known.tum']):
        done = invoke('map', 'align', tmp_path / 'map.h5', *given, '--out', tmp_path / 'moved.h5')
        assert done.returncode == 0, done.stderr
        moved = KernelMap.load(tmp_path / 'moved.h5')
        np.testing.assert_allclose(moved.poses[:, :2], known[:, :2], atol=1e-6)


def test_images_of_other_drives_at_the_same_times_are_not_the_same_images(ring):
    """As of a simulator, whose clock begins anew with every drive."""
    run, other = ring
    more = RingRun(name='more', begin=9.0, metres=1.2 * ROUND, seed=1)
    assert np.isin(more.odometry.stamps_ns, other.stamps_ns).all()
    own = build_map([Posed(more)], VISION)
    moved, found = align_onto(own, other)
    assert found.fits
    truth = np.concatenate([run.true, more.true])
    assert trajectory_error(np.concatenate([other.poses, moved.poses]), truth) < 0.3
    # images of the same drive stay known by their stamps, however the maps differ in shape
    bent = replace(own, poses=own.poses * np.array([1.6, 0.6, 1.0]))
    _, found = align_onto(bent, own)
    assert not found.fits
    np.testing.assert_array_equal(found.stamps_ns, own.stamps_ns)


def test_a_time_at_which_two_runs_were_at_other_places_is_refused(bend):
    both = replace(
        map_along(np.concatenate([bend.poses, bend.poses[::-1]])),
        stamps_ns=np.tile(bend.stamps_ns, 2),
        run_index=np.repeat(np.arange(2, dtype=np.int32), len(bend)),
        run_names=('one', 'two'),
    )
    known = se2.compose(FRAME, bend.poses)
    with pytest.raises(MapError, match=r'at 12\.000 s the map has images of one and, at another'):
        align(both, bend.stamps_ns, known)
    # of a run that was given twice it does not matter which of them is meant
    twice = replace(both, poses=np.tile(bend.poses, (2, 1)))
    moved, _ = align(twice, bend.stamps_ns, known)
    np.testing.assert_allclose(moved.poses, np.tile(known, (2, 1)), atol=1e-6)


def test_images_that_were_added_tell_no_way_between_them(bend):
    added = [
        NewImage(second * SECOND_NS, bend.poses[at], bend.descriptors[at], bend.thumbnails[at])
        for second, at in ((13, 20), (25, 3), (39, 12))
    ]
    known = se2.compose(FRAME, bend.poses)
    moved, _ = align(with_images(bend, added), bend.stamps_ns, known)
    np.testing.assert_allclose(moved.poses[: len(bend)], known, atol=1e-6)
