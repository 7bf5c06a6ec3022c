"""
Where the odometry of a run breaks, and which of its pieces closures join again.

The odometry says nothing of a robot that was carried, and starts anew where its driver does: the
run is cut there, and what closures do not join is no part of the map.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.datasets import OdometryTrack
from kbr_localization.datasets.odometry_jumps import LONG_PAUSE, PAUSE_PERIODS
from kbr_localization.localization.mapping.closures import Closures
from kbr_localization.localization.mapping.consistency import Agreement
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.se2 import FloatArray, StampArray
from kbr_localization.vision import Describer
import numpy as np

LEAP = 0.5
"""Metres within which an odometry may jump between two of its messages, radians after a pause."""
_FASTEST = 5.0  # times the speed that a run usually has, and metres per second
_SPIN = 12.0  # rad/s
_STILL = np.array([0.05, 0.05, 0.05])
_SAMPLES = 400  # pairs of images that tell how alike unrelated ones are
_UNRELATED = 0.9  # quantile of their kernel values, below which others are unrelated too
_LOOKED_AT = 4  # images before and after a place where the robot may have been carried
PROOF = 4.0
"""Times the score of the strongest look-alike that the closures have together, to be believed."""
LEAST_PROOF = 40.0
"""Score that they have at least: about ten images in a row."""


@dataclass(frozen=True)
class Cut:
    """A break before an image (its number of all) and what it looks like."""

    image: int
    why: str


def odometry_leaps(track: OdometryTrack, stamps_ns: StampArray, first: int) -> list[Cut]:
    """
    Find images (of stamps (n,), numbered from `first`) before which the odometry is broken.

    It leaps faster than robots go; or it pauses for long and does not go on where it was, by more
    than `LEAP` metres or radians, or was made to, as it had begun again. A robot that stood still
    goes on where it was. One that drove on unrecorded cannot be told from one that was pushed, or
    whose driver was started again: only images tell where it is then.
    """
    if len(track.poses) < 2:
        return []
    steps = se2.between(track.poses[:-1], track.poses[1:])
    seconds = np.maximum(np.diff(track.stamps_ns) * 1e-9, 1e-3)
    metres = np.hypot(steps[:, 0], steps[:, 1])
    usual = float(np.quantile(metres / seconds, 0.9))
    leaping = (metres > LEAP) & (metres / seconds > _FASTEST * max(usual, 1.0))
    leaping |= np.abs(steps[:, 2]) > np.maximum(_SPIN * seconds, 1.0)
    elsewhere = np.maximum(metres, np.abs(steps[:, 2])) > LEAP
    elsewhere |= np.isin(track.stamps_ns[1:], track.resets_ns)
    # a pause is none where the odometry never comes more often
    pausing = seconds > max(LONG_PAUSE, PAUSE_PERIODS * float(np.median(seconds)))
    found = []
    for at in np.flatnonzero(leaping | (pausing & elsewhere)):
        why = f'its odometry leaps by {metres[at]:.1f} m'
        if pausing[at]:
            why = f'its odometry pauses for {seconds[at]:.0f} s and does not go on where it was'
        # images in between are of neither side: the line from one to the other was not driven
        begin = int(np.searchsorted(stamps_ns, track.stamps_ns[at], 'right'))
        end = int(np.searchsorted(stamps_ns, track.stamps_ns[at + 1]))
        for image, reason in ((begin, why), (end, 'its odometry goes on'))[: 1 + (end > begin)]:
            if 0 < image < len(stamps_ns):
                found.append(Cut(first + image, reason))
    return found


def carried_places(
    describer: Describer, descriptors: np.ndarray, odometry: FloatArray, run: Indices
) -> list[Cut]:
    """
    Find images before which the view changes while the odometry stands still.

    `descriptors`: (n, d), `odometry`: (n, 3) poses in metres and radians, `run`: (n,). The last
    images before and the first after have to be as unlike each other as images of different places
    are.
    """
    steps = se2.between(odometry[:-1], odometry[1:])
    still = np.all(np.abs(steps) < _STILL, axis=1) & (np.diff(run) == 0)
    before_it, after_it = np.append(-1, run[:-1]), np.append(run[1:], -1)
    candidates = [
        image
        for start, end in _spans(still)
        for image in range(start + 1, end + 1)
        # there are images of its run to be compared: one before it stood, two from the change on
        if before_it[start] == run[start] == after_it[image]
    ]
    if not candidates:
        return []
    limit = _unrelated(describer, descriptors)
    found = []
    for image in candidates:
        near = np.arange(max(image - _LOOKED_AT, 0), min(image + _LOOKED_AT, len(run)))
        near = near[run[near] == run[image]]
        before, after = descriptors[near[near < image]], descriptors[near[near >= image]]
        values = describer.cross_gram(before, after)
        if values[-2:, :2].mean() < limit and values.mean() < limit:
            found.append(Cut(image, 'its view changes while the odometry stands still'))
    return found


def _spans(still: np.ndarray) -> list[tuple[int, int]]:
    """First and last image of each stretch in which the robot stands."""
    padded = np.concatenate([[False], still, [False]]).astype(np.int8)
    change = np.diff(padded)
    return list(zip(np.flatnonzero(change == 1), np.flatnonzero(change == -1), strict=True))


def _unrelated(describer: Describer, descriptors: np.ndarray) -> float:
    """Kernel value that most images of different places are below."""
    rng = np.random.default_rng(0)
    chosen = rng.integers(len(descriptors), size=(2, int(np.sqrt(_SAMPLES))))
    values = describer.cross_gram(descriptors[chosen[0]], descriptors[chosen[1]])
    apart = np.abs(chosen[0][:, np.newaxis] - chosen[1]) > 0.1 * len(descriptors)
    return float(np.quantile(values[apart], _UNRELATED)) if apart.any() else 0.0


def piece_numbers(run: Indices, cuts: list[Cut]) -> tuple[Indices, Indices]:
    """Pieces (n,) of images of runs (n,), cut at some, and the run (p,) of each piece."""
    begins = np.concatenate([[True], np.diff(run) != 0])
    begins[[cut.image for cut in cuts]] = True
    piece = np.cumsum(begins) - 1
    return piece, np.asarray(run[begins])


def believed(
    trajectories: Trajectories, closures: Closures, agreement: Agreement
) -> tuple[Closures, Indices]:
    """
    Keep the closures that are more than look-alikes, and tell the group (p,) of each piece.

    Closures between two groups of pieces join them when together they have `PROOF` times the
    score of the strongest chain that contradicts what was agreed upon. Within a group they are
    believed by the same rule.
    """
    score = np.bincount(closures.chain, closures.score)
    agreed = np.zeros(len(score), dtype=bool)
    agreed[agreement.chains] = True
    needed = max(PROOF * float(score[~agreed].max(initial=0.0)), LEAST_PROOF)
    name, at = np.unique(closures.chain, return_index=True)
    ends = np.stack(
        [trajectories.piece[closures.first[at]], trajectories.piece[closures.second[at]]], axis=1
    )
    group = np.arange(len(trajectories.run_of_piece))
    group[trajectories.fixed] = int(np.argmax(trajectories.fixed))
    while True:
        sides = group[ends]
        between = agreed[name] & (sides[:, 0] != sides[:, 1])
        pairs = np.sort(sides[between], axis=1)
        if not len(pairs):
            break
        unique, inverse = np.unique(pairs, axis=0, return_inverse=True)
        weight = np.bincount(inverse.ravel(), score[name[between]])
        best = int(np.argmax(weight))
        if weight[best] < needed:
            break
        group[group == unique[best, 1]] = unique[best, 0]
    within = agreed[name] & (group[ends[:, 0]] == group[ends[:, 1]])
    total = np.bincount(group[ends[within, 0]], score[name[within]], minlength=len(group))
    kept = name[within][total[group[ends[within, 0]]] >= needed]
    return closures.some(np.isin(closures.chain, kept)), group
