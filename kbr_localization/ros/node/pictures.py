"""Messages for the eye: particles, the map's poses, the best match."""

from __future__ import annotations

import array

import cv2
from geometry_msgs.msg import Point, PoseArray
from kbr_localization import se2
from kbr_localization.datasets.images import decode_image
from kbr_localization.ros.common import conversions
import numpy as np
from scipy.spatial import cKDTree
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker, MarkerArray

MAX_ARROWS = 5000
ARROW_METRES = 0.25
PICTURE_HEIGHT = 240


def pose_array(poses: se2.FloatArray, stamp_ns: int, frame_id: str) -> PoseArray:
    """Poses (n, 3) as a message."""
    message = PoseArray(poses=[conversions.pose_to_message(pose) for pose in poses])
    message.header.stamp = conversions.ns_to_stamp(stamp_ns)
    message.header.frame_id = frame_id
    return message


def map_markers(
    poses: se2.FloatArray, stamp_ns: int, frame_id: str, weights: se2.FloatArray | None = None
) -> MarkerArray:
    """
    Map poses (n, 3) as short lines in their headings, grey to red by weight (n,).

    Of a large map only every k-th pose is shown, so that viewers stay quick.
    """
    chosen = np.arange(0, len(poses), 1 + (len(poses) - 1) // MAX_ARROWS)
    marker = Marker(ns='map_poses', type=Marker.LINE_LIST, action=Marker.ADD)
    marker.header.stamp = conversions.ns_to_stamp(stamp_ns)
    marker.header.frame_id = frame_id
    marker.scale.x = 0.03
    marker.pose.orientation.w = 1.0
    marker.color = ColorRGBA(r=0.5, g=0.5, b=0.5, a=0.8)
    starts = poses[chosen]
    ends = se2.compose(starts, np.array([ARROW_METRES, 0.0, 0.0]))
    for start, end in zip(starts, ends, strict=True):
        marker.points += [_point(start), _point(end)]
    if weights is not None:
        heat = np.maximum(weights[chosen], 0.0) / max(float(weights.max()), 1e-12)
        for value in heat:
            marker.colors += [_colour(float(value))] * 2
    return MarkerArray(markers=[marker])


def side_by_side(
    image: np.ndarray, match: bytes, caption: str, stamp_ns: int, frame_id: str
) -> CompressedImage:
    """Image (h, w) or (h, w, 3) beside a map image (JPEG bytes), with a caption."""
    small = decode_image(match, 'of the map')
    canvas = np.concatenate([_as_high_as(half, PICTURE_HEIGHT) for half in (image, small)], axis=1)
    cv2.putText(canvas, caption, (6, 16), cv2.FONT_HERSHEY_SIMPLEX, 0.45, (0, 255, 255), 1)
    message = CompressedImage(format='jpeg')
    message.header.stamp = conversions.ns_to_stamp(stamp_ns)
    message.header.frame_id = frame_id
    message.data = array.array('B', cv2.imencode('.jpg', canvas)[1].tobytes())
    return message


def _as_high_as(image: np.ndarray, height: int) -> np.ndarray:
    colour = image if image.ndim == 3 else cv2.cvtColor(image, cv2.COLOR_GRAY2BGR)
    return cv2.resize(colour, (max(1, round(image.shape[1] * height / image.shape[0])), height))


def _point(pose: se2.FloatArray) -> Point:
    return Point(x=float(pose[0]), y=float(pose[1]))


def _colour(value: float) -> ColorRGBA:
    return ColorRGBA(r=0.5 + 0.5 * value, g=0.5 - 0.4 * value, b=0.5 - 0.4 * value, a=0.8)


def weights_near(poses: se2.FloatArray, particles: se2.FloatArray) -> se2.FloatArray | None:
    """Fraction (n,) of the particles (m, 3) within half a metre of each pose (n, 3), if any."""
    if len(particles) == 0:
        return None
    tree = cKDTree(particles[:, :2])
    return np.array(tree.query_ball_point(poses[:, :2], 0.5, return_length=True), dtype=float)
