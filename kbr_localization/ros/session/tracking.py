"""The tracker at work: when a new one is made, and whether it has a belief. No rclpy here."""

from __future__ import annotations

from collections.abc import Callable
import enum
import threading

from kbr_localization.errors import LocalizationError
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.localization.pipeline import Tracker
from kbr_localization.ros.session.answer import GivenPose
from kbr_localization.ros.session.persistence import SavedPose


class State(enum.Enum):
    """What the tracker is good for."""

    OUTDATED = 'a new tracker takes its place before the next image'
    UNINITIALIZED = 'it has no belief yet'
    INITIALIZED = 'it has a belief'


class Tracking:
    """
    The tracker, its state, and what was learnt of the odometry whatever becomes of the belief.

    `make`: makes a tracker that knows nothing. `saved`: what an earlier life of the node saved.
    `lock`: of the owner, held while tracker and state change, not while a tracker is made, which
    takes its time with a large map.
    """

    def __init__(
        self, make: Callable[[], Tracker], saved: SavedPose | None, lock: threading.RLock
    ) -> None:
        self._make, self._lock = make, lock
        self._learnt = saved.learnt.after_a_break() if saved and saved.learnt else None
        self.tracker, self.state = self._new_tracker(), State.UNINITIALIZED

    @property
    def has_belief(self) -> bool:
        """Whether the tracker has a belief."""
        return self.state is State.INITIALIZED

    def begin(self, given: GivenPose, log: Callable[[str, str], None]) -> None:
        """Start from a pose that is one of now; go on as before from one that is refused."""
        with self._lock:
            try:
                self.tracker.initialize(given.pose, given.covariance)
            except LocalizationError as error:
                log('warning', f'initial pose refused: {error}')
                return
            if given.confirmed:
                self.tracker.localizer.confirm()
            self.state = State.INITIALIZED

    def begin_globally(self) -> None:
        """Start with no knowledge of the pose."""
        self.refresh()
        with self._lock:
            self.tracker.initialize_globally()
            self.state = State.INITIALIZED

    def outdate(self) -> None:
        """Have a new tracker made before the next image."""
        with self._lock:
            self.state = State.OUTDATED

    def refresh(self) -> None:
        """Make a new tracker in place of one that is out of date."""
        if self.state is State.OUTDATED:
            self.renew()

    def renew(self) -> bool:
        """Make a new tracker, which has no belief yet; return whether the last one had one."""
        tracker = self._new_tracker()
        with self._lock:
            had_belief = self.has_belief
            self.tracker, self.state = tracker, State.UNINITIALIZED
        return had_belief

    def request_update(self) -> None:
        """Have the next image update the belief even if the robot stands still."""
        self.tracker.request_update()

    def learn(self, estimate: PoseEstimate) -> None:
        """Remember what an estimate says of the odometry."""
        self._learnt = estimate.odometry or self._learnt

    def forget_odometry(self) -> None:
        """Know nothing of it; another map may have the poses of another point of the robot."""
        self._learnt = None

    def _new_tracker(self) -> Tracker:
        tracker = self._make()
        tracker.know_odometry(self._learnt)
        return tracker
