"""
From a belief on points to the answer that a robot can use.

The covariance of the points falls with every image as if the errors of images were independent,
which those of nearby images are not: they share the light, the camera, and what is wrong with the
odometry. So

    covariance = s ((a + e exp(-2 z)) C + T D T^T + N) + M,    D = diag(d^2 / 12, v, b^2)

is stated. C is that of the points about the highest mode of the belief, N that of the motion since
they were last dispersed, M the map's own at that place (zero where its poses were given; the
filter adds it), s the parameter `covariance_scale`. D is along, across and in heading of the
robot, which T turns into the axes of the map. z: mean log likelihood of the last images relative
to the places of the map that face as the belief does, at least 0; where an image is L times as
likely here as there, what images share makes errors that fall as 1 / L. Relative to all places of
the map, L would have what the image tells of the heading, which in a room where a robot turns is
most of it and says nothing of the place. d: median distance from an image of the map to the
nearest one; a robot is anywhere between two. v: what the part of C lacks, across, of w^2 / 4, for
w metres across between two runs of the map that pass a place (`passes`), each of which lies w / 2
beside the middle: images draw a belief to where the map was driven, each of them anew, and so no
answer is surer than robots keep to that. b: what another camera, or the same one mounted
otherwise, adds to the heading.

a and e are about those with the highest likelihood of the errors of drives, real and rendered, of
which no kind has less than 85% of the truths inside of 2 sigma where they are called localized;
the likeliest without that are 0.2 and 1.4 (`benchmarks.covariance`, docs/choices.md). b is not
fitted: with it 95 to 100% of the headings of such drives lie within two of their deviations.

A pose that was given has C + N + M until an image says something of it, with a tenth of the mass
spread wider than was stated (`starting.drawn_about`). Without a pose to state it is that of
`localizer.unknown`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.localizer import (
    NO_POSE,
    NOT_ON_THIS_MAP,
    PoseEstimate,
    status_of,
    unknown,
)
from kbr_localization.se2 import FloatArray
import numpy as np

_INDEPENDENT = 0.25  # a: fraction of the points' covariance that is that of independent errors
_SHARED = 3.0  # e: that of errors which images share, where they are as likely at other places
_HEADING = 0.04  # b: rad


@dataclass(frozen=True)
class Proof:
    """
    What images say of a belief.

    `here`: its probability against being elsewhere. `confirmed`: whether they speak for it.
    `log_likelihood`: their mean log likelihood relative to places that face as the belief does,
    None before the first. `spacing`, `cross_track`: metres between images of the map, and across
    between its runs. `off_map`: whether they are proof against the map.
    """

    here: float
    confirmed: bool
    log_likelihood: float | None
    spacing: float
    cross_track: float
    off_map: bool = False


def summarize(
    belief: Belief,
    config: KbrConfig,
    noise: FloatArray,
    proof: Proof,
    diagnostics: dict[str, float],
    updated: bool,
) -> PoseEstimate:
    """
    Mean and covariance of the points about the belief's highest mode, and how far to trust them.

    These are the points within `localized_radius` of it that face as it does.

    `noise`: covariance (3, 3), in the frame of the base, of the motion since the points were last
    dispersed.
    """
    widths = config.position_bandwidth, config.heading_bandwidth
    members, mass = belief.about_mode(config.localized_radius, *widths)
    pose, covariance = belief.moments(members)
    confidence = mass * proof.here
    status = status_of(confidence, config.localized_mass, proof.confirmed)
    if proof.off_map:
        status = NOT_ON_THIS_MAP
    heading = float(pose[2])
    moved = in_map_axes(noise, heading)
    stated = unknown()
    if status not in NO_POSE:
        stated = calibrated(covariance, moved, heading, config, proof)
    details = diagnostics | {'mass_in_radius': mass, 'effective_points': belief.effective_size()}
    return PoseEstimate(pose, stated, confidence, status, details, updated)


def calibrated(
    spread: FloatArray, moved: FloatArray, heading: float, config: KbrConfig, proof: Proof
) -> FloatArray:
    """
    Covariance (3, 3) to state, in the map frame: metres and radians; see the module.

    `spread`, `moved`: (3, 3) of the points, and of the motion since they were last dispersed.
    """
    if proof.log_likelihood is None:
        return spread + moved
    factor = _INDEPENDENT + _SHARED * np.exp(-2.0 * max(proof.log_likelihood, 0.0))
    of_points = factor * spread
    lacking = proof.cross_track**2 / 4.0 - in_map_axes(of_points, -heading)[1, 1]
    own = np.diag([proof.spacing**2 / 12.0, max(lacking, 0.0), _HEADING**2])
    common = in_map_axes(own, heading)
    return np.asarray(config.covariance_scale * (of_points + common + moved))


def mode_of(belief: Belief, config: KbrConfig) -> FloatArray:
    """Highest mode (3,) of the kernel mean of a Gaussian kernel with the bandwidths of k_X."""
    return belief.mode(config.position_bandwidth, config.heading_bandwidth)


def in_map_axes(covariance: FloatArray, heading: float) -> FloatArray:
    """Covariance (3, 3) in the map frame of one in the frame of the base."""
    turn = se2.rotation(heading)
    return np.asarray(turn @ covariance @ turn.T)
