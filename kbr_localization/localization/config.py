"""Parameters of the filter `kbr`, with their ranges and the papers' symbols."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kbr_localization.configuration import Config, parameter
from kbr_localization.se2 import FloatArray
from kbr_localization.vision.describer import TYPICAL_SIMILARITY
import numpy as np
from scipy.spatial import cKDTree

_BANDWIDTHS = 1e-3, 100.0
LONG_DECAY = 1.6
"""Decay length in metres, two default bandwidths, from which on it is the bandwidth."""


@dataclass(frozen=True)
class KbrConfig(Config):
    """Parameters of the kernel Bayes filter `kbr`, kept in the map; a node may override them."""

    position_bandwidth: float = parameter(
        0.8, 'bandwidth of k_X in x and y, metres', *_BANDWIDTHS, search=(0.1, 2.0)
    )
    heading_bandwidth: float = parameter(
        0.3, 'bandwidth of k_X in (cos, sin) of the heading', *_BANDWIDTHS, search=(0.08, 1.2)
    )
    # the inverse of the whole map is in single precision: inaccurate for less than 1e-4
    state_ridge: float = parameter(
        0.15,
        'epsilon in G_X + n epsilon I, for k_X with unit diagonal; n counts an image and its '
        'neighbours',
        1e-4,
        1e3,
        search=(1e-3, 30.0),
    )
    image_bandwidth: float = parameter(
        0.17,
        'bandwidth of k_Y in the distance of two images whose features are centred by the mean of '
        'the map and scaled to length 1',
        *_BANDWIDTHS,
        search=(0.08, 0.6),
    )
    delta: float = parameter(
        1e9,
        'regularisation delta of the kernel Bayes rule; from 1e6 on it is the conditional kernel '
        'mean at the image',
        1e-9,
        1e12,
    )
    outlier_rate: float = parameter(
        0.05,
        'likelihood floor, as a fraction of the maximum over the points',
        0.0,
        1.0,
        search=(1e-4, 0.3),
    )
    noise_scale: float = parameter(
        10.0,
        'factor on the motion variances estimated from the runs',
        1e-3,
        1e4,
        search=(0.2, 50.0),
    )
    odometry_calibration: str = parameter(
        'learnt',
        'systematic errors of the odometry (offset, mounting, scales, drift): learnt starts '
        'from the errors of the runs of the map and learns while the robot drives, mapped keeps '
        'them, off corrects none',
        choices=('learnt', 'mapped', 'off'),
    )
    update_min_d: float = parameter(
        0.2,
        'least travel in metres between two images that update the belief',
        0.0,
        100.0,
        search=(0.05, 1.0),
    )
    update_min_a: float = parameter(
        0.15, 'the same for turning, in radians', 0.0, 7.0, search=(0.05, 0.5)
    )
    points: int = parameter(1000, 'points of the belief', 10, 100_000)
    carried_rate: float = parameter(
        3e-5,
        'prior probability, per metre of travel, of being carried elsewhere, and of new odometry '
        'errors (tyres, load); 0 never looks elsewhere',
        0.0,
        0.5,
    )
    covariance_scale: float = parameter(1.0, 'factor on the reported covariance', 1e-3, 1e3)
    localized_radius: float = parameter(
        1.0, 'radius in metres within which the belief lies when localized', 0.01, 1000.0
    )
    localized_mass: float = parameter(
        0.9, 'posterior probability of that radius when localized', 0.05, 1.0
    )

    @property
    def finite_delta(self) -> bool:
        """Whether `delta` makes kernel Bayes' rule differ from the conditional kernel mean."""
        return self.delta < 1e6


def sensible_config(
    poses: FloatArray, cameras: Sequence[str] = (), decay_length: float = 0.0
) -> KbrConfig:
    """
    Return the default parameters for a map with poses (n, 3) and these cameras.

    `decay_length`: metres in which the similarity of images falls by a factor e (0: unknown).
    From `LONG_DECAY` on it is the position bandwidth, and other distances grow with it: a narrower
    kernel would draw the belief to the path of the map's runs.

    With c cameras the kernels are multiplied before they are centred. For a typical kernel value b
    a change of one camera then counts b^(c - 1) / (1 - b^c) in place of 1 / (1 - b): the image
    bandwidth shrinks by the ratio.

    Lengths shrink on a small map, such as a table top: the position bandwidth is at most 1.6 times
    the spread of the positions (a robust form of the median heuristic, [KBR] section 5.3). The
    heading bandwidth grows, so that the kernel reaches as many images as before, and so does the
    turn between two updates. `localized_radius` is 1 m, but at least 3/4 of the decay length that
    is the bandwidth, and twice the distance of neighbouring images, the resolution of the map.
    """
    defaults, scale = KbrConfig(), length_scale(poses, decay_length)
    broader, spacing = max(min(3.0, 1.0 / scale), 1.0), image_spacing(poses)
    typical, count = TYPICAL_SIMILARITY, max(1, len(cameras))
    change = typical ** (count - 1) * (1.0 - typical) / (1.0 - typical**count)
    return replace(
        defaults,
        position_bandwidth=scale * defaults.position_bandwidth,
        heading_bandwidth=broader * defaults.heading_bandwidth,
        update_min_d=scale * defaults.update_min_d,
        update_min_a=broader * defaults.update_min_a,
        localized_radius=min(max(defaults.localized_radius, 0.6 * scale, 2.0 * spacing), 1000.0),
        image_bandwidth=defaults.image_bandwidth * np.sqrt(change),
    )


def in_metres_of(values: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """Scale those parameters of a method that are in metres of the map."""
    # update_min_d is in metres of the odometry, localized_radius is a demand of the user
    name, found = 'position_bandwidth', dict(values)
    if name in found:
        found[name] = float(np.clip(scale * found[name], *_BANDWIDTHS))
    return found


def length_scale(poses: FloatArray, decay_length: float = 0.0) -> float:
    """Return the factor on lengths for a map with poses (n, 3): see `sensible_config`."""
    spread = float(np.sqrt(np.mean(np.var(poses[:, :2], axis=0))))
    unit = decay_length / KbrConfig().position_bandwidth if decay_length > LONG_DECAY else 1.0
    return min(unit, max(0.05, spread / 0.5))


def image_spacing(poses: FloatArray) -> float:
    """Return the median distance in metres from a place of poses (n, 3) to the nearest other."""
    # images within a small fraction of the bandwidth are at one place: the robot stood still
    spot = 0.05 * length_scale(poses) * KbrConfig().position_bandwidth
    _, first = np.unique(np.round(poses[:, :2] / spot), axis=0, return_index=True)
    places = poses[first, :2]
    if len(places) < 2:
        return 0.0
    distances, _ = cKDTree(places).query(places[:10_000], k=2)
    return float(np.median(distances[:, 1]))
