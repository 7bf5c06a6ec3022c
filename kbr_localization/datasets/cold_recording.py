"""A run in COLD's format that grows image by image and is whole at every moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
import errno
import os
from pathlib import Path
import weakref

from kbr_localization.datasets.cold import (
    CAMERAS,
    DRAWN,
    folder_of,
    format_image_name,
    format_odometry,
    ImageName,
    label_word,
    ODOMETRY,
    OdometryLine,
    parse_image_name,
    parse_odometry,
    PLACES,
    SUFFIX,
)
from kbr_localization.datasets.frame import Skipped
from kbr_localization.datasets.run_folder import (
    NOTES,
    read_notes,
    WITHOUT_POSES,
    write_notes,
)
from kbr_localization.datasets.tables import read_table
from kbr_localization.errors import DatasetError
from kbr_localization.files import claim
from kbr_localization.se2 import FloatArray

PART = '.part'


class ColdRecording:
    """
    Append images and odometry to a run folder, new or existing, for one camera or several.

    An image appears under its name when it is complete, its line of places.lst after it; whoever
    kills the process loses at most the image being written. What a full disk cuts off is taken
    back, so that it can be tried again. `last_image` and `last_odometry` are the latest of an
    existing run, or None. Raises DatasetError when the folder holds something else, cannot be
    written, or is recorded into by another process.
    """

    def __init__(self, path: Path | str, *cameras: str) -> None:
        self.path = Path(path)
        self.cameras = tuple(folder_of(camera) for camera in cameras or CAMERAS[:1])
        self._folder = self.path / self.cameras[0]
        self._check_foreign()
        with self._as_dataset_errors():
            files = [self.path / camera / 'x' for camera in self.cameras]
            for file in (*files, self.path / PLACES, self.path / ODOMETRY):
                file.parent.mkdir(parents=True, exist_ok=True)
            self.close = self._claim()
            for name in (PLACES, ODOMETRY):
                _remove_unfinished_line(self.path / name)
            self.count, self.last_image = self._existing_images()
            self.last_odometry = self._last_odometry()

    def without_poses(self) -> None:
        """Note that the poses are unknown; raises DatasetError for a run with known ones."""
        if self.count and WITHOUT_POSES not in read_notes(self.path):
            raise DatasetError(
                f'{self.path} has {self.count} images with known poses: give another folder to '
                'record without'
            )
        with self._as_dataset_errors():
            write_notes(self.path, [WITHOUT_POSES])

    def with_poses(self) -> None:
        """Raise DatasetError for a run without known poses, of which readers take none."""
        if WITHOUT_POSES in read_notes(self.path):
            raise DatasetError(
                f'{self.path} was recorded without poses, so that none of it would be read: give '
                'another folder to record with them'
            )

    def append_odometry(self, samples: Sequence[tuple[int, FloatArray]]) -> None:
        """Write stamps in nanoseconds with poses (3,); raises DatasetError."""
        with self._as_dataset_errors():
            text = ''.join(format_odometry(*sample) for sample in samples)
            _append(self.path / ODOMETRY, text)

    def append_image(
        self,
        stamp_ns: int,
        reference: FloatArray,
        encoded: bytes | Sequence[bytes],
        label: str = 'unknown',
    ) -> Path:
        """
        Write an image of JPEG or PNG bytes with its pose (3,) in the map; raises DatasetError.

        With several cameras one for each. Append the odometry up to it before, or a reader finds
        none for it. Returns the path of the first image.
        """
        name = format_image_name(stamp_ns, reference)
        images = [encoded] if isinstance(encoded, bytes) else encoded
        with self._as_dataset_errors():
            for camera, data in zip(self.cameras, images, strict=True):
                part = self.path / camera / (name + PART)
                try:
                    part.write_bytes(data)
                    part.rename(self.path / camera / name)
                finally:
                    part.unlink(missing_ok=True)
            _append(self.path / PLACES, f'{name} {label_word(label)}\n')
        self.count += 1
        self.last_image = ImageName(stamp_ns, reference)
        return self._folder / name

    def _claim(self) -> Callable[[], object]:
        """Keep other processes from recording into the folder; return what releases it."""
        file = (self.path / PLACES).open('ab')
        release = weakref.finalize(self, file.close)
        try:
            taken = f'{self.path} is being recorded into: stop the other recorder, or give another'
            claim(file, DatasetError(f'{taken} folder'))
        except DatasetError:
            release()
            raise
        return release

    def _check_foreign(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise DatasetError(f'{self.path} is a file: expected a folder to record into')
        found = sorted(p.name for p in self.path.iterdir()) if self.path.is_dir() else []
        known = {PLACES.parts[0], ODOMETRY.parts[0], NOTES, DRAWN}
        for name in found:
            if name not in known and not name.endswith(SUFFIX):
                raise DatasetError(
                    f'{self.path} holds {name!r} and is no COLD run: '
                    'give a new folder, or a run to go on with'
                )
        # readers of the cameras of COLD take no others
        there = [c for c in found if c.endswith(SUFFIX) and any((self.path / c).glob('*'))]
        if len({camera in CAMERAS for camera in (*there, *self.cameras)}) > 1:
            raise DatasetError(
                f'{self.path} holds images of {", ".join(there)}: give a new folder to record '
                f'{", ".join(self.cameras)}'
            )

    def _existing_images(self) -> tuple[int, ImageName | None]:
        for camera in self.cameras:
            for unfinished in (self.path / camera).glob(f'*{PART}'):
                unfinished.unlink()
        names = []
        for file in self._folder.iterdir():
            with suppress(ValueError):
                names.append(parse_image_name(file.name))
        return len(names), max(names, key=lambda name: name.stamp_ns, default=None)

    def _last_odometry(self) -> OdometryLine | None:
        path = self.path / ODOMETRY
        if not path.is_file() or path.stat().st_size == 0:
            return None
        lines = [line for line in read_table(path, parse_odometry, Skipped()) if line]
        return max(lines, key=lambda line: line.stamp_ns)

    @contextmanager
    def _as_dataset_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            remedy = ''
            if isinstance(error, (FileNotFoundError, NotADirectoryError)):
                remedy = 'it was moved or removed: put it back, or '
            elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                remedy = 'free some space, or '
            raise DatasetError(
                f'cannot record into {self.path}: {error.strerror or error}: {remedy}choose '
                'another folder'
            ) from error


def _append(path: Path, text: str) -> None:
    """Write all of a text at the end of a file, or nothing of it."""
    with path.open('ab', buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        left = memoryview(text.encode())
        try:
            while left:
                written = file.write(left)
                left = left[written:]
        except OSError:
            with suppress(OSError):
                file.truncate(end)
            raise


def _remove_unfinished_line(path: Path) -> None:
    """Remove a last line that a kill or a power cut left without its end."""
    if path.is_file():
        content = path.read_bytes()
        if not content.endswith(b'\n'):
            os.truncate(path, content.rfind(b'\n') + 1)
