"""Run a localizer over frames: what the node does, offline."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
import time

from kbr_localization import se2
from kbr_localization.datasets import Dataset
from kbr_localization.datasets.frame import Image
from kbr_localization.errors import DatasetError, LocalizationError, VisionError
from kbr_localization.localization.localizer import check_start, Localizer, PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.registry import make_localizer
from kbr_localization.progress import tracked
from kbr_localization.se2 import FloatArray
from kbr_localization.trajectory import Trajectory
import numpy as np

Observer = Callable[[Localizer, PoseEstimate], None]


class Tracker:
    """
    Drive a localizer by stamped images and odometry poses.

    `used`: number of images given to the localizer; `skipped`: number, by reason, of images that
    cannot be read or described, whose motion counts all the same; `last_error`: of the last one.
    """

    def __init__(self, kernel_map: KernelMap, localizer: Localizer) -> None:
        self.kernel_map = kernel_map
        self.localizer = localizer
        self.skipped = Counter[str]()
        self.used = 0
        self.last_error = ''
        self._odometry: FloatArray | None = None
        self._blind = False  # the last image was unusable
        self._doubtful = False  # since then the pose may have left `localized_radius`
        self._inside = 1.0  # probability of this radius at the last usable image

    def initialize(
        self, pose: FloatArray, covariance: FloatArray, odometry: FloatArray | None = None
    ) -> None:
        """
        Start from a pose (3,) with covariance (3, 3) at the odometry pose `odometry` (3,).

        Without `odometry` it is the pose at the next frame. Raises LocalizationError for an
        invalid pose or covariance, and changes nothing then.
        """
        check_start(pose, covariance)
        self.localizer.initialize(pose, covariance)
        self._odometry = odometry

    def initialize_globally(self) -> None:
        self.localizer.initialize_globally()
        self._odometry = None

    def follow_map(self, kernel_map: KernelMap) -> bool:
        followed = self.localizer.follow_map(kernel_map)
        if followed:
            self.kernel_map = kernel_map
        return followed

    def process(
        self, stamp_ns: int, image: Image | Callable[[], Image], odometry: FloatArray
    ) -> PoseEstimate:
        """
        Process an image with the odometry pose (3,) at its stamp; return the pose estimate.

        The image, or the function that loads it, is used only when the localizer wants one. Skip
        and count an image that cannot be read or described. Raises LocalizationError for odometry
        that is not finite.
        """
        if not np.isfinite(odometry).all():
            raise LocalizationError(
                f'odometry at {stamp_ns * 1e-9:.3f} s is {odometry}: expected finite numbers'
            )
        if self._odometry is not None:
            self.localizer.predict(se2.between(self._odometry, odometry))
        self._odometry = np.array(odometry, dtype=np.float64)
        self.localizer.set_time(stamp_ns * 1e-9)
        if self.localizer.wants_image():
            descriptor = self._descriptor(image)
            self._blind = descriptor is None
            if descriptor is not None:
                self.localizer.update(descriptor)
                self.used += 1
        return self._estimate()

    def _estimate(self) -> PoseEstimate:
        """Return the estimate: uncertain once odometry alone may have left `localized_radius`."""
        estimate, config = self.localizer.estimate(), self.kernel_map.filter_config
        variance = float(np.linalg.eigvalsh(estimate.covariance[:2, :2])[-1])
        # probability of an error within the radius under this variance of x and of y
        inside = -float(np.expm1(-0.5 * config.localized_radius**2 / max(variance, 1e-12)))
        self._inside = self._inside if self._blind else inside
        least = config.localized_mass * self._inside
        sure = estimate.localized and inside >= least
        self._doubtful = self._blind and (self._doubtful or not sure)
        if self._doubtful and estimate.localized:
            return replace(estimate, status='uncertain')
        return estimate

    def _descriptor(self, image: Image | Callable[[], Image]) -> np.ndarray | None:
        """Return the descriptor (d,) of an image; None for one that is skipped."""
        try:
            image = image() if callable(image) else image
            # an array with one axis is a descriptor: the run was described before
            return image if len(image.shape) == 1 else self.kernel_map.describer.describe(image)
        except (DatasetError, VisionError) as error:
            broken = isinstance(error, DatasetError)
            self.skipped['broken image' if broken else 'unusable image'] += 1
            self.last_error = str(error)
        return None


def localize(
    kernel_map: KernelMap,
    dataset: Dataset,
    method: str = 'kbr',
    init: str = 'global',
    seed: int = 0,
    observe: Observer | None = None,
) -> Trajectory:
    """
    Localize a run: one pose for every frame.

    `init`: 'global' starts without knowledge, 'reference' from the first frame's true pose. Call
    `observe` with the localizer and its estimate after every frame. Raises LocalizationError when
    no image of the run could be used.
    """
    tracker = Tracker(kernel_map, make_localizer(method, kernel_map, seed))
    if init == 'global':
        tracker.initialize_globally()
    elif init == 'reference' and dataset[0].reference is not None:
        tracker.initialize(dataset[0].reference, np.diag([0.1, 0.1, 0.05]) ** 2)
    elif init == 'reference':
        raise LocalizationError(
            f'{dataset.name} has no reference pose for its first frame: start it globally'
        )
    else:
        raise LocalizationError(f'init: expected global or reference, got {init!r}')
    estimates, seconds = [], []
    for frame in tracked('localizing', dataset):
        start = time.process_time()
        estimates.append(tracker.process(frame.stamp_ns, frame.load_image, frame.odometry))
        seconds.append(time.process_time() - start)
        if observe is not None:
            observe(tracker.localizer, estimates[-1])
    if not estimates or (tracker.skipped and not tracker.used):
        raise LocalizationError(
            f'no image of {dataset.name} could be used: {tracker.last_error or "it has no frames"}'
        )
    return Trajectory(
        stamps_ns=np.array([frame.stamp_ns for frame in dataset], dtype=np.int64),
        poses=np.array([estimate.pose for estimate in estimates]),
        covariances=np.array([estimate.covariance for estimate in estimates]),
        confidences=np.array([estimate.confidence for estimate in estimates]),
        statuses=tuple(estimate.status for estimate in estimates),
        reasons=tuple(estimate.diagnostics for estimate in estimates),
        updated=np.array([estimate.updated for estimate in estimates]),
        seconds=np.array(seconds),
        skipped=dict(Counter(dataset.skipped) + tracker.skipped),
        last_error=tracker.last_error,
    )
