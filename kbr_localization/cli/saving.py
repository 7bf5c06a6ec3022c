"""Maps that commands write."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from pathlib import Path
from typing import Any

from kbr_localization.cli import console

FEWEST = 10
"""Images of a map below which a robot is hardly ever localized on it."""
FEW = 25
"""Images below which a map has hardly met a wrong place when parts of it were left out."""


def save_measured(kernel_map: Any, out: Path) -> None:
    """Write a map with its statistics, which are measured if it has none."""
    # not for `--help`
    from kbr_localization.localization.kbr.leave_out import with_statistics  # noqa: PLC0415

    with_statistics(kernel_map).save(out)


def note_frame(kernel_map: Any, map_file: Path, datasets: Sequence[Any]) -> None:
    """Say where reference poses of runs are in another frame than the map's."""
    from kbr_localization.evaluation.frame_note import frame_note  # noqa: PLC0415

    if note := frame_note(kernel_map, datasets):
        console.note(f'warning: {map_file}: {note}')


def note_map(kernel_map: Any, out: Path, datasets: Sequence[Any] = ()) -> None:
    """Say what was left out of the runs of a map, how many images it has, and its size."""
    for dataset in datasets:
        console.note_skipped(dataset.skipped)
    console.note(f'{out}: {len(kernel_map)} images, {out.stat().st_size / 1e6:.1f} MB')
    if len(kernel_map) < FEWEST:
        console.note(
            f'warning: a map of fewer than {FEWEST} images: the filter is sure of a place once '
            'several images along a way speak for it; take one every 0.2 m or so'
        )
    elif len(kernel_map) < FEW:
        console.note(
            f'warning: a map of fewer than {FEW} images tells little of how far wrong places can '
            'look right: in a building that it does not show, poses may be called localized; take '
            'more images, one every 0.2 m or so'
        )


def with_statistics_of_all(kernel_map: Any) -> Any:
    """Return a map with statistics measured anew."""
    from kbr_localization.localization.kbr.leave_out import with_statistics  # noqa: PLC0415

    return with_statistics(dataclasses.replace(kernel_map, statistics=None))
