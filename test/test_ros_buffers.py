"""Odometry under everything that a network and a driver can do, and which images are used."""

from kbr_localization import se2
from kbr_localization.ros.buffers import (
    Availability,
    ImageQueue,
    OdometryBuffer,
    Outcome,
    QueuedImage,
)
import numpy as np
import pytest

SECOND = 1_000_000_000
START = 1_600_000_000 * SECOND
OUTLIER = Outcome.OUTLIER


def drive(index):
    """Pose at sample `index` of a 20 Hz drive along a circle, 0.5 m/s."""
    return se2.compose(np.array([3.0, 4.0, 3.0]), np.array([0.025 * index, 0.0, 0.01 * index]))


def stamp(index):
    return START + index * SECOND // 20


def driven(count=100):
    buffer = OdometryBuffer()
    for index in range(count):
        assert buffer.add(stamp(index), drive(index)) is Outcome.APPENDED
    return buffer


def last(buffer):
    """Newest pose as if the odometry had never been reset."""
    return buffer.continuous(buffer.newest(1)[0][1])


def test_it_interpolates_as_a_recorded_track():
    buffer, tracked = driven(), np.arange(100)
    stamps, track = np.array([stamp(i) for i in tracked]), np.array([drive(i) for i in tracked])
    for query in np.random.default_rng(0).integers(stamps[0], stamps[-1], 50):
        expected = se2.interpolate(stamps, track, int(query))
        np.testing.assert_array_equal(buffer.at(int(query)), expected)


def test_an_image_ahead_of_the_odometry_waits_and_one_behind_it_is_late():
    buffer = driven()
    assert buffer.availability(stamp(99)) is buffer.availability(stamp(0)) is Availability.READY
    assert buffer.availability(stamp(99) + 1) is Availability.PENDING
    assert buffer.availability(stamp(0) - 1) is Availability.TOO_OLD
    assert OdometryBuffer().availability(stamp(0)) is Availability.PENDING


def test_a_gap_is_not_bridged_but_its_ends_are_good():
    buffer = driven(10)
    buffer.add(stamp(100), drive(100))
    assert buffer.availability(stamp(50)) is Availability.IN_GAP
    assert buffer.availability(stamp(9)) is buffer.availability(stamp(100)) is Availability.READY
    np.testing.assert_allclose(buffer.at(stamp(100)), drive(100))


def test_samples_that_are_late_repeated_or_not_finite_change_nothing():
    buffer = driven(10)
    assert buffer.add(stamp(9), drive(50)) is Outcome.LATE
    assert buffer.add(stamp(7), drive(50)) is Outcome.LATE
    assert buffer.add(stamp(10), np.array([np.nan, 0.0, 0.0])) is Outcome.NOT_FINITE
    np.testing.assert_allclose(buffer.at(stamp(7)), drive(7))
    assert len(buffer.newest(99)) == 10


def test_memory_is_bounded():
    buffer = OdometryBuffer(duration_ns=SECOND)
    for index in range(500):
        buffer.add(stamp(index), drive(index))
        assert len(buffer.newest(99)) < 40
    assert buffer.availability(buffer.newest(1)[0][0] - SECOND) is Availability.READY


@pytest.mark.parametrize('offset_s', [-3600, 3600])
def test_single_samples_from_another_time_or_place_are_set_aside(offset_s):
    buffer = driven()
    for index in range(100, 140):
        assert buffer.add(stamp(index) + offset_s * SECOND, drive(index)) is OUTLIER
        assert buffer.add(stamp(index), drive(index)) is Outcome.APPENDED
    assert buffer.add(stamp(140), np.array([500.0, 0.0, 0.0])) is OUTLIER
    assert buffer.add(stamp(141), drive(141)) is Outcome.APPENDED
    np.testing.assert_allclose(buffer.at(stamp(120)), drive(120))


@pytest.mark.parametrize('begin, outcome', [(0, Outcome.TIME_JUMP), (10_100, Outcome.TIME_GAP)])
def test_a_bag_that_starts_over_jumps_in_time_and_a_long_pause_keeps_the_track(begin, outcome):
    buffer = driven()
    outcomes = [buffer.add(stamp(begin + i), drive(100 + i)) for i in range(4)]
    assert outcomes == [OUTLIER, OUTLIER, outcome, Outcome.APPENDED]
    assert buffer.newest(1)[0][0] == stamp(begin + 3)
    np.testing.assert_allclose(last(buffer), drive(103))


@pytest.mark.parametrize('ahead_s', [0.8, 2, 9])
def test_a_single_stamp_a_few_seconds_ahead_costs_three_samples(ahead_s):
    buffer = driven()
    buffer.add(stamp(100) + round(ahead_s * SECOND), drive(100))
    outcomes = [buffer.add(stamp(i), drive(i)) for i in range(100, 104)]
    assert outcomes == [OUTLIER, OUTLIER, Outcome.OUTLIER_REMOVED, Outcome.APPENDED]
    np.testing.assert_allclose(buffer.continuous(buffer.at(stamp(100))), drive(100))
    assert buffer.newest(1)[0][0] == stamp(103) and len(buffer.newest(999)) == 104


@pytest.mark.parametrize(
    'pause_s, origin',
    [
        (0.05, (4.5, 4.0, -2.0)),
        (2, (0.0, 0.0, 0.0)),  # back at the origin after a pause
        (11, (60.0, 0.0, 0.0)),  # farther off than the robot can be
        (600, (3000.0, 0.0, 0.0)),
    ],
)
def test_a_restarted_driver_goes_on_as_if_the_robot_had_stood_still(pause_s, origin):
    buffer, begin = driven(), 99 + round(20 * pause_s)
    for _ in range(2):  # and once more
        before = last(buffer)
        for index in range(5):
            step = np.array([0.025 * index, 0.0, 0.0])
            pose = se2.compose(np.array(origin), step)
            outcome = buffer.add(stamp(begin + index), pose)
            assert (outcome is Outcome.POSE_JUMP) == (index == 2)
        np.testing.assert_allclose(last(buffer), se2.compose(before, step))
        assert buffer.availability(stamp(50)) is Availability.TOO_OLD
        origin, begin = (-origin[0] - 200.0, 20.0, -2.0), begin + 5


def test_another_source_goes_on_where_the_last_one_was():
    buffer = driven()
    assert buffer.add(stamp(100), np.zeros(3), new_source=True) is Outcome.POSE_JUMP
    assert len(buffer.newest(9)) == 1
    np.testing.assert_allclose(buffer.continuous(np.zeros(3)), drive(99))


def image(stamp_ns):
    return QueuedImage(stamp_ns, lambda: np.zeros((2, 2), np.uint8), 0.0)


def until(newest_ns, oldest_ns=0):
    """Availability of an odometry that reaches from one stamp to another."""

    def availability(stamp_ns):
        if stamp_ns > newest_ns:
            return Availability.PENDING
        return Availability.TOO_OLD if stamp_ns < oldest_ns else Availability.READY

    return availability


def filled(*stamps, **options):
    queue = ImageQueue(**{'size': 8, **options})
    for stamp_ns in stamps:
        queue.put(image(stamp_ns))
    return queue


def taken(queue, availability):
    found = queue.take(availability)
    return None if found is None else found.stamp_ns


def test_images_are_used_in_the_order_of_their_stamps_and_wait_for_their_odometry():
    queue = filled(3, 1, 2, 5)
    assert [taken(queue, until(4)) for _ in range(4)] == [1, 2, 3, None]
    assert len(queue) == 1 and taken(queue, until(5)) == 5
    assert not queue.dropped


def test_of_too_many_images_the_newest_are_kept_and_the_others_counted():
    queue = filled(1, 2, 3, 4, 5, 6, backlog=3)
    assert taken(queue, until(5)) == 5
    assert queue.dropped == {'a newer one was there': 4}
    assert taken(queue, until(6)) == 6
    waiting = filled(*range(1000), size=5)
    assert len(waiting) == 5
    assert waiting.dropped == {'too many wait for odometry': 995}


def test_odometry_that_is_later_than_a_queue_is_long_costs_images_but_not_all():
    queue = ImageQueue(size=8)
    used = []
    for now in range(200):
        queue.put(image(now))
        used.append(taken(queue, until(now - 20)))
    assert len([stamp_ns for stamp_ns in used if stamp_ns is not None]) > 60


@pytest.mark.parametrize(
    'stamps, then, reason',
    [
        ((5,), 5, 'duplicate stamp'),
        ((5,), 4, 'older than the last one used'),
        ((5, 3601 * SECOND), 6, 'stamps went back'),
        ((5,), 2 * SECOND, ''),
    ],
)
def test_an_image_that_cannot_be_used_after_another_is_dropped(stamps, then, reason):
    queue = filled(*stamps)
    assert taken(queue, until(9)) == 5
    queue.put(image(then))
    assert taken(queue, until(3 * SECOND)) == (then if then > 5 else None)
    assert queue.dropped == ({reason: 1} if reason else {})


def test_an_image_behind_the_odometry_is_dropped_and_after_clearing_time_may_start_over():
    queue = filled(1, 5, 6)
    assert taken(queue, until(5, oldest_ns=3)) == 5
    assert queue.dropped == {'older than the odometry buffer': 1}
    queue.clear('before a time jump')
    queue.put(image(3))
    assert taken(queue, until(9)) == 3
    assert queue.dropped['before a time jump'] == 1
