"""
The covariance that is stated with a pose.

The covariance of the points falls with each image as if errors of images were independent, which
those of nearby images are not: they share the light, the camera, and what the odometry has wrong.
So state

    covariance = s ((a + e exp(-z)) C + T D T^T + N) + M,    D = diag(d^2 / 12, 0, b^2).

C: of the points about their highest mode; N: of the motion since the last update; M: the map's
own at that place; s: `covariance_scale`. z: mean log likelihood of the last images, at least 0:
where images are L times as likely here as elsewhere, the shared error makes variances fall as
1 / L. D is along, across and in heading of the robot, and T turns it into the axes of the map. d:
distance from an image of the map to the nearest one. b: mounting of the camera.
"""

from kbr_localization import se2
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.image_model import ImageModel
from kbr_localization.se2 import FloatArray
import numpy as np

INDEPENDENT, SHARED = 0.4, 3.0  # a, e
MOUNTING = 0.04  # b: rad


def stated_covariance(
    spread: FloatArray,
    noise: FloatArray,
    heading: float,
    log_likelihood: float | None,
    model: ImageModel,
    config: KbrConfig,
) -> FloatArray:
    """
    Return the covariance (3, 3) to state, in the map frame, without the map's own.

    `spread`: (3, 3) of the points; `noise`: (3, 3) of the motion, in the frame of the base;
    `log_likelihood`: z, None before an image said anything about the place.
    """
    moved = in_map_axes(noise, heading)
    if log_likelihood is None:
        return spread + moved
    of_points = (INDEPENDENT + SHARED * np.exp(-max(log_likelihood, 0.0))) * spread
    floor = np.diag([model.spacing**2 / 12.0, 0.0, MOUNTING**2])
    return np.asarray(config.covariance_scale * (of_points + in_map_axes(floor, heading) + moved))


def in_map_axes(covariance: FloatArray, heading: float) -> FloatArray:
    """Turn a covariance (3, 3) from the frame of the base into the axes of the map."""
    turn = se2.rotation(heading)
    return np.asarray(turn @ covariance @ turn.T)
