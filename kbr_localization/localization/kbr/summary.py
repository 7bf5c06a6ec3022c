"""From a belief on points to the answer that a robot can use."""

from __future__ import annotations

from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.localizer import PoseEstimate, UNKNOWN_VARIANCE
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

_LOST_EVIDENCE = 0.05  # of the best explanation on the map, smoothed over the last updates
_HALVINGS = 20

OTHER_WAY = 1.0
"""Radians: a belief that faces as far off is another one, and does not turn by itself."""


def nothing_known(why: dict[str, float], updated: bool = False) -> PoseEstimate:
    """Return the answer while there is no belief."""
    covariance = np.diag(np.full(3, UNKNOWN_VARIANCE))
    return PoseEstimate(np.zeros(3), covariance, 0.0, 'not localized', dict(why), updated)


def summarize(
    belief: Belief,
    config: FilterConfig,
    pending: FloatArray,
    evidence: float,
    why: dict[str, float],
    updated: bool,
    widening: float = 1.0,
    proven: bool = True,
) -> PoseEstimate:
    """
    Mean and covariance about the belief's highest mode, and how far they can be trusted.

    `pending` (3,): variances along, across and in heading of the motion since the points were
    last dispersed. `widening`: factor on the covariance, beside that of the configuration.
    `evidence`: how well the belief explained the last images, 1 for as well as the best place on
    the map, or lies in a gap of it. `proven`: whether it has explained enough of them. The
    confidence is the share of the belief near the mode.
    """
    members, mass = about_mode(belief, config)
    pose, covariance = belief.moments(members)
    status = _status(mass, evidence, config) if proven else 'not localized'
    if status == 'not localized':
        covariance = np.diag(np.full(3, UNKNOWN_VARIANCE))
    else:
        spread = covariance + in_map_axes(pending, pose[2])
        covariance = widening * config.covariance_scale * spread
    details = why | {
        'mass_in_radius': mass,
        'evidence': evidence,
        'effective_points': belief.effective_size(),
    }
    return PoseEstimate(pose, covariance, mass, status, details, updated)


def about_mode(belief: Belief, config: FilterConfig) -> tuple[NDArray[np.bool_], float]:
    """Which points (m,) of a belief are about its highest mode, and their share of it."""
    # that of a kernel wider than the radius may lie between the points: then look closer
    for halving in range(_HALVINGS):
        mode = belief.mode(0.5**halving * config.mode_bandwidth)
        members = belief.within(mode, config.localized_radius, OTHER_WAY)
        if members.any():
            break
    return members, float(belief.weights[members].sum())


def in_map_axes(variances: FloatArray, heading: float) -> FloatArray:
    """Covariance (3, 3) in the map frame of variances (3,) along, across and in heading."""
    cosine, sine = np.cos(heading), np.sin(heading)
    turn = np.array([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]])
    return np.asarray(turn @ np.diag(variances) @ turn.T)


def _status(mass: float, evidence: float, config: FilterConfig) -> str:
    if mass < 0.5 * config.localized_mass or evidence < 0.5 * _LOST_EVIDENCE:
        return 'not localized'
    if mass < config.localized_mass or evidence < _LOST_EVIDENCE:
        return 'uncertain'
    return 'localized'
