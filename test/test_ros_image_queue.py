"""Which of the waiting images is used, and why the others are not."""

from kbr_localization.ros.image_queue import ImageQueue, QueuedImage
from kbr_localization.ros.odometry_buffer import Coverage
import numpy as np
import pytest


def image(stamp_ns):
    return QueuedImage(stamp_ns, lambda: np.zeros((2, 2), np.uint8), 0.0)


def until(newest_ns, oldest_ns=0):
    """Coverage of an odometry that reaches from one stamp to another."""

    def coverage(stamp_ns):
        if stamp_ns > newest_ns:
            return Coverage.EARLY
        return Coverage.LATE if stamp_ns < oldest_ns else Coverage.READY

    return coverage


def filled(*stamps, **options):
    queue = ImageQueue(**{'size': 8, **options})
    for stamp_ns in stamps:
        queue.put(image(stamp_ns))
    return queue


def taken(queue, coverage):
    found = queue.take(coverage)
    return None if found is None else found.stamp_ns


def test_images_are_used_in_the_order_of_their_stamps():
    queue = filled(3, 1, 2)
    assert [taken(queue, until(9)) for _ in range(4)] == [1, 2, 3, None]
    assert not queue.dropped


def test_an_image_waits_for_its_odometry():
    queue = filled(5)
    assert taken(queue, until(4)) is None and len(queue) == 1
    assert taken(queue, until(5)) == 5


def test_a_backlog_is_dropped_but_for_the_newest():
    queue = filled(1, 2, 3, 4, 5, 6, backlog=3)
    assert taken(queue, until(5)) == 5
    assert queue.dropped == {'a newer one was there': 4}
    assert taken(queue, until(6)) == 6


def test_images_without_odometry_do_not_pile_up():
    queue = filled(*range(1000), size=5)
    assert len(queue) == 5
    assert queue.dropped == {'too many wait for odometry': 995}


def test_odometry_that_is_later_than_a_queue_is_long_costs_images_but_not_all():
    queue = ImageQueue(size=8)
    used = []
    for now in range(200):
        queue.put(image(now))
        used.append(taken(queue, until(now - 20)))
    assert len([stamp_ns for stamp_ns in used if stamp_ns is not None]) > 60


def test_a_queue_full_of_stamps_from_the_future_does_not_keep_good_images_out():
    hour = 3_600 * 10**9
    queue = filled(*range(hour, hour + 8))
    queue.put(image(5))
    assert queue.dropped == {'stamps went back': 8}
    assert taken(queue, until(9)) == 5


def test_an_image_behind_the_odometry_is_dropped():
    queue = filled(1, 5)
    assert taken(queue, until(9, oldest_ns=3)) == 5
    assert queue.dropped == {Coverage.LATE.value: 1}


@pytest.mark.parametrize(
    'stamp_ns, reason', [(5, 'duplicate stamp'), (4, 'older than the last one used')]
)
def test_duplicates_and_old_images_are_dropped(stamp_ns, reason):
    queue = filled(5)
    assert taken(queue, until(9)) == 5
    queue.put(image(stamp_ns))
    assert taken(queue, until(9)) is None
    assert queue.dropped == {reason: 1}


def test_a_duplicate_of_a_waiting_image_is_dropped():
    queue = filled(5, 5)
    assert (len(queue), queue.dropped) == (1, {'duplicate stamp': 1})


def test_after_clearing_time_may_start_over():
    queue = filled(100, 101)
    assert taken(queue, until(100)) == 100
    queue.clear('before a time jump')
    queue.put(image(3))
    assert taken(queue, until(9)) == 3
    assert queue.dropped == {'before a time jump': 1}
