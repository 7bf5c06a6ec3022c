"""
What is wrong with the inputs: tables of rules, each a condition and one line with the remedy.

No rclpy here: `inputs` and `diagnostics` fill in the facts once a second. Times are monotonic
seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
import math
from typing import Any

from kbr_localization import se2
import numpy as np

STALE_SECONDS = 2.0
"""Without a message, after which an input is said to be missing."""


class Debounce:
    """Report a condition after 30 s, for which DDS may show a process that was killed."""

    def __init__(self) -> None:
        self._since: float | None = None

    def __call__(self, holds: bool, now: float) -> bool:
        """Take in whether a condition holds; return whether it has for long."""
        if not holds:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= 30.0


class Unused:
    """Count messages of which none could be used, from totals that are given once a second."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, int]] = deque([(0, 0)], maxlen=6)

    def __call__(self, used: int, refused: int) -> int:
        """Return how many were refused in the last five seconds if three or more and none used."""
        self._recent.append((used, refused))
        used_then, refused_then = self._recent[0]
        count = refused - refused_then
        return count if used == used_then and count >= 3 else 0


@dataclass
class Topic:
    """
    Facts about one input topic.

    `publishers`, `incompatible`, `other_types`: publishers of the topic, those whose QoS does not
    fit, and types other than the expected one. `sibling`: topic on which the images of the other
    `image_transport` come. `sought`: which of all messages count, and what to do without any.
    `lost`: messages that were sent but did not arrive. `exclusive`: only one may publish.
    """

    name: str
    type_name: str
    since: float
    type_remedy: str = 'remap the topic'
    exclusive: bool = False
    sought: str = ''
    count: int = 0
    lost: int = 0
    rate: float = 0.0
    publishers: int = 0
    incompatible: int = 0
    other_types: str = ''
    sibling: str = ''
    last: float | None = None
    stamp_ns: int | None = None
    repeated: int = 0
    silence: float = 0.0
    is_silent: bool = False
    ahead: float = 0.0
    recent: int = 0
    recent_lost: int = 0
    crowded: bool = False
    _clock_ns: int = 0
    _several: Debounce = field(default_factory=Debounce)
    _history: deque[tuple[float, int, int]] = field(
        default_factory=lambda: deque([(0.0, 0, 0)], maxlen=11)
    )

    def saw(self, stamp_ns: int, now: float) -> None:
        """Count a message."""
        self.count += 1
        self.last = now
        self.repeated = self.repeated + 1 if stamp_ns == self.stamp_ns else 0
        self.stamp_ns = stamp_ns

    def silent_for(self, now: float) -> float:
        """Seconds since the last message, or since the start."""
        return now - (self.since if self.last is None else self.last)

    def measure(self, now: float, timeout: float, clock_ns: int) -> None:
        """Update rate, silence, loss and the lead over the node's clock; once a second."""
        _, count, lost = self._history[0]
        self.recent, self.recent_lost = self.count - count, self.lost - lost
        then, count, _ = self._history[-1]
        self.rate = (self.count - count) / max(now - then, 1e-3)
        self._history.append((now, self.count, self.lost))
        self.silence = self.silent_for(now)
        self.is_silent = self.silence >= timeout
        if clock_ns < self._clock_ns:
            self.stamp_ns = None  # of the time before the clock was set back
        self._clock_ns = clock_ns
        self.ahead = (self.stamp_ns - clock_ns) * 1e-9 if self.stamp_ns and clock_ns else 0.0
        self.crowded = self._several(self.exclusive and self.publishers > 1, now)

    @property
    def sent(self) -> int:
        """Messages of the last ten seconds, with those that were lost."""
        return self.recent + self.recent_lost

    @property
    def loses(self) -> bool:
        """Whether a tenth of them was lost; Fast DDS may count to the end of its numbers."""
        return 5 <= self.recent_lost <= 1_000_000 and self.recent_lost >= 0.1 * self.sent

    @property
    def clock_side(self) -> str:
        """Say on which side of the node's clock the stamps are, and by how much."""
        return f'{abs(self.ahead):.0f} s {"ahead of" if self.ahead > 0 else "behind"}'


TOPIC_RULES: tuple[tuple[Callable[[Topic], Any], str], ...] = (
    (
        lambda t: t.loses,
        '{t.name}: {t.recent} of {t.sent} messages arrive, the others are lost on the way: set '
        'the Fast DDS profile (config/fastdds.xml) for the sender too, or send compressed images',
    ),
    (
        lambda t: t.is_silent and t.other_types,
        'no data for {t.silence:.0f} s on {t.name}: published as {t.other_types}, expected '
        '{t.type_name}: {t.type_remedy}',
    ),
    (
        lambda t: t.is_silent and not t.publishers and t.sibling,
        'no data for {t.silence:.0f} s on {t.name}: publisher count 0, but {t.sibling} has one: '
        'set image_transport',
    ),
    (
        lambda t: t.is_silent and not t.publishers,
        'no data for {t.silence:.0f} s on {t.name}: publisher count 0: start the sender, or remap '
        'the topic',
    ),
    (
        lambda t: t.is_silent and t.incompatible == t.publishers,
        'no data for {t.silence:.0f} s on {t.name}: QoS incompatible with all {t.publishers} '
        'publishers: theirs must offer at least what is asked for',
    ),
    (
        lambda t: t.is_silent and t.sought,
        'no data for {t.silence:.0f} s on {t.name}: {t.publishers} publishers, none sends '
        '{t.sought}',
    ),
    (
        lambda t: t.is_silent,
        'no data for {t.silence:.0f} s on {t.name}: {t.publishers} publishers, none sends: check '
        'the sender; for raw images also the DDS buffers (config/fastdds.xml)',
    ),
    (
        lambda t: t.stamp_ns == 0,
        '{t.name}: the stamps are zero: the sender must fill header.stamp',
    ),
    (
        lambda t: t.repeated >= 5,
        '{t.name}: the stamps do not advance: restart the sender',
    ),
    (
        lambda t: abs(t.ahead) >= 10.0,
        '{t.name}: stamps are {t.clock_side} the clock of this node: check use_sim_time here and '
        'at the sender',
    ),
    (
        lambda t: t.crowded,
        '{t.name}: {t.publishers} publishers, of which only one may send: stop all but one, or '
        'remap the topic',
    ),
)
"""Of one topic the first rule that holds is told."""


class Standstill:
    """
    How long the odometry has stood still, by its stamps.

    `driven`: seconds meanwhile in which its twist was not zero; `speed` and `turn_rate`: the last
    such twist in m/s and rad/s. `known_metres`: how far known poses moved meanwhile in five steps
    or more.
    """

    def __init__(self) -> None:
        self._since_ns = self._last_ns = 0
        self._at: se2.FloatArray | None = None
        self.seconds = self.driven = self.speed = self.turn_rate = 0.0
        self._known: list[se2.FloatArray] = []

    def add(
        self, stamp_ns: int, pose: se2.FloatArray, speed: float = 0.0, turn_rate: float = 0.0
    ) -> None:
        """Take in an odometry pose (3,) and its twist."""
        x, y, turn = (0.0, 0.0, 0.0) if self._at is None else se2.between(self._at, pose)
        still = max(math.hypot(x, y), abs(turn)) <= 0.01
        if self._at is None or stamp_ns < self._since_ns or not still:
            self._since_ns, self._at, self.driven, self._known = stamp_ns, pose, 0.0, []
        elif max(speed, abs(turn_rate)) >= 0.05:
            # at most 1 s each, where messages are lost
            self.driven += min(max((stamp_ns - self._last_ns) * 1e-9, 0.0), 1.0)
            self.speed, self.turn_rate = speed, turn_rate
        self._last_ns = stamp_ns
        self.seconds = (stamp_ns - self._since_ns) * 1e-9

    def add_known(self, pose: se2.FloatArray) -> None:
        """Take in a pose (3,) in the map that is known meanwhile."""
        if not self._known or math.dist(self._known[-1][:2], pose[:2]) >= 0.1:
            self._known = [*self._known[:500], pose]

    @property
    def known_metres(self) -> float:
        """Way of the known poses since the odometry stands; 0 where they may only have jumped."""
        if len(self._known) < 6:
            return 0.0
        return max(math.dist(self._known[0][:2], pose[:2]) for pose in self._known)


class StampLead:
    """
    By how many seconds the stamps of images lead those of the odometry that arrives then.

    Delays that vary and bursts move single images, a clock that is off moves all of the last ten
    seconds: `seconds` is the lead nearest to zero (zero where they have both signs), in seconds of
    the node's time where a replay is faster than that; `median` that of the stamps, `lag` minus
    that.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float, float]] = deque(maxlen=1000)
        self.seconds = self.median = 0.0

    @property
    def lag(self) -> float:
        """Seconds by which images are behind."""
        return -self.median

    def add(self, now: float, image_ns: int, odometry_ns: int | None) -> None:
        """Take in the stamp of an image and of the newest odometry at its arrival."""
        if image_ns and odometry_ns:
            self._recent.append((now, (image_ns - odometry_ns) * 1e-9, odometry_ns * 1e-9))

    def measure(self, now: float, odometry_period: float) -> None:
        """Update `seconds` and `median`; `odometry_period`: between odometry messages, seconds."""
        while self._recent and now - self._recent[0][0] > 10.0:
            self._recent.popleft()
        self.seconds = self.median = 0.0
        arrivals, leads, stamps = np.array([*self._recent]).reshape(-1, 3).T
        # a start stutters; odometry that stands still in time tells nothing
        if len(leads) < 3 or arrivals[-1] - arrivals[0] < 3.0 or stamps[-1] <= stamps[0]:
            return
        pace = max((stamps[-1] - stamps[0]) / (arrivals[-1] - arrivals[0]), 1.0)
        # the newest odometry is up to a period old, in which images may be ahead of it
        least = max(leads.min() - odometry_period, 0.0) + min(leads.max(), 0.0)
        self.seconds, self.median = float(least / pace), float(np.median(leads))


@dataclass
class Facts:
    """
    Facts about all inputs of a node.

    `unused_odometry`: how many of the last seconds could not be used, if none could;
    `why_odometry`: what was wrong with the last one. `silent_cameras`: those left out; `cameras`:
    the others. `unmatched`: all cameras send, but never together. `not_localized`: whether motion
    is waited for. `records_motion`: whether the node records where the robot moves. `rival`:
    another node broadcasts the same transform. `namesake`: another node has the same name.
    `off_tf`: metres or radians between the topic's odometry and TF's.
    """

    image: Topic
    odometry: Topic
    standstill: Standstill
    lead: StampLead
    poses: str = ''
    unused_odometry: int = 0
    why_odometry: str = ''
    silent_cameras: str = ''
    cameras: str = ''
    unmatched: bool = False
    sync_tolerance: float = 0.0
    not_localized: bool = False
    records_motion: bool = False
    rival: bool = False
    namesake: bool = False
    node: str = ''
    frames: tuple[str, str, str] = ('map', 'odom', 'base_footprint')
    off_tf: float = 0.0

    @property
    def stands(self) -> bool:
        """Whether images come in while the odometry has stood still for long."""
        still = self.standstill.seconds >= 10.0 and self.standstill.driven < 5.0
        return still and self.image.silence <= STALE_SECONDS

    @property
    def known_poses_move(self) -> bool:
        """Whether known poses go a way that the odometry does not show."""
        still = self.standstill.seconds >= 5.0 and self.standstill.driven < 5.0
        return still and self.standstill.known_metres >= 1.0


NODE_RULES: tuple[tuple[Callable[[Facts], Any], str], ...] = (
    (
        lambda f: f.silent_cameras,
        'no images of {f.silent_cameras}: going on with {f.cameras} alone',
    ),
    (
        lambda f: f.unmatched,
        'no images of {f.cameras} within {f.sync_tolerance:g} s of each other: synchronise the '
        'cameras, or raise sync_tolerance',
    ),
    (
        lambda f: f.unused_odometry,
        '{f.odometry.name}: none of the last {f.unused_odometry} messages could be used: '
        '{f.why_odometry}',
    ),
    (
        lambda f: f.standstill.driven >= 5.0,
        '{f.odometry.name}: the pose has stood still for {f.standstill.seconds:.0f} s but its '
        'twist says {f.standstill.speed:.2g} m/s and {f.standstill.turn_rate:.2g} rad/s: this '
        'driver fills the twist only: integrate it (robot_localization), or choose another topic',
    ),
    (
        lambda f: f.known_poses_move,
        '{f.odometry.name}: the pose has stood still for {f.standstill.seconds:.0f} s while '
        '{f.poses} went {f.standstill.known_metres:.1f} m: see whether the base driver reads the '
        'wheels, or choose another odometry',
    ),
    (
        lambda f: f.stands and f.not_localized,
        '{f.odometry.name}: the pose has stood still for {f.standstill.seconds:.0f} s, and one '
        'view does not tell where: drive on, or see whether the base driver reads the wheels',
    ),
    (
        lambda f: f.stands and f.records_motion and not f.known_poses_move,
        'by {f.odometry.name} the robot has stood for {f.standstill.seconds:.0f} s: the next '
        'image is recorded when it moves; if it does move, see whether the base driver reads the '
        'wheels',
    ),
    (
        # odometry takes up to 0.1 s
        lambda f: f.lead.seconds > 0.5,
        'stamps of {f.image.name} are {f.lead.median:.1f} s ahead of those of {f.odometry.name} '
        'as both arrive, expected at most 0.5 s: their clocks differ: an image is paired with the '
        'odometry of its stamp, so set the clocks by each other (chrony), or see how the drivers '
        'stamp',
    ),
    (
        # exposure, readout, buffers, JPEG and network take up to 0.7 s
        lambda f: f.lead.seconds < -0.8,
        'stamps of {f.image.name} are {f.lead.lag:.1f} s behind those of {f.odometry.name} as '
        'both arrive, expected at most 0.8 s: their clocks differ, or images come that late: an '
        'image is paired with the odometry of its stamp, so set the clocks by each other '
        '(chrony), or see how the drivers stamp',
    ),
    (
        lambda f: f.off_tf > 0.3,
        '{f.odometry.name} is {f.off_tf:.1f} m or rad off {f.frames[1]} to {f.frames[2]} on TF, '
        'and so is the robot on TF: set odom_source to tf, or end the other sender',
    ),
    (
        lambda f: f.rival,
        'somebody else also sends the transform {f.frames[0]} to {f.frames[1]}: stop it (AMCL, '
        'SLAM, a static publisher), or set tf_broadcast to false here',
    ),
    (
        lambda f: f.namesake,
        'another node is called {f.node} too: end the one that was left running, or give each a '
        'namespace',
    ),
)
"""Of a node all rules that hold are told."""


def diagnose(facts: Facts, topics: list[Topic]) -> list[str]:
    """Return one line for each thing that is wrong."""
    told = [
        next((text.format(t=topic) for holds, text in TOPIC_RULES if holds(topic)), '')
        for topic in topics
    ]
    told += [text.format(f=facts) for holds, text in NODE_RULES if holds(facts)]
    return [line for line in told if line]
