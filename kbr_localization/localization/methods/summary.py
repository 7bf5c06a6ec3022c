"""From a belief on points to the answer of a method that the filter is compared with."""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.localizer import PoseEstimate, status_of, unknown
from kbr_localization.localization.methods.configs import MethodConfig
from kbr_localization.se2 import FloatArray
import numpy as np
from scipy.spatial import cKDTree

_HEADING_BANDWIDTH = 0.4  # with which the mode of a belief is sought, in (cos, sin)


def summarize(
    belief: Points,
    config: MethodConfig,
    diagnostics: dict[str, float],
    updated: bool,
    gaps: FloatArray | float = 0.0,
) -> PoseEstimate:
    """
    Mean and covariance about the belief's highest mode; the confidence is the mass about it.

    The status follows from that mass alone: these methods know no other sign of being lost.
    `gaps` (3, 3): covariance of a pose about its map pose, for a belief that lives on those.
    """
    widths = np.array([config.mode_bandwidth] * 2 + [_HEADING_BANDWIDTH] * 2)
    mode = belief.mode(widths)
    pose, covariance, mass = belief.moments_about(mode, config.localized_radius)
    return _stated(pose, covariance + gaps, mass, config, belief, diagnostics, updated)


def summarize_about(
    pose: FloatArray,
    belief: Points,
    config: MethodConfig,
    diagnostics: dict[str, float],
    updated: bool,
    gaps: FloatArray | float = 0.0,
) -> PoseEstimate:
    """Return a pose (3,) that was chosen otherwise, with the belief's spread and mass about it."""
    mean, covariance, mass = belief.moments_about(pose, config.localized_radius)
    if mass <= 0.0:
        mean, covariance = pose, np.zeros((3, 3))
    offset = mean - pose
    offset[2] = se2.wrap_angle(offset[2])
    second = covariance + np.outer(offset, offset) + gaps
    return _stated(pose, second, mass, config, belief, diagnostics, updated)


def gaps_between(poses: FloatArray) -> FloatArray:
    """
    Covariance (3, 3) of a pose about the nearest of the map's poses (n, 3).

    Taken from the distances between a map pose and the nearest other one, a quarter of their mean
    square: the pose lies between the two.
    """
    smallest = np.diag([1e-4, 1e-4, 1e-4])
    if len(poses) < 2:
        return smallest
    distances, nearest = cKDTree(poses[:, :2]).query(poses[:, :2], k=2)
    turns = se2.wrap_angle(poses[nearest[:, 1], 2] - poses[:, 2])
    # poses at one place may face anywhere: the median tells how far neighbours turn
    squares = [np.mean(distances[:, 1] ** 2), np.mean(distances[:, 1] ** 2), np.median(turns**2)]
    return smallest + 0.25 * np.diag(squares)


def _stated(
    pose: FloatArray,
    covariance: FloatArray,
    mass: float,
    config: MethodConfig,
    belief: Points,
    diagnostics: dict[str, float],
    updated: bool,
) -> PoseEstimate:
    """Estimate with the status that follows from the mass about the pose."""
    status = status_of(mass, config.localized_mass)
    details = diagnostics | {
        'mass_in_radius': mass,
        'effective_points': float(belief.effective_size()),
    }
    scaled = config.covariance_scale * covariance
    known = unknown() if status == 'not localized' else scaled
    return PoseEstimate(pose, known, mass, status, details, updated)
