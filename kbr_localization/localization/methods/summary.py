"""From a belief on points to the answer of a method that the filter is compared with."""

from __future__ import annotations

from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.localizer import PoseEstimate, UNKNOWN_VARIANCE
from kbr_localization.localization.methods.configs import MethodConfig
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

_OTHER_WAY = 1.0  # radians: points that face as far off belong to another mode
_HALVINGS = 20


def nothing_known(why: dict[str, float], updated: bool = False) -> PoseEstimate:
    """Return the answer while there is no belief."""
    return PoseEstimate(np.zeros(3), unknown(), 0.0, 'not localized', dict(why), updated)


def unknown() -> FloatArray:
    """Covariance (3, 3) of a pose that nobody knows."""
    return np.diag(np.full(3, UNKNOWN_VARIANCE))


def summarize(
    belief: Belief, config: MethodConfig, why: dict[str, float], updated: bool
) -> PoseEstimate:
    """
    Mean and covariance about the belief's highest mode; the confidence is the mass about it.

    The status follows from that mass alone: these methods know no other sign of being lost.
    """
    members, mass = _about_mode(belief, config)
    pose, covariance = belief.moments(members)
    return stated(pose, config.covariance_scale * covariance, mass, config, belief, why, updated)


def summarize_about(
    pose: FloatArray, belief: Belief, config: MethodConfig, why: dict[str, float], updated: bool
) -> PoseEstimate:
    """Return a pose (3,) that was chosen otherwise, with the belief's spread and mass about it."""
    members = belief.within(pose, config.localized_radius, _OTHER_WAY)
    mass = float(belief.weights[members].sum())
    mean, covariance = belief.moments(members) if mass > 0.0 else (pose, 1e-4 * np.eye(3))
    offset = mean - pose
    second = covariance + np.outer(offset, offset)
    return stated(pose, config.covariance_scale * second, mass, config, belief, why, updated)


def stated(
    pose: FloatArray,
    covariance: FloatArray,
    mass: float,
    config: MethodConfig,
    belief: Belief,
    why: dict[str, float],
    updated: bool,
) -> PoseEstimate:
    """Estimate with the status that follows from the mass about the pose."""
    status = _status(mass, config)
    details = why | {'mass_in_radius': mass, 'effective_points': belief.effective_size()}
    known = unknown() if status == 'not localized' else covariance
    return PoseEstimate(pose, known, mass, status, details, updated)


def in_map_axes(variances: FloatArray, heading: float) -> FloatArray:
    """Covariance (3, 3) in the map frame of variances (3,) along, across and in heading."""
    cosine, sine = np.cos(heading), np.sin(heading)
    turn = np.array([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]])
    return np.asarray(turn @ np.diag(variances) @ turn.T)


def _about_mode(belief: Belief, config: MethodConfig) -> tuple[NDArray[np.bool_], float]:
    """Which points (m,) of a belief are about its highest mode, and their share of it."""
    # that of a kernel wider than the radius may lie between the points: then look closer
    for halving in range(_HALVINGS):
        mode = belief.mode(0.5**halving * config.mode_bandwidth)
        members = belief.within(mode, config.localized_radius, _OTHER_WAY)
        if members.any():
            break
    return members, float(belief.weights[members].sum())


def _status(mass: float, config: MethodConfig) -> str:
    if mass < 0.5 * config.localized_mass:
        return 'not localized'
    return 'localized' if mass >= config.localized_mass else 'uncertain'
