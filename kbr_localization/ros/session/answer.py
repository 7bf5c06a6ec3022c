"""What a session is given to begin with, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.datasets.odometry_jumps import MAX_SPEED
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.ros.session.feed import OdometryAt
from kbr_localization.ros.session.image_queue import QueuedImage
from kbr_localization.ros.session.persistence import SavedPose


@dataclass(frozen=True)
class GivenPose:
    """
    A pose (3,) with covariance (3, 3) that somebody claims; `stamp_ns` None means now.

    `confirmed`: it is that of a belief which images had confirmed until now. `odometry`: pose (3,)
    at the stamp, as if no driver had been reset; None where only the buffer may know.
    """

    pose: se2.FloatArray
    covariance: se2.FloatArray
    stamp_ns: int | None = None
    confirmed: bool = False
    odometry: se2.FloatArray | None = None


@dataclass(frozen=True)
class Answer:
    """
    An estimate at an image's stamp with the raw odometry (3,) there, and what it cost.

    `resets`: how often time or odometry had been reset when the odometry was taken. `continued`:
    the odometry (3,) as if no driver had been reset, None where it is not known.
    """

    stamp_ns: int
    estimate: PoseEstimate
    odometry: se2.FloatArray
    image: QueuedImage
    seconds: float
    resets: int = 0
    continued: se2.FloatArray | None = None

    @staticmethod
    def to(
        image: QueuedImage, odometry: OdometryAt, estimate: PoseEstimate, seconds: float
    ) -> Answer:
        """Answer an image with the odometry at its stamp."""
        return Answer(
            image.stamp_ns,
            estimate,
            odometry.raw,
            image,
            seconds,
            odometry.resets,
            odometry.continued,
        )

    @property
    def odom_in_map(self) -> se2.FloatArray:
        """Pose (3,) of the odometry frame in the map frame: the transform to broadcast."""
        return se2.compose(self.estimate.pose, se2.inverse(self.odometry))

    @property
    def is_known(self) -> bool:
        """Whether there is anything to say: not before the first image of a global start."""
        return self.estimate.has_pose or self.estimate.confidence > 0.0

    @property
    def as_given(self) -> GivenPose:
        """Return the estimate as a pose to start from."""
        estimate = self.estimate
        return GivenPose(
            estimate.pose,
            estimate.covariance,
            self.stamp_ns,
            estimate.localized,
            self.continued,
        )


@dataclass(frozen=True)
class InitialPoseSources:
    """
    Where a belief may come from when there is none, tried in this order.

    `saved` is used when it is of the clock that `clock` names now and not older than
    `saved_max_age` seconds; `saved_anyway`: also if it is. `max_speed` of the robot, m/s.
    """

    given: GivenPose | None = None
    saved: SavedPose | None = None
    saved_max_age: float = 60.0
    max_speed: float = MAX_SPEED
    globally: bool = True
    saved_anyway: bool = False
    clock: Callable[[], str] = str
