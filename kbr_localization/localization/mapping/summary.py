"""What to say about a map that was made of odometry and images, a line each."""

from __future__ import annotations

from collections.abc import Sequence

from kbr_localization.errors import MapError
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.mapping.pieces import Cut
from kbr_localization.localization.mapping.relating import Related
from kbr_localization.localization.mapping.solving import Solved
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
import numpy as np


def largest_group(
    described: KernelMap, trajectories: Trajectories, found: Related, cuts: Sequence[Cut]
) -> tuple[Indices, list[str]]:
    """
    Find images (m,) of the largest group of pieces; also say what is cut and what is left out.

    Raises MapError when a run has no image among them.
    """
    names, group = described.run_names, found.group[trajectories.piece]
    largest = int(np.argmax(np.bincount(group)))
    members = np.flatnonzero(group == largest)
    runs = np.unique(trajectories.run)
    lost = [names[run] for run in runs if not np.any(trajectories.run[members] == run)]
    if lost:
        kept = ', '.join(names[run] for run in np.unique(trajectories.run[members]))
        raise MapError(
            f'{", ".join(lost)} and {kept} share no place that their images show: nothing is '
            'built of them together; build a map of each, or drive where both have been, in the '
            'same direction, for 20 m'
        )
    notes = []
    for cut in cuts:
        run = int(trajectories.run[cut.image])
        seconds = (
            described.stamps_ns[cut.image] - described.stamps_ns[trajectories.run == run][0]
        ) * 1e-9
        count = int(np.sum(trajectories.piece == trajectories.piece[cut.image]))
        fate = (
            'images join what follows to the rest'
            if group[cut.image] == largest
            else f'{count} images after it are left out: no place of the rest is shown again'
        )
        notes.append(f'{names[run]} is cut at {seconds:.1f} s, {cut.why}; {fate}')
    before = [
        (int(run), int(np.sum(trajectories.piece == number)))
        for number, run in enumerate(trajectories.run_of_piece)
        if found.group[number] != largest
        and not any(trajectories.piece[cut.image] == number for cut in cuts)
    ]
    for run, count in before:
        first = 'its first image is' if count == 1 else f'its first {count} images are'
        notes.append(f'{names[run]}: {first} left out')
    return members, notes


def summary(solved: Solved, used: bool, found: Related) -> list[str]:
    """Say how many closures hold and what they miss, and how far the map can be relied on."""
    growth = float(np.hypot(solved.growth[0], solved.growth[1]))
    turn = float(np.degrees(solved.growth[2]))
    if not used:
        lookalikes = len(np.unique(found.proposed.chain))
        beside = (
            f' ({lookalikes} sequences of images look alike, none of them more than others do)'
            if lookalikes
            else ''
        )
        return [
            f'warning: no place is shown again{beside}: the poses are those of the odometry, the '
            f'last one uncertain by {growth:.1f} m and {turn:.0f} degrees against the first; '
            'drive every way twice in the same direction'
        ]
    missed = np.median(np.abs(solved.misses[solved.kept]), axis=0)
    sequences = len(np.unique(solved.closures.chain[solved.kept]))
    against = len(np.unique(found.proposed.chain)) - sequences
    return [
        f'{int(solved.kept.sum())} closures in {sequences} sequences, which miss '
        f'{missed[0]:.2f} m along, {missed[1]:.2f} m across and {np.degrees(missed[2]):.1f} '
        f'degrees (medians); {against} sequences that contradict them are left out',
        f'the last image is uncertain by {growth:.1f} m and {turn:.0f} degrees against the first; '
        'the scale of all metres is that of the odometry',
    ]
