"""Files that appear as a whole or not at all, and those that grow by lines of JSON."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import errno
import fcntl
import json
import os
from pathlib import Path
import stat
import tempfile
from typing import Any, BinaryIO


@contextmanager
def new_file(path: str | Path, sync: bool = False) -> Iterator[Path]:
    """
    Give a path to write to, which takes the place of `path` when the block ends without an error.

    After an error `path` is what it was. A device or a pipe is written as it is. `sync`: it is on
    the disk before it takes the place, so that a power cut cannot leave an empty file. Raises
    OSError when the folder cannot be written.
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        yield target
        return
    try:
        with _part_of(target) as part:
            yield part
            if sync:
                _sync(part)
            part.chmod(0o644)
            part.replace(target)
    except OSError as error:
        # a full disk does not say whose file it was
        error.filename = str(target)
        raise


def write_text(path: str | Path, text: str, sync: bool = False) -> None:
    """Write a text file; raises OSError."""
    with new_file(path, sync) as part:
        part.write_text(text, encoding='utf-8')


def read_file(path: str | Path, most: int) -> bytes:
    """
    Read a file of at most so many bytes; raises OSError.

    What is no file, as a pipe or a device, is refused: nobody knows when it ends.
    """
    # an open pipe would wait for somebody who writes
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, 'rb') as file:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, 'is a device or a pipe: expected a file', str(path))
        if found.st_size > most:
            reason = f'has {found.st_size} bytes: expected at most {most}'
            raise OSError(errno.EFBIG, reason, str(path))
        return file.read()


def claim(file: BinaryIO, refusal: Exception) -> None:
    """Keep other processes from claiming an open file until it is closed, or raise `refusal`."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise refusal from error


def read_json_lines(file: BinaryIO) -> list[Any]:
    """
    Read the values in the lines of a file that is open for reading and appending.

    What is no JSON is left out; a last line that a crash has cut off is ended, so that the next
    one begins a line of its own.
    """
    file.seek(0)
    data, values = file.read(), []
    for line in data.split(b'\n'):
        try:
            values.append(json.loads(line))
        except ValueError:
            continue
    if data and not data.endswith(b'\n'):
        file.write(b'\n')
    return values


@contextmanager
def _part_of(target: Path) -> Iterator[Path]:
    # the suffix tells the format of a picture
    handle, name = tempfile.mkstemp(
        prefix=f'.{target.stem}.', suffix=target.suffix, dir=target.parent
    )
    os.close(handle)
    part = Path(name)
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    with path.open('rb') as file:
        os.fsync(file.fileno())
