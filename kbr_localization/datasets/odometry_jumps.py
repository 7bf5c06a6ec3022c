"""
Odometry that jumps: a driver that was started again, a pose that was sent by mistake.

What is read from a file is taken as the node takes messages (`ros.session.odometry_buffer`): a few
poses that do not continue the track are left out, more of them are the odometry from then on, and
the robot is taken to have stood still in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbr_localization import se2
from kbr_localization.datasets.frame import OdometryTrack
from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray, StampArray
import numpy as np
from numpy.typing import NDArray

MAX_SPEED = 3.0
"""Metres per second that few robots in buildings exceed."""
MAX_TURN_RATE = 10.0
"""Radians per second that a robot stays below."""
SLACK = 0.5
"""Metres and radians that a step may have on top of what the speed allows."""
FEWEST = 3
"""Poses in a row that do not continue a track, but each other, are the odometry from then on."""
PAUSE, PAUSE_PERIODS = 1.0, 5
"""Seconds without odometry, or so many of its usual periods: its driver may have been started."""
LONG_PAUSE = 10.0
"""Seconds without odometry after which nothing tells what became of the robot and its driver."""
AT_ORIGIN = 0.1
"""Metres and radians from zero where the odometry of a driver that was started again begins."""
_USUAL = 3.0  # times the usual speed is plausible too: a car is faster than robots


def without_jumps(track: OdometryTrack) -> tuple[OdometryTrack, tuple[str, ...]]:
    """Return an odometry that goes on where the recorded one jumps, and what there is to note."""
    stamps, poses, usual = track.stamps_ns, track.poses, _usual(track)
    plausible = _continues(stamps[:-1], poses[:-1], stamps[1:], poses[1:], *usual)
    if plausible.all():
        return track, ()
    pieces = np.split(np.arange(len(stamps)), np.flatnonzero(~plausible) + 1)
    kept, corrected, correction = [pieces[0]], [poses[pieces[0]]], np.zeros(3)
    resets: list[int] = []
    for piece in pieces[1:]:
        end, start = kept[-1][-1:], piece[:1]
        if not _continues(stamps[end], poses[end], stamps[start], poses[start], *usual).all():
            if len(piece) < FEWEST:
                continue
            resets.append(int(stamps[piece[0]]))
            correction = se2.compose(corrected[-1][-1], se2.inverse(poses[piece[0]]))
        kept.append(piece)
        corrected.append(se2.compose(correction, poses[piece]))
    left = np.concatenate(kept)
    going_on = OdometryTrack(stamps[left], np.concatenate(corrected), tuple(resets), track)
    return going_on, _notes(len(resets), len(stamps) - len(left))


def pause_notes(track: OdometryTrack, stamps_ns: StampArray) -> tuple[str, ...]:
    """
    Return what there is to note about images (n,) in long pauses of an odometry.

    Nothing where it goes on where it was: its driver may be silent while the robot stands. One
    that is made from true poses pauses where these do.
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


def refuse_beginning_over(what: str, stamps_ns: Sequence[int]) -> None:
    """Raise DatasetError for stamps that begin over, of which sorting would make one time."""
    if begins_over(stamps_ns):
        raise DatasetError(
            f'{what} go back and over the same times again: expected one drive; record another '
            'one after a reset of the simulation or of a clock'
        )


def begins_over(stamps_ns: Sequence[int]) -> bool:
    """Whether stamps, in the order of their recording, go back and over the same times again."""
    # fewer than FEWEST are strays, which the median of a row leaves out
    row = 2 * FEWEST - 1
    if len(stamps_ns) < row:
        return False
    steady = np.median(np.lib.stride_tricks.sliding_window_view(stamps_ns, row), axis=1)
    back = np.flatnonzero(steady < np.maximum.accumulate(steady) - PAUSE * 1e9)
    if not back.size:
        return False
    before, after = np.split(steady, back[:1])
    return bool(after.max() > before.min())


def begins_anew(before: FloatArray, pose: FloatArray, slack: float = SLACK) -> bool:
    """
    Whether a pose (3,) after a pause is where odometry begins, and the one before was not.

    `slack`: metres or radians between the two from which on that is no chance.
    """
    return bool(_begins_anew(before[np.newaxis], pose[np.newaxis], slack)[0])


def steps(start: FloatArray, end: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Metres and radians from poses (n, 3) to others, each (n,)."""
    moved = se2.between(start, end)
    return np.hypot(moved[:, 0], moved[:, 1]), np.abs(moved[:, 2])


def _begins_anew(before: FloatArray, poses: FloatArray, slack: float) -> NDArray[np.bool_]:
    at_origin = (np.hypot(poses[:, 0], poses[:, 1]) < AT_ORIGIN) & (
        np.abs(poses[:, 2]) < AT_ORIGIN
    )
    return np.asarray(at_origin & (np.maximum(*steps(before, poses)) > slack))


def _usual(track: OdometryTrack) -> tuple[float, float]:
    """Speed in m/s up to which a track is plausible, and seconds that are a pause in it."""
    seconds = np.diff(track.stamps_ns) * 1e-9
    if not len(seconds):
        return MAX_SPEED, PAUSE
    distances, _ = steps(track.poses[:-1], track.poses[1:])
    moved = distances > 1e-4
    usual = float(np.median(distances[moved] / seconds[moved])) if moved.any() else 0.0
    pause = min(PAUSE, PAUSE_PERIODS * float(np.median(seconds)))
    return max(MAX_SPEED, _USUAL * usual), pause


def _continues(
    before_ns: StampArray,
    before: FloatArray,
    stamps_ns: StampArray,
    poses: FloatArray,
    speed: float,
    pause: float,
) -> NDArray[np.bool_]:
    """Which poses (n, 3) at stamps (n,) continue those before."""
    seconds = (stamps_ns - before_ns) * 1e-9
    distances, turns = steps(before, poses)
    restarted = _begins_anew(before, poses, SLACK) & (seconds > pause)
    near = (distances <= speed * seconds + SLACK) & (turns <= MAX_TURN_RATE * seconds + SLACK)
    return np.asarray(near & ~restarted)


def _notes(jumps: int, strays: int) -> tuple[str, ...]:
    found = []
    if jumps:
        times = 'once' if jumps == 1 else f'{jumps} times'
        found.append(f'the odometry jumped {times}: taken as reset, without motion')
    if strays:
        found.append(f'poses of the odometry that do not continue it, left out: {strays}')
    return tuple(found)
