"""What the methods that the filter is compared with share: parameters, update cycle, answer."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from kbr_localization import se2
from kbr_localization.configuration import parameter, validate, with_default
from kbr_localization.localization import calibration
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.localizer import (
    Localizer,
    nothing_known,
    PoseEstimate,
    status_of,
    unknown,
)
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.update_gate import UpdateGate
from kbr_localization.se2 import FloatArray
import numpy as np


def odometry_calibration(default: str = 'mapped') -> Any:
    """Declare the parameter of the systematic errors of the odometry."""
    return parameter(
        default,
        'systematic errors of the odometry: mapped corrects what the runs of the map showed, off '
        'nothing',
        choices=('mapped', 'off'),
    )


@dataclass(frozen=True)
class MethodConfig:
    """
    Parameters of every method with a belief; the defaults are the best of a search on test data.

    Raises ConfigurationError for a value outside of its range.
    """

    covariance_scale: float = parameter(1.0, 'factor on the reported covariance', 1e-3, 1e3)
    localized_radius: float = with_default(KbrConfig, 'localized_radius', 1.0)
    localized_mass: float = parameter(
        0.9, 'fraction of the belief within the radius that makes a pose sure', low=0.05, high=1.0
    )

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True)
class GatedConfig(MethodConfig):
    """Parameters of a method that moves its belief between the images that it uses."""

    odometry_calibration: str = odometry_calibration()
    update_min_d: float = with_default(KbrConfig, 'update_min_d', 0.4)
    update_min_a: float = with_default(KbrConfig, 'update_min_a', 0.15)
    noise_scale: float = parameter(
        8.0, 'factor on the motion variances', 1e-3, 1e4, search=(0.2, 50.0)
    )


class MapLocalizer(Localizer):
    """
    A localizer that takes in an image by its kernel values with the whole map.

    A subclass has `start`, `start_anywhere`, `move`, `weigh` and `belief`. `gaps` (3, 3):
    covariance of a pose about its map pose, for a belief that lives on those.
    """

    config: Any
    gaps: FloatArray | float = 0.0

    def __init__(
        self, kernel_map: KernelMap, config: Any, rng: np.random.Generator | None = None
    ) -> None:
        self.kernel_map, self.config = kernel_map, config
        self.rng = rng or np.random.default_rng(0)
        distance, angle = (getattr(config, f'update_min_{x}', 0.0) for x in 'da')
        self.gate = UpdateGate(distance, angle)  # with zeros every image counts
        how = getattr(config, 'odometry_calibration', 'off')
        self._errors = kernel_map.calibration.for_a_drive(how).values
        self.diagnostics = {'updates': 0.0}
        self._updated = False

    @abstractmethod
    def start(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Replace the belief by a Gaussian about a pose (3,), covariance (3, 3)."""

    @abstractmethod
    def start_anywhere(self) -> None:
        """Replace the belief by the uniform law on the map."""

    @abstractmethod
    def move(self, increment: FloatArray) -> None:
        """Move the belief by an odometry increment (3,)."""

    @abstractmethod
    def weigh(self, similarities: FloatArray) -> None:
        """Take in the kernel values (n,) of an image."""

    @abstractmethod
    def belief(self) -> Points | None:
        """Return the belief as points with weights; None without one."""

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a Gaussian about a pose (3,), covariance (3, 3)."""
        self.start(pose, covariance)
        self.gate.reopen()
        self._updated = False

    def initialize_globally(self) -> None:
        """Start anywhere on the map."""
        self.start_anywhere()
        self.gate.reopen()
        self._updated = False

    def wants_image(self) -> bool:
        """Whether the robot has moved enough since the last update, or there was none."""
        return self.gate.due()

    def wants_image_after(self, odometry_increment: FloatArray) -> bool:
        """Whether the robot will have moved enough after a further increment (3,)."""
        return self.gate.would_be_due(odometry_increment)

    def predict(self, odometry_increment: FloatArray) -> None:
        """Move the belief by an increment (3,)."""
        self.gate.add(odometry_increment)
        self._updated = False
        self.move(odometry_increment)

    def update(self, descriptor: np.ndarray) -> None:
        """Take in an image by its descriptor (d,)."""
        self.update_similarities(self.kernel_map.similarities(descriptor))

    def update_similarities(self, similarities: FloatArray) -> None:
        """Take in an image by its kernel values (n,) with the map."""
        self.gate.restart()
        self._updated = True
        self.diagnostics['updates'] += 1
        self.diagnostics['best_similarity'] = float(similarities.max())
        self.weigh(similarities)

    def estimate(self) -> PoseEstimate:
        """Summarize the belief about its highest mode."""
        belief = self.belief()
        if belief is None:
            return nothing_known(self.diagnostics, self._updated)
        width = self.mode_width()
        return self.summarize(belief, belief.mode(np.array([width, width, 0.4, 0.4])))

    def particles(self, size: int) -> FloatArray:
        """Poses (size, 3) drawn from the belief; none without one."""
        belief = self.belief()
        if belief is None:
            return np.zeros((0, 3))
        return belief.resampled(size, np.random.default_rng(0)).poses

    def mode_width(self) -> float:
        """Return the bandwidth in metres with which the mode of the belief is sought."""
        return 0.64 * float(self.config.localized_radius)

    def corrected(self, increment: FloatArray) -> FloatArray:
        """Return an odometry increment (3,) without its systematic errors."""
        return calibration.moved(increment, self._errors)

    def summarize(
        self, belief: Points, about: FloatArray, chosen: FloatArray | None = None
    ) -> PoseEstimate:
        """
        Mean, covariance and mass of a belief about a pose (3,); the status follows from the mass.

        `chosen`: a pose to report in place of the mean, with the second moment about it.
        """
        config = self.config
        pose, covariance, mass = belief.moments_about(about, config.localized_radius)
        if chosen is not None:
            offset = pose - chosen
            offset[2] = se2.wrap_angle(offset[2])
            # no point is near: only the gaps are left
            covariance = covariance + np.outer(offset, offset) if mass > 0.0 else np.zeros((3, 3))
            pose = chosen
        status = status_of(mass, config.localized_mass)
        known = config.covariance_scale * (covariance + self.gaps)
        details = self.diagnostics | {
            'mass_in_radius': mass,
            'effective_points': float(belief.effective_size()),
        }
        covariance = unknown() if status == 'not localized' else known
        return PoseEstimate(pose, covariance, mass, status, details, self._updated)
