"""
Poses in the plane: float arrays whose last axis is x and y in metres, heading in radians.

Functions broadcast over leading axes: one pose is (3,), a trajectory is (n, 3).
"""

from kbr_localization.errors import KbrError
import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
StampArray = NDArray[np.int64]
MAX_HEADING_DIFF = 1.0
"""Poses whose headings differ by more, in radians, are different places."""


def wrap_angle(angle: ArrayLike) -> FloatArray:
    """Wrap angles in radians into [-pi, pi)."""
    angle = np.asarray(angle, dtype=np.float64)
    turns = np.floor((angle + np.pi) * (0.5 / np.pi))
    wrapped = angle - 2.0 * np.pi * turns
    # rounding may leave an angle just outside the interval
    return np.where(np.abs(wrapped) >= np.pi, -np.pi, wrapped)


def compose(pose: ArrayLike, increment: ArrayLike) -> FloatArray:
    """Return the pose in the parent frame of an `increment` given in the frame of `pose`."""
    a, b = np.asarray(pose, dtype=np.float64), np.asarray(increment, dtype=np.float64)
    cosine, sine = np.cos(a[..., 2]), np.sin(a[..., 2])
    result = np.empty(np.broadcast_shapes(a.shape, b.shape))
    result[..., 0] = a[..., 0] + cosine * b[..., 0] - sine * b[..., 1]
    result[..., 1] = a[..., 1] + sine * b[..., 0] + cosine * b[..., 1]
    result[..., 2] = wrap_angle(a[..., 2] + b[..., 2])
    return result


def inverse(pose: ArrayLike) -> FloatArray:
    a = np.asarray(pose, dtype=np.float64)
    cosine, sine = np.cos(a[..., 2]), np.sin(a[..., 2])
    x, y = -cosine * a[..., 0] - sine * a[..., 1], sine * a[..., 0] - cosine * a[..., 1]
    return np.stack([x, y, wrap_angle(-a[..., 2])], axis=-1)


def between(start: ArrayLike, end: ArrayLike) -> FloatArray:
    """Return the increment from `start` to `end` in the frame of `start`; inverse of `compose`."""
    return compose(inverse(start), end)


def steps(poses: FloatArray) -> FloatArray:
    """Return the increments (n - 1, 3) between successive poses (n, 3); inverse of `chain`."""
    return between(poses[:-1], poses[1:])


def difference(poses: FloatArray, others: FloatArray) -> FloatArray:
    """Subtract other poses (..., 3) by coordinate; differences of headings are wrapped."""
    apart = poses - others
    apart[..., 2] = wrap_angle(apart[..., 2])
    return apart


def magnitude(increment: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the lengths in metres and the absolute turns in radians of increments (..., 3)."""
    return np.hypot(increment[..., 0], increment[..., 1]), np.abs(increment[..., 2])


def within(
    poses: FloatArray, pose: FloatArray, metres: float, radians: float = MAX_HEADING_DIFF
) -> NDArray[np.bool_]:
    """Return which poses (n, 3) are at most `metres` and `radians` from a pose (3,)."""
    x, y, turn = (poses - pose).T
    return np.asarray((np.hypot(x, y) <= metres) & (np.cos(turn) >= np.cos(radians)))


def rotation(heading: ArrayLike) -> FloatArray:
    """Return matrices (..., 3, 3) that rotate errors of poses by headings (...)."""
    angle = np.asarray(heading, dtype=np.float64)
    result = np.zeros((*angle.shape, 3, 3))
    result[..., 0, 0] = result[..., 1, 1] = np.cos(angle)
    result[..., 1, 0] = np.sin(angle)
    result[..., 0, 1], result[..., 2, 2] = -result[..., 1, 0], 1.0
    return result


def adjoint(pose: ArrayLike) -> FloatArray:
    """Return adjoints (..., 3, 3), which map errors in the frame of `pose` to its parent frame."""
    a = np.asarray(pose, dtype=np.float64)
    result = rotation(a[..., 2])
    result[..., 0, 2], result[..., 1, 2] = a[..., 1], -a[..., 0]
    return result


def chain(origin: ArrayLike, increments: ArrayLike) -> FloatArray:
    """Return the poses (m + 1, 3) that increments (m, 3) lead to from an origin (3,)."""
    start, steps = np.asarray(origin, dtype=np.float64), np.asarray(increments, dtype=np.float64)
    heading = start[2] + np.concatenate([[0.0], np.cumsum(steps[:, 2])])
    cosine, sine = np.cos(heading[:-1]), np.sin(heading[:-1])
    x = start[0] + np.cumsum(cosine * steps[:, 0] - sine * steps[:, 1])
    y = start[1] + np.cumsum(sine * steps[:, 0] + cosine * steps[:, 1])
    positions = np.concatenate([start[np.newaxis, :2], np.stack([x, y], axis=1)])
    return np.column_stack([positions, wrap_angle(heading)])


def to_plane_and_circle(pose: ArrayLike) -> FloatArray:
    """Embed poses as (x, y, cos theta, sin theta), the state space of [MbKSR] section 6.3."""
    a = np.asarray(pose, dtype=np.float64)
    return np.concatenate([a[..., :2], np.cos(a[..., 2:]), np.sin(a[..., 2:])], axis=-1)


def from_plane_and_circle(embedded: ArrayLike) -> FloatArray:
    """Convert (x, y, cos, sin) to poses; (cos, sin) may have any length."""
    a = np.asarray(embedded, dtype=np.float64)
    return np.stack([a[..., 0], a[..., 1], np.arctan2(a[..., 3], a[..., 2])], axis=-1)


def interpolate(stamps_ns: StampArray, poses: ArrayLike, query_ns: ArrayLike) -> FloatArray:
    """Interpolate poses (m, 3), headings by the shorter arc; raises KbrError outside of them."""
    track, query = np.asarray(poses, dtype=np.float64), np.asarray(query_ns, dtype=np.int64)
    if stamps_ns.size == 0:
        raise KbrError('cannot interpolate an empty trajectory: give at least one stamped pose')
    if np.any(query < stamps_ns[0]) or np.any(query > stamps_ns[-1]):
        raise KbrError(
            f'stamps [{query.min() * 1e-9:.3f}, {query.max() * 1e-9:.3f}] s are outside the '
            f'trajectory, which spans [{stamps_ns[0] * 1e-9:.3f}, {stamps_ns[-1] * 1e-9:.3f}] s'
        )
    after = np.minimum(np.maximum(np.searchsorted(stamps_ns, query), 1), stamps_ns.size - 1)
    before = np.maximum(after - 1, 0)
    span = np.maximum(stamps_ns[after] - stamps_ns[before], 1)
    fraction = ((query - stamps_ns[before]) / span)[..., np.newaxis]
    result = track[before] + fraction * difference(track[after], track[before])
    result[..., 2] = wrap_angle(result[..., 2])
    return np.asarray(result, dtype=np.float64)


def travelled(poses: FloatArray) -> FloatArray:
    """Return the distance in metres (n,) along a path (n, 3) since its first pose."""
    steps = np.linalg.norm(np.diff(poses[:, :2], axis=0), axis=1)
    return np.concatenate([np.zeros(min(1, len(poses))), np.cumsum(steps)])
