"""Maps from odometry and images: what is joined, what is not, and what is said of it."""

from dataclasses import replace

import h5py
from kbr_localization import se2
from kbr_localization.datasets import OdometryTrack
from kbr_localization.errors import MapError
from kbr_localization.localization.calibration import NAMES
from kbr_localization.localization.map.grow import NewImage, with_images
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.similarity import GramDescriber
from kbr_localization.localization.mapping.align import align, align_onto, lines_of, move_map
from kbr_localization.localization.mapping.build import map_from_odometry
from kbr_localization.localization.mapping.segments import (
    carried_places,
    odometry_leaps,
)
from mapping_helpers import RingRun, ROUND, STEP, trajectory_error, VISION
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures('followed_once')


@pytest.fixture(scope='module')
def ring():
    """Drive two and a half rounds, and map them."""
    run = RingRun()
    return run, map_from_odometry([run], VISION)


@pytest.fixture(scope='module')
def without_loops():
    """Drive along a part of the ring, and map it."""
    run = RingRun(metres=30.0)
    return run, map_from_odometry([run], VISION)


def test_closures_take_out_the_drift(ring):
    run, mapped = ring
    assert 'closures in ' in mapped.notes[-2]
    assert trajectory_error(run.odometry.poses, run.true) > 1.0
    assert trajectory_error(mapped.kernel_map.poses, run.true) < 0.35


def test_the_map_keeps_the_errors_of_its_odometry(ring):
    run, mapped = ring
    known = mapped.kernel_map.calibration
    drift = NAMES.index('drift')
    assert known.values[drift] == pytest.approx(run.drift, abs=0.003)
    assert known.observable()[drift]
    assert known.deviations[NAMES.index('forward_scale')] < 0.01
    assert not known.observable()[NAMES.index('lateral_scale')]


def test_no_closure_joins_places_apart(ring):
    run, mapped = ring
    record = mapped.kernel_map.mapping
    ends = record.closures[record.kept == 1]
    assert len(ends) > 20
    apart = np.hypot(*(run.true[ends[:, 0]] - run.true[ends[:, 1]])[:, :2].T)
    assert apart.max() < 2.0


def test_the_covariance_holds_the_truth_and_is_positive(ring):
    _, mapped = ring
    covariances = mapped.kernel_map.mapping.covariances
    assert np.linalg.eigvalsh(covariances).min() > -1e-9
    assert 0.02 < np.sqrt(np.mean(covariances[:, 0, 0])) < 1.0


def test_the_record_survives_the_file(ring, tmp_path):
    _, mapped = ring
    mapped.kernel_map.save(tmp_path / 'map.h5')
    record, before = KernelMap.load(tmp_path / 'map.h5').mapping, mapped.kernel_map.mapping
    assert record.aligned is before.aligned is False
    np.testing.assert_equal(vars(record), vars(before))


def test_a_map_that_grows_has_covariances_of_its_new_images(ring, tmp_path):
    _, mapped = ring
    kernel_map = mapped.kernel_map
    image = NewImage(1, kernel_map.poses[3], kernel_map.descriptors[3], kernel_map.thumbnails[3])
    grown = with_images(kernel_map, [image])
    grown.save(tmp_path / 'grown.h5')
    record = KernelMap.load(tmp_path / 'grown.h5').mapping
    np.testing.assert_array_equal(record.covariances[-1], kernel_map.mapping.covariances[3])


def test_two_runs_come_into_one_frame():
    runs = [RingRun(name='first', metres=40.0), RingRun(name='second', begin=5.0, seed=1)]
    mapped = map_from_odometry(runs, VISION)
    truth = np.concatenate([run.true for run in runs])
    assert trajectory_error(mapped.kernel_map.poses, truth) < 0.35


def test_a_run_without_loops_is_built_with_a_warning(without_loops, tmp_path):
    _, mapped = without_loops
    assert mapped.notes[-1].startswith('warning: no place is shown again')
    mapped.kernel_map.save(tmp_path / 'map.h5')
    assert len(KernelMap.load(tmp_path / 'map.h5').mapping.closures) == 0


def test_runs_that_share_no_place_are_not_built_together():
    runs = [RingRun(name='here', metres=40.0), RingRun(name='there', metres=40.0, wall=1)]
    with pytest.raises(MapError, match='share no place'):
        map_from_odometry(runs, VISION)


def test_an_odometry_that_begins_again_is_cut_and_joined():
    run = RingRun(reset=ROUND)
    mapped = map_from_odometry([run], VISION)
    assert any('its odometry leaps' in note for note in mapped.notes)
    assert len(mapped.kernel_map) == len(run)
    assert trajectory_error(mapped.kernel_map.poses, run.true) < 0.5


def test_an_odometry_that_begins_elsewhere_after_a_long_pause_is_cut_and_joined():
    run = RingRun(reset=ROUND, origin=(1.0, 0.5, 0.3), pause=60.0)
    mapped = map_from_odometry([run], VISION)
    pauses = 'its odometry pauses for 60 s and does not go on where it was'
    assert sum(pauses in note for note in mapped.notes) == 1
    assert len(mapped.kernel_map) == len(run)
    assert trajectory_error(mapped.kernel_map.poses, run.true) < 0.5


PARKED = np.array([3.0, -2.0, 1.0])


@pytest.mark.parametrize(
    'seconds, step, reset, why',
    [
        (60.0, (0.0, 0.0, 0.0), False, ''),  # the robot stood still
        (60.0, (0.3, 0.0, 0.3), False, ''),
        (9.0, (2.0, 0.0, 0.0), False, ''),  # some messages were lost
        (60.0, (2.0, 0.0, 0.0), False, 'pauses for 60 s'),
        (60.0, (0.0, 0.0, 0.8), False, 'pauses for 60 s'),
        (60.0, (0.0, 0.0, 0.0), True, 'pauses for 60 s'),  # made to go on by its reader
        (60.0, (900.0, 0.0, 0.0), False, 'pauses for 60 s'),
        (9.0, (0.0, 0.0, 0.0), True, ''),
        (0.1, (2.0, 0.0, 0.0), False, 'leaps by 2.0 m'),
        (0.01, (0.4, 0.0, 0.0), False, ''),  # late or noisy, but no leap
    ],
)
def test_where_an_odometry_is_broken(seconds, step, reset, why):
    before = se2.compose(PARKED, np.linspace(-10.0, 0.0, 201)[:, np.newaxis] * [1.0, 0.0, 0.0])
    after = se2.compose(
        se2.compose(PARKED, step), np.linspace(0, 10.0, 201)[:, np.newaxis] * [1.0, 0.0, 0.0]
    )
    stamps = np.round(np.concatenate([np.arange(201), 200 + np.arange(201)]) * 5e7).astype(int)
    stamps[201:] += round(seconds * 1e9)
    resets = (int(stamps[201]),) if reset else ()
    track = OdometryTrack(stamps, np.concatenate([before, after]), resets)
    cuts = odometry_leaps(track, stamps[::10], 7)
    assert [cut.image for cut in cuts] == [7 + 21] * bool(why)
    assert all(why in cut.why for cut in cuts)
    # nothing of it is in images that are all on one side
    assert odometry_leaps(track, stamps[205:], 0) == odometry_leaps(track, stamps[:195], 0) == []


def test_images_in_a_pause_of_the_odometry_are_cut_off_on_both_sides():
    count = np.arange(200)
    stamps = count * 50_000_000 + (count >= 100) * 60 * 10**9
    poses = np.column_stack([0.05 * count + 3.0 * (count >= 100), np.zeros((200, 2))])
    cuts = odometry_leaps(OdometryTrack(stamps, poses), np.arange(140) * 500_000_000, 7)
    # images at 0 s to 4.5 s, in the pause from 4.95 s to 65 s, and behind it
    assert [cut.image for cut in cuts] == [7 + 10, 7 + 130]
    assert cuts[1].why == 'its odometry goes on'


def test_an_odometry_that_always_comes_seldom_does_not_pause():
    count = np.arange(50)
    poses = count[:, np.newaxis] * np.array([2.0, 0.0, 0.0])
    assert odometry_leaps(OdometryTrack(20_000_000_000 * count, poses), count * 10**10, 0) == []


def test_a_robot_that_is_carried_is_noticed_and_joined():
    run = RingRun(carried=(0.75 * ROUND, 0.5 * ROUND))
    mapped = map_from_odometry([run], VISION)
    assert any('stands still' in note for note in mapped.notes)
    assert trajectory_error(mapped.kernel_map.poses, run.true) < 0.5


def test_a_robot_that_stays_is_refused():
    with pytest.raises(MapError, match='stays in one place: its odometry has 0'):
        map_from_odometry([RingRun(metres=1.0)], VISION)


def test_known_poses_are_not_looked_at(ring):
    run, mapped = ring
    again = map_from_odometry([RingRun(known=(1e6, 0.0, 0.0))], VISION)
    np.testing.assert_allclose(again.kernel_map.poses, mapped.kernel_map.poses, atol=1e-9)
    assert se2.travelled(again.kernel_map.poses).max() < 2.0 * run.metres


def test_known_poses_move_the_map(ring):
    run, mapped = ring
    frame = np.array([3.0, -7.0, 2.0])
    at = np.array([5, 60, 120, 200])
    truth = se2.compose(frame, run.true)
    moved, found = align(mapped.kernel_map, run.odometry.stamps_ns[at], truth[at])
    error = np.hypot(*(moved.poses - truth)[:, :2].T)
    assert np.sqrt(np.mean(error**2)) < 0.5
    assert found.residuals.max() < 0.8
    assert 'warning' not in lines_of(found)[1]
    # of other times of the drive
    wrong = align(mapped.kernel_map, run.odometry.stamps_ns[at], truth[at[[1, 3, 0, 2]]])[1]
    assert '; warning: that is ' in lines_of(wrong)[1]


def test_a_map_knows_whether_it_was_aligned(ring, tmp_path):
    _, mapped = ring
    own = mapped.kernel_map
    moved = move_map(own, np.array([3.0, -7.0, 2.0]))
    onto_own, onto_moved = (align_onto(own, other)[0] for other in (own, moved))
    kept = [
        (own, False),
        (own.subset(np.arange(40)), False),
        (moved, True),
        (onto_own, False),
        (onto_moved, True),
        (replace(own, mapping=None), True),
    ]
    for kernel_map, aligned in kept:
        assert kernel_map.aligned is aligned
        kernel_map.save(tmp_path / 'map.h5')
        assert KernelMap.load(tmp_path / 'map.h5').aligned is aligned
    own.save(tmp_path / 'map.h5')
    with h5py.File(tmp_path / 'map.h5', 'a') as file:
        file['mapping'].attrs['aligned'] = 3
    with pytest.raises(MapError, match='mapping/aligned is 3: expected true or false'):
        KernelMap.load(tmp_path / 'map.h5')
    with h5py.File(tmp_path / 'map.h5', 'a') as file:
        del file['mapping'].attrs['aligned']
    assert KernelMap.load(tmp_path / 'map.h5').aligned is None


def test_metres_of_known_poses_are_taken_over_as_a_whole(ring):
    _, mapped = ring
    before = mapped.kernel_map
    after = move_map(before, np.array([3.0, -7.0, 2.0]), 1.05)
    assert se2.travelled(after.poses)[-1] == pytest.approx(1.05 * se2.travelled(before.poses)[-1])
    record = after.mapping
    first, second = record.closures.T
    there = se2.between(after.poses[second], after.poses[first])
    np.testing.assert_allclose(se2.between(record.relative, there), record.misses, atol=1e-9)
    spread = record.covariances[:, :2, :2].trace(axis1=1, axis2=2)
    own = before.mapping.covariances[:, :2, :2].trace(axis1=1, axis2=2)
    np.testing.assert_allclose(spread, 1.05**2 * own)
    scale = NAMES.index('forward_scale')
    counted = 1.0 - before.calibration.values[scale]
    assert 1.0 - after.calibration.values[scale] == pytest.approx(1.05 * counted)
    np.testing.assert_allclose(
        after.mapping.parameters[:, 3], after.calibration.values[scale], atol=0.01
    )


def test_of_two_buildings_in_one_run_the_larger_part_is_built():
    class TwoBuildings(RingRun):
        """A run that is not as others are."""

        def __getitem__(self, index):
            frame = super().__getitem__(index)
            elsewhere = index * STEP >= 2.0 * ROUND
            coarse = np.tile(frame.image[::2, ::2], (2, 2))
            return replace(frame, image=coarse) if elsewhere else frame

    run = TwoBuildings(carried=(2.0 * ROUND, 0.3 * ROUND))
    mapped = map_from_odometry([run], VISION)
    assert 'images after it are left out: no place of the rest is shown again' in mapped.notes[0]
    assert len(mapped.kernel_map) == int(2.0 * ROUND / STEP) + 1
    assert trajectory_error(mapped.kernel_map.poses, run.true[: len(mapped.kernel_map)]) < 0.35


@pytest.mark.parametrize(
    ('changed', 'turned', 'cuts'),
    [
        (slice(25, None), 0.0, [25]),
        (slice(29, None), 0.0, [29]),  # carried just before it drove on
        (slice(25, None), 0.3, []),  # it turned by itself
        (slice(24, 26), 0.0, []),  # somebody walked by
    ],
)
def test_a_view_that_changes_for_good_while_the_robot_stands_is_of_one_that_was_carried(
    changed, turned, cuts
):
    odometry = np.zeros((60, 3))
    odometry[:, 0] = np.minimum(np.arange(60), 20) + np.maximum(np.arange(60) - 29, 0)
    odometry[20:30, 2] = turned * np.arange(10)
    view = np.zeros(60)
    view[changed] = 1.0
    near = np.abs(odometry[:, :1] - odometry[:, 0]) <= 2
    describer = GramDescriber(np.where(near, 1.0, 0.3) * (view[:, np.newaxis] == view))
    numbers = np.arange(60)[:, np.newaxis]
    found = carried_places(describer, numbers, odometry, np.zeros(60, dtype=int))
    assert [cut.image for cut in found] == cuts
