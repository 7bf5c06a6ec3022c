"""The odometry buffer under everything that a network and a driver can do to it."""

from kbr_localization import se2
from kbr_localization.errors import RosError
from kbr_localization.ros.odometry_buffer import Added, Coverage, OdometryBuffer
import numpy as np
import pytest

MS = 1_000_000
START = 1_600_000_000_000_000_000


def drive(index):
    """Pose at sample `index` of a 20 Hz drive along a circle, 0.5 m/s."""
    return se2.compose(np.array([3.0, 4.0, 3.0]), np.array([0.025 * index, 0.0, 0.01 * index]))


def stamp(index):
    return START + index * 50 * MS


def filled(count=100, **options):
    buffer = OdometryBuffer(**options)
    for index in range(count):
        assert buffer.add(stamp(index), drive(index)) is Added.NEWEST
    return buffer


def test_interpolates_exactly_as_a_recorded_track():
    buffer = filled()
    stamps = np.array([stamp(i) for i in range(100)])
    track = np.array([drive(i) for i in range(100)])
    for query in np.random.default_rng(0).integers(stamps[0], stamps[-1], 50):
        np.testing.assert_array_equal(
            buffer.at(int(query)), se2.interpolate(stamps, track, int(query))
        )


def test_an_image_ahead_of_the_odometry_waits_and_one_behind_it_is_late():
    buffer = filled()
    assert buffer.coverage(stamp(99)) is Coverage.READY
    assert buffer.coverage(stamp(99) + 1) is Coverage.EARLY
    assert buffer.coverage(stamp(0)) is Coverage.READY
    assert buffer.coverage(stamp(0) - 1) is Coverage.LATE
    with pytest.raises(RosError, match='older than the odometry buffer'):
        buffer.at(stamp(0) - 1)
    assert OdometryBuffer().coverage(stamp(0)) is Coverage.EARLY


def test_out_of_order_samples_are_sorted_in_and_duplicates_change_nothing():
    order = np.random.default_rng(1).permutation(15) + 1
    buffer = OdometryBuffer()
    buffer.add(stamp(0), drive(0))
    outcomes = [buffer.add(stamp(i), drive(i)) for i in order]
    assert Added.INSERTED in outcomes and set(outcomes) <= {Added.INSERTED, Added.NEWEST}
    assert buffer.add(stamp(7), drive(50)) is Added.DUPLICATE
    np.testing.assert_allclose(buffer.at(stamp(7)), drive(7))
    assert len(buffer) == 16


def test_memory_is_bounded_by_time_and_by_count():
    buffer = OdometryBuffer(duration_ns=1_000 * MS)
    sizes = []
    for index in range(5_000):
        buffer.add(stamp(index), drive(index))
        sizes.append(len(buffer))
    assert max(sizes) < 40
    assert buffer.coverage(buffer.newest_ns - 1_000 * MS) is Coverage.READY


def test_a_gap_is_not_bridged_but_its_ends_are_good():
    buffer = filled(10)
    buffer.add(stamp(100), drive(100))
    assert buffer.coverage(stamp(50)) is Coverage.GAP
    assert buffer.coverage(stamp(9)) is Coverage.READY
    assert buffer.coverage(stamp(100)) is Coverage.READY
    np.testing.assert_allclose(buffer.at(stamp(100)), drive(100))


@pytest.mark.parametrize('bad', [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(bad):
    buffer = filled(10)
    assert buffer.add(stamp(10), np.array([bad, 0.0, 0.0])) is Added.NOT_FINITE
    assert buffer.newest_ns == stamp(9)


def test_a_bag_that_starts_over_is_a_time_jump_after_three_samples():
    buffer = filled(1000)
    outcomes = [buffer.add(stamp(i), drive(i)) for i in range(4)]
    assert outcomes == [Added.SET_ASIDE, Added.SET_ASIDE, Added.TIME_JUMP, Added.NEWEST]
    assert len(buffer) == 4 and buffer.newest_ns == stamp(3)


@pytest.mark.parametrize('offset_s', [-3600, 3600])
def test_single_samples_from_another_time_are_no_jump(offset_s):
    buffer = filled(100)
    for index in range(100, 140):
        stray = stamp(index) + offset_s * 1_000 * MS
        assert buffer.add(stray, drive(index)) is Added.SET_ASIDE
        assert buffer.add(stamp(index), drive(index)) is Added.NEWEST
    np.testing.assert_allclose(buffer.at(stamp(120)), drive(120))


def test_a_long_pause_is_a_gap_and_keeps_the_track():
    buffer = filled(100)
    outcomes = [buffer.add(stamp(10_000 + i), drive(100 + i)) for i in range(4)]
    assert outcomes == [Added.SET_ASIDE, Added.SET_ASIDE, Added.TIME_GAP, Added.NEWEST]
    np.testing.assert_allclose(buffer.continued(buffer.at(stamp(10_003))), drive(103))


@pytest.mark.parametrize('pause_s', [11, 600])
def test_a_driver_that_comes_back_farther_off_than_the_robot_can_be_was_restarted(pause_s):
    buffer = filled(100)
    begin = 99 + pause_s * 20
    far = se2.compose(drive(99), np.array([4.0 * pause_s, 0.0, 0.0]))
    outcomes = [buffer.add(stamp(begin + i), far) for i in range(3)]
    assert outcomes == [Added.SET_ASIDE, Added.SET_ASIDE, Added.POSE_JUMP]
    np.testing.assert_allclose(buffer.continued(buffer.newest(1)[0][1]), drive(99))


@pytest.mark.parametrize('origin', [(0.0, 0.0, 0.0), (4.5, 4.0, -2.0), (90.0, 0.0, 1.0)])
def test_a_restarted_odometry_driver_goes_on_as_if_the_robot_had_stood_still(origin):
    buffer = filled(100)
    fresh = [np.array([0.025 * i, 0.0, 0.0]) for i in range(5)]
    moved = [se2.compose(np.array(origin), pose) for pose in fresh]
    outcomes = [buffer.add(stamp(100 + i), pose) for i, pose in enumerate(moved)]
    assert outcomes[2] is Added.POSE_JUMP
    assert buffer.coverage(stamp(50)) is Coverage.LATE
    for index, pose in enumerate(fresh):
        expected = se2.compose(drive(99), pose)
        np.testing.assert_allclose(buffer.continued(buffer.at(stamp(100 + index))), expected)


def test_an_odometry_that_is_restarted_twice_goes_on_from_where_the_robot_is():
    buffer, begin = filled(100), 100
    for origin in ([90.0, 0.0, 1.0], [-70.0, 20.0, -2.0]):
        for index in range(3):
            outcome = buffer.add(stamp(begin + index), np.array(origin))
        assert outcome is Added.POSE_JUMP
        np.testing.assert_allclose(buffer.continued(buffer.newest(1)[0][1]), drive(99))
        begin += 3


def test_another_source_goes_on_where_the_last_one_was():
    buffer = filled(100)
    assert buffer.add(stamp(100), np.zeros(3), anew=True) is Added.POSE_JUMP
    assert len(buffer) == 1
    np.testing.assert_allclose(buffer.continued(np.zeros(3)), drive(99))


def test_a_robot_goes_on_as_before_for_a_while_but_not_after_a_gap():
    buffer = filled(100)
    expected = se2.compose(drive(99), 2.0 * se2.between(drive(98), drive(99)))
    np.testing.assert_allclose(buffer.extrapolated(stamp(101)), expected)
    buffer.add(stamp(99) + 3_000 * MS, drive(130))
    np.testing.assert_array_equal(buffer.extrapolated(stamp(161)), drive(130))


@pytest.mark.parametrize('pause_s', [2, 5, 60])
def test_a_driver_that_comes_back_at_the_origin_after_a_pause_was_restarted(pause_s):
    buffer = filled(100)
    fresh = [np.array([0.025 * i, 0.0, 0.0]) for i in range(5)]
    begin = 99 + pause_s * 20
    outcomes = [buffer.add(stamp(begin + i), pose) for i, pose in enumerate(fresh)]
    assert outcomes[:3] == [Added.SET_ASIDE, Added.SET_ASIDE, Added.POSE_JUMP]
    expected = se2.compose(drive(99), fresh[4])
    np.testing.assert_allclose(buffer.continued(buffer.at(stamp(begin + 4))), expected)


@pytest.mark.parametrize('ahead_s', [2, 5, 9])
def test_a_single_stamp_a_few_seconds_ahead_costs_three_samples(ahead_s):
    buffer = filled(100)
    buffer.add(stamp(100 + ahead_s * 20), drive(100))
    outcomes = [buffer.add(stamp(i), drive(i)) for i in range(100, 104)]
    assert outcomes == [Added.SET_ASIDE, Added.SET_ASIDE, Added.RETURNED, Added.NEWEST]
    np.testing.assert_allclose(buffer.continued(buffer.at(stamp(100))), drive(100))
    assert len(buffer) == 104 and buffer.newest_ns == stamp(103)


def test_a_single_wild_pose_is_set_aside():
    buffer = filled(100)
    assert buffer.add(stamp(100), np.array([500.0, 0.0, 0.0])) is Added.SET_ASIDE
    assert buffer.add(stamp(101), drive(101)) is Added.NEWEST
    np.testing.assert_allclose(buffer.at(stamp(101)), drive(101))
