"""Remove jumps of odometry by the same rule as the node (`ros.buffers`), and make runs."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kbr_localization import se2
from kbr_localization.datasets.frame import Dataset, Frame, OdometryTrack, Skipped
from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray, StampArray
import numpy as np
from numpy.typing import ArrayLike, NDArray

LONGEST_GAP_NS = 10**9
FARTHEST_GAP_M = 0.3
"""Reference poses are interpolated if they are closer than one of these."""
LONGEST_CARRY_NS = 2 * 10**9
"""Odometry moves a reference pose for at most this time, and not across longer gaps."""
MAX_SPEED, MAX_TURN_RATE = 3.0, 10.0
"""m/s and rad/s; few robots in buildings exceed them."""
SLACK = 0.5
"""Metres and radians by which a step may exceed speed times time."""
MIN_SEGMENT_POSES = 3
"""A jump is a reset if this many poses in a row continue each other; else they are outliers."""
PAUSE, PAUSE_PERIODS = 1.0, 5
"""Seconds or median periods without odometry after which its driver may have restarted."""
LONG_PAUSE = 10.0
"""Seconds without odometry after which the motion of the robot is unknown."""


def make_track(
    samples: Iterable[tuple[int, FloatArray]], skipped: Skipped, where: str
) -> OdometryTrack:
    """Sort stamps with poses (3,) by time; keep the first of equal stamps."""
    stamps, poses = zip(*samples, strict=True)
    unique, first = np.unique(np.array(stamps, dtype=np.int64), return_index=True)
    skipped.add(f'repeated stamp {where}', count=len(stamps) - unique.size)
    return OdometryTrack(unique, np.array(poses, dtype=np.float64)[first])


def make_run(
    name: str,
    images: Iterable[Frame],
    odometry: OdometryTrack,
    skipped: Skipped,
    reference: OdometryTrack | None = None,
    notes: Sequence[str] = (),
    synthetic: bool = False,
) -> Dataset:
    """
    Return a run of the images within the span of the odometry, after removing its jumps.

    `images`: frames without odometry, of which the first of equal stamps is used. `skipped`
    counts the others. `reference`: a track of known poses for images that have none. `synthetic`:
    the odometry was made from it. Raises DatasetError when no image is left.
    """
    track, jumps = (odometry, ()) if synthetic else without_jumps(odometry)
    needed = 'true poses' if synthetic else 'odometry'
    ordered = sorted(images, key=lambda image: image.stamp_ns)
    stamps = np.array([image.stamp_ns for image in ordered], dtype=np.int64)
    first = np.diff(stamps, prepend=-1) > 0
    covered = (stamps >= track.stamps_ns[0]) & (stamps <= track.stamps_ns[-1])
    skipped.add('repeated stamp', count=int(np.sum(~first)))
    skipped.add(f'no {needed}', count=int(np.sum(first & ~covered)))
    kept = np.flatnonzero(first & covered)
    if not kept.size:
        raise DatasetError(not_covered(name, stamps, track, needed))
    frames, recorded = [], None if synthetic else track
    for index, pose in zip(kept, track.at(stamps[kept]), strict=True):
        frame = ordered[index]
        known = frame.reference
        if known is None and reference is not None:
            known = known_pose(reference, frame.stamp_ns, recorded)
        frames.append(replace(frame, odometry=pose, reference=known))
    # the copy of a run has the same notes already
    all_notes = tuple(dict.fromkeys((*notes, *jumps)))
    return Dataset(name, track, skipped, frames, reference, notes=all_notes)


def not_covered(run: str, stamps_ns: StampArray, track: OdometryTrack, poses: str) -> str:
    """Return the message that no image lies within a track of `poses`."""
    (first, last), (start, end) = stamps_ns[[0, -1]] * 1e-9, track.stamps_ns[[0, -1]] * 1e-9
    return (
        f'no image of {run} lies within its {poses}: images at [{first:.3f}, {last:.3f}] s, '
        f'{poses} at [{start:.3f}, {end:.3f}] s: are their stamps of one clock?'
    )


def explain_missing_reference(dataset: Dataset) -> str:
    """Explain why no image has a known pose although the run has some; empty otherwise."""
    fixes, stamps = dataset.fixes, dataset.stamps_ns
    if fixes is None or not stamps.size or any(f.reference is not None for f in dataset):
        return ''
    if not np.any((stamps >= fixes.stamps_ns[0]) & (stamps <= fixes.stamps_ns[-1])):
        return not_covered(dataset.name, stamps, fixes, 'reference poses')
    seconds = float(np.median(np.diff(fixes.stamps_ns))) * 1e-9
    metres = float(np.median(np.hypot(*np.diff(fixes.poses[:, :2], axis=0).T)))
    return (
        f'no image of {dataset.name} has a known pose: reference poses come every {seconds:.1f} s '
        f'and {metres:.1f} m, expected {LONGEST_GAP_NS * 1e-9:g} s or {FARTHEST_GAP_M:g} m, or '
        f'one within {LONGEST_CARRY_NS * 1e-9:g} s of an image and recorded odometry from one to '
        'the other: record them more often'
    )


def known_pose(
    reference: OdometryTrack, stamp_ns: int, odometry: OdometryTrack | None = None
) -> FloatArray | None:
    """
    Return the pose (3,) at a stamp from the known poses of a run, None if none is near.

    The recorded `odometry`, without jumps, moves the nearest one. Where it cannot, poses at most
    `LONGEST_GAP_NS` or `FARTHEST_GAP_M` apart are interpolated, the latter only if the odometry
    stays within `FARTHEST_GAP_M` too, because the robot may have left and returned.
    """
    stamps, poses = reference.stamps_ns, reference.poses
    around = np.searchsorted(stamps, stamp_ns, 'right') - 1, np.searchsorted(stamps, stamp_ns)
    before, after = np.clip(around, 0, len(stamps) - 1)
    if stamps[before] == stamp_ns:
        return np.asarray(poses[before])
    for near in sorted((before, after), key=lambda index: abs(stamps[index] - stamp_ns)):
        motion = None if odometry is None else _motion(odometry, int(stamps[near]), stamp_ns)
        if motion is not None:
            return se2.compose(poses[near], motion)
    is_between = stamps[before] <= stamp_ns <= stamps[after]
    is_soon = stamps[after] - stamps[before] <= LONGEST_GAP_NS
    moves = [poses[after] - poses[before]]
    if odometry is not None:
        passed = np.clip((stamps[before], stamp_ns), *odometry.stamps_ns[[0, -1]])
        moves.append(np.diff(odometry.at(passed), axis=0)[0])
    is_near = all(np.hypot(*move[:2]) <= FARTHEST_GAP_M for move in moves)
    return reference.at(stamp_ns) if is_between and (is_soon or is_near) else None


def _motion(odometry: OdometryTrack, from_ns: int, to_ns: int) -> FloatArray | None:
    """Return the increment (3,) between two stamps; None over a long time, a gap or a reset."""
    start, end = sorted((from_ns, to_ns))
    stamps = odometry.stamps_ns
    if end - start > LONGEST_CARRY_NS or start < stamps[0] or end > stamps[-1]:
        return None
    first = int(np.searchsorted(stamps, start, side='right')) - 1
    passed = stamps[first : int(np.searchsorted(stamps, end)) + 1]  # noqa: E203
    has_gap = np.diff(passed).max(initial=0) > LONGEST_CARRY_NS
    if has_gap or np.isin(passed[1:], odometry.resets_ns).any():
        return None
    return se2.between(odometry.at(from_ns), odometry.at(to_ns))


def reachable(
    before_ns: ArrayLike,
    before: FloatArray,
    stamps_ns: ArrayLike,
    poses: FloatArray,
    speed: float = MAX_SPEED,
    pause: float = PAUSE,
) -> NDArray[np.bool_]:
    """
    Return which poses (..., 3) at stamps (...) a robot can have reached from those before.

    `speed`: maximum, m/s. `pause`: seconds after which a pose at the origin means that the driver
    of the odometry restarted.
    """
    seconds = (np.asarray(stamps_ns) - np.asarray(before_ns)) * 1e-9
    distances, turns = se2.magnitude(se2.between(before, poses))
    restarted = restarts_at_origin(before, poses) & (seconds > pause)
    near = (distances <= speed * seconds + SLACK) & (turns <= MAX_TURN_RATE * seconds + SLACK)
    return np.asarray(near & ~restarted)


def restarts_at_origin(before: FloatArray, poses: FloatArray) -> NDArray[np.bool_]:
    """Return which poses (..., 3) are at the origin, while those before were elsewhere."""
    at_origin = (np.hypot(poses[..., 0], poses[..., 1]) < 0.1) & (np.abs(poses[..., 2]) < 0.1)
    return np.asarray(at_origin & (np.maximum(*se2.magnitude(se2.between(before, poses))) > SLACK))


def plausible_steps(track: OdometryTrack) -> NDArray[np.bool_]:
    """Return which steps (n - 1,) of a track are plausible for a robot of its median speed."""
    stamps, poses = track.stamps_ns, track.poses
    return reachable(stamps[:-1], poses[:-1], stamps[1:], poses[1:], *_plausible_limits(track))


def without_jumps(track: OdometryTrack) -> tuple[OdometryTrack, tuple[str, ...]]:
    """Return an odometry without the jumps of the recorded one, and notes about them."""
    stamps, poses = track.stamps_ns, track.poses
    plausible = plausible_steps(track)
    if plausible.all():
        return track, ()
    segments = np.split(np.arange(len(stamps)), np.flatnonzero(~plausible) + 1)
    kept, corrected, correction = [segments[0]], [poses[segments[0]]], np.zeros(3)
    resets: list[int] = []
    speed, pause = _plausible_limits(track)
    for segment in segments[1:]:
        end, start = kept[-1][-1], segment[0]
        if not reachable(stamps[end], poses[end], stamps[start], poses[start], speed, pause):
            if len(segment) < MIN_SEGMENT_POSES:
                continue
            resets.append(int(stamps[start]))
            correction = se2.compose(corrected[-1][-1], se2.inverse(poses[start]))
        kept.append(segment)
        corrected.append(se2.compose(correction, poses[segment]))
    indices = np.concatenate(kept)
    notes = []
    if resets:
        times = 'once' if len(resets) == 1 else f'{len(resets)} times'
        notes.append(f'the odometry jumped {times}: taken as reset, without motion')
    if outliers := len(stamps) - len(indices):
        notes.append(f'outliers of the odometry, left out: {outliers}')
    smooth = OdometryTrack(stamps[indices], np.concatenate(corrected), tuple(resets), track)
    return smooth, tuple(notes)


def _plausible_limits(track: OdometryTrack) -> tuple[float, float]:
    """Return the plausible speed in m/s of a track, and the seconds that count as a pause."""
    seconds = np.diff(track.stamps_ns) * 1e-9
    if not len(seconds):
        return MAX_SPEED, PAUSE
    # measure over two steps: two drivers may send alternately
    distances, _ = se2.magnitude(se2.between(track.poses[:-2], track.poses[2:]))
    moved = distances > 1e-4
    speeds = distances[moved] / (seconds[1:] + seconds[:-1])[moved]
    # a car may be faster than MAX_SPEED
    fast = 3.0 * float(np.median(speeds)) if moved.any() else 0.0
    return max(MAX_SPEED, fast), min(PAUSE, PAUSE_PERIODS * float(np.median(seconds)))


def refuse_repeated_times(what: str, stamps_ns: ArrayLike) -> None:
    """Raise DatasetError if stamps repeat a time span: sorting would interleave two drives."""
    stamps, row = np.asarray(stamps_ns), 2 * MIN_SEGMENT_POSES - 1
    if stamps.size < row:
        return
    steady = np.median(np.lib.stride_tricks.sliding_window_view(stamps, row), axis=1)
    back = np.flatnonzero(steady < np.maximum.accumulate(steady) - PAUSE * 1e9)
    if back.size and steady[back[0] :].max() > steady[: back[0]].min():  # noqa: E203
        raise DatasetError(
            f'{what} go back and over the same times again: expected one drive; start a new '
            'recording after a reset of the simulation or of a clock'
        )
