"""
Images that were looked at before a build was interrupted: that is not done again.

What each task of a build has found, descriptors, points that were followed from image to image and
those of images of closures, is written beside the map to be, and read instead of being done when
the images of the same runs are described by the same describer again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
import functools
import hashlib
import os
from pathlib import Path
import shutil
from typing import Any
import zipfile

from kbr_localization.datasets import Dataset
from kbr_localization.datasets.frame import identity
from kbr_localization.errors import MapError
from kbr_localization.files import new_file
from kbr_localization.localization.map.describing import DescribedImage, SentDescriber
from kbr_localization.localization.mapping.headings import follow_all
from kbr_localization.localization.mapping.looking import all_corners
from kbr_localization.vision.corners import Corners
from kbr_localization.vision.turning import Flow
from kbr_localization.workers import Work, Workers
import numpy as np


@dataclass(frozen=True)
class _Kept:
    """What is kept of a kind of work: the `name` of its files, how they are written and read."""

    name: str
    write: Callable[[Path, Any], None]
    read: Callable[[Path, int], Any]


class ResumedWorkers:
    """
    Workers that keep what they find in images in a folder, and take it from there.

    Any other work is done as ever. `datasets`: the runs that the images are of. `taken`,
    `followed`, `found`: images whose descriptors were there, whose points had been followed, and
    found for closures. `close` removes the folder when the work is done, `discard` what is of
    these images when they give no map.
    Raises MapError where something else than a folder has its name.
    """

    def __init__(self, workers: Workers, folder: Path, datasets: Sequence[Dataset]) -> None:
        if os.path.lexists(folder) and not folder.is_dir():
            raise MapError(
                f'{folder} is no folder: expected nothing there, or the folder in which an '
                'interrupted build kept what it had found; delete or move that file'
            )
        self.jobs, self.taken, self.followed, self.found = workers.jobs, 0, 0, 0
        self._workers, self._folder = workers, folder
        self._images, self._runs = '', repr([identity(dataset) for dataset in datasets])
        self._files: set[Path] = set()

    def run(self, work: Work, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number of a task and what it gave, now or before the interruption."""
        kept = self._kept(work, tasks)
        if kept is None:
            yield from self._workers.run(work, tasks)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        waiting = []
        for number, task in enumerate(tasks):
            found = kept.read(self._file(kept, number), len(task))
            if found is None:
                waiting.append(number)
                continue
            self._count(work, len(task))
            yield number, found
        for at, found in self._workers.run(work, [tasks[number] for number in waiting]):
            kept.write(self._file(kept, waiting[at]), found)
            yield waiting[at], found

    def _kept(self, work: Work, tasks: Sequence[Any]) -> _Kept | None:
        describer = _describer_of(work)
        if describer is not None:
            self._images = _fingerprint(describer, tasks, self._runs)
            return _Kept(self._images, _write, _read)
        if work is follow_all and self._images:
            return _Kept(f'{self._images}_points', _write_flows, _read_flows)
        if work is all_corners and self._images:
            numbers = repr([[number for number, _ in task] for task in tasks]).encode()
            which = hashlib.sha256(numbers).hexdigest()[:12]
            return _Kept(f'{self._images}_{which}_corners', _write_corners, _read_corners)
        return None

    def _count(self, work: Work, images: int) -> None:
        if work is follow_all:
            self.followed += images
        elif work is all_corners:
            self.found += images
        else:
            self.taken += images

    def close(self) -> None:
        """Remove what was kept."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def discard(self) -> None:
        """Remove what was kept of these images, and the folder if it has nothing else."""
        for file in self._files:
            file.unlink(missing_ok=True)
        with suppress(OSError):
            self._folder.rmdir()

    def _file(self, kept: _Kept, number: int) -> Path:
        file = self._folder / f'{kept.name}_{number}.npz'
        self._files.add(file)
        return file


def _describer_of(work: Work) -> SentDescriber | None:
    arguments = work.args if isinstance(work, functools.partial) else ()
    return next((item for item in arguments if isinstance(item, SentDescriber)), None)


def _fingerprint(sent: SentDescriber, tasks: Sequence[Any], runs: str) -> str:
    """Name of images of runs, of their describer and of how they are shared."""
    digest = hashlib.sha256(runs.encode())
    _add(digest, sent.describer.state())
    digest.update(repr([len(task) for task in tasks]).encode())
    return digest.hexdigest()[:24]


def _add(digest: Any, state: Any) -> None:
    for name in sorted(state):
        value = state[name]
        digest.update(name.encode())
        if hasattr(value, 'items'):
            _add(digest, value)
        else:
            array = np.asarray(value)
            digest.update(array.tobytes() if array.dtype.kind in 'biuf' else repr(value).encode())


def _write(path: Path, described: Sequence[DescribedImage]) -> None:
    """Keep what was described, unless something in it could not be."""
    if any(image.descriptor is None or image.converted for image in described):
        return
    with new_file(path) as part:
        np.savez(
            part,
            descriptors=np.array([image.descriptor for image in described]),
            shapes=np.array([image.shape for image in described]),
            sizes=np.array([len(image.thumbnail) for image in described]),
            thumbnails=np.frombuffer(b''.join(i.thumbnail for i in described), dtype=np.uint8),
        )


def _read(path: Path, count: int) -> list[DescribedImage] | None:
    """Return what was kept of so many images, None where nothing or something else is there."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            rows, shapes = arrays['descriptors'], arrays['shapes'].tolist()
            ends = np.cumsum(arrays['sizes'])
            pictures = arrays['thumbnails'].tobytes()
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    if not len(rows) == len(shapes) == len(ends) == count:
        return None
    starts = [0, *ends[:-1].tolist()]
    return [
        DescribedImage(row, tuple(shape), pictures[slice(start, int(end))])
        for row, shape, start, end in zip(rows, shapes, starts, ends, strict=True)
    ]


def _write_flows(path: Path, flows: Sequence[Flow]) -> None:
    _write_parts(path, points=[np.zeros((0, 4), dtype=np.float32), *flows])


def _read_flows(path: Path, count: int) -> list[Flow] | None:
    """Return what was kept of the pairs of so many images."""
    parts = _read_parts(path, count - 1, 'points')
    return None if parts is None else parts[0]


def _write_corners(path: Path, corners: Sequence[Corners]) -> None:
    every = [Corners.none(), *corners]
    _write_parts(path, places=[c.places for c in every], looks=[c.looks for c in every])


def _read_corners(path: Path, count: int) -> list[Corners] | None:
    parts = _read_parts(path, count, 'places', 'looks')
    return None if parts is None else [Corners(*both) for both in zip(*parts, strict=True)]


def _write_parts(path: Path, **columns: Sequence[np.ndarray]) -> None:
    """Keep lists of arrays of like lengths, the first of which are empty, by name."""
    sizes = np.array([len(part) for part in next(iter(columns.values()))[1:]], dtype=np.int64)
    whole: dict[str, Any] = {name: np.concatenate(parts) for name, parts in columns.items()}
    with new_file(path) as part:
        np.savez(part, sizes=sizes, **whole)


def _read_parts(path: Path, count: int, *names: str) -> list[list[np.ndarray]] | None:
    """Return lists of so many arrays by name, None where nothing or something else is there."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            sizes, whole = arrays['sizes'], [arrays[name] for name in names]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    if len(sizes) != count or any(len(column) != sizes.sum() for column in whole):
        return None
    if not count:
        return [[] for _ in names]
    ends = np.cumsum(sizes)[:-1]
    return [np.split(column, ends) for column in whole]
