"""
Everything between messages and answers: odometry, waiting images, the start of the belief.

Callbacks hand in odometry, images and requests at any time and never wait; one worker thread calls
`work`, which drives the same `Tracker` as the offline pipeline. No rclpy here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
import threading
import time

from kbr_localization import se2
from kbr_localization.datasets.frame import Image
from kbr_localization.datasets.tracks import MAX_SPEED
from kbr_localization.errors import KbrError, LocalizationError
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.pipeline import Tracker
from kbr_localization.ros.image_queue import Feed, OdometryAt, QueuedImage
from kbr_localization.ros.odometry_buffer import Added, Coverage
from kbr_localization.ros.rules import STALE_SECONDS
from kbr_localization.ros.saved_pose import SavedPose, too_old
import numpy as np

AHEAD_NS = 2_000_000_000
"""By which a given pose may be newer than odometry of the same clock that is a little late."""


@dataclass(frozen=True)
class GivenPose:
    """
    A pose (3,) with covariance (3, 3) to start from; `stamp_ns` None means now.

    `confirmed`: images had confirmed it. `odometry`: continued pose (3,)
    at the stamp, None where only the buffer may know.
    """

    pose: se2.FloatArray
    covariance: se2.FloatArray
    stamp_ns: int | None = None
    confirmed: bool = False
    odometry: se2.FloatArray | None = None


@dataclass(frozen=True)
class InitialPoseSources:
    """
    Where a belief may come from when there is none, tried in this order.

    `saved` is used when it is of the clock that `clock` names now and not older than
    `saved_max_age` seconds; `saved_anyway`: also otherwise. `max_speed` of the robot in m/s.
    """

    given: GivenPose | None = None
    saved: SavedPose | None = None
    saved_max_age: float = 60.0
    max_speed: float = MAX_SPEED
    globally: bool = True
    saved_anyway: bool = False
    clock: Callable[[], str] = str


@dataclass(frozen=True)
class Answer:
    """An estimate at an image's stamp with the odometry there, and what it took."""

    estimate: PoseEstimate
    image: QueuedImage
    odometry: OdometryAt
    seconds: float

    @property
    def stamp_ns(self) -> int:
        """Stamp of the image."""
        return self.image.stamp_ns

    @property
    def odom_in_map(self) -> se2.FloatArray:
        """Pose (3,) of the odometry frame in the map frame: the transform to broadcast."""
        return se2.compose(self.estimate.pose, se2.inverse(self.odometry.raw))

    @property
    def is_known(self) -> bool:
        """Whether there is anything to publish: not before the first image of a global start."""
        return self.estimate.has_pose or self.estimate.confidence > 0.0

    @property
    def as_given(self) -> GivenPose:
        """Return the estimate as a pose to start from."""
        estimate, continued = self.estimate, self.odometry.continued
        return GivenPose(
            estimate.pose, estimate.covariance, self.stamp_ns, estimate.localized, continued
        )


class Session:
    """
    The state of a running localization.

    `make_tracker`: makes a fresh tracker. `log`: called with level and text. `on_reset`: called
    when time jumps back or the odometry is reset. Thread-safe except `work`, which belongs to one
    thread. `last`: the last answer of the belief, `answered`: how many had a pose, `used`: how
    many of them had an image that was compared with the map.
    """

    def __init__(
        self,
        make_tracker: Callable[[], Tracker],
        sources: InitialPoseSources,
        log: Callable[[str, str], None],
        on_reset: Callable[[], None] = lambda: None,
        feed: Feed | None = None,
    ) -> None:
        self._make_tracker, self._log, self._on_reset = make_tracker, log, on_reset
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._requests: deque[Callable[[], None]] = deque()
        self._failures = Counter[str]()
        self.feed = feed or Feed()
        self.sources = sources
        self._given: GivenPose | None = None
        self._kept: GivenPose | None = None
        self.odometry_counts = Counter[str]()
        self.answered = self.used = 0
        self.last: Answer | None = None
        saved = sources.saved
        self._learnt = saved.learnt.after_a_break() if saved and saved.learnt else None
        self.has_belief = self._outdated = False
        self.tracker = self._new_tracker()

    @property
    def dropped(self) -> Counter[str]:
        """Images without an answer, and those that could not be described, by reason."""
        with self._lock:
            return self.feed.queue.dropped + self._failures

    @property
    def needs_initial_pose(self) -> bool:
        """Whether no image will be used before somebody gives a pose."""
        waiting = (self._given or self._kept or self.sources.given) is not None
        return not (self.has_belief or self.sources.globally or waiting)

    def add_odometry(self, stamp_ns: int, pose: se2.FloatArray, anew: bool = False) -> Added:
        """
        Take in a raw odometry pose (3,); a jump back in time resets the session.

        `anew`: it is the first from another source.
        """
        with self._news:
            outcome = self.feed.buffer.add(stamp_ns, pose, anew)
            self.odometry_counts[outcome.value] += 1
            if outcome is Added.TIME_JUMP:
                self._forget('the odometry jumped back in time', stamp_ns)
            elif outcome is Added.POSE_JUMP:
                self._on_reset()  # the transform to the old odometry is wrong for the new
                self._log('warning', 'odometry jumped: taken as reset, without motion')
            if len(self.feed.queue):
                self._news.notify()
            return outcome

    def add_image(self, stamp_ns: int, load: Callable[[], Image]) -> None:
        """Take in an image that `load` will decode in the worker."""
        with self._news:
            self.feed.queue.put(QueuedImage(stamp_ns, load, time.monotonic()))
            self._news.notify()

    def give_pose(self, given: GivenPose) -> None:
        """Restart from a pose, carried by odometry from its stamp to the next image."""
        with self._lock:
            self._given = given

    def initialize_globally(self) -> None:
        """Restart without a pose at the next image."""
        with self._lock:
            self._given = None  # the last request counts
        self.request(self._begin_globally)

    def request(self, command: Callable[[], None]) -> None:
        """Have the worker do something before the next image."""
        with self._news:
            self._requests.append(command)
            self._news.notify()

    def request_update(self) -> None:
        """Let the next image update the belief even if the robot stands still."""

        def update() -> None:
            self.tracker.request_update()

        self.request(update)

    def do_requests(self) -> None:
        """Do what was requested; in the worker's thread, or when it has ended."""
        while self._requests:
            # one at a time: somebody waits for those after one that fails
            self._requests.popleft()()

    def replace_tracker(self) -> None:
        """Go on with a new tracker on the same map, from the present belief."""
        self.request(self._replace)

    def switch_map(self, change: Callable[[], None]) -> None:
        """
        Use another map, and restart from a pose that is given from now on, or globally.

        `change` is called by the worker; from then on `make_tracker` must use the other map.
        """
        with self._lock:
            self._given = self._kept = None
            self.sources = replace(self.sources, given=None, saved=None)

        def switch() -> None:
            with self._lock:
                # another map may have the poses of another point of the robot
                self._kept = self._learnt = None
                self.forget_belief()
            change()

        self.request(switch)

    def follow_map(self, kernel_map: KernelMap) -> None:
        """Go on with more images on the map; in the worker's thread."""
        if not self.tracker.follow_map(kernel_map):
            self._replace()

    def reset(self, reason: str) -> None:
        """Forget odometry, images and belief, as when time jumps back."""
        with self._lock:
            self.feed.buffer.clear()
            self._forget(reason)

    def forget_belief(self) -> None:
        """Restart at the next image from the first source that has a pose."""
        with self._lock:
            self.has_belief, self._outdated, self.last = False, True, None

    def withdraw(self, answer: Answer, reason: str) -> None:
        """Count an answer's image as dropped: a reset, or the end of the work, came before."""
        with self._lock:
            self.answered -= answer.is_known
            self.used -= answer.estimate.updated
        self._count(reason)

    def recover_from_error(self) -> None:
        """Restart after an unexpected error, globally once there has been an answer."""
        self._count('internal error')
        if self.answered:
            self.request(self._begin_globally)
        self.forget_belief()
        with self._lock:
            self.feed.queue.clear('after an internal error')

    def work(self, timeout: float) -> Answer | None:
        """
        Do what there is to do, waiting for it at most `timeout` seconds.

        Returns the answer to an image that was used. An image or odometry that the localizer
        refuses is logged and counted; other errors are raised.
        """
        image = self._next_image(timeout)
        self.do_requests()
        if image is None:
            self._prepare()
            self._doubt()
            return None
        started = time.monotonic()
        odometry = self._begin(image)
        if odometry is None:
            return None
        skipped = Counter(self.tracker.skipped)
        try:
            estimate = self.tracker.process(image.stamp_ns, image.load, odometry.continued)
            if not np.isfinite([*estimate.pose, *estimate.covariance.flat]).all():
                raise LocalizationError('the estimate is not finite: starting anew')
        except KbrError as error:
            self._count('no estimate')
            self._log('error', str(error))
            self._begin_globally()
            return None
        for reason, count in (self.tracker.skipped - skipped).items():
            self._count(reason, count)
            self._log('warning', f'image not used: {self.tracker.last_error}')
        return self._accept(Answer(estimate, image, odometry, time.monotonic() - started))

    def _next_image(self, timeout: float) -> QueuedImage | None:
        with self._news:
            image = self.feed.take()
            if image is None and not self._requests and self.feed.unprepared() is None:
                # at least 1 ms: an image that may wait no longer must not keep a core busy
                self._news.wait(min(timeout, max(self.feed.patience(), 1e-3)))
                image = self.feed.take()
            return image

    def _prepare(self) -> None:
        """Describe an image while its odometry is still to come."""
        with self._lock:
            image = self.feed.unprepared()
            if image is None:
                return
            self.feed.prepared = image
            odometry = self.feed.guess(image.stamp_ns)
            if odometry is None or not self.has_belief:
                return
        self.tracker.prepare(image.load, odometry.continued)

    def _doubt(self) -> None:
        """Call the last pose uncertain once the robot may have left it, while no image comes."""
        with self._lock:
            last, newest_ns = self.last, self.feed.buffer.newest_ns
            if last is None or newest_ns is None or not last.estimate.localized:
                return
            odometry = self.feed.odometry_at(newest_ns)
            if odometry is None or time.monotonic() - last.image.received < STALE_SECONDS:
                return
            if self.tracker.is_doubtful_at(odometry.continued):
                self.last = replace(last, estimate=replace(last.estimate, status='uncertain'))

    def _begin(self, image: QueuedImage) -> OdometryAt | None:
        """Return the odometry at an image that the belief can take in, else None."""
        if self._outdated:
            self._renew()
        with self._lock:
            odometry = self.feed.odometry_at(image.stamp_ns)
            if odometry is None or self._outdated:
                self._count('before a reset')  # it came after the image was taken
                return None
            self._begin_from(self._take_pose(image.stamp_ns, odometry.continued))
            if not self.has_belief and self.sources.globally:
                self._begin_globally()
            if not self.has_belief:
                self._count('no belief yet')
                return None
        return odometry

    def _begin_from(self, given: GivenPose | None) -> None:
        if given is None:
            return
        try:
            self.tracker.initialize(given.pose, given.covariance)
        except LocalizationError as error:
            self._log('warning', f'initial pose refused: {error}')
            return
        if given.confirmed:
            self.tracker.localizer.confirm()
        self.has_belief = True

    def _begin_globally(self) -> None:
        if self._outdated:
            self._renew()
        with self._lock:
            self.tracker.initialize_globally()
            self.has_belief = True
            self._kept = self.last = None

    def _replace(self) -> None:
        had_belief = self._renew()
        with self._lock:
            if had_belief and self.last is not None and self.last.estimate.has_pose:
                self._kept = self.last.as_given
            elif had_belief:
                self._log('info', 'no pose to go on from: starting with no knowledge of it')
                self._begin_globally()  # the robot has left where it began

    def _renew(self) -> bool:
        """Make a new tracker, which has no belief yet; return whether the last one had one."""
        tracker = self._new_tracker()
        with self._lock:
            had_belief = self.has_belief
            self.tracker, self.has_belief, self._outdated = tracker, False, False
        return had_belief

    def _new_tracker(self) -> Tracker:
        tracker = self._make_tracker()
        tracker.know_odometry(self._learnt)
        return tracker

    def _accept(self, answer: Answer) -> Answer | None:
        self._learnt = answer.estimate.odometry or self._learnt
        with self._lock:
            if self._outdated:
                self._count('before a reset')  # it came during the update
                return None
            self.last = answer
            self.answered += answer.is_known
            self.used += answer.estimate.updated
        return answer

    def _count(self, reason: str, count: int = 1) -> None:
        with self._lock:
            self._failures[reason] += count

    def _forget(self, reason: str, begun_ns: int | None = None) -> None:
        """Forget all but a pose given for the time that begins at a stamp."""
        self.feed.queue.clear('before a time jump')
        stamp_ns = None if self._given is None else self._given.stamp_ns
        if begun_ns is None or stamp_ns is None or stamp_ns - begun_ns > AHEAD_NS:
            self._given = None
        self._kept = None
        self.forget_belief()
        self._on_reset()
        self._log('warning', f'{reason}: odometry, images and belief are forgotten')

    def _take_pose(self, stamp_ns: int, odometry: se2.FloatArray) -> GivenPose | None:
        """Pose to start from at a stamp with that odometry (3,); None to go on, or for none."""
        given = self._given or self._kept
        self._given = self._kept = None
        if given is None and not self.has_belief:
            given = self.sources.given or self._saved_pose(stamp_ns, odometry)
        return None if given is None else replace(given, pose=self._carried(given, odometry))

    def _saved_pose(self, stamp_ns: int, odometry: se2.FloatArray) -> GivenPose | None:
        """Carry the saved pose to a stamp if it is recent and of this clock, or wanted anyway."""
        sources, saved = self.sources, self.sources.saved
        if saved is None:
            return None
        pose, why = None, 'saved pose not used: it is of another run of the clock'
        if saved.clock == sources.clock():
            pose = saved.resumed(stamp_ns, odometry, sources.saved_max_age, sources.max_speed)
            why = too_old((stamp_ns - saved.stamp_ns) * 1e-9, sources.saved_max_age)
        if pose is None and not sources.saved_anyway:
            self._log('info', why)
            return None
        x, y, heading = pose = saved.pose if pose is None else pose
        text = f'x {x:.2f} m, y {y:.2f} m, heading {heading:.2f} rad'
        self._log('info', f'going on from the saved pose, now {text}')
        return GivenPose(pose, saved.covariance)

    def _carried(self, given: GivenPose, odometry: se2.FloatArray) -> se2.FloatArray:
        """Pose (3,) moved by the odometry between its stamp and now."""
        if given.stamp_ns is None:
            return given.pose
        buffer = self.feed.buffer
        state = buffer.coverage(given.stamp_ns)
        if state is Coverage.READY:
            then = buffer.continued(buffer.at(given.stamp_ns))
            return se2.compose(given.pose, se2.between(then, odometry))
        if given.odometry is not None:
            # the answer may be older than the whole buffer: no image came meanwhile
            return se2.compose(given.pose, se2.between(given.odometry, odometry))
        ahead_ns = given.stamp_ns - (buffer.newest_ns or 0)
        if state is not Coverage.EARLY or ahead_ns > AHEAD_NS:
            self._log('warning', f'initial pose is {state.value}: taken as if it were new')
        return given.pose
