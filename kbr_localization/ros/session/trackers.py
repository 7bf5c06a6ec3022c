"""New trackers that know what the last one learnt of the odometry. No rclpy here."""

from __future__ import annotations

from collections.abc import Callable

from kbr_localization.localization.calibration import Calibration
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.localization.pipeline import Tracker
from kbr_localization.ros.session.persistence import SavedPose


class TrackerMaker:
    """
    Make trackers; the wheels stay what they are, whatever becomes of the belief.

    `make`: makes a tracker that knows nothing. `saved`: what an earlier life of the node saved.
    """

    def __init__(self, make: Callable[[], Tracker], saved: SavedPose | None) -> None:
        self._make = make
        self._learnt: Calibration | None = saved.learnt if saved else None

    def __call__(self) -> Tracker:
        """Make a tracker."""
        tracker = self._make()
        tracker.know_odometry(self._learnt)
        return tracker

    def learn(self, estimate: PoseEstimate) -> None:
        """Remember what an estimate says of the odometry."""
        self._learnt = estimate.odometry or self._learnt

    def forget(self) -> None:
        """Know nothing, as on another map: its poses may be of another point of the robot."""
        self._learnt = None
