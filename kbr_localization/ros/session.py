"""The running localization: start of the belief, images and odometry to estimates; no rclpy."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbr_localization import se2
from kbr_localization.errors import KbrError, LocalizationError, RosError
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.pipeline import Tracker
from kbr_localization.ros import buffers
from kbr_localization.ros.buffers import Availability, Outcome, QueuedImage
from kbr_localization.ros.config import NodeConfig
from kbr_localization.ros.saved_pose import SavedPose
import numpy as np

if TYPE_CHECKING:
    from kbr_localization.ros.outputs import TransformBroadcaster


@dataclass(frozen=True)
class GivenPose:
    """A pose (3,) with covariance (3, 3) to start from; `stamp_ns` None means now."""

    pose: se2.FloatArray
    covariance: se2.FloatArray
    stamp_ns: int | None = None


@dataclass(frozen=True)
class Answer:
    """
    An estimate at the stamp of an image.

    `odometry`: the odometry pose (3,) at the stamp. `continuous`: the same without jumps, as by
    `OdometryBuffer.continuous`. `resets`: how often the odometry buffer had been cleared.
    """

    estimate: PoseEstimate
    image: QueuedImage
    odometry: se2.FloatArray
    continuous: se2.FloatArray
    resets: int = 0

    @property
    def stamp_ns(self) -> int:
        return self.image.stamp_ns

    @property
    def odom_in_map(self) -> se2.FloatArray:
        """Pose (3,) of the odometry frame in the map frame: the transform to broadcast."""
        return se2.compose(self.estimate.pose, se2.inverse(self.odometry))

    @property
    def is_known(self) -> bool:
        """Whether to publish it: not before the first image of a global start."""
        return self.estimate.has_pose or self.estimate.confidence > 0.0


class Session(buffers.Worker):
    """
    The state of a running localization. Thread-safe.

    A belief starts from a pose that was given, from `start`, from `saved`, or, with
    `initialize_globally`, without a pose. `transforms` gets each answer, and sends the transform
    with each odometry sample until time jumps back or the odometry is reset. `last`: the last
    answer of the belief. `answered`: answers with a pose; `used`: how many of their images updated
    the belief; `unused`: images since then that could not be used. Only the worker thread changes
    the belief: other threads send it a request, which it runs before the next image.
    """

    def __init__(
        self,
        make_tracker: Callable[[], Tracker],
        config: NodeConfig,
        log: buffers.Log,
        transforms: TransformBroadcaster,
        start: GivenPose | None,
        saved: SavedPose | None,
    ) -> None:
        duration_ns = round(config.odometry_buffer * buffers.SECOND)
        super().__init__(
            buffers.OdometryBuffer(duration_ns, config.max_speed),
            buffers.ImageQueue(config.image_queue, config.image_backlog),
            log,
        )
        self._make_tracker, self._config = make_tracker, config
        self._transforms, self._start, self._saved = transforms, start, saved
        self._requests: deque[Callable[[], None]] = deque()
        self._given: GivenPose | None = None
        self.answered = self.used = self.unused = 0
        self.last: Answer | None = None
        self._learnt = saved.learnt.prior_after_restart() if saved and saved.learnt else None
        self.forget_belief()

    @property
    def needs_initial_pose(self) -> bool:
        """Whether images cannot be used before a pose is given."""
        has_start = (self._given or self._start) is not None
        return not (self.has_belief or self._config.initialize_globally or has_start)

    def request(self, command: Callable[[], None]) -> None:
        """Run a command in the worker thread before the next image."""
        with self.condition:
            self._requests.append(command)
            self.condition.notify()

    def run_requests(self) -> None:
        """Run what was requested; in the worker thread, or while that is stopped."""
        while self._requests:
            try:
                self._requests.popleft()()
            except KbrError as error:  # other requests are still to be run
                self._log('error', str(error))

    # from here to `follow_map`: for the worker thread only, directly or by `request`

    def start_from(self, given: GivenPose) -> None:
        """Restart from a pose, moved by the odometry from its stamp to the next image."""
        self._given = given

    def start_globally(self) -> None:
        """Restart without a pose."""
        self.tracker.initialize_globally()
        self.has_belief = True
        self._given = self.last = None

    def forget_belief(self) -> None:
        """Restart at the next image from the first source that has a pose."""
        self.tracker = self._make_tracker()
        if self._learnt is not None:
            self.tracker.localizer.set_odometry_prior(self._learnt)
        self.has_belief, self.last = False, None

    def replace_tracker(self) -> None:
        """Make a new tracker with the present parameters and belief."""
        had_belief, last = self.has_belief, self.last
        self.forget_belief()
        if last is not None and last.estimate.has_pose:
            self.last, self.has_belief = last, True
            self.tracker.initialize(last.estimate.pose, last.estimate.covariance, last.continuous)
            if last.estimate.localized:
                self.tracker.localizer.force_confirmed()
        elif had_belief:
            self._log('info', 'the belief has no pose to keep: starting globally')
            self.start_globally()  # the robot has left the place where the belief started

    def start_on_new_map(self) -> None:
        """Restart from a pose that is given from now on, or globally."""
        # another map may hold the poses of another point of the robot
        self._given = self._start = self._saved = self._learnt = None
        self.forget_belief()

    def follow_map(self, kernel_map: KernelMap) -> None:
        """Use a map to which images were added."""
        if not self.tracker.follow_map(kernel_map):
            self.replace_tracker()

    def recover_from_error(self) -> None:
        """Restart after an unexpected error, globally once there has been an answer."""
        super().recover_from_error()
        self.forget_belief()
        if self.answered:
            self.start_globally()
        with self.condition:
            self.queue.clear('after an internal error')

    def work(self, timeout: float) -> Answer | None:
        """Run requests and answer the next image; wait at most `timeout` seconds for either."""
        with self.condition:
            image = self.queue.take(self.buffer.availability)
            if image is None and not self._requests:
                self.condition.wait(timeout)
                image = self.queue.take(self.buffer.availability)
        self.run_requests()
        answer = None if image is None else self._answer(image)
        if answer is None:
            return None
        with self.condition:
            if answer.resets != self.buffer.resets:
                self.count_dropped('before a reset')  # which came during the update
                return None
            self._transforms.update(answer)
        self.last = answer
        self.answered += answer.is_known
        self.used += answer.estimate.updated
        return answer

    def _answer(self, image: QueuedImage) -> Answer | None:
        """Answer an image; count it and return None where there is no valid estimate."""
        with self.condition:
            if self.buffer.availability(image.stamp_ns) is not Availability.READY:
                self.count_dropped('before a reset')  # which came after the image was taken
                return None
            odometry, resets = self.buffer.at(image.stamp_ns), self.buffer.resets
            continuous = self.buffer.continuous(odometry)
        self._start_belief(image.stamp_ns, continuous)
        if not self.has_belief:
            self.count_dropped('no belief yet')
            return None
        skipped = Counter(self.tracker.skipped)
        try:
            estimate = self.tracker.process(image.stamp_ns, image.load, continuous)
            if not np.isfinite([*estimate.pose, *estimate.covariance.flat]).all():
                raise LocalizationError('the estimate is not finite: restarting globally')
        except KbrError as error:
            self.count_dropped('no estimate')
            self._log('error', str(error))
            self.start_globally()
            return None
        self.unused = 0 if estimate.updated else self.unused
        for reason, count in (self.tracker.skipped - skipped).items():
            self.unused += count
            self.count_dropped(reason, count)
            self._log('warning', f'image not used: {self.tracker.last_error}')
        self._learnt = estimate.odometry or self._learnt
        return Answer(estimate, image, odometry, continuous, resets)

    def _start_belief(self, stamp_ns: int, continuous: se2.FloatArray) -> None:
        """Start from a given pose, or where there is no belief, with odometry (3,) at a stamp."""
        given, self._given = self._given, None
        if given is None and not self.has_belief:
            given = self._start or self._saved_pose(stamp_ns, continuous)
        if given is not None and self._is_on_map(given):
            self.tracker.initialize(given.pose, given.covariance, self._odometry_at(given))
            self.has_belief = True
        elif not self.has_belief and self._config.initialize_globally:
            self.start_globally()

    def _saved_pose(self, stamp_ns: int, continuous: se2.FloatArray) -> GivenPose | None:
        if self._saved is None:
            return None
        try:
            pose = self._saved.resumed(stamp_ns, continuous, self._config)
        except RosError as error:
            self._log('info', str(error))
            return None
        text = 'x {:.2f} m, y {:.2f} m, heading {:.2f} rad'.format(*pose)
        self._log('info', f'starting from the saved pose, now {text}')
        return GivenPose(pose, self._saved.covariance)

    def _is_on_map(self, given: GivenPose) -> bool:
        """Warn of a pose that is not near the map; refuse one that is far from it."""
        positions = self.tracker.kernel_map.poses[:, :2]
        distance = float(np.hypot(*(positions - given.pose[:2]).T).min())
        if distance <= 10.0:
            return True
        self._start, far = None, distance > 100.0
        remedy = 'give a pose on it, or load the map of that place'
        self._log(
            'warning',
            f'initial pose {"refused: " * far}x {given.pose[0]:.2f} m, y {given.pose[1]:.2f} m is '
            f'{distance:.0f} m from the nearest image of the map: '
            + (remedy if far else 'the robot may not be found there'),
        )
        return not far

    def _odometry_at(self, given: GivenPose) -> se2.FloatArray | None:
        """Return the odometry (3,) at the stamp of a pose; None if the pose counts as new."""
        if given.stamp_ns is None:
            return None
        with self.condition:
            state = self.buffer.availability(given.stamp_ns)
            if state is Availability.READY:
                return self.buffer.continuous(self.buffer.at(given.stamp_ns))
            newest_ns = max((stamp_ns for stamp_ns, _ in self.buffer.newest(1)), default=0)
        ahead_ns = given.stamp_ns - newest_ns
        if state is not Availability.PENDING or ahead_ns > buffers.MAX_AHEAD_NS:
            self._log('warning', f'initial pose is {state.value}: taken as if it were new')
        return None

    def _on_odometry(self, outcome: Outcome, stamp_ns: int) -> None:
        if outcome is Outcome.TIME_JUMP:
            self._restart(stamp_ns)
        elif outcome is Outcome.POSE_JUMP:
            self._transforms.clear()  # the last one is valid for the old odometry only
            self._log('warning', 'odometry jumped: taken as reset, without motion')
        unused = (Outcome.LATE, Outcome.NOT_FINITE, Outcome.OUTLIER)
        if outcome not in unused:
            self._transforms.send(stamp_ns, outcome is Outcome.OUTLIER_REMOVED)

    def _restart(self, from_ns: int) -> None:
        """Forget everything but a pose that was given for the time from `from_ns` on."""

        def forget() -> None:
            stamp_ns = None if self._given is None else self._given.stamp_ns
            if stamp_ns is None or stamp_ns - from_ns > buffers.MAX_AHEAD_NS:
                self._given = None
            self.forget_belief()

        self.queue.clear('before a time jump')
        self._transforms.clear()
        what = 'odometry, images and belief are forgotten'
        self._log('warning', f'the odometry jumped back in time: {what}')
        self.request(forget)
