"""How runs are read: what a user chose of them by options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kbr_localization.cli import console
from kbr_localization.errors import KbrError

if TYPE_CHECKING:
    from kbr_localization.datasets import Dataset
    from kbr_localization.localization.map.kernel_map import KernelMap


@dataclass(frozen=True)
class Reading:
    """
    The cameras, as `--cameras` has them, and the topics of a bag that has several.

    `spacing`: metres between the images of a folder that has no poses.
    """

    cameras: str | None = None
    odometry_topic: str | None = None
    reference_topic: str | None = None
    spacing: float | None = None

    def dataset(self, run: Path, cameras: Sequence[str] = ()) -> Dataset:
        """
        Open a run and say which topics of a bag are used, and what else to know about it.

        `cameras`: those that are meant unless the user chose some. Raises DatasetError.
        """
        # not for `--help`
        from kbr_localization.datasets import open_dataset  # noqa: PLC0415

        names = _names(self.cameras) if self.cameras else cameras
        dataset = open_dataset(
            run,
            names,
            odometry_topic=self.odometry_topic,
            reference_topic=self.reference_topic,
            spacing=self.spacing,
        )
        if dataset.sources:
            console.note(f'{run}: {", ".join(dataset.sources)}')
        for note in dataset.notes:
            console.note(f'{run}: {note}')
        return dataset

    def dataset_for(self, kernel_map: KernelMap, map_file: Path, run: Path) -> Dataset:
        """
        Open a run for a map, by default with the cameras of the map.

        Raises DatasetError, and KbrError for a run of more or fewer cameras than the map has:
        their names may be others on another robot.
        """
        dataset, wanted = self.dataset(run, kernel_map.cameras), kernel_map.cameras
        if len(dataset.cameras) != len(wanted):
            given = ','.join(wanted) or f'NAME, one of {", ".join(dataset.cameras)}'
            raise KbrError(
                f'{map_file} is of {_counted(wanted)}, {run} was opened with '
                f'{_counted(dataset.cameras)}: give --cameras {given}'
            )
        return dataset


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(',')]
    if not all(names):
        raise KbrError(f'--cameras {text!r}: expected names with commas between, as front,rear')
    return names


def _counted(cameras: Sequence[str]) -> str:
    """Say how many cameras there are; no name stands for the only one."""
    return f'{len(cameras)} cameras ({", ".join(cameras)})' if cameras else 'one camera'


def note_unreferenced(dataset: Dataset) -> None:
    """Warn of a run with known poses, all of which are of other times than its images."""
    from kbr_localization.datasets.selection import outside_fixes  # noqa: PLC0415

    if why := outside_fixes(dataset):
        console.note(f'warning: without known poses: {why}')


def note_repeated(runs: Sequence[Path]) -> None:
    """Warn of runs that are given more than once: each image would count as often."""
    counts = Counter(run.resolve() for run in runs)
    for path, count in counts.items():
        if count > 1:
            console.note(f'warning: {path} is given {count} times: its images count as often')
