"""Stamps of two topics as both arrive: clocks that differ are told from delays and pauses."""

from kbr_localization.ros.common.hints import InputWatch, mixed_clocks
import numpy as np
import pytest

SECOND = 1_000_000_000
NOW = 1_600_000_000 * SECOND


class Topics:
    """
    Images and odometry of a robot as a node receives them, sent at true times in seconds.

    `offset`: how far the odometry's clock is ahead. `pace`: seconds of stamps per second.
    """

    def __init__(self, offset=0.0, pace=1.0):
        self.offset, self.pace, self.messages = offset, pace, []
        self.image = InputWatch('/image', 'sensor_msgs/msg/Image', since=0.0)
        self.odometry = InputWatch('/odom', 'nav_msgs/msg/Odometry', since=0.0)

    def images(self, rate, delay=0.05, start=0.0, end=30.0):
        self._send(self.image, rate, delay, start, end, 0.0)

    def odometries(self, rate, delay=0.01, start=0.0, end=30.0):
        self._send(self.odometry, rate, delay, start, end, self.offset)

    def _send(self, to, rate, delay, start, end, offset):
        delays = delay if callable(delay) else lambda sent: delay
        for sent in np.arange(start, end, 1.0 / rate):
            stamp_ns = NOW + round((self.pace * sent + offset) * SECOND)
            self.messages.append((sent + delays(sent), stamp_ns, to))

    def hints(self):
        """Give what is said after each second."""
        self.messages.sort(key=lambda message: message[0])
        left, said = self.messages, []
        for now in range(1, 31):
            while left and left[0][0] <= now:
                arrival, stamp_ns, to = left.pop(0)
                to.saw(stamp_ns, arrival)
            said.append(mixed_clocks(self.image, self.odometry, float(now)))
        return said


def jitter(most, seed=3):
    """Delays of a network that is free at times, and of up to so many seconds else."""
    generator = np.random.default_rng(seed)
    return lambda sent: 0.02 + most * generator.random() ** 2


def bursts(period):
    """Delays of messages that come together once in a period."""
    return lambda sent: period - sent % period


BEHIND = ' s behind those of /odom as both arrive, expected at most 0.8 s'
AHEAD = ' s ahead of those of /odom as both arrive, expected at most 0.5 s: their clocks differ: '


@pytest.mark.parametrize(
    'offset, says',
    [
        (1.0, f'stamps of /image are 1.0{BEHIND}'),
        (3.0, f' 3.0{BEHIND}: their clocks differ, or images come that late: '),
        (-0.7, f'stamps of /image are 0.7{AHEAD}'),
        (-3.0, f' 3.0{AHEAD}an image is paired with'),
        (-1.6e9, f' 1600000000.0{AHEAD}'),
    ],
)
@pytest.mark.parametrize('image_rate, odometry_rate', [(30, 50), (1, 50), (10, 5), (1, 100)])
def test_clocks_that_differ_are_told_in_seconds(offset, says, image_rate, odometry_rate):
    topics = Topics(offset)
    topics.images(image_rate, 0.0)
    topics.odometries(odometry_rate, 0.0)
    said = topics.hints()
    assert all(says in text for text in said[4:]) and not any(said[:2])


@pytest.mark.parametrize(
    'image_rate, image_delay, odometry_rate, odometry_delay, pace',
    [
        (30, 0.05, 50, 0.01, 1.0),
        (1, 0.3, 50, 0.01, 1.0),
        (0.3, 0.3, 20, 0.01, 1.0),
        (30, 0.05, 1, 0.01, 1.0),
        (30, 0.7, 50, 0.0, 1.0),
        (10, jitter(2.0), 50, jitter(2.0), 1.0),
        (20, bursts(3.0), 50, 0.01, 1.0),
        (20, 0.05, 50, bursts(3.0), 1.0),
        (1, 0.1, 50, 0.02, 3.0),
        (30, 0.2, 50, 0.0, 8.0),
        (2, 0.1, 20, 0.0, 0.2),
    ],
)
def test_clocks_that_agree_are_not_complained_of(
    image_rate, image_delay, odometry_rate, odometry_delay, pace
):
    topics = Topics(pace=pace)
    topics.images(image_rate, image_delay)
    topics.odometries(odometry_rate, odometry_delay)
    assert not any(topics.hints())


@pytest.mark.parametrize('pause', [1.5, 4.0, 15.0])
@pytest.mark.parametrize('silent', ['images', 'odometries', 'both'])
def test_a_pause_of_a_topic_is_no_clock(silent, pause):
    topics = Topics()
    for name, rate in (('images', 10), ('odometries', 20)):
        send = getattr(topics, name)
        if silent in (name, 'both'):
            send(rate, end=8.0)
            send(rate, start=8.0 + pause)
        else:
            send(rate)
    assert not any(topics.hints())


def test_a_bag_that_starts_over_is_no_clock():
    topics = Topics()
    for start in (0.0, 10.0, 20.0):
        for send, rate in ((topics.images, 10), (topics.odometries, 20)):
            send(rate, start=start, end=start + 9.9)
    topics.messages = [
        (arrival, NOW + (stamp_ns - NOW) % (10 * SECOND), to)
        for arrival, stamp_ns, to in topics.messages
    ]
    assert not any(topics.hints())


def test_a_clock_that_is_set_right_is_told_no_more():
    topics = Topics(offset=2.0)
    topics.images(10)
    topics.odometries(20, end=15.0)
    topics.offset = 0.0
    topics.odometries(20, start=15.0)
    told = [bool(text) for text in topics.hints()]
    assert all(told[4:15]) and not any(told[16:])


@pytest.mark.parametrize('stamps', [0, NOW])
def test_stamps_that_say_nothing_are_not_compared(stamps):
    topics = Topics()
    topics.images(10)
    topics.odometries(20)
    topics.messages = [
        (arrival, stamps if to is topics.image else stamp_ns, to)
        for arrival, stamp_ns, to in topics.messages
    ]
    assert not any(topics.hints())
