"""
Move a map into the frame of known poses (`kbr map align`), or from camera poses to base poses.

The motion is the rigid one with the least squared distances between the map's positions and the
known ones (Umeyama, PAMI 1991, in the plane). On request it includes the scale, which known poses
determine and loop closures do not.

A map that is built from odometry has poses of the camera. The pose of the base (`base_link`, whose
motion the odometry reports) in the camera's frame is (offset x, offset y, mounting), see
`calibration`.
"""

from dataclasses import asdict, dataclass, field, replace

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.config import in_metres_of, KbrConfig
from kbr_localization.localization.map.grow import added_images
from kbr_localization.localization.map.kernel_map import KernelMap, MappingRecord
from kbr_localization.localization.motion import step_variances
from kbr_localization.se2 import FloatArray, StampArray
import numpy as np

MIN_KNOWN_POSES = 3
"""Needed to determine a motion and to check that it fits."""
_MIN_DISTANCE = 1.0  # metres between different places; known poses must spread as far
RELATIVE_NS = 10**9 * 10**7
"""Typed times below this are not of a clock: they count from the first image."""


@dataclass(frozen=True)
class Alignment:
    """
    A motion of a map: positions x become `scale` R x + t; `motion` (3,) is t and the angle of R.

    `known`: (k, 3) known poses, headings NaN if only positions are known. `moved`: (k, 3) poses of
    the moved map at the same times. `free_scale`: the least-squares scale, used or not.
    `stamps_ns`: (k,) of the known poses. `left_out`: how many more are at times without images.
    """

    motion: FloatArray
    scale: float
    known: FloatArray
    moved: FloatArray
    free_scale: float
    stamps_ns: StampArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    left_out: int = 0

    @property
    def residuals(self) -> FloatArray:
        """Distances (k,) in metres between known positions and the moved map."""
        return np.asarray(np.hypot(*(self.moved - self.known)[:, :2].T))

    @property
    def rms(self) -> float:
        return float(np.sqrt(np.mean(self.residuals**2)))


def fit_motion(places: FloatArray, known: FloatArray, scaled: bool = False) -> Alignment:
    """
    Fit the motion that moves places (k, 3) of a map to known positions (k, 3).

    Raises MapError if positions or places are too close together to determine a rotation.
    """
    centres = places[:, :2].mean(axis=0), known[:, :2].mean(axis=0)
    a, b = places[:, :2] - centres[0], known[:, :2] - centres[1]
    spread = _spread(known)
    if spread < _MIN_DISTANCE or _spread(places) < 1e-3:  # the map may have another scale
        raise MapError(
            f'the known poses lie {spread:.2f} m about their middle, their places in the map '
            f'{_spread(places):.2f} m: expected {_MIN_DISTANCE:g} m or more to find the rotation'
        )
    dot = float(np.sum(a * b))
    cross = float(np.sum(a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]))
    turn, free = np.arctan2(cross, dot), float(np.hypot(cross, dot) / np.sum(a**2))
    scale = free if scaled else 1.0
    motion = np.append(centres[1] - scale * se2.rotation(turn)[:2, :2] @ centres[0], turn)
    return Alignment(motion, scale, known, move_poses(places, motion, scale), free)


def _spread(poses: FloatArray) -> float:
    """Root mean square distance in metres of poses (k, 3) from their mean position."""
    away = poses[:, :2] - poses[:, :2].mean(axis=0)
    return float(np.sqrt(np.mean(np.sum(away**2, axis=1))))


def move_poses(poses: FloatArray, motion: FloatArray, scale: float = 1.0) -> FloatArray:
    """Scale poses (n, 3), then move all of them by `motion` (3,); NaN stays NaN."""
    return se2.compose(motion, poses * np.array([scale, scale, 1.0]))


def align(
    kernel_map: KernelMap, stamps_ns: StampArray, known: FloatArray, scaled: bool = False
) -> tuple[KernelMap, Alignment]:
    """
    Fit and apply the motion that moves a map to known poses (k, 3) at stamps (k,).

    Poses at times without images are left out. Raises MapError if fewer than `MIN_KNOWN_POSES` are
    left.
    """
    places = poses_at(kernel_map, stamps_ns)
    usable = np.isfinite(places[:, 0])
    if usable.sum() < MIN_KNOWN_POSES:
        first, last = kernel_map.stamps_ns.min() * 1e-9, kernel_map.stamps_ns.max() * 1e-9
        raise MapError(
            f'{int(usable.sum())} of {len(stamps_ns)} known poses are at times of the map, and of '
            f'one of its runs only: expected {MIN_KNOWN_POSES} or more; its images span '
            f'[{first:.3f}, {last:.3f}] s; of runs that share a clock that was reset, align a map '
            'of one, then add the other by `kbr map extend`'
        )
    found = fit_motion(places[usable], known[usable], scaled)
    found = replace(found, stamps_ns=stamps_ns[usable], left_out=int(np.sum(~usable)))
    return move_map(kernel_map, found.motion, found.scale), found


def since_first_image(kernel_map: KernelMap, stamps_ns: StampArray) -> StampArray:
    """Return typed stamps (k,), with the first image's added to those below `RELATIVE_NS`."""
    first = int(kernel_map.stamps_ns.min())
    return np.where(stamps_ns < RELATIVE_NS, first + stamps_ns, stamps_ns)


def move_map(
    kernel_map: KernelMap, motion: FloatArray, scale: float = 1.0, aligned: bool = True
) -> KernelMap:
    """
    Scale a map, then move it by a motion (3,).

    The scale also applies to calibration, noise, decay length and position bandwidths; statistics
    are dropped if it is not 1. `aligned`: whether the new frame is a known one.
    """
    record = kernel_map.mapping
    if record is not None:
        record = replace(record.moved(motion, scale), aligned=aligned)
    whole = replace(
        kernel_map,
        poses=move_poses(kernel_map.poses, motion, scale),
        next_poses=move_poses(kernel_map.next_poses, motion, scale),
        mapping=record,
    )
    if scale == 1.0:
        return whole
    noise = kernel_map.motion_noise.in_metres(scale)
    shown = step_variances(whole.poses, whole.controls, whole.next_poses)
    if shown is not None:
        noise = replace(noise, step=np.maximum(noise.step, shown))
    return replace(
        whole,
        calibration=kernel_map.calibration.in_metres(scale),
        filter_config=KbrConfig(**in_metres_of(asdict(whole.filter_config), scale)),
        decay=whole.decay and replace(whole.decay, length=scale * whole.decay.length),
        baselines={m: in_metres_of(values, scale) for m, values in whole.baselines.items()},
        motion_noise=noise,
        statistics=None,
    )


def poses_at(kernel_map: KernelMap, stamps_ns: StampArray) -> FloatArray:
    """
    Interpolate the poses (k, 3) of the map's runs at stamps (k,); NaN at times without images.

    The result is also NaN if two runs have different poses at that time, which happens after a
    reset of the clock. Images that were added while localizing do not count.
    """
    result, driven = np.full((len(stamps_ns), 3), np.nan), ~added_images(kernel_map)
    for run in np.unique(kernel_map.run_index):
        members = np.flatnonzero((kernel_map.run_index == run) & driven)
        if members.size < 2:
            continue
        order = members[np.argsort(kernel_map.stamps_ns[members], kind='stable')]
        known = kernel_map.stamps_ns[order]
        after = np.clip(np.searchsorted(known, stamps_ns), 1, len(known) - 1)
        inside = (stamps_ns >= known[0]) & (stamps_ns <= known[-1])
        # do not interpolate over gaps between images
        gap = max(2e9, 5.0 * float(np.median(np.diff(known))))
        inside &= (known[after] - known[after - 1] <= gap) | np.isin(stamps_ns, known)
        if inside.any():
            found = se2.interpolate(known, kernel_map.poses[order], stamps_ns[inside])
            # without another run `result` is NaN, and the comparison false
            found[np.hypot(*(found - result[inside])[:, :2].T) > _MIN_DISTANCE] = np.nan
            result[inside] = found
    return result


def describe_alignment(alignment: Alignment) -> list[str]:
    """Return a report of an alignment, line by line."""
    x, y, turn = alignment.motion
    residuals, rms = alignment.residuals, alignment.rms
    spread, doubt = _spread(alignment.known), ''
    if rms > 0.1 * spread:
        doubt = (
            f'; warning: that is {rms / spread:.0%} of the {spread:.1f} m over which they '
            'spread: do their times and metres agree with the map?'
        )
    lines = [
        f'moved by {x:.3f} m, {y:.3f} m and turned by {np.degrees(turn):.2f} degrees'
        + (f', scaled by {alignment.scale:.4f}' if alignment.scale != 1.0 else ''),
        f'{len(residuals)} known poses, missed by {rms:.3f} m (root mean square), '
        f'{residuals.max():.3f} m at most{doubt}',
    ]
    if alignment.left_out:
        lines.append(
            f'{alignment.left_out} other known poses are left out: the map has no images at their '
            'times, or at two places'
        )
    if alignment.scale == 1.0 and abs(alignment.free_scale - 1.0) > 0.005:
        percent = 100.0 * (alignment.free_scale - 1.0)
        lines.append(
            f'metres of the known poses differ by {percent:+.1f}%: --scale takes them over'
        )
    return lines


def point_in_camera(kernel_map: KernelMap) -> FloatArray:
    """Return the pose (3,), in the camera's frame, of the point that the map has poses of."""
    return np.zeros(3) if kernel_map.mapping is None else kernel_map.mapping.point


def to_base(kernel_map: KernelMap) -> KernelMap:
    """Replace the camera poses of a map that was built from odometry by base poses."""
    record, known = kernel_map.mapping, kernel_map.calibration
    assert record is not None
    point = known.values[:3].copy()  # offset x, offset y, mounting
    poses = se2.compose(kernel_map.poses, point)
    # carry the covariances from the camera to the base
    slope = se2.adjoint((kernel_map.poses - poses) * np.array([1.0, 1.0, 0.0]))
    return replace(
        kernel_map,
        poses=poses,
        next_poses=se2.compose(kernel_map.next_poses, point),
        calibration=replace(known, values=parameters_for_point(known.values, point)),
        mapping=replace(
            record,
            point=point,
            covariances=slope @ record.covariances @ np.swapaxes(slope, 1, 2),
            parameters=parameters_for_point(record.parameters, point),
        ),
        statistics=None,
    )


def parameters_for_point(parameters: FloatArray, point: FloatArray) -> FloatArray:
    """Return odometry errors (..., 7) relative to `point` (3,) instead of the camera."""
    found = parameters.copy()
    found[..., :3] -= point
    return found


def describe_point(record: MappingRecord) -> str:
    """Name the point that a map of odometry has poses of."""
    ahead, left, _ = record.point
    if not np.any(record.point):
        return 'camera'
    along, across = 'ahead' if ahead >= 0.0 else 'behind', 'left' if left >= 0.0 else 'right'
    return f'base, {abs(ahead):.3f} m {along} and {abs(left):.3f} m to the {across} of the camera'
