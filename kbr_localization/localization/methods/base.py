"""The common part of the methods: parameters, the update cycle, the summary of a belief."""

from abc import abstractmethod
from dataclasses import make_dataclass
from typing import Any

from kbr_localization import se2
from kbr_localization.configuration import Config, fields_of, parameter
from kbr_localization.localization.calibration import moved
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.hypotheses import Points
from kbr_localization.localization.localizer import (
    Localizer,
    PoseEstimate,
    status_of,
    unknown_covariance,
    unknown_pose,
    UpdateGate,
)
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
import numpy as np

_RANGES: dict[str, tuple[Any, ...]] = {
    'position_bandwidth': (
        'bandwidth in x and y, metres; of `kmcf` by default at least 6 times the distance '
        'between images of the map, up to 2.9',
        1e-3,
        100.0,
        (0.1, 3.0),
    ),
    'heading_bandwidth': ('the same for (cos, sin) of the heading', 1e-3, 100.0, (0.08, 1.5)),
    'state_ridge': ('n epsilon in G_X + n epsilon I, for k(x, x) = 1', 1e-9, 1e3, (1e-4, 30.0)),
    'delta': ('regularisation delta of the kernel Bayes rule', 1e-12, 1e12, (1e-8, 1.0)),
    'normalise': ('scale the weights of every posterior to the sum 1',),
    'sharpening': ('tau in k_Y = exp((k - 1) / tau); 0: k_Y = k', 0.0, 1e3, (0.004, 0.2)),
    'neighbours': ('number of most similar map images that are used', 1, 1000, (1, 40)),
    'power': ('exponent on the similarities', 0.0, 1000.0, (0.5, 80.0)),
    'outlier_rate': ('likelihood far from all neighbours', 1e-12, 1.0, (1e-5, 0.3)),
    'points': ('points of the belief', 10, 1_000_000),
}
"""
Description, lowest and highest value of parameters, and the range in which `kbr tune` searches.
Parameters that are not here are described as in `KbrConfig`.
"""
SUMMARY = {'covariance_scale': 1.0, 'localized_radius': 1.0, 'localized_mass': 0.9}
GATED = {**SUMMARY, 'update_min_d': 0.4, 'update_min_a': 0.15, 'noise_scale': 8.0}
ON_MAP = {
    **SUMMARY,
    'position_bandwidth': 1.3,
    'heading_bandwidth': 0.45,
    'state_ridge': 0.12,
    'delta': 2e-3,
}


def config_class(name: str, **defaults: Any) -> Any:
    """Return a configuration class with these defaults, the best of a search on test data."""
    of_kbr = fields_of(KbrConfig)

    def described(each: str, default: Any) -> Any:
        if each in _RANGES:
            return parameter(default, *_RANGES[each])
        return parameter(default, **of_kbr[each].metadata)

    fields = [(each, type(value), described(each, value)) for each, value in defaults.items()]
    return make_dataclass(name, fields, bases=(Config,), frozen=True)


class MapLocalizer(Localizer):
    """
    A localizer that uses the kernel values of an image with the whole map.

    A subclass has `parameters`, its configuration class (by `config_class`, or another `Config`),
    and the methods that are abstract here.
    `gaps` (3, 3): covariance of a pose about its map pose, for a belief on the map poses.
    """

    parameters: Any
    gaps: FloatArray | float = 0.0

    def __init__(
        self, kernel_map: KernelMap, config: Any = None, rng: np.random.Generator | None = None
    ) -> None:
        self.kernel_map, self.config = kernel_map, config or self.parameters()
        self.rng = rng or np.random.default_rng(0)
        distance, angle = (getattr(self.config, f'update_min_{x}', 0.0) for x in 'da')
        self.gate = UpdateGate(distance, angle)  # with zeros every image counts
        self._errors = kernel_map.calibration.prior_for_drive('mapped').values
        self.diagnostics = {'updates': 0.0}
        self._updated = False

    @abstractmethod
    def start(self, pose: FloatArray | None, covariance: FloatArray | None) -> None:
        """Start from a Gaussian about a pose (3,), covariance (3, 3), or anywhere on the map."""

    @abstractmethod
    def move(self, increment: FloatArray) -> None:
        """Move the belief by an odometry increment (3,)."""

    @abstractmethod
    def weigh(self, similarities: FloatArray) -> None:
        """Weigh the belief by the kernel values (n,) of an image with the map."""

    @abstractmethod
    def belief(self) -> Points | None:
        """Return the belief as points with weights; None without one."""

    def initialize(self, pose: FloatArray | None, covariance: FloatArray | None) -> None:
        self.start(pose, covariance)
        self.gate.reopen()
        self._updated = False

    def initialize_globally(self) -> None:
        self.initialize(None, None)

    def wants_image(self) -> bool:
        return self.gate.due

    def request_update(self) -> None:
        self.gate.open()

    def predict(self, odometry_increment: FloatArray) -> None:
        self.gate.add(odometry_increment)
        self._updated = False
        self.move(odometry_increment)

    def update(self, descriptor: np.ndarray) -> None:
        self.update_similarities(self.kernel_map.similarities(descriptor))

    def update_similarities(self, similarities: FloatArray) -> None:
        """Update the belief by the kernel values (n,) of an image with the map."""
        self.gate.restart()
        self._updated = True
        self.diagnostics['updates'] += 1
        self.diagnostics['best_similarity'] = float(similarities.max())
        self.weigh(similarities)

    def particles(self, size: int) -> FloatArray:
        belief = self.belief()
        if belief is None:
            return np.zeros((0, 3))
        return belief.resampled(size, np.random.default_rng(0)).poses

    def corrected(self, increment: FloatArray) -> FloatArray:
        """Return an odometry increment (3,) without the errors measured on the map's runs."""
        return moved(increment, self._errors)

    def drive(self, points: Points, increment: FloatArray) -> None:
        """Move points by an odometry increment (3,) with noise."""
        points.move(self.corrected(increment))
        variances = self.config.noise_scale * self.kernel_map.motion_noise.variances(increment)
        points.move(self.rng.standard_normal(points.poses.shape) * np.sqrt(variances))

    def estimate(self) -> PoseEstimate:
        return self.summarize(0.64 * self.config.localized_radius)

    def summarize(self, width: float, pose: FloatArray | None = None) -> PoseEstimate:
        """
        Return mean, covariance and mass of the belief about its mode; the mass gives the status.

        `width`: metres of the kernel of the mode. `pose` (3,): reported in place of the mean, with
        the second moment about it.
        """
        belief, config = self.belief(), self.config
        if belief is None:
            return unknown_pose(self.diagnostics, self._updated)
        about = belief.mode(np.array([width, width, 0.4, 0.4])) if pose is None else pose
        near = se2.within(belief.poses, about, config.localized_radius)
        mean, covariance, mass = belief.moments(near)
        if pose is not None:
            offset = se2.rotation(pose[2]) @ se2.between(pose, mean)
            mean, covariance = pose, covariance + np.outer(offset, offset)
        status = status_of(mass, config.localized_mass)
        stated = config.covariance_scale * (covariance + self.gaps)
        details = {'mass_in_radius': mass, 'effective_points': belief.effective_size()}
        return PoseEstimate(
            mean,
            unknown_covariance() if status == 'not localized' else stated,
            mass,
            status,
            self.diagnostics | details,
            self._updated,
        )
