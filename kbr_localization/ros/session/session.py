"""
Everything between messages and answers: odometry, waiting images, how the belief begins.

Callbacks hand in odometry, images and requests at any time and never wait; one worker thread calls
`work`, which drives the same `Tracker` as the offline pipeline. No rclpy here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
import threading
import time

from kbr_localization import se2
from kbr_localization.datasets.frame import Image
from kbr_localization.errors import KbrError, LocalizationError
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.pipeline import Tracker
from kbr_localization.ros.session.answer import Answer, GivenPose, InitialPoseSources
from kbr_localization.ros.session.feed import Feed, OdometryAt
from kbr_localization.ros.session.image_queue import QueuedImage
from kbr_localization.ros.session.initial_poses import InitialPoses
from kbr_localization.ros.session.odometry_buffer import Added
from kbr_localization.ros.session.tracking import State, Tracking
import numpy as np

MIN_WAIT = 1e-3
"""Seconds; an image that may wait no longer but cannot be used must not keep a core busy."""


class Session:
    """
    The state of a localization that runs.

    `make_tracker`: makes a fresh tracker. `log`: called with level and text for the log.
    `on_reset`: called when time jumps back or the odometry is reset. Thread-safe but for `work`,
    which belongs to one thread. `feed`: images and odometry that wait. `tracking`: the tracker
    and its state. `initial_poses`: where a belief starts. `last`: the last answer of the belief,
    `answered`: how many had a pose, `used`: how many of them with an image that was compared with
    the map, `odometry_counts`: what became of odometry messages.
    """

    def __init__(
        self,
        make_tracker: Callable[[], Tracker],
        sources: InitialPoseSources,
        log: Callable[[str, str], None],
        on_reset: Callable[[], None] = lambda: None,
        feed: Feed | None = None,
    ) -> None:
        self._log, self._on_reset = log, on_reset
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._commands: deque[Callable[[], None]] = deque()
        self._failures = Counter[str]()
        self.feed = feed or Feed()
        self.initial_poses = InitialPoses(sources, log)
        self.tracking = Tracking(make_tracker, sources.saved, self._lock)
        self.odometry_counts = Counter[str]()
        self.answered = self.used = 0
        self.last: Answer | None = None

    @property
    def dropped(self) -> Counter[str]:
        """Images without an answer, and those that could not be described, by reason."""
        with self._lock:
            return self.feed.queue.dropped + self._failures

    def add_odometry(self, stamp_ns: int, pose: se2.FloatArray) -> Added:
        """Take in a raw odometry pose (3,); a jump back in time resets the session."""
        with self._news:
            outcome = self.feed.buffer.add(stamp_ns, pose)
            self.odometry_counts[outcome.value] += 1
            if outcome is Added.TIME_JUMP:
                self._forget('the odometry jumped back in time', stamp_ns)
            elif outcome is Added.POSE_JUMP:
                self._on_reset()  # what is sent of the old odometry is wrong for the new
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
        """Start anew from a pose, carried by odometry from its stamp to the next image."""
        with self._lock:
            self.initial_poses.given = given

    def initialize_globally(self) -> None:
        """Start anew with no knowledge of the pose, at the next image."""
        with self._lock:
            self.initial_poses.given = None  # the last request counts
        self.request(self._begin_globally)

    def request(self, command: Callable[[], None]) -> None:
        """Have the worker do something before the next image."""
        with self._news:
            self._commands.append(command)
            self._news.notify()

    def replace_tracker(self) -> None:
        """Go on with a new tracker on the same map, from the present belief."""
        self.request(self._replace)

    def switch_map(self, change: Callable[[], None]) -> None:
        """
        Go on with another map, from a pose that is given from now on, or anew.

        `change` is called by the worker; from then on `make_tracker` must use the other map.
        """
        with self._lock:
            self.initial_poses.forget_map()

        def switch() -> None:
            with self._lock:
                self.initial_poses.kept = None
                self.tracking.forget_odometry()
                self.forget_belief()
            change()

        self.request(switch)

    def follow_map(self, kernel_map: KernelMap) -> None:
        """Go on with more images on the map; for the worker's thread."""
        if not self.tracking.tracker.follow_map(kernel_map):
            self._replace()

    def reset(self, reason: str) -> None:
        """Forget odometry, images and belief, as when time jumps back."""
        with self._lock:
            self.feed.buffer.clear()
            self._forget(reason)

    def forget_belief(self) -> None:
        """Start anew at the next image, as its sources say."""
        with self._lock:
            self.tracking.outdate()
            self.last = None

    def withdraw(self, answer: Answer, stopped: bool = False) -> None:
        """Count an answer's image as dropped: a reset, or the end of the work, came before."""
        with self._lock:
            self.answered -= answer.is_known
            self.used -= answer.estimate.updated
        if stopped:
            self._count('when the node was deactivated')
        else:
            self._count('before a reset')

    def recover_from_error(self) -> None:
        """Start anew after an unexpected error, globally once there has been an answer."""
        self._count('internal error')
        if self.answered:
            self.request(self._begin_globally)
        self.forget_belief()
        with self._lock:
            self.feed.queue.clear('after an internal error')

    def work(self, timeout: float) -> Answer | None:
        """
        Do what there is to do, waiting for it at most `timeout` seconds.

        Returns the answer to an image that was used, None if none was. An image or an odometry
        that the localizer refuses is told and counted; other errors are for the caller.
        """
        image = self._next_image(timeout)
        self.do_requests()
        if image is None:
            self._prepare()
            return None
        started = time.monotonic()
        odometry = self._begin(image)
        if odometry is None:
            return None
        tracker = self.tracking.tracker
        skipped = Counter(tracker.skipped)
        try:
            estimate = tracker.process(image.stamp_ns, image.load, odometry.continued)
            _check_is_finite(estimate)
        except KbrError as error:
            self._count('no estimate')
            self._log('error', str(error))
            self._begin_globally()
            return None
        for reason, count in (tracker.skipped - skipped).items():
            self._count(reason, count)
            self._log('warning', f'image not used: {tracker.last_error}')
        return self._answer(image, odometry, estimate, time.monotonic() - started)

    def do_requests(self) -> None:
        """Do what was requested; in the worker's thread, or when it has ended."""
        while self._commands:
            # one at a time: somebody waits for those after one that fails
            self._commands.popleft()()

    def _next_image(self, timeout: float) -> QueuedImage | None:
        with self._news:
            image = self.feed.take()
            if image is None and not self._commands and self.feed.unprepared() is None:
                self._news.wait(min(timeout, max(self.feed.patience(), MIN_WAIT)))
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
            if odometry is None or not self.tracking.has_belief:
                return
        self.tracking.tracker.prepare(image.load, odometry.continued)

    def _begin(self, image: QueuedImage) -> OdometryAt | None:
        """Return the odometry at an image that the belief can take in, else None."""
        tracking, poses = self.tracking, self.initial_poses
        tracking.refresh()
        with self._lock:
            odometry = self.feed.odometry_at(image.stamp_ns)
            if odometry is None or tracking.state is State.OUTDATED:
                self._count('before a reset')  # it came after the image was taken
                return None
            given = poses.take(
                tracking.has_belief, image.stamp_ns, odometry.continued, self.feed.buffer
            )
            if given is not None:
                tracking.begin(given, self._log)
            if not tracking.has_belief and poses.sources.globally:
                self._begin_globally()
            if not tracking.has_belief:
                self._count('no belief yet')
                return None
        return odometry

    def _begin_globally(self) -> None:
        self.tracking.begin_globally()
        with self._lock:
            self.initial_poses.kept = self.last = None

    def _replace(self) -> None:
        had_belief = self.tracking.renew()
        with self._lock:
            if had_belief and self.last is not None and self.last.estimate.has_pose:
                self.initial_poses.kept = self.last.as_given
            elif had_belief:
                self._log('info', 'no pose to go on from: starting with no knowledge of it')
                self._begin_globally()  # the robot has left where it began

    def _answer(
        self, image: QueuedImage, odometry: OdometryAt, estimate: PoseEstimate, seconds: float
    ) -> Answer | None:
        self.tracking.learn(estimate)
        answer = Answer.to(image, odometry, estimate, seconds)
        with self._lock:
            if self.tracking.state is State.OUTDATED:
                self._count('before a reset')  # it came during the update
                return None
            self.last = answer
            self.answered += answer.is_known
            self.used += estimate.updated
        return answer

    def _count(self, reason: str, count: int = 1) -> None:
        with self._lock:
            self._failures[reason] += count

    def _forget(self, reason: str, begun_ns: int | None = None) -> None:
        self.feed.queue.clear('before a time jump')
        self.initial_poses.forget(begun_ns)
        self.forget_belief()
        self._on_reset()
        self._log('warning', f'{reason}: odometry, images and belief are forgotten')


def _check_is_finite(estimate: PoseEstimate) -> None:
    if not np.isfinite([*estimate.pose, *estimate.covariance.flat]).all():
        raise LocalizationError('the estimate is not finite: starting anew')
