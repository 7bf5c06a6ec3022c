"""
Everything between messages and answers: odometry, waiting images, the belief's beginning.

Callbacks hand in odometry, images and requests at any time and never wait; one worker thread calls
`work`, which drives the same `Tracker` as the offline pipeline. No rclpy here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
import threading
import time

from kbr_localization import se2
from kbr_localization.datasets.frame import Image
from kbr_localization.errors import KbrError, LocalizationError
from kbr_localization.localization.localizer import Localizer, PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.pipeline import Tracker
from kbr_localization.ros.session.answer import Answer, Beginning, GivenPose
from kbr_localization.ros.session.feed import Feed
from kbr_localization.ros.session.image_queue import QueuedImage
from kbr_localization.ros.session.initial_poses import InitialPoses
from kbr_localization.ros.session.odometry_buffer import Added
from kbr_localization.ros.session.trackers import TrackerMaker
import numpy as np

MIN_WAIT = 1e-3
"""Seconds; an image that may wait no longer but cannot be used must not keep a core busy."""


class Session:
    """
    The state of a localization that runs.

    `make_tracker`: makes a fresh tracker. `tell`: called with level and text for the log.
    `on_reset`: called when time jumps back or the odometry is reset. Thread-safe but for `work`,
    which belongs to one thread.
    """

    def __init__(
        self,
        make_tracker: Callable[[], Tracker],
        beginning: Beginning,
        tell: Callable[[str, str], None],
        on_reset: Callable[[], None] = lambda: None,
        feed: Feed | None = None,
    ) -> None:
        self._tell, self._on_reset = tell, on_reset
        self._initial_poses = InitialPoses(beginning, tell)
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._feed = feed or Feed()
        self._new_tracker = TrackerMaker(make_tracker, beginning.saved)
        self._tracker = self._new_tracker()
        self._tracker_is_stale = self._update_requested = self.has_belief = False
        self._prepared: QueuedImage | None = None
        self._requests: list[Callable[[], None]] = []
        self.odometry_counts, self.failures = Counter[str](), Counter[str]()
        self.used = 0
        self.last: Answer | None = None

    @property
    def beginning(self) -> Beginning:
        """Where a belief comes from when nobody gives a pose."""
        return self._initial_poses.beginning

    @property
    def dropped(self) -> Counter[str]:
        """Images not used, by reason."""
        with self._lock:
            return self._feed.queue.dropped + self.failures

    @property
    def waiting(self) -> int:
        """Images that wait for odometry."""
        return len(self._feed.queue)

    def add_odometry(self, stamp_ns: int, pose: se2.FloatArray) -> Added:
        """Take in a raw odometry pose (3,); a jump back in time resets the session."""
        with self._news:
            outcome = self._feed.add_odometry(stamp_ns, pose)
            self.odometry_counts[outcome.value] += 1
            if outcome is Added.TIME_JUMP:
                self._forget('the odometry jumped back in time')
            elif outcome is Added.POSE_JUMP:
                self._on_reset()  # what is sent of the old odometry is wrong for the new
                self._tell('warning', 'odometry jumped: taken as reset, without motion')
            if self._feed.waiting() is not None:
                self._news.notify()
            return outcome

    def add_image(self, stamp_ns: int, load: Callable[[], Image]) -> None:
        """Take in an image that `load` will decode in the worker."""
        with self._news:
            self._feed.add_image(QueuedImage(stamp_ns, load, time.monotonic()))
            self._news.notify()

    def give_pose(self, given: GivenPose) -> None:
        """Start anew from a pose, carried by odometry from its stamp to the next image."""
        with self._lock:
            self._initial_poses.given = given

    def initialize_globally(self) -> None:
        """Start anew with no knowledge of the pose, at the next image."""
        with self._lock:
            self._initial_poses.given = None  # the last request counts
        self.request(self._begin_globally)

    def request(self, action: Callable[[], None]) -> None:
        """Have the worker do something before the next image."""
        with self._news:
            self._requests.append(action)
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
            self._initial_poses.forget_map()

        def switch() -> None:
            with self._lock:
                self._initial_poses.kept = None
                self._new_tracker.forget()
                self.forget_belief()
            change()

        self.request(switch)

    def follow_map(self, kernel_map: KernelMap) -> None:
        """Go on with more images on the map; for the worker's thread."""
        if not self._tracker.follow_map(kernel_map):
            self._replace()

    def _replace(self) -> None:
        tracker = self._new_tracker()
        with self._lock:
            last, had_belief = self.last, self.has_belief
            self._tracker, self._tracker_is_stale, self.has_belief = tracker, False, False
            if had_belief and last is not None and last.estimate.localized:
                self._initial_poses.kept = last.as_given
            elif had_belief and last is not None:
                self._begin_globally()  # the robot has left where the beginning was

    def reset(self, reason: str) -> None:
        """Forget odometry, images and belief, as when time jumps back."""
        with self._lock:
            self._feed.buffer.clear()
            self._forget(reason)

    def forget_belief(self) -> None:
        """Start anew at the next image, as the beginning says."""
        with self._lock:
            self._tracker_is_stale, self.has_belief, self.last = True, False, None

    def recover_from_error(self) -> None:
        """Start anew after an unexpected error, globally once there has been an answer."""
        self._count('internal error')
        if self.last is not None:
            self.request(self._begin_globally)
        self.forget_belief()
        with self._lock:
            self._feed.clear('after an internal error')

    def request_update(self) -> None:
        """Have the next image update the belief even if the robot stands still."""
        self._update_requested = True

    @property
    def localizer(self) -> Localizer:
        """Return the localizer at work."""
        return self._tracker.localizer

    def work(self, timeout: float) -> Answer | None:
        """Do what there is to do, waiting for it at most `timeout` seconds."""
        with self._news:
            image = self._feed.take()
            if image is None and not self._requests and self._unprepared() is None:
                self._news.wait(min(timeout, max(self._feed.patience(), MIN_WAIT)))
                image = self._feed.take()
            early = self._unprepared()
        self.do_requests()
        if image is not None:
            return self._process(image)
        if early is not None:
            self._prepare(early)
        return None

    def do_requests(self) -> None:
        """Do what was requested; in the worker's thread, or when it has ended."""
        while self._requests:
            # one at a time: somebody waits for those after one that fails
            with self._lock:
                request = self._requests.pop(0)
            request()

    def _unprepared(self) -> QueuedImage | None:
        """Return the image that waits longest, if nothing has been done about it yet."""
        waiting = self._feed.waiting()
        return None if waiting is self._prepared else waiting

    def _prepare(self, image: QueuedImage) -> None:
        """Describe an image while its odometry is still to come."""
        self._prepared = image
        with self._lock:
            raw = self._feed.guess(image.stamp_ns)
            if self._tracker_is_stale or not self.has_belief or raw is None:
                return
            odometry = self._feed.buffer.continued(raw)
        self._tracker.prepare(image.load, odometry)

    def _process(self, image: QueuedImage) -> Answer | None:
        started = time.monotonic()
        self._refresh_tracker()
        with self._lock:
            raw, resets = self._feed.odometry_at(image.stamp_ns), self._feed.buffer.resets
            if raw is None:
                return None  # a reset came in between
            odometry = self._feed.buffer.continued(raw)
            self._begin(image.stamp_ns, odometry)
        if not self.has_belief:
            self._count('no belief yet')
            return None
        estimate = self._estimate(image, odometry)
        if estimate is None:
            return None
        self._new_tracker.learn(estimate)
        seconds = time.monotonic() - started
        answer = Answer(image.stamp_ns, estimate, raw, image, seconds, resets)
        with self._lock:
            if self._tracker_is_stale:
                return None  # time has jumped meanwhile
            self.last = answer
            self.used += 1
        return answer

    def _estimate(self, image: QueuedImage, odometry: se2.FloatArray) -> PoseEstimate | None:
        skipped = Counter(self._tracker.skipped)
        if self._update_requested:
            self._tracker.request_update()
            self._update_requested = False
        try:
            estimate = self._tracker.process(image.stamp_ns, image.load, odometry)
            if not np.isfinite([*estimate.pose, *estimate.covariance.flat]).all():
                raise LocalizationError('the estimate is not finite: starting anew')
        except KbrError as error:
            self._count('no estimate')
            self._tell('error', str(error))
            self._begin_globally()
            return None
        for reason, count in (Counter(self._tracker.skipped) - skipped).items():
            self._count(reason, count)
            self._tell('warning', f'image not used: {self._tracker.last_error}')
        return estimate

    def _count(self, reason: str, count: int = 1) -> None:
        with self._lock:
            self.failures[reason] += count

    def _begin(self, stamp_ns: int, odometry: se2.FloatArray) -> None:
        """Give the tracker a belief if somebody gave a pose, or if it has none."""
        given = self._initial_poses.take(self.has_belief, stamp_ns, odometry, self._feed.buffer)
        if given is not None:
            self._tracker.initialize(given.pose, given.covariance)
            self.has_belief = True
        elif not self.has_belief and self.beginning.globally:
            self._begin_globally()

    def _begin_globally(self) -> None:
        self._refresh_tracker()
        with self._lock:
            self._tracker.initialize_globally()
            self._initial_poses.kept = None
            self.has_belief = True

    def _refresh_tracker(self) -> None:
        """Make a new tracker in place of one that is out of date; its belief is still to come."""
        if self._tracker_is_stale:
            tracker = self._new_tracker()
            with self._lock:
                self._tracker, self._tracker_is_stale, self.has_belief = tracker, False, False

    def _forget(self, reason: str) -> None:
        self._feed.clear('before a time jump')
        # the worker makes the new tracker: with a large map that takes its time
        self._tracker_is_stale, self.has_belief = True, False
        self._initial_poses.forget()
        self.last = None
        self._on_reset()
        self._tell('warning', f'{reason}: odometry, images and belief are forgotten')
