"""From messages to answers: odometry, waiting images, the start of the belief; no rclpy."""

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
from kbr_localization.ros.buffers import (
    Added,
    AHEAD_NS,
    Coverage,
    Feed,
    ImageQueue,
    OdometryBuffer,
    QueuedImage,
    SECOND,
)
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
    An estimate at an image's stamp.

    `odometry`, `continued`: the pose (3,) of the odometry there as it came, and as if no driver
    had been reset. `resets`: how often time or odometry had been reset by then.
    """

    estimate: PoseEstimate
    image: QueuedImage
    odometry: se2.FloatArray
    continued: se2.FloatArray
    resets: int = 0

    @property
    def stamp_ns(self) -> int:
        """Stamp of the image."""
        return self.image.stamp_ns

    @property
    def odom_in_map(self) -> se2.FloatArray:
        """Pose (3,) of the odometry frame in the map frame: the transform to broadcast."""
        return se2.compose(self.estimate.pose, se2.inverse(self.odometry))

    @property
    def is_known(self) -> bool:
        """Whether there is anything to publish: not before the first image of a global start."""
        return self.estimate.has_pose or self.estimate.confidence > 0.0


class Session(Feed):
    """
    The state of a running localization.

    A belief starts from a pose that was given, from `start`, from `saved`, or, with
    `initialize_globally`, from nothing. `make_tracker`: makes a fresh tracker. `log`: called with
    level and text. `transforms` take each answer and are sent with each odometry sample, until
    time jumps back or the odometry is reset. `last`: the last answer of the belief, `answered`:
    how many had a pose, `used`: how many of them had an image that was compared with the map,
    `unused`: images that could not be used since the last that could. Thread-safe: what changes
    the belief is a request that the worker does before the next image, in order.
    """

    def __init__(
        self,
        make_tracker: Callable[[], Tracker],
        config: NodeConfig,
        log: Callable[[str, str], None],
        transforms: TransformBroadcaster,
        start: GivenPose | None,
        saved: SavedPose | None,
    ) -> None:
        super().__init__(
            OdometryBuffer(round(config.odometry_buffer * SECOND), config.max_speed),
            ImageQueue(config.image_queue, config.image_backlog),
            log,
        )
        self._make_tracker, self._config = make_tracker, config
        self._transforms, self._start, self._saved = transforms, start, saved
        self._requests: deque[Callable[[], None]] = deque()
        self._given: GivenPose | None = None
        self.answered = self.used = self.unused = 0
        self.last: Answer | None = None
        self._learnt = saved.learnt.after_a_break() if saved and saved.learnt else None
        self.forget_belief()

    @property
    def needs_initial_pose(self) -> bool:
        """Whether no image will be used before somebody gives a pose."""
        waiting = (self._given or self._start) is not None
        return not (self.has_belief or self._config.initialize_globally or waiting)

    def request(self, command: Callable[[], None]) -> None:
        """Have the worker do something before the next image, such as what follows."""
        with self.news:
            self._requests.append(command)
            self.news.notify()

    def begin_from(self, given: GivenPose) -> None:
        """Restart from a pose, carried by odometry from its stamp to the next image."""
        self._given = given

    def begin_globally(self) -> None:
        """Restart without a pose."""
        self.tracker.initialize_globally()
        self.has_belief = True
        self._given = self.last = None

    def forget_belief(self) -> None:
        """Restart at the next image from the first source that has a pose."""
        self.tracker = self._make_tracker()
        if self._learnt is not None:
            self.tracker.localizer.know_odometry(self._learnt)
        self.has_belief, self.last = False, None

    def replace_tracker(self) -> None:
        """Go on with a new tracker on the same map, from the present belief."""
        had_belief, last = self.has_belief, self.last
        self.forget_belief()
        if last is not None and last.estimate.has_pose:
            self.last, self.has_belief = last, True
            self.tracker.initialize(last.estimate.pose, last.estimate.covariance, last.continued)
            if last.estimate.localized:  # images have confirmed it
                self.tracker.localizer.confirm()
        elif had_belief:
            self._log('info', 'no pose to go on from: starting with no knowledge of it')
            self.begin_globally()  # the robot has left where it began

    def do_requests(self) -> None:
        """Do what was requested; in the worker's thread, or when it has ended."""
        while self._requests:
            try:
                self._requests.popleft()()
            except KbrError as error:  # of one request; somebody waits for the others
                self._log('error', str(error))

    def begin_on_another_map(self) -> None:
        """Restart from a pose that is given from now on, or globally."""
        # another map may have the poses of another point of the robot
        self._given = self._start = self._saved = self._learnt = None
        self.forget_belief()

    def follow_map(self, kernel_map: KernelMap) -> None:
        """Go on with more images on the map; in the worker's thread."""
        if not self.tracker.follow_map(kernel_map):
            self.replace_tracker()

    def reset(self, reason: str) -> None:
        """Forget odometry, images and belief, as when time jumps back."""
        with self.news:
            self.buffer.clear()
            self._begin_anew(reason)

    def recover_from_error(self) -> None:
        """Restart after an unexpected error, globally once there has been an answer."""
        self.count('internal error')
        self.forget_belief()
        if self.answered:
            self.begin_globally()
        with self.news:
            self.queue.clear('after an internal error')

    def work(self, timeout: float) -> Answer | None:
        """Do what there is to do, waiting at most `timeout` seconds; return an answer, if any."""
        with self.news:
            image = self.queue.take(self.buffer.coverage)
            if image is None and not self._requests:
                self.news.wait(timeout)
                image = self.queue.take(self.buffer.coverage)
        self.do_requests()
        answer = None if image is None else self._answer(image)
        if answer is None:
            return None
        with self.news:
            if answer.resets != self.buffer.resets:
                self.count('before a reset')  # it came during the update
                return None
            self._transforms.take(answer)
        self.last = answer
        self.answered += answer.is_known
        self.used += answer.estimate.updated
        return answer

    def _answer(self, image: QueuedImage) -> Answer | None:
        """Answer an image; None, counted, without odometry or a belief, or for a bad estimate."""
        with self.news:
            if self.buffer.coverage(image.stamp_ns) is not Coverage.READY:
                self.count('before a reset')  # it came after the image was taken
                return None
            odometry, resets = self.buffer.at(image.stamp_ns), self.buffer.resets
            continued = self.buffer.continued(odometry)
        self._begin(image.stamp_ns, continued)
        if not self.has_belief:
            self.count('no belief yet')
            return None
        skipped = Counter(self.tracker.skipped)
        try:
            estimate = self.tracker.process(image.stamp_ns, image.load, continued)
            if not np.isfinite([*estimate.pose, *estimate.covariance.flat]).all():
                raise LocalizationError('the estimate is not finite: starting anew')
        except KbrError as error:
            self.count('no estimate')
            self._log('error', str(error))
            self.begin_globally()
            return None
        self.unused = 0 if estimate.updated else self.unused
        for reason, count in (self.tracker.skipped - skipped).items():
            self.unused += count
            self.count(reason, count)
            self._log('warning', f'image not used: {self.tracker.last_error}')
        self._learnt = estimate.odometry or self._learnt
        return Answer(estimate, image, odometry, continued, resets)

    def _begin(self, stamp_ns: int, continued: se2.FloatArray) -> None:
        """Start the belief at a stamp with that odometry (3,), if there is a start to be made."""
        given, self._given = self._given, None
        if given is None and not self.has_belief:
            given = self._start or self._saved_pose(stamp_ns, continued)
        if given is not None and self._is_on_map(given):
            self.tracker.initialize(given.pose, given.covariance, self._odometry_at(given))
            self.has_belief = True
        elif not self.has_belief and self._config.initialize_globally:
            self.begin_globally()

    def _saved_pose(self, stamp_ns: int, continued: se2.FloatArray) -> GivenPose | None:
        if self._saved is None:
            return None
        try:
            pose = self._saved.resumed(stamp_ns, continued, self._config)
        except RosError as error:
            self._log('info', str(error))
            return None
        text = 'x {:.2f} m, y {:.2f} m, heading {:.2f} rad'.format(*pose)
        self._log('info', f'going on from the saved pose, now {text}')
        return GivenPose(pose, self._saved.covariance)

    def _is_on_map(self, given: GivenPose) -> bool:
        """Whether a pose is near the map; warn of one that is not, which is no start again."""
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
        """Odometry (3,) at the stamp of a pose; None for one that is taken as if it were new."""
        if given.stamp_ns is None:
            return None
        with self.news:
            state = self.buffer.coverage(given.stamp_ns)
            if state is Coverage.READY:
                return self.buffer.continued(self.buffer.at(given.stamp_ns))
            newest_ns = max((stamp_ns for stamp_ns, _ in self.buffer.newest(1)), default=0)
        if state is not Coverage.EARLY or given.stamp_ns - newest_ns > AHEAD_NS:
            self._log('warning', f'initial pose is {state.value}: taken as if it were new')
        return None

    def _odometry_came(self, outcome: Added, stamp_ns: int) -> None:
        if outcome is Added.TIME_JUMP:
            self._begin_anew('the odometry jumped back in time', stamp_ns)
        elif outcome is Added.POSE_JUMP:
            self._transforms.forget()  # that to the old odometry is wrong for the new
            self._log('warning', 'odometry jumped: taken as reset, without motion')
        if outcome not in (Added.LATE, Added.NOT_FINITE, Added.SET_ASIDE):
            self._transforms.send(stamp_ns, restart=outcome is Added.RETURNED)

    def _begin_anew(self, reason: str, begun_ns: int | None = None) -> None:
        """Forget all but a pose given for the time that begins at a stamp."""

        def forget() -> None:
            stamp_ns = None if self._given is None else self._given.stamp_ns
            if begun_ns is None or stamp_ns is None or stamp_ns - begun_ns > AHEAD_NS:
                self._given = None
            self.forget_belief()

        self.queue.clear('before a time jump')
        self._transforms.forget()
        self._log('warning', f'{reason}: odometry, images and belief are forgotten')
        self.request(forget)
