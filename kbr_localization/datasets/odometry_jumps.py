"""
Odometry that jumps: a driver that was restarted, a pose that was sent by mistake.

The rule is that of the node (`ros.odometry_buffer`): a few poses that do not continue the
track are left out; more of them replace it, and the robot is assumed to have stood still between.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbr_localization import se2
from kbr_localization.datasets.frame import OdometryTrack
from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray, StampArray
import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_SPEED, MAX_TURN_RATE = 3.0, 10.0
"""m/s and rad/s that few robots in buildings exceed."""
SLACK = 0.5
"""Metres and radians that a step may have on top of what the speed allows."""
FEWEST = 3
"""Poses in a row that do not continue a track, but each other, replace it."""
PAUSE, PAUSE_PERIODS = 1.0, 5
"""Seconds or usual periods without odometry after which its driver may have been restarted."""
LONG_PAUSE = 10.0
"""Seconds without odometry after which the motion of the robot is unknown."""


def continues(
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
    distances, turns = steps(before, poses)
    restarted = begins_anew(before, poses) & (seconds > pause)
    near = (distances <= speed * seconds + SLACK) & (turns <= MAX_TURN_RATE * seconds + SLACK)
    return np.asarray(near & ~restarted)


def begins_anew(before: FloatArray, poses: FloatArray, slack: float = SLACK) -> NDArray[np.bool_]:
    """
    Tell which poses (..., 3) are where odometry starts, while those before were elsewhere.

    `slack`: metres or radians between the two beyond which that is no coincidence.
    """
    at_origin = (np.hypot(poses[..., 0], poses[..., 1]) < 0.1) & (np.abs(poses[..., 2]) < 0.1)
    return np.asarray(at_origin & (np.maximum(*steps(before, poses)) > slack))


def steps(start: FloatArray, end: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Metres and radians from poses (..., 3) to others, each (...)."""
    moved = se2.between(start, end)
    return np.hypot(moved[..., 0], moved[..., 1]), np.abs(moved[..., 2])


def continued(track: OdometryTrack) -> NDArray[np.bool_]:
    """Tell which steps (n - 1,) of a track a robot of its usual speed may have made."""
    stamps, poses = track.stamps_ns, track.poses
    return continues(stamps[:-1], poses[:-1], stamps[1:], poses[1:], *_usual(track))


def without_jumps(track: OdometryTrack) -> tuple[OdometryTrack, tuple[str, ...]]:
    """Return an odometry that goes on where the recorded one jumps, and notes about it."""
    stamps, poses = track.stamps_ns, track.poses
    plausible = continued(track)
    if plausible.all():
        return track, ()
    segments = np.split(np.arange(len(stamps)), np.flatnonzero(~plausible) + 1)
    kept, corrected, correction = [segments[0]], [poses[segments[0]]], np.zeros(3)
    resets: list[int] = []
    speed, pause = _usual(track)
    for segment in segments[1:]:
        end, start = kept[-1][-1], segment[0]
        if not continues(stamps[end], poses[end], stamps[start], poses[start], speed, pause):
            if len(segment) < FEWEST:
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


def _usual(track: OdometryTrack) -> tuple[float, float]:
    """Speed in m/s up to which a track is plausible, and seconds that are a pause in it."""
    seconds = np.diff(track.stamps_ns) * 1e-9
    if not len(seconds):
        return MAX_SPEED, PAUSE
    distances, _ = steps(track.poses[:-1], track.poses[1:])
    moved = distances > 1e-4
    # a car is faster than the robots that MAX_SPEED is meant for
    usual = 3.0 * float(np.median(distances[moved] / seconds[moved])) if moved.any() else 0.0
    return max(MAX_SPEED, usual), min(PAUSE, PAUSE_PERIODS * float(np.median(seconds)))


def pause_notes(track: OdometryTrack, stamps_ns: StampArray) -> tuple[str, ...]:
    """
    Return notes about images (n,) in long pauses of an odometry.

    None where it goes on where it was: its driver may be silent while the robot stands.
    """
    edges = track.stamps_ns
    moved = np.maximum(*steps(track.poses[:-1], track.poses[1:])) > SLACK
    pauses = np.flatnonzero((np.diff(edges) > LONG_PAUSE * 1e9) & moved)
    after = np.searchsorted(edges, stamps_ns)
    within = np.isin(after - 1, pauses) & (edges[np.minimum(after, len(edges) - 1)] != stamps_ns)
    if not within.any():
        return ()
    longest = np.diff(edges)[np.unique(after[within] - 1)].max() * 1e-9
    return (
        f'the odometry pauses for up to {longest:.1f} s and does not go on where it was: '
        f'{np.count_nonzero(within)} images in between are on a straight line',
    )


def refuse_repeated_times(what: str, stamps_ns: Sequence[int]) -> None:
    """
    Raise DatasetError for stamps that, as recorded, go back and over the same times again.

    Sorting would interleave two drives. Up to `FEWEST` - 1 stray stamps in a row do no harm.
    """
    row = 2 * FEWEST - 1
    if len(stamps_ns) < row:
        return
    steady = np.median(np.lib.stride_tricks.sliding_window_view(stamps_ns, row), axis=1)
    back = np.flatnonzero(steady < np.maximum.accumulate(steady) - PAUSE * 1e9)
    if back.size and steady[back[0] :].max() > steady[: back[0]].min():  # noqa: E203
        raise DatasetError(
            f'{what} go back and over the same times again: expected one drive; record another '
            'one after a reset of the simulation or of a clock'
        )
