"""
Images that were described before a build was interrupted: they are not described again.

What each task of a build has found is written beside the map to be, and read instead of being
done when the same images are described by the same describer again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import functools
import hashlib
from pathlib import Path
import shutil
from typing import Any
import zipfile

from kbr_localization.files import new_file
from kbr_localization.localization.map.describing import DescribedImage, SentDescriber
from kbr_localization.workers import Work, Workers
import numpy as np


class ResumedWorkers:
    """
    Workers that keep what they describe in a folder, and take it from there.

    Anything but describing is done as ever. `taken`: images that were there. `close` removes the
    folder when the work is done.
    """

    def __init__(self, workers: Workers, folder: Path) -> None:
        self.jobs, self.taken = workers.jobs, 0
        self._workers, self._folder = workers, folder

    def run(self, work: Work, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number of a task and what it gave, now or before."""
        describer = _describer_of(work)
        if describer is None:
            yield from self._workers.run(work, tasks)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        name = _fingerprint(describer, tasks)
        waiting = []
        for number, task in enumerate(tasks):
            found = _read(self._file(name, number), len(task))
            if found is None:
                waiting.append(number)
                continue
            self.taken += len(task)
            yield number, found
        for at, described in self._workers.run(work, [tasks[number] for number in waiting]):
            _write(self._file(name, waiting[at]), described)
            yield waiting[at], described

    def close(self) -> None:
        """Remove what was kept."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, name: str, number: int) -> Path:
        return self._folder / f'{name}_{number}.npz'


def _describer_of(work: Work) -> SentDescriber | None:
    arguments = work.args if isinstance(work, functools.partial) else ()
    return next((item for item in arguments if isinstance(item, SentDescriber)), None)


def _fingerprint(sent: SentDescriber, tasks: Sequence[Any]) -> str:
    """Name of a describer, whose vocabulary is that of the images, and of how they are shared."""
    digest = hashlib.sha256()
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
