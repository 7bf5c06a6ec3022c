"""Parameters of the methods that the filter is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kbr_localization.configuration import parameter, validate, with_default
from kbr_localization.localization.config import KbrConfig


def _odometry_calibration(default: str = 'mapped') -> Any:
    return parameter(
        default,
        'systematic errors of the odometry: mapped takes out those of the runs of the map, off '
        'takes them for zero',
        choices=('mapped', 'off'),
    )


@dataclass(frozen=True)
class NearestConfig:
    """The nearest image (NAI) has no parameters."""


@dataclass(frozen=True)
class DeadReckoningConfig:
    """Parameters of dead reckoning; raises ConfigurationError as the others do."""

    odometry_calibration: str = _odometry_calibration()
    noise_scale: float = parameter(10.0, 'factor on the motion variances', 1e-3, 1e4)

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True)
class MethodConfig:
    """
    What every method with a belief has.

    Raises ConfigurationError for a value outside of its range.
    """

    covariance_scale: float = parameter(
        1.0, 'calibration of the reported covariance', low=1e-3, high=1e3
    )
    localized_radius: float = with_default(KbrConfig, 'localized_radius', 1.0)
    localized_mass: float = parameter(
        0.9, 'fraction of the belief within the radius that makes a pose sure', low=0.0, high=1.0
    )

    def __post_init__(self) -> None:
        validate(self)

    @property
    def mode_bandwidth(self) -> float:
        """Bandwidth in metres with which the mode of a belief is sought."""
        return 0.64 * self.localized_radius


@dataclass(frozen=True)
class GatedConfig(MethodConfig):
    """Parameters of a method that moves its belief between the images that it uses."""

    odometry_calibration: str = _odometry_calibration()
    update_min_d: float = with_default(KbrConfig, 'update_min_d', 0.4)
    update_min_a: float = with_default(KbrConfig, 'update_min_a', 0.15)
    noise_scale: float = parameter(8.0, 'factor on the motion variances', 1e-3, 1e4)


@dataclass(frozen=True)
class OnMapConfig(MethodConfig):
    """
    Parameters of a belief on the map poses; the defaults are those of fKBF ([KBR] section 4.3).

    They are the best of a search on training runs.
    """

    position_bandwidth: float = parameter(
        1.3, 'bandwidth of k_X in x and y, metres', low=1e-3, high=100.0
    )
    heading_bandwidth: float = parameter(
        0.45, 'bandwidth of k_X in (cos, sin) of the heading', low=1e-3, high=100.0
    )
    state_ridge: float = parameter(
        0.12, 'n epsilon in G_X + n epsilon I, for k_X with unit diagonal', low=1e-9, high=1e3
    )
    delta: float = parameter(
        2e-3, 'regularisation delta of the kernel Bayes rule', low=1e-12, high=1e12
    )

    @property
    def mode_bandwidth(self) -> float:
        """Bandwidth in metres with which the mode of a belief is sought."""
        return 0.8 * self.position_bandwidth


@dataclass(frozen=True)
class PrintedConfig(OnMapConfig):
    """
    Parameters of Algorithm 1 of [MbKSR] as printed, which takes the odometry as it is.

    The defaults are the best of a search on training runs.
    """

    state_ridge: float = with_default(OnMapConfig, 'state_ridge', 0.5)
    odometry_calibration: str = _odometry_calibration('off')


@dataclass(frozen=True)
class AdaptedConfig(OnMapConfig):
    """
    Parameters of Algorithm 1 with the steps that make it work on sparse maps.

    The defaults are the best of a search on training runs.
    """

    covariance_scale: float = with_default(MethodConfig, 'covariance_scale', 3.0)
    position_bandwidth: float = with_default(OnMapConfig, 'position_bandwidth', 0.75)
    heading_bandwidth: float = with_default(OnMapConfig, 'heading_bandwidth', 0.63)
    state_ridge: float = with_default(OnMapConfig, 'state_ridge', 0.2)
    delta: float = with_default(OnMapConfig, 'delta', 0.2)
    odometry_calibration: str = _odometry_calibration()
    bayes_rule: str = parameter(
        'thresholded',
        'regularisation of the kernel Bayes rule',
        choices=('squared', 'thresholded'),
    )
    sharpening: float = parameter(
        0.03, 'tau in k_Y = exp((k - 1) / tau); 0 leaves the image kernel as it is', low=0.0
    )
    multi_step: bool = parameter(True, 'compose the predictions between two updates, project once')
    update_min_d: float = parameter(
        0.5, 'travel in metres after which an image updates the belief', low=0.0, high=100.0
    )
    update_min_a: float = with_default(GatedConfig, 'update_min_a', 0.35)
    noise_scale: float = parameter(
        36.0, 'factor on the variances of the steps from image to image', low=1e-3, high=1e4
    )


@dataclass(frozen=True)
class NearestNeighbourConfig(GatedConfig):
    """
    Parameters of the k-nearest-neighbour observation model, tuned like the filter's own.

    The defaults are the best of a search on training runs.
    """

    covariance_scale: float = with_default(MethodConfig, 'covariance_scale', 0.6)
    neighbours: int = parameter(15, 'map images that say where the robot may be', 1, 1000)
    power: float = parameter(60.0, 'exponent on the similarities', 0.0, 1000.0)
    position_bandwidth: float = parameter(0.4, 'spread about a neighbour, metres', 1e-3, 100.0)
    heading_bandwidth: float = parameter(0.2, 'spread about a neighbour, radians', 1e-3, 10.0)
    outlier_rate: float = parameter(0.005, 'likelihood far from all neighbours', 1e-12, 1.0)
    points: int = parameter(1000, 'number of particles', 10, 1_000_000)


@dataclass(frozen=True)
class KmcfConfig(GatedConfig):
    """
    Parameters of the Kernel Monte Carlo Filter [KMCF].

    The defaults are the best of a search on training runs; `position_bandwidth` without a value
    of its own is wider on sparse maps, see `method_configs.default_values`.
    """

    covariance_scale: float = with_default(MethodConfig, 'covariance_scale', 2.0)
    update_min_d: float = with_default(GatedConfig, 'update_min_d', 0.33)
    update_min_a: float = with_default(GatedConfig, 'update_min_a', 0.12)
    noise_scale: float = with_default(GatedConfig, 'noise_scale', 0.55)
    position_bandwidth: float = parameter(
        1.0,
        'bandwidth of k_X in x and y, metres; by default at least 6 times the distance between '
        'images of the map, up to 2.9',
        low=1e-3,
        high=100.0,
    )
    heading_bandwidth: float = with_default(OnMapConfig, 'heading_bandwidth', 0.6)
    state_ridge: float = with_default(OnMapConfig, 'state_ridge', 0.24)
    delta: float = with_default(OnMapConfig, 'delta', 1.2e-3)
    bayes_rule: str = with_default(AdaptedConfig, 'bayes_rule', 'squared')
    sharpening: float = with_default(AdaptedConfig, 'sharpening', 0.017)
    points: int = parameter(400, 'points that are herded and moved', 10, 1_000_000)


@dataclass(frozen=True)
class KernelKalmanConfig(GatedConfig):
    """
    Parameters of the subspace kernel Kalman filter [KKR].

    The defaults are the best of a search on training runs.
    """

    covariance_scale: float = with_default(MethodConfig, 'covariance_scale', 2.5)
    update_min_d: float = with_default(GatedConfig, 'update_min_d', 0.3)
    update_min_a: float = with_default(GatedConfig, 'update_min_a', 0.3)
    noise_scale: float = with_default(GatedConfig, 'noise_scale', 3.3)
    position_bandwidth: float = with_default(OnMapConfig, 'position_bandwidth', 1.8)
    heading_bandwidth: float = with_default(OnMapConfig, 'heading_bandwidth', 1.1)
    state_ridge: float = parameter(
        0.018, 'regularisation of the conditional operators, for k_X with unit diagonal', 1e-9, 1e3
    )
    delta: float = parameter(
        6e-4, 'variance kappa of the observation in the gain', low=1e-12, high=1e12
    )
    sharpening: float = with_default(AdaptedConfig, 'sharpening', 0.4)
    subspace: int = parameter(200, 'map poses that span the subspace', 2, 10_000)


@dataclass(frozen=True)
class GaussianProcessConfig(GatedConfig):
    """
    Parameters of the Gaussian-process observation model [GP-PF].

    The defaults are the best of a search on training runs.
    """

    covariance_scale: float = with_default(MethodConfig, 'covariance_scale', 0.35)
    update_min_d: float = with_default(GatedConfig, 'update_min_d', 0.15)
    update_min_a: float = with_default(GatedConfig, 'update_min_a', 0.3)
    noise_scale: float = with_default(GatedConfig, 'noise_scale', 10.0)
    components: int = parameter(43, 'principal components of the image kernel', 1, 1000)
    position_bandwidth: float = parameter(
        1.0, 'length scale of the process in x and y, metres', low=1e-3, high=100.0
    )
    heading_bandwidth: float = parameter(
        0.45, 'length scale of the process in (cos, sin) of the heading', low=1e-3, high=100.0
    )
    noise: float = parameter(
        0.45, 'variance of the noise, as a fraction of that of a component', low=1e-6, high=1e3
    )
    power: float = parameter(
        0.1, 'exponent on the likelihood: images close by err alike', low=0.0, high=100.0
    )
    outlier_rate: float = parameter(
        1e-5, 'likelihood elsewhere, relative to the best particle', low=1e-12, high=1.0
    )
    points: int = with_default(NearestNeighbourConfig, 'points', 1000)
