"""The interface of all localizers, which the pipeline and the node drive."""

from dataclasses import dataclass
from typing import Protocol

from kbr_localization import se2
from kbr_localization.errors import LocalizationError
from kbr_localization.localization.calibration import Calibration
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
import numpy as np

UNKNOWN_VARIANCE = 9999.0
"""Diagonal of the covariance while the pose is unknown, by the conventions of ROS."""
NOT_ON_THIS_MAP = 'not on this map'
"""The status when the images show another building than the map."""
NO_POSE = ('not localized', NOT_ON_THIS_MAP)
"""The statuses in which the pose has no meaning."""


@dataclass(frozen=True)
class PoseEstimate:
    """
    The pose estimate of a localizer at one moment.

    `pose`: (3,) in the map frame, metres and radians. `covariance`: (3, 3) of x, y, heading;
    `UNKNOWN_VARIANCE` on the diagonal in a status of `NO_POSE`. `confidence`: in [0, 1].
    `status`: 'localized', 'uncertain', 'not localized' or 'not on this map'. `diagnostics`: the
    numbers behind the status, by name. `updated`: whether an image updated the belief since the
    last `predict`. `odometry`: its learnt systematic errors, None if nothing is learnt.
    """

    pose: FloatArray
    covariance: FloatArray
    confidence: float
    status: str
    diagnostics: dict[str, float]
    updated: bool = False
    odometry: Calibration | None = None

    @property
    def localized(self) -> bool:
        """Whether the pose may be used."""
        return self.status == 'localized'

    @property
    def has_pose(self) -> bool:
        """Whether the pose has a meaning: also one that is uncertain."""
        return self.status not in NO_POSE


def contradiction(stands: bool) -> str:
    """Return the advice for images that contradict an odometry that stands still, or moves."""
    if stands:
        return (
            'the images change while the odometry stands still: see whether its driver reads the '
            'wheels, or whether the robot is carried'
        )
    return (
        'the images do not change as the odometry moves: see whether the wheels spin, or whether '
        'the odometry or the camera is wrong'
    )


def unknown_pose(diagnostics: dict[str, float], updated: bool) -> PoseEstimate:
    """Return the estimate of a localizer without a belief."""
    pose, covariance = np.zeros(3), unknown_covariance()
    return PoseEstimate(pose, covariance, 0.0, 'not localized', dict(diagnostics), updated)


def unknown_covariance() -> FloatArray:
    return np.diag(np.full(3, UNKNOWN_VARIANCE))


def status_of(confidence: float, localized_mass: float, confirmed: bool = True) -> str:
    """Return 'localized' from `localized_mass` on if confirmed, 'not localized' below its half."""
    if confidence < 0.5 * localized_mass:
        return 'not localized'
    return 'localized' if confirmed and confidence >= localized_mass else 'uncertain'


class Localizer(Protocol):
    """
    A recursive estimator of the pose on a position-image map.

    Poses are (3,), covariances (3, 3), descriptors (d,) of the map's describer. The last six
    methods have defaults for a localizer without belief, gate and learning.
    """

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a Gaussian belief about a pose (3,) with covariance (3, 3)."""

    def initialize_globally(self) -> None:
        """Start without knowledge of the pose."""

    def predict(self, odometry_increment: FloatArray) -> None:
        """Move the belief by an increment (3,) in the base frame."""

    def update(self, descriptor: np.ndarray) -> None:
        """Update the belief by the descriptor of an image."""

    def estimate(self) -> PoseEstimate:
        """Summarize the belief."""

    def wants_image(self) -> bool:
        """Whether an update is due after the motion so far; if not, skip `describe`."""

    def request_update(self) -> None:
        """Let the next image update the belief even if the robot has not moved."""
        return

    def set_time(self, seconds: float) -> None:
        """Set the time of the next image, in seconds of any clock."""
        return

    def particles(self, size: int) -> FloatArray:
        """Poses (size, 3) drawn from the belief; (0, 3) without one."""
        return np.zeros((0, 3))

    def follow_map(self, kernel_map: KernelMap) -> bool:
        """Continue on a map with more images at its end; return False where it is impossible."""
        return False

    def force_confirmed(self) -> None:
        """Treat the belief as confirmed by images a moment ago."""
        return

    def set_odometry_prior(self, learnt: Calibration) -> None:
        """Set odometry errors that were learnt in an earlier drive, from the next start on."""
        return


class UpdateGate:
    """
    A gate for images that opens after `min_distance` metres of travel or `min_angle` radians.

    `due`: whether the next image should update the belief. `metres`: the travel since the last
    image that did.

    Images taken nearly at one place share their errors; counting each as independent makes a
    belief too sure ([PR] section 8.3 and AMCL do the same). Where images are rare, take the one
    that is nearest to the distance, even if it comes a little before. A pose that jitters about
    one place (visual odometry, a Kalman filter) does not move: count motion from a tenth of the
    distance on.
    """

    def __init__(self, min_distance: float, min_angle: float) -> None:
        self._wanted = np.array([min_distance, min_angle])
        self.reopen()

    def reopen(self) -> None:
        """Restart, and let the next image pass."""
        self.restart()
        self.open()

    def open(self) -> None:  # noqa: A003
        """Let the next image pass, whatever the travel."""
        self._open = self.due = True

    def restart(self) -> None:
        """Measure the travel from here."""
        self._open, self.due = False, not self._wanted.all()
        self._travel, self._moved, self.metres = np.zeros(2), np.zeros(3), 0.0

    def add(self, increment: FloatArray) -> None:
        """Add the odometry increment (3,) between two images."""
        self._moved = se2.compose(self._moved, increment)
        sizes = se2.magnitude(np.stack([increment, self._moved]))
        step, size = np.transpose(sizes)
        travel = self._travel + size
        self.metres = float(travel[0])
        # from half a step before the distance on, no later image is nearer to it
        self.due = self._open or bool(np.any(travel + 0.5 * step >= self._wanted))
        if np.any(size > 0.1 * self._wanted):
            self._travel, self._moved = travel, np.zeros(3)


def check_start(pose: FloatArray, covariance: FloatArray) -> None:
    """Raise LocalizationError unless a belief can start from a pose (3,), covariance (3, 3)."""
    pose, covariance = np.asarray(pose), np.asarray(covariance)
    if pose.shape != (3,) or not np.isfinite(pose).all():
        raise LocalizationError(
            f'expected finite x, y, heading to start from, got {pose.tolist()}'
        )
    if covariance.shape != (3, 3) or not is_covariance(covariance):
        raise LocalizationError(
            'expected a finite covariance (3, 3) of x, y, heading to start from, symmetric and '
            f'negative in no direction, got {covariance.tolist()}'
        )


def is_covariance(matrix: FloatArray) -> bool:
    """Whether a matrix (n, n) is finite, symmetric, and positive semidefinite up to rounding."""
    if not np.isfinite(matrix).all():
        return False
    unit = matrix / max(float(np.abs(matrix).max()), np.finfo(np.float64).tiny)
    return bool(np.abs(unit - unit.T).max() <= 1e-6 and np.linalg.eigvalsh(unit)[0] >= -1e-6)
