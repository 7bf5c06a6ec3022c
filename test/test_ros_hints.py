"""Hints: every way in which nothing arrives has its own words."""

from kbr_localization.ros.common.hints import InputWatch, Useless
import pytest

SECOND = 1_000_000_000
NOW = 1_600_000_000 * SECOND


def watch(**known):
    return InputWatch('/image', 'sensor_msgs/msg/Image', since=0.0, **known)


@pytest.mark.parametrize(
    'known, says',
    [
        ({}, 'publisher count 0'),
        (
            {'sibling': '/image/compressed'},
            'publisher count 0, but /image/compressed has one: set image_transport',
        ),
        ({'publishers': 2, 'incompatible': 2}, 'QoS incompatible'),
        ({'publishers': 1}, 'none sends'),
        (
            {'other_types': ('sensor_msgs/msg/CompressedImage',)},
            'published as sensor_msgs/msg/CompressedImage, expected sensor_msgs/msg/Image: remap',
        ),
    ],
)
def test_silence_has_a_reason(known, says):
    hint = watch(**known).hint(now=6.0, timeout=5.0, clock_ns=NOW)
    assert hint.startswith('no data for 6 s on /image') and says in hint


def test_a_good_input_has_no_hint():
    image = watch(publishers=1)
    for index in range(10):
        image.saw(NOW + index * SECOND, now=float(index))
    assert image.hint(now=9.5, timeout=5.0, clock_ns=NOW + 10 * SECOND) == ''
    image.measure(now=10.0)
    assert image.rate == pytest.approx(1.0)


@pytest.mark.parametrize(
    'publishers, alone, seconds, told',
    [(2, True, 40, True), (2, True, 20, False), (1, True, 40, False), (2, False, 40, False)],
)
def test_two_senders_of_the_odometry_are_told_once_none_of_them_is_a_dead_one(
    publishers, alone, seconds, told
):
    odometry = watch(publishers=publishers, alone=alone)
    for index in range(seconds):
        odometry.saw(NOW + index * SECOND, now=float(index))
        odometry.measure(now=float(index))
    hint = odometry.hint(now=seconds, timeout=5.0, clock_ns=NOW + seconds * SECOND)
    assert ('2 publishers, of which only one may send' in hint) == told
    odometry.publishers = 1
    odometry.measure(now=seconds + 1.0)
    odometry.publishers = 2
    odometry.measure(now=seconds + 2.0)
    assert odometry.hint(seconds + 2.0, 5.0, NOW + seconds * SECOND) == ''


def test_stamps_that_stand_still_are_told():
    image = watch()
    for index in range(10):
        image.saw(NOW, now=float(index))
    assert 'do not advance' in image.hint(now=9.5, timeout=5.0, clock_ns=NOW)


def test_a_stamp_that_nobody_fills_is_not_taken_for_a_sender_that_hangs():
    image = watch(publishers=1)
    for index in range(10):
        image.saw(0, now=float(index))
        assert 'stamps are zero' in image.hint(now=float(index), timeout=5.0, clock_ns=NOW)


@pytest.mark.parametrize(
    'stamp_ns, says',
    [(0, 'stamps are zero'), (NOW - 3600 * SECOND, '3600 s behind'), (NOW + 99 * SECOND, 'ahead')],
)
def test_stamps_of_another_clock_are_told(stamp_ns, says):
    image = watch()
    image.saw(stamp_ns, now=1.0)
    assert says in image.hint(now=1.5, timeout=5.0, clock_ns=NOW)


def test_a_stamp_of_before_the_clock_was_set_back_is_none_of_another_clock():
    """A bag that starts over: the clock is the first to tell."""
    image, later = watch(), NOW + 80 * SECOND
    image.saw(later, now=1.0)
    assert not image.hint(now=1.5, timeout=5.0, clock_ns=later)
    assert not image.hint(now=2.5, timeout=5.0, clock_ns=NOW)
    image.saw(NOW, now=3.0)
    assert not image.hint(now=3.5, timeout=5.0, clock_ns=NOW + SECOND)
    image.saw(later, now=4.0)
    assert '78 s ahead' in image.hint(now=4.5, timeout=5.0, clock_ns=NOW + 2 * SECOND)


@pytest.mark.parametrize(
    'arrived, lost, says',
    [
        (31, 66, '31 of 97 messages arrive'),
        (0, 97, '0 of 97'),
        (97, 4, ''),
        (300, 20, ''),
        (19, 2**31 - 1, ''),
    ],
)
def test_a_stream_that_is_half_lost_is_told_with_the_remedy(arrived, lost, says):
    image = watch(publishers=1)
    image.lost = lost
    for index in range(arrived):
        image.saw(NOW + index * SECOND // 30, now=1.0)
    hint = image.hint(now=1.5, timeout=5.0, clock_ns=NOW)
    assert says in hint and ('config/fastdds.xml' in hint) == bool(says)


def test_a_stream_of_which_nothing_is_used_is_told_until_something_is():
    useless, told = Useless(), []
    for second in range(40):
        broken = second if second < 20 else 20
        used = max(second - 30, 0)
        useless.look(used, broken + (second > 32))
        told.append(useless.hint('/image', 'images', 'image of 2x2 pixels'))
    assert [bool(text) for text in told] == [3 <= second <= 22 for second in range(40)]
    assert told[9] == '/image: none of the last 5 images could be used: image of 2x2 pixels'


def test_a_loss_is_forgotten_when_it_is_over():
    image = watch(publishers=1)
    image.lost = 50
    for second in range(20):
        image.saw(NOW, now=float(second))
        image.stamp_ns = NOW + second * SECOND
        image.frozen = 0
        image.measure(float(second))
        hint = image.hint(float(second), 5.0, NOW + second * SECOND)
        assert ('messages arrive' in hint) == (second < 10), second
