"""
A map moved into another frame by known poses: `kbr map align`.

The motion is the rigid one that brings the map's positions nearest to the known ones (Umeyama,
PAMI 1991, in the plane), with the scale of all metres where that is wanted: closures cannot tell
it, known poses can.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.calibration import in_metres
from kbr_localization.localization.config import in_metres_of, sensible_config
from kbr_localization.localization.map.grow import grown
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.mapping_record import MappingRecord
from kbr_localization.localization.mapping.wheels import NAMES
from kbr_localization.localization.motion import step_variances
from kbr_localization.se2 import FloatArray, StampArray
import numpy as np

FEWEST = 3
"""Known poses that tell a motion and whether it fits."""
_SPREAD = 1.0  # metres that they have to lie apart, at least
_MISFIT = 0.1
"""Of the spread of known poses: those that are missed by more are hardly of the map's places."""
_GAP_NS = 2_000_000_000  # between images of a run from one to the other of which a pose is known
RELATIVE_NS = 10**9 * 10**7
"""Times before that are of no clock: they count from some first image."""


@dataclass(frozen=True)
class Alignment:
    """
    A motion of a map: positions x become `scale` R x + t, `motion` (3,) being t and the turn.

    `stamps_ns`: (k,) of the known poses. `known`, `moved`: (k, 3), headings of known ones NaN
    where only positions are known. `free_scale`: what the scale would be, were it free.
    `left_out`: known poses at times of which the map has no images.
    """

    motion: FloatArray
    scale: float
    stamps_ns: StampArray
    known: FloatArray
    moved: FloatArray
    free_scale: float
    left_out: int = 0

    @property
    def residuals(self) -> FloatArray:
        """Distances (k,) in metres of the known poses from the map's."""
        return np.asarray(np.hypot(*(self.moved - self.known)[:, :2].T))

    @property
    def missed(self) -> float:
        """Root mean square of the residuals in metres."""
        return float(np.sqrt(np.mean(self.residuals**2)))

    @property
    def fits(self) -> bool:
        """Whether the known poses can be of the map's places."""
        return self.missed <= _MISFIT * _spread(self.known)


def fit(poses: FloatArray, known: FloatArray, scaled: bool = False) -> tuple[FloatArray, float]:
    """
    Motion (3,) and scale that bring poses (k, 3) nearest to known positions (k, 3).

    Raises MapError for positions, or poses, that are too few or too near to each other to tell.
    """
    if len(poses) < FEWEST:
        raise MapError(f'{len(poses)} known poses at images of the map: expected {FEWEST} or more')
    centres = poses[:, :2].mean(axis=0), known[:, :2].mean(axis=0)
    a, b = poses[:, :2] - centres[0], known[:, :2] - centres[1]
    if not np.any(poses[:, :2] != poses[0, :2]):
        raise MapError(
            'the known poses are all of one place of the map: expected places that lie apart, to '
            'tell how the map is turned'
        )
    spread = _spread(known)
    if spread < _SPREAD:
        raise MapError(
            f'the known poses lie {spread:.2f} m about their middle: expected {_SPREAD:g} m or '
            'more, to tell how the map is turned'
        )
    dot = float(np.sum(a * b))
    cross = float(np.sum(a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]))
    turn = np.arctan2(cross, dot)
    scale = float(np.hypot(cross, dot) / np.sum(a**2)) if scaled else 1.0
    cosine, sine = np.cos(turn), np.sin(turn)
    moved = scale * np.array(
        [cosine * centres[0][0] - sine * centres[0][1],
         sine * centres[0][0] + cosine * centres[0][1]]
    )  # fmt: skip
    return np.array([*(centres[1] - moved), turn]), scale


def _spread(poses: FloatArray) -> float:
    """Root mean square distance in metres of positions (k, 2 or 3) from their middle."""
    away = poses[:, :2] - poses[:, :2].mean(axis=0)
    return float(np.sqrt(np.mean(np.sum(away**2, axis=1))))


def moved(poses: FloatArray, motion: FloatArray, scale: float = 1.0) -> FloatArray:
    """Move poses (n, 3) as a whole; NaN stays."""
    return se2.compose(motion, poses * np.array([scale, scale, 1.0]))


def align(
    kernel_map: KernelMap,
    stamps_ns: StampArray,
    known: FloatArray,
    scaled: bool = False,
    aligned: bool | None = True,
) -> tuple[KernelMap, Alignment]:
    """
    Move a map to known poses (k, 3) at stamps (k,), of images of a run or between them.

    Stamps before `RELATIVE_NS` count from the map's first image, unless its images have such ones
    themselves, of a simulated clock. Poses at times of which the map has no images are left out.
    `aligned`: what is known of their frame (see `MappingRecord`). Raises MapError when fewer than
    `FEWEST` are left.
    """
    simulated = bool(kernel_map.stamps_ns.min() < RELATIVE_NS)
    stamps = stamps_ns if simulated else since_first_image(kernel_map, stamps_ns)
    places = places_at(kernel_map, stamps)
    usable = np.isfinite(places[:, 0])
    if usable.sum() < FEWEST:
        first, last = kernel_map.stamps_ns.min() * 1e-9, kernel_map.stamps_ns.max() * 1e-9
        raise MapError(
            f'{int(usable.sum())} of {len(stamps)} known poses are at times of the map: expected '
            f'{FEWEST} or more; its images span [{first:.3f}, {last:.3f}] s'
        )
    found = fitted(stamps[usable], places[usable], known[usable], scaled)
    found = replace(found, left_out=int(np.sum(~usable)))
    return move_map(kernel_map, found.motion, found.scale, aligned), found


def fitted(
    stamps_ns: StampArray, places: FloatArray, known: FloatArray, scaled: bool
) -> Alignment:
    """Fit a motion of a map to known poses (k, 3) at its places (k, 3); raises MapError."""
    motion, scale = fit(places, known, scaled)
    free = fit(places, known, True)[1]
    return Alignment(motion, scale, stamps_ns, known, moved(places, motion, scale), free)


def since_first_image(kernel_map: KernelMap, stamps_ns: StampArray) -> StampArray:
    """Return stamps (k,), of which those before `RELATIVE_NS` count from the first image."""
    first = int(kernel_map.stamps_ns.min())
    return np.where(stamps_ns < RELATIVE_NS, first + stamps_ns, stamps_ns)


def move_map(
    kernel_map: KernelMap, motion: FloatArray, scale: float = 1.0, aligned: bool | None = True
) -> KernelMap:
    """
    Move a whole map by a motion (3,), its metres scaled first.

    What the map knows of the odometry is then in the new metres as well, and so are the
    bandwidths of positions: as a map of these metres would have them, or scaled where they were
    chosen. Its statistics are those of its metres: with another scale they are measured anew.
    `aligned`: what is known of the frame that it comes into (see `MappingRecord`).
    """
    record = kernel_map.mapping
    whole = replace(
        kernel_map,
        poses=moved(kernel_map.poses, motion, scale),
        next_poses=moved(kernel_map.next_poses, motion, scale),
        mapping=None if record is None else _moved_record(record, motion, scale, aligned),
        calibration=kernel_map.calibration.in_metres(scale),
        statistics=kernel_map.statistics if scale == 1.0 else None,
    )
    return whole if scale == 1.0 else _rescaled(whole, kernel_map.poses, scale)


def _rescaled(whole: KernelMap, before: FloatArray, scale: float) -> KernelMap:
    """Put noise and bandwidths of a map whose poses were `before` (n, 3) into its new metres."""
    usual = asdict(sensible_config(before, whole.cameras))
    suited = asdict(sensible_config(whole.poses, whole.cameras))
    kept = in_metres_of(asdict(whole.filter_config), scale)
    chosen = {
        name: suited[name] for name in kept if getattr(whole.filter_config, name) == usual[name]
    }
    noise = whole.motion_noise.in_metres(scale)
    shown = step_variances(whole.poses, whole.controls, whole.next_poses)
    if shown is not None:
        noise = replace(noise, step=np.maximum(noise.step, shown))
    return replace(
        whole,
        filter_config=replace(whole.filter_config, **(kept | chosen)),
        baselines={m: in_metres_of(values, scale) for m, values in whole.baselines.items()},
        motion_noise=noise,
    )


def _moved_record(
    record: MappingRecord, motion: FloatArray, scale: float, aligned: bool | None
) -> MappingRecord:
    parameters = in_metres(record.parameters, scale, NAMES)
    return replace(record.moved(motion, scale), parameters=parameters, aligned=aligned)


def places_at(kernel_map: KernelMap, stamps_ns: StampArray) -> FloatArray:
    """
    Poses (k, 3) of the map at stamps (k,): of an image or between two of a run, else NaN.

    Images that were added while localizing are no run. Raises MapError where two runs were at the
    same time at different places.
    """
    result, run_of = np.full((len(stamps_ns), 3), np.nan), np.zeros(len(stamps_ns), dtype=np.intp)
    driven = ~grown(kernel_map)
    for run in range(len(kernel_map.run_names)):
        members = np.flatnonzero((kernel_map.run_index == run) & driven)
        if members.size < 2:
            continue
        order = members[np.argsort(kernel_map.stamps_ns[members], kind='stable')]
        known = kernel_map.stamps_ns[order]
        after = np.clip(np.searchsorted(known, stamps_ns), 1, len(known) - 1)
        inside = (stamps_ns >= known[0]) & (stamps_ns <= known[-1])
        near = known[after] - known[after - 1] <= max(_GAP_NS, 5 * _usual_gap(known))
        inside &= near | np.isin(stamps_ns, known)
        if inside.any():
            found = se2.interpolate(known, kernel_map.poses[order], stamps_ns[inside])
            # a comparison with NaN is false
            apart = np.hypot(*(found - result[inside])[:, :2].T) > _SPREAD
            if apart.any():
                at = int(np.flatnonzero(inside)[apart][0])
                _refuse_two_runs(kernel_map, int(stamps_ns[at]), int(run_of[at]), run)
            result[inside], run_of[inside] = found, run
    return result


def _refuse_two_runs(kernel_map: KernelMap, stamp_ns: int, first: int, second: int) -> None:
    names = kernel_map.run_names
    raise MapError(
        f'at {stamp_ns * 1e-9:.3f} s the map has images of {names[first]} and, at another place, '
        f'of {names[second]}, as of a clock that began anew: whose a known pose is cannot be '
        'told; align a map of one of the runs, then add the other by `kbr map extend`'
    )


def _usual_gap(stamps_ns: StampArray) -> int:
    return int(np.median(np.diff(stamps_ns)))


def lines_of(alignment: Alignment) -> list[str]:
    """Tell what an alignment did, in metres and degrees, a line each."""
    x, y, turn = alignment.motion
    residuals, missed = alignment.residuals, alignment.missed
    spread, doubt = _spread(alignment.known), ''
    if not alignment.fits:
        doubt = (
            f'; warning: that is {missed / spread:.0%} of the {spread:.1f} m that they lie about '
            'their middle: are their times and metres those of the map?'
        )
    lines = [
        f'moved by {x:.3f} m, {y:.3f} m and turned by {np.degrees(turn):.2f} degrees'
        + (f', scaled by {alignment.scale:.4f}' if alignment.scale != 1.0 else ''),
        f'{len(residuals)} known poses, missed by {missed:.3f} m (root mean square), '
        f'{residuals.max():.3f} m at most{doubt}',
    ]
    if alignment.left_out:
        lines.append(
            f'{alignment.left_out} other known poses are left out: the map has no images of their '
            'times'
        )
    if alignment.scale == 1.0 and abs(alignment.free_scale - 1.0) > 0.005:
        percent = 100.0 * (alignment.free_scale - 1.0)
        lines.append(
            f'metres of the known poses differ by {percent:+.1f}%: --scale takes them over'
        )
    return lines
