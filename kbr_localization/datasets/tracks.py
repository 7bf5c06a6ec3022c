"""Tracks of poses without jumps, by the rule of the node (`ros.buffers`), and runs on them."""

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
"""Between reference poses further apart than both of these, nothing is interpolated."""
LONGEST_CARRY_NS = 2 * 10**9
"""Odometry moves a reference pose no longer, nor across a gap in it that is longer."""
MAX_SPEED, MAX_TURN_RATE = 3.0, 10.0
"""m/s and rad/s that few robots in buildings exceed."""
SLACK = 0.5
"""Metres and radians that a step may have on top of what the speed allows."""
MIN_SEGMENT_POSES = 3
"""Poses in a row that do not continue a track, but each other, replace it."""
PAUSE, PAUSE_PERIODS = 1.0, 5
"""Seconds or usual periods without odometry after which its driver may have been restarted."""
LONG_PAUSE = 10.0
"""Seconds without odometry after which the motion of the robot is unknown."""


def make_track(
    samples: Iterable[tuple[int, FloatArray]], skipped: Skipped, where: str
) -> OdometryTrack:
    """Sort stamps with poses (3,) by time; of equal stamps the first counts."""
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
    Return a run of the images within the span of an odometry, which is freed of its jumps.

    `images`: frames without odometry. Of those of one stamp the first counts; what is left out is
    counted in `skipped`. `reference`: the known poses, where they are a track, for images that
    have none. `synthetic`: the odometry was made from them. Raises DatasetError when no
    image is left.
    """
    track, jumps = (odometry, ()) if synthetic else without_jumps(odometry)
    lacking = 'true poses' if synthetic else 'odometry'
    ordered = sorted(images, key=lambda image: image.stamp_ns)
    stamps = np.array([image.stamp_ns for image in ordered], dtype=np.int64)
    first = np.diff(stamps, prepend=-1) > 0
    covered = (stamps >= track.stamps_ns[0]) & (stamps <= track.stamps_ns[-1])
    skipped.add('repeated stamp', count=int(np.sum(~first)))
    skipped.add(f'no {lacking}', count=int(np.sum(first & ~covered)))
    kept = np.flatnonzero(first & covered)
    if not kept.size:
        raise DatasetError(not_covered(name, stamps, track, lacking))
    frames, recorded = [], None if synthetic else track
    for place, pose in zip(kept, track.at(stamps[kept]), strict=True):
        frame = ordered[place]
        known = frame.reference
        if known is None and reference is not None:
            known = known_pose(reference, frame.stamp_ns, recorded)
        frames.append(replace(frame, odometry=pose, reference=known))
    # a copy of a run has the notes of the run already
    all_notes = tuple(dict.fromkeys((*notes, *jumps)))
    return Dataset(name, track, skipped, frames, reference, notes=all_notes)


def not_covered(run: str, stamps_ns: StampArray, track: OdometryTrack, poses: str) -> str:
    """Say that no image lies within a track of `poses`, with both spans."""
    (first, last), (start, end) = stamps_ns[[0, -1]] * 1e-9, track.stamps_ns[[0, -1]] * 1e-9
    return (
        f'no image of {run} lies within its {poses}: images at [{first:.3f}, {last:.3f}] s, '
        f'{poses} at [{start:.3f}, {end:.3f}] s: are their stamps of one clock?'
    )


def explain_missing_reference(dataset: Dataset) -> str:
    """Say why no image has a known pose although the run has some; else return nothing."""
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
    Pose (3,) at a stamp by the known poses of a run; None where no known pose is near.

    The recorded `odometry`, free of jumps, moves the nearest one. Where it cannot, poses that are
    at most `LONGEST_GAP_NS` or `FARTHEST_GAP_M` apart are interpolated, the latter only if the
    odometry stays within `FARTHEST_GAP_M` too: the robot may have left and come back.
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
    """Increment (3,) from one stamp to another; None over a long time, a gap or a reset."""
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
    Tell which poses (..., 3) at stamps (...) a robot may have reached from those before.

    `speed`: m/s. `pause`: seconds after which a pose at the origin means a restarted driver.
    """
    seconds = (np.asarray(stamps_ns) - np.asarray(before_ns)) * 1e-9
    distances, turns = se2.magnitude(se2.between(before, poses))
    restarted = restarts_at_origin(before, poses) & (seconds > pause)
    near = (distances <= speed * seconds + SLACK) & (turns <= MAX_TURN_RATE * seconds + SLACK)
    return np.asarray(near & ~restarted)


def restarts_at_origin(before: FloatArray, poses: FloatArray) -> NDArray[np.bool_]:
    """Tell which poses (..., 3) are where odometry starts, while those before were elsewhere."""
    at_origin = (np.hypot(poses[..., 0], poses[..., 1]) < 0.1) & (np.abs(poses[..., 2]) < 0.1)
    return np.asarray(at_origin & (np.maximum(*se2.magnitude(se2.between(before, poses))) > SLACK))


def plausible_steps(track: OdometryTrack) -> NDArray[np.bool_]:
    """Tell which steps (n - 1,) of a track a robot of its usual speed may have made."""
    stamps, poses = track.stamps_ns, track.poses
    return reachable(stamps[:-1], poses[:-1], stamps[1:], poses[1:], *_plausible_limits(track))


def without_jumps(track: OdometryTrack) -> tuple[OdometryTrack, tuple[str, ...]]:
    """Return an odometry that goes on where the recorded one jumps, and notes about it."""
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
    left = np.concatenate(kept)
    notes = []
    if resets:
        times = 'once' if len(resets) == 1 else f'{len(resets)} times'
        notes.append(f'the odometry jumped {times}: taken as reset, without motion')
    if strays := len(stamps) - len(left):
        notes.append(f'poses of the odometry that do not continue it, left out: {strays}')
    going_on = OdometryTrack(stamps[left], np.concatenate(corrected), tuple(resets), track)
    return going_on, tuple(notes)


def _plausible_limits(track: OdometryTrack) -> tuple[float, float]:
    """Speed in m/s up to which a track is plausible, and seconds that are a pause in it."""
    seconds = np.diff(track.stamps_ns) * 1e-9
    if not len(seconds):
        return MAX_SPEED, PAUSE
    # over two steps, as two drivers may send by turns
    distances, _ = se2.magnitude(se2.between(track.poses[:-2], track.poses[2:]))
    moved = distances > 1e-4
    speeds = distances[moved] / (seconds[1:] + seconds[:-1])[moved]
    # a car is faster than the robots that MAX_SPEED is meant for
    usual = 3.0 * float(np.median(speeds)) if moved.any() else 0.0
    return max(MAX_SPEED, usual), min(PAUSE, PAUSE_PERIODS * float(np.median(seconds)))


def refuse_repeated_times(what: str, stamps_ns: ArrayLike) -> None:
    """Refuse stamps that go back over the same times: sorting would interleave two drives."""
    stamps, row = np.asarray(stamps_ns), 2 * MIN_SEGMENT_POSES - 1
    if stamps.size < row:
        return
    steady = np.median(np.lib.stride_tricks.sliding_window_view(stamps, row), axis=1)
    back = np.flatnonzero(steady < np.maximum.accumulate(steady) - PAUSE * 1e9)
    if back.size and steady[back[0] :].max() > steady[: back[0]].min():  # noqa: E203
        raise DatasetError(
            f'{what} go back and over the same times again: expected one drive; record another '
            'one after a reset of the simulation or of a clock'
        )
