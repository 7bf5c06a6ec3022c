"""Parameters of the filters, with their ranges and the papers' symbols."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kbr_localization.configuration import parameter, validate
from kbr_localization.se2 import FloatArray
from kbr_localization.vision.multi_camera import TYPICAL_SIMILARITY
import numpy as np

SMALLEST_BANDWIDTH = 1e-3
_BROADEST = 3.0  # heading bandwidth of the smallest maps, over the default
_USUAL_SPREAD = 0.5  # of the positions, metres: maps that are smaller shrink all distances


@dataclass(frozen=True)
class FilterConfig:
    """
    Parameters of the kernel Bayes filter.

    Kept in the map, where building or tuning chose them; a node may override them. Raises
    ConfigurationError for a value outside of its range.
    """

    off_map: bool = parameter(
        True, 'carry the belief on moving points; false keeps it on the map poses ([MbKSR] Alg. 1)'
    )
    multi_step: bool = parameter(
        True, 'compose the predictions between two updates analytically, project once'
    )
    bayes_rule: str = parameter(
        'thresholded',
        'regularisation of the kernel Bayes rule for a belief on the map poses',
        choices=('squared', 'thresholded'),
    )
    state_kernel: str = parameter(
        'exponential',
        'kernel k_X of poses: gaussian, matern (3/2) or exponential (Matern 1/2) on (x, y, cos, '
        'sin), or gaussian in the position times wrapped normal in the heading; for a belief that '
        'leaves the map; above 1024 images a gaussian one takes the place of the exponential',
        choices=('gaussian', 'matern', 'exponential', 'wrapped'),
    )
    position_bandwidth: float = parameter(
        0.8, 'bandwidth of k_X in x and y, metres', low=SMALLEST_BANDWIDTH, high=100.0
    )
    heading_bandwidth: float = parameter(
        0.3, 'bandwidth of k_X in (cos, sin) of the heading', low=SMALLEST_BANDWIDTH, high=100.0
    )
    state_ridge: float = parameter(
        0.15,
        'epsilon in G_X + n epsilon I, for k_X with unit diagonal; for a belief that leaves the '
        'map n counts an image and its neighbours, on the map poses it is 1',
        low=1e-9,
        high=1e3,
    )
    sharpening: float = parameter(
        0.015, 'tau in k_Y = exp((k - 1) / tau); 0 leaves the image kernel as it is', low=0.0
    )
    delta: float = parameter(
        1.0, 'regularisation delta of the kernel Bayes rule', low=1e-12, high=1e12
    )
    outlier_rate: float = parameter(
        0.05, 'share of an image that says nothing about the pose', low=0.0, high=1.0
    )
    outlier_growth: float = parameter(
        35.0,
        'how fast that share grows, on a map with gaps, as the best match gets worse and stands '
        'out less, per unit of k_Y in the exponent; 0 takes the same for every image',
        low=0.0,
        high=1e4,
    )
    initial_outlier_rate: float = parameter(
        0.01, 'the share for the first image of a global start', low=0.0, high=1.0
    )
    noise_scale: float = parameter(
        10.0, 'factor on the motion variances estimated from the runs', low=1e-3, high=1e4
    )
    update_min_d: float = parameter(
        0.4,
        'travel in metres after which an image updates the belief; the image nearest to it does',
        low=0.0,
        high=100.0,
    )
    update_min_a: float = parameter(0.15, 'the same of turning, in radians', low=0.0, high=7.0)
    start_share: float = parameter(
        0.6,
        'share of update_min_d and update_min_a that suffices after a global start, until the '
        'filter has been sure of a pose; 0 uses every image',
        low=0.0,
        high=1.0,
    )
    start_spread: float = parameter(
        0.2,
        'spread of the points before every update after a start or recovery, in bandwidths of '
        'k_X; it falls once the filter is sure; 0 for none',
        low=0.0,
        high=10.0,
    )
    motion_law: str = parameter(
        'gaussian',
        'law of the motion noise of a belief that leaves the map; cauchy has the same quartiles '
        'over a metre and the heavy tails of wheels that slip',
        choices=('gaussian', 'cauchy'),
    )
    odometry_drift: str = parameter(
        'learnt',
        'systematic turn of the odometry per metre: learnt goes on from that of the runs of the '
        'map while the robot drives, mapped keeps it, off takes it for zero',
        choices=('learnt', 'mapped', 'off'),
    )
    importance_weighted: bool = parameter(
        False,
        'solve the importance-weighted kernel Bayes rule with delta on the moved points; false '
        'takes its limit of large delta',
    )
    odometry_supervision: float = parameter(
        0.0,
        'weight of posterior regularisation ([kReg]) towards the pose that the odometry predicts',
        low=0.0,
        high=100.0,
    )
    points: int = parameter(1000, 'points that carry the belief', low=10, high=1_000_000)
    recovery_points: int = parameter(
        300, 'points that look for the robot elsewhere; 0 never recovers', low=0, high=100_000
    )
    recovery_rate: float = parameter(
        1e-2,
        'prior weight of having been carried elsewhere, per update; less where the map has gaps',
        low=0.0,
        high=0.5,
    )
    covariance_scale: float = parameter(
        0.075,
        'calibration of the reported covariance, on a map without gaps that shows what is seen',
        low=1e-3,
        high=1e3,
    )
    localized_radius: float = parameter(
        1.0, 'the pose is sure when the belief lies within this radius, metres', low=0.01
    )
    localized_mass: float = parameter(
        0.9, 'share of the belief within the radius that makes a pose sure', low=0.0, high=1.0
    )

    def __post_init__(self) -> None:
        validate(self)

    @property
    def mode_bandwidth(self) -> float:
        """Bandwidth in metres with which the mode of a belief is sought."""
        return 0.8 * self.position_bandwidth


def sensible_config(poses: FloatArray, cameras: int = 1) -> FilterConfig:
    """
    Return the defaults for a map with poses (n, 3), without tuning.

    With several cameras the kernels are multiplied before they are sharpened. A change of one
    camera's kernel then counts by the value of the others, and a sharpening that is smaller by so
    much makes up for it: as if each kernel had been sharpened by itself.

    Distances shrink on a map that is small itself, like a table top or one corner of a room: the
    bandwidth is at most the spread of the positions (a robust form of the median heuristic, [KBR]
    section 5.3, which alone would grow with the length of the corridors). That of the heading
    grows in return, so that the kernel sees as many images as before, and the turn between two
    updates with it; and the way between them shrinks with the square, because a camera that moves
    little also turns while it does.
    """
    spread = float(np.sqrt(np.mean(np.var(poses[:, :2], axis=0))))
    defaults = FilterConfig()
    scale = min(1.0, max(0.05, spread / _USUAL_SPREAD))
    broader = min(_BROADEST, 1.0 / scale)
    return replace(
        defaults,
        position_bandwidth=scale * defaults.position_bandwidth,
        heading_bandwidth=broader * defaults.heading_bandwidth,
        update_min_d=scale**2 * defaults.update_min_d,
        update_min_a=broader * defaults.update_min_a,
        sharpening=defaults.sharpening * TYPICAL_SIMILARITY ** (cameras - 1),
    )
