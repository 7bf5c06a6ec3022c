"""Maps from odometry and images: what is joined, what is not, and what is said of it."""

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.cli.map_commands import describe_map
from kbr_localization.datasets import OdometryTrack
from kbr_localization.errors import MapError
from kbr_localization.localization.calibration import Calibration, moved, NAMES, SIZE
from kbr_localization.localization.map.grow import NewImage, with_images
from kbr_localization.localization.map.kernel_map import KernelMap, MappingRecord
from kbr_localization.localization.mapping.align import to_base
from kbr_localization.localization.mapping.build import extend, map_from_odometry
from kbr_localization.localization.mapping.trajectories import carried_images, odometry_breaks
from map_helpers import GramDescriber
from mapping_helpers import RingRun, ROUND, STEP, trajectory_error, VISION
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures('followed_once')
POINT = np.array([0.3, -0.1, 0.05])
KNOWN = RingRun(name='known', metres=10.0, known=(0.0, 0.0, 0.0))
MORE = RingRun(name='more', begin=12.0, metres=30.0, seed=2, drift=-0.015)


@pytest.fixture(scope='module')
def ring():
    """Drive two and a half rounds, and map them."""
    run = RingRun()
    return run, *map_from_odometry([run], VISION)


@pytest.fixture(scope='module')
def longer(ring):
    """Let a drive with known poses join the map, and one without."""
    return extend(extend(ring[1], KNOWN, known=True)[0], MORE)


def test_closures_take_out_the_drift(ring):
    run, kernel_map, notes = ring
    assert 'closures in ' in notes[-2]
    assert trajectory_error(run.odometry.poses, run.true) > 1.0
    assert trajectory_error(kernel_map.poses, run.true) < 0.35


def test_the_map_keeps_the_errors_of_its_odometry(ring):
    run, kernel_map, _ = ring
    known = kernel_map.calibration
    errors = dict(zip(NAMES, known.values, strict=True))
    # rounds one way do not tell a drift from a wrong scale of turns
    too_much = errors['drift'] * ROUND + errors['turn_scale'] * 2.0 * np.pi
    assert too_much == pytest.approx(run.drift * ROUND, abs=0.1)
    assert known.observable()[NAMES.index('drift')]
    assert known.deviations[NAMES.index('forward_scale')] < 0.01
    assert not known.observable()[NAMES.index('lateral_scale')]


def test_the_covariance_is_positive_and_new_images_have_that_of_the_map_there(ring, tmp_path):
    kernel_map = ring[1]
    covariances = kernel_map.mapping.covariances
    assert np.linalg.eigvalsh(covariances).min() > -1e-9
    assert 0.02 < np.sqrt(np.mean(covariances[:, 0, 0])) < 1.0
    image = NewImage(1, kernel_map.poses[3], kernel_map.descriptors[3], kernel_map.thumbnails[3])
    with_images(kernel_map, [image]).save(tmp_path / 'grown.h5')
    record = KernelMap.load(tmp_path / 'grown.h5').mapping
    np.testing.assert_array_equal(record.covariances[-1], covariances[3])
    np.testing.assert_array_equal(record.closures, kernel_map.mapping.closures)


def test_two_runs_come_into_one_frame():
    runs = [RingRun(name='first', metres=40.0), RingRun(name='second', begin=5.0, seed=1)]
    kernel_map, _ = map_from_odometry(runs, VISION)
    truth = np.concatenate([run.true for run in runs])
    assert trajectory_error(kernel_map.poses, truth) < 0.35


def test_a_run_without_loops_is_built_with_a_warning_and_known_poses_are_not_looked_at():
    run = RingRun(metres=30.0, known=(1e6, 0.0, 0.0))
    kernel_map, notes = map_from_odometry([run], VISION, base=True)
    assert notes[-1].startswith('warning: no loop closure is certain')
    assert len(kernel_map.mapping.closures) == 0
    assert se2.travelled(kernel_map.poses).max() < 60.0
    # the first pose of the base is the frame; walls that pass by aside show no turns
    np.testing.assert_allclose(kernel_map.poses[0], 0.0, atol=1e-12)
    assert any('do not show how far the camera is ahead' in note for note in notes)


def test_an_odometry_that_breaks_is_cut_and_joined_where_images_show_the_same():
    run = RingRun(
        reset=1.4 * ROUND, origin=(1.0, 0.5, 0.3), pause=60.0, carried=(0.7 * ROUND, 0.5 * ROUND)
    )
    kernel_map, notes = map_from_odometry([run], VISION)
    for says in ('pauses for 60 s and does not continue where it was', 'stands still'):
        assert sum(says in note for note in notes) == 1
    assert len(kernel_map) == len(run)
    assert trajectory_error(kernel_map.poses, run.true) < 0.5


PARKED = np.array([3.0, -2.0, 1.0])


@pytest.mark.parametrize(
    'seconds, step, reset, why',
    [
        (60.0, (0.3, 0.0, 0.3), False, ''),  # the robot stood still
        (9.0, (2.0, 0.0, 0.0), False, ''),  # some messages were lost
        (60.0, (2.0, 0.0, 0.0), False, 'pauses for 60 s'),
        (60.0, (0.0, 0.0, 0.8), False, 'pauses for 60 s'),
        (60.0, (0.0, 0.0, 0.0), True, 'pauses for 60 s'),  # made to go on by its reader
        (9.0, (0.0, 0.0, 0.0), True, ''),
        (0.1, (2.0, 0.0, 0.0), False, 'jumps by 2.0 m'),
        (0.01, (0.4, 0.0, 0.0), False, ''),  # late or noisy, but no leap
    ],
)
def test_where_an_odometry_is_broken(seconds, step, reset, why):
    ahead = np.linspace(0.0, 10.0, 201)[:, np.newaxis] * [1.0, 0.0, 0.0]
    before = se2.compose(PARKED, ahead - ahead[-1])
    after = se2.compose(se2.compose(PARKED, step), ahead)
    stamps = np.round(np.concatenate([np.arange(201), 200 + np.arange(201)]) * 5e7).astype(int)
    stamps[201:] += round(seconds * 1e9)
    resets = (int(stamps[201]),) if reset else ()
    track = OdometryTrack(stamps, np.concatenate([before, after]), resets)
    cuts = odometry_breaks(track, stamps[::10], 7)
    assert [image for image, _ in cuts] == [7 + 21] * bool(why)
    assert all(why in said for _, said in cuts)
    # nothing of it is in images that are all on one side
    assert odometry_breaks(track, stamps[205:], 0) == odometry_breaks(track, stamps[:195], 0) == []


def test_images_in_a_pause_of_the_odometry_are_cut_off_on_both_sides():
    count = np.arange(200)
    stamps = count * 50_000_000 + (count >= 100) * 60 * 10**9
    poses = np.column_stack([0.05 * count + 3.0 * (count >= 100), np.zeros((200, 2))])
    cuts = odometry_breaks(OdometryTrack(stamps, poses), np.arange(140) * 500_000_000, 7)
    # images at 0 s to 4.5 s, in the pause from 4.95 s to 65 s, and behind it
    assert [image for image, _ in cuts] == [7 + 10, 7 + 130]
    # an odometry that always comes seldom does not pause
    seldom = OdometryTrack(20_000_000_000 * count, count[:, np.newaxis] * [2.0, 0.0, 0.0])
    assert odometry_breaks(seldom, count * 10**10, 0) == []


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
    found = carried_images(describer, numbers, odometry, np.zeros(60, dtype=int))
    assert [image for image, _ in found] == cuts


def test_of_two_buildings_in_one_run_the_larger_part_is_built():
    class TwoBuildings(RingRun):
        """A run that is not as others are."""

        def __getitem__(self, index):
            frame = super().__getitem__(index)
            elsewhere = index * STEP >= 1.5 * ROUND
            coarse = np.tile(frame.image[::2, ::2], (2, 2))
            return replace(frame, image=coarse) if elsewhere else frame

    run = TwoBuildings(metres=1.8 * ROUND, carried=(1.5 * ROUND, 0.3 * ROUND))
    kernel_map, notes = map_from_odometry([run], VISION)
    assert any('are left out: they share no place with the rest' in n for n in notes)
    assert len(kernel_map) == np.sum(np.arange(len(run)) * STEP < 1.5 * ROUND)
    assert trajectory_error(kernel_map.poses, run.true[: len(kernel_map)]) < 0.35


RECORD = MappingRecord(
    odometry=np.arange(9.0).reshape(3, 3),
    covariances=np.array([np.diag([1.0, 4.0, 9.0])] * 3),
    closures=np.array([[2, 0], [2, 1]]),
    chain=np.array([0, 1]),
    relative=np.array([[1.0, 2.0, 0.1], [3.0, 4.0, 0.2]]),
    misses=np.array([[0.1, 0.2, 0.01], [0.3, 0.4, 0.02]]),
    score=np.array([5.0, 6.0]),
    kept=np.array([1, 0]),
    parameters=np.zeros((1, SIZE)),
    point=np.array([0.5, -0.1, 0.3]),
)


def test_a_record_is_cut_moved_and_joined_with_its_closures():
    part = RECORD.subset(np.array([2, 1]))
    np.testing.assert_array_equal(part.closures, [[0, 1]])
    np.testing.assert_array_equal(part.score, RECORD.score[1:])
    # a quarter turn swaps variances, and a scale is that of metres
    there = RECORD.moved(np.array([7.0, 8.0, 0.5 * np.pi]), scale=2.0)
    expected = [np.diag([16.0, 4.0, 9.0])] * 3
    np.testing.assert_allclose(there.covariances, expected, atol=1e-12)
    np.testing.assert_allclose(there.relative, [[2.0, 4.0, 0.1], [6.0, 8.0, 0.2]])
    np.testing.assert_allclose(there.misses, [[0.2, 0.4, 0.01], [0.6, 0.8, 0.02]])
    np.testing.assert_allclose(there.point, [1.0, -0.2, 0.3])
    assert there.deviation_m == 20.0**0.5
    # chains of closures that are joined have names of their own
    np.testing.assert_array_equal(
        RECORD.extended(RECORD.odometry, RECORD.covariances, RECORD).chain, [0, 1, 2, 3]
    )


def test_drives_join_and_nothing_else_moves(ring, longer):
    run, kernel_map, _ = ring
    whole, told = longer
    n, m = len(kernel_map), len(kernel_map) + len(KNOWN)
    np.testing.assert_array_equal(whole.poses[:n], kernel_map.poses)
    np.testing.assert_array_equal(whole.poses[n:m], KNOWN.true)
    truth = np.concatenate([run.true, KNOWN.true, MORE.true])
    assert trajectory_error(whole.poses, truth) < 0.35
    assert 'joined by' in told[-1]
    # the errors of the odometry of a run are not taken for those of the one of known poses
    parameters = whole.mapping.parameters
    assert len(parameters) == 3 and not parameters[1].any()
    assert parameters[2, -1] == pytest.approx(-0.015, abs=0.005)
    # poses are as uncertain as those of the map there, and more
    added = whole.mapping.covariances[m:] - whole.subset(np.arange(m)).uncertainty_at(
        whole.poses[m:]
    )
    assert np.linalg.eigvalsh(added).min() > 0.0
    assert len(whole.mapping.odometry) == len(whole)


def test_an_odometry_that_begins_again_is_no_step_of_the_map(ring):
    kernel_map = ring[1]
    n = len(kernel_map)
    more = RingRun(name='more', begin=9.0, metres=50.0, seed=2, reset=25.0, origin=(40, 3, 1))
    whole, _ = extend(kernel_map, more)
    assert np.nanmax(np.abs(whole.controls[n:, :2])) < 2.0 * STEP
    last = np.isnan(whole.controls[n:, 0])
    np.testing.assert_array_equal(last, np.isnan(whole.next_poses[n:, 0]))
    assert last.sum() == 2


def test_a_drive_elsewhere_does_not_join(ring):
    elsewhere = RingRun(name='elsewhere', metres=20.0, wall=1)
    with pytest.raises(MapError, match=r'elsewhere and the map share no place .* --poses known'):
        extend(ring[1], elsewhere)


@pytest.fixture(scope='module')
def camera(ring):
    """Give the map an odometry whose point is elsewhere than the camera."""
    kernel_map = ring[1]
    values = np.array([*POINT, 0.01, 0.0, -0.02, 0.01])
    known = Calibration(values, np.diag(np.full(SIZE, 1e-4)))
    record = replace(kernel_map.mapping, parameters=values[np.newaxis])
    return replace(kernel_map, calibration=known, mapping=record)


def test_the_odometry_of_the_base_is_that_of_its_own_point(camera):
    base = to_base(camera)
    reports = np.random.default_rng(0).normal(size=(40, 3)) * np.array([0.3, 0.0, 0.2])
    at_camera = moved(reports, camera.calibration.values)
    carried = se2.compose(se2.compose(se2.inverse(POINT), at_camera), POINT)
    np.testing.assert_allclose(moved(reports, base.calibration.values), carried, atol=1e-12)
    np.testing.assert_allclose(base.mapping.parameters[:, :3], 0.0, atol=1e-15)
    np.testing.assert_allclose(base.poses, se2.compose(camera.poses, POINT), atol=1e-12)
    # an error of the camera's heading moves the base by its lever
    slope, lever = np.tile(np.eye(3), (len(base), 1, 1)), base.poses - camera.poses
    slope[:, :2, 2] = lever[:, [1, 0]] * [-1.0, 1.0]
    expected = slope @ camera.mapping.covariances @ slope.transpose(0, 2, 1)
    np.testing.assert_allclose(base.mapping.covariances, expected, atol=1e-12)
    same = np.isfinite(base.next_poses[:-1, 0])
    np.testing.assert_allclose(base.next_poses[:-1][same], base.poses[1:][same], atol=1e-12)
    assert describe_map(base)['poses']['of'].startswith('base, ')


def test_another_drive_joins_a_map_of_the_base_as_one(camera):
    base = to_base(camera)
    ours, theirs = (extend(one, MORE)[0] for one in (base, camera))
    expected = se2.compose(theirs.poses, POINT)
    np.testing.assert_allclose(ours.poses[:, :2], expected[:, :2], atol=1e-3)
    own = ours.mapping.parameters[-1, :3] + POINT
    np.testing.assert_allclose(own, theirs.mapping.parameters[-1, :3], atol=1e-3)
