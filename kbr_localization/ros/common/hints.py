"""Why nothing arrives: what can be told from a topic's publishers and the stamps. No rclpy."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kbr_localization.ros.common.arrivals import Arrivals, lead
from kbr_localization.ros.common.standstill import EVIDENT_SECONDS, KnownMotion, Standstill

LOSS_SECONDS = 10
LOST_FRACTION, LOST_AT_LEAST = 0.1, 5
"""Fraction and number of messages lost within the last seconds from which that is told."""
MOST_LOST = 1_000_000
"""A topic does not lose more in that time: Fast DDS has counted to the end of its numbers."""
GHOST_SECONDS = 30.0
"""How long DDS may show a publisher or a node that was killed."""
USELESS_SECONDS, USELESS_AT_LEAST = 5, 3
"""Reports, one a second, in which nothing was used, and how much must have come in them."""
STALE_SECONDS = 2.0
"""Without a message, after which an input does not come in."""
STANDSTILL_SECONDS = 10.0
"""Without a motion of the odometry, after which that is told where a motion is waited for."""
CLOCKS_DIFFER = 10.0
"""Seconds between a stamp and the node's clock from which the clocks are said to differ."""
AHEAD_SECONDS = 0.5
"""
Seconds by which stamps of images lead those of the odometry that arrives then, and no delay does.

Odometry is small and soon there: 0.1 s when it is fused and sent on. At 0.5 m/s and 0.5 rad/s the
limit is 0.25 m and 14 degrees, within the metre that *localized* allows.
"""
BEHIND_SECONDS = 0.8
"""
Seconds by which stamps of images lag, and that a camera's way to the node does not take.

Exposure in the dark 0.1 s, readout and four buffers of a driver at 10 Hz 0.4 s, JPEG and a network
0.2 s. More may still be true delay, a video stream's, which stamps alone cannot tell from a clock.
"""


@dataclass
class Lasting:
    """Tells what is there to stay from what DDS still shows of a process that was killed."""

    _since: float | None = None

    def look(self, there: bool, now: float) -> bool:
        """Take in what is there at a time; say whether it has been for longer than a ghost is."""
        if not there:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= GHOST_SECONDS


class Useless:
    """Tells when all that comes is thrown away, from counts that are looked at once a second."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, int]] = deque([(0, 0)], maxlen=USELESS_SECONDS + 1)

    def look(self, used: int, refused: int) -> None:
        """Take in how many were used, and how many could not be, since the start."""
        self._recent.append((used, refused))

    def hint(self, topic: str, what: str, why: str) -> str:
        """One line when none of the last `what` on a topic could be used, or nothing."""
        used_then, refused_then = self._recent[0]
        used, refused = self._recent[-1]
        if used > used_then or refused - refused_then < USELESS_AT_LEAST:
            return ''
        return (
            f'{topic}: none of the last {refused - refused_then} {what} could be used: '
            f'{why or "see the log"}'
        )


@dataclass
class InputWatch:
    """
    What is known of one input topic; times are monotonic seconds.

    `publishers`, `incompatible`, `other_types`: publishers of the topic, those whose QoS does not
    fit, and types other than the expected one, as last seen in the graph; `type_remedy`: what to
    do about the latter; `sought`: what of all that comes on the topic is counted, and what to do
    where none comes; `sibling`: topic on which somebody sends the images of the other
    `image_transport`, where nobody sends on this one. `lost`: messages that
    were sent but did not arrive, as far as DDS knows. `alone`: whether only one may send;
    `crowded`: whether more than one has done so for a while.
    """

    topic: str
    type_name: str
    since: float
    count: int = 0
    last: float | None = None
    stamp_ns: int | None = None
    frozen: int = 0
    publishers: int = 0
    incompatible: int = 0
    other_types: tuple[str, ...] = ()
    type_remedy: str = 'remap the topic'
    sought: str = ''
    sibling: str = ''
    _clock_ns: int = 0
    _rate_count: int = 0
    _rate_since: float = 0.0
    rate: float = 0.0
    lost: int = 0
    alone: bool = False
    crowded: bool = False
    arrivals: Arrivals = field(default_factory=Arrivals)
    _several: Lasting = field(default_factory=Lasting)
    _recent: deque[tuple[int, int]] = field(
        default_factory=lambda: deque([(0, 0)], maxlen=LOSS_SECONDS + 1)
    )

    def saw(self, stamp_ns: int, now: float) -> None:
        """Count a message."""
        self.count += 1
        self.last = now
        self.arrivals.add(stamp_ns, now)
        self.frozen = self.frozen + 1 if stamp_ns == self.stamp_ns else 0
        self.stamp_ns = stamp_ns

    def measure(self, now: float) -> None:
        """Compute `rate`, messages per second since the last call; once a second."""
        self._recent.append((self.count, self.lost))
        if now > self._rate_since:
            self.rate = (self.count - self._rate_count) / (now - self._rate_since)
        self._rate_count, self._rate_since = self.count, now
        self.crowded = self._several.look(self.alone and self.publishers > 1, now)

    def silence(self, now: float) -> float:
        """Seconds since the last message, or since the start."""
        return now - (self.since if self.last is None else self.last)

    def hint(self, now: float, timeout: float, clock_ns: int) -> str:
        """
        One line on what is wrong with the topic, or nothing.

        `now`: seconds of the monotonic clock; `timeout`: seconds of silence that are too many;
        `clock_ns`: the node's time, to which the stamps are compared.
        """
        if self._loss:
            return self._loss
        if self.silence(now) >= timeout:
            return f'no data for {self.silence(now):.0f} s on {self.topic}: {self._silent_why()}'
        if self.stamp_ns == 0:
            return f'{self.topic}: the stamps are zero: the sender must fill header.stamp'
        if self._hangs:
            return f'{self.topic}: the stamps do not advance: restart the sender'
        return self._clock_hint(clock_ns) or self._crowd_hint

    @property
    def is_stamped(self) -> bool:
        """Whether the messages have stamps that advance."""
        return bool(self.stamp_ns) and not self._hangs

    @property
    def _hangs(self) -> bool:
        return self.frozen >= 5

    @property
    def _crowd_hint(self) -> str:
        if not self.crowded:
            return ''
        return (
            f'{self.topic}: {self.publishers} publishers, of which only one may send: '
            'stop all but one, or remap the topic'
        )

    @property
    def _loss(self) -> str:
        count_then, lost_then = self._recent[0]
        arrived, lost = self.count - count_then, self.lost - lost_then
        few = lost < LOST_AT_LEAST or lost < LOST_FRACTION * (arrived + lost)
        if few or lost > MOST_LOST:
            return ''
        return (
            f'{self.topic}: {arrived} of {arrived + lost} messages arrive, the others are lost on '
            'the way: set the Fast DDS profile (config/fastdds.xml) for the sender too, or send '
            'compressed images'
        )

    def _silent_why(self) -> str:
        if self.other_types:
            others = ', '.join(self.other_types)
            return f'published as {others}, expected {self.type_name}: {self.type_remedy}'
        if self.publishers == 0 and self.sibling:
            return f'publisher count 0, but {self.sibling} has one: set image_transport'
        if self.publishers == 0:
            return 'publisher count 0: start the sender, or remap the topic'
        if self.incompatible == self.publishers:
            return (
                f'QoS incompatible with all {self.publishers} publishers: '
                'theirs must offer at least what is asked for'
            )
        if self.sought:
            return f'{self.publishers} publishers, none sends {self.sought}'
        return (
            f'{self.publishers} publishers, none sends: check the sender; for raw images also '
            'the DDS buffers (config/fastdds.xml)'
        )

    def _clock_hint(self, clock_ns: int) -> str:
        if clock_ns < self._clock_ns:
            self.stamp_ns = None  # of the time before the clock was set back
        self._clock_ns = clock_ns
        if self.stamp_ns is None or clock_ns == 0:
            return ''
        ahead = (self.stamp_ns - clock_ns) * 1e-9
        if abs(ahead) < CLOCKS_DIFFER:
            return ''
        side = 'ahead of' if ahead > 0 else 'behind'
        return (
            f'{self.topic}: stamps are {abs(ahead):.0f} s {side} the clock of this node: '
            'check use_sim_time here and at the sender'
        )


def only_twist(odometry: InputWatch, standstill: Standstill) -> str:
    """One line when the pose of the odometry stands still while its twist moves, or nothing."""
    if not standstill.only_the_velocity_moves:
        return ''
    return (
        f'{odometry.topic}: the pose has stood still for {standstill.seconds:.0f} s but its twist '
        f'says {standstill.speed:.2g} m/s and {standstill.turn_rate:.2g} rad/s: this driver fills '
        'the twist only: integrate it (robot_localization), or choose another topic'
    )


def stood_still(
    image: InputWatch, odometry: InputWatch, standstill: Standstill, now: float
) -> str:
    """Say to a robot that is not localized that its odometry stands, at images that come in."""
    if not _is_long(image, standstill, now):
        return ''
    return (
        f'{odometry.topic}: the pose has stood still for {standstill.seconds:.0f} s, and one view '
        'does not tell where: drive on, or see whether the base driver reads the wheels'
    )


def nothing_on_the_way(
    image: InputWatch, odometry: InputWatch, standstill: Standstill, now: float
) -> str:
    """Say that nothing is recorded of a robot whose odometry stands, at images that come in."""
    if not _is_long(image, standstill, now):
        return ''
    return (
        f'by {odometry.topic} the robot has stood for {standstill.seconds:.0f} s: the next image '
        'is recorded when it moves; if it does move, see whether the base driver reads the wheels'
    )


def only_known_poses(
    poses: InputWatch, odometry: InputWatch, standstill: Standstill, known: KnownMotion
) -> str:
    """One line when the odometry stands still while poses that are known move, or nothing."""
    is_told = standstill.only_the_velocity_moves
    if standstill.seconds < EVIDENT_SECONDS or not known.metres or is_told:
        return ''
    return (
        f'{odometry.topic}: the pose has stood still for {standstill.seconds:.0f} s while '
        f'{poses.topic} went {known.metres:.1f} m: see whether the base driver reads the wheels, '
        'or choose another odometry'
    )


def _is_long(image: InputWatch, standstill: Standstill, now: float) -> bool:
    """Whether the odometry stands for long, at images, and does not say otherwise itself."""
    return (
        standstill.seconds >= STANDSTILL_SECONDS
        and not standstill.only_the_velocity_moves
        and image.silence(now) <= STALE_SECONDS
    )


def mixed_clocks(image: InputWatch, odometry: InputWatch, now: float) -> str:
    """
    One line when images and odometry are stamped by clocks that differ, or nothing.

    Only an image may be late, so the stamps of images may lag by more than they may lead. When
    they lag by more than they should, delay and clock look the same, and both are named.
    """
    if not image.is_stamped or not odometry.is_stamped:
        return ''
    found = lead(image.arrivals, odometry.arrivals, now)
    if -BEHIND_SECONDS <= found.least <= AHEAD_SECONDS:
        return ''
    ahead = found.least > 0.0
    side, most = ('ahead of', AHEAD_SECONDS) if ahead else ('behind', BEHIND_SECONDS)
    why = 'their clocks differ' if ahead else 'their clocks differ, or images come that late'
    return (
        f'stamps of {image.topic} are {abs(found.median):.1f} s {side} those of {odometry.topic} '
        f'as both arrive, expected at most {most:g} s: {why}: an image is paired with the '
        'odometry of its stamp, so set the clocks by each other (chrony), or see how the drivers '
        'stamp'
    )
