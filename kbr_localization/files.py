"""Atomic writes, bounded reads and locks of files."""

import codecs
from collections.abc import Iterator
from contextlib import contextmanager, suppress
import errno
import fcntl
import json
import math
import os
from pathlib import Path
import secrets
import shutil
import socket
import stat
import time
from typing import Any, BinaryIO
import weakref


def expanded(path: str | Path) -> Path:
    """Expand `~`, except that of an unknown user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (Path.expanduser raises for them)


@contextmanager
def new_file(path: str | Path, sync: bool = False) -> Iterator[Path]:
    """
    Yield a temporary path to write to, which replaces `path` if the block ends without an error.

    After an error `path` is unchanged. A device or a pipe is written directly. `sync`: flush to
    disk first, so that a power cut cannot leave an empty file. Raises OSError when the folder
    cannot be written.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        yield path
        return
    target = path.resolve()
    try:
        part = temporary_path(target)
        part.touch(exist_ok=False)
        try:
            if target.exists():
                part.chmod(stat.S_IMODE(target.stat().st_mode))
            yield part
            if sync:
                with part.open('rb') as file:
                    os.fsync(file.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        # the error of a full disk has no file name
        error.filename = str(target)
        raise


def temporary_path(target: Path) -> Path:
    """Name a hidden file or folder next to a file; remove temporary files older than a week."""
    with suppress(OSError):
        for left in target.parent.glob('.*.kbr-*'):
            if left.stat().st_mtime < time.time() - 7 * 86_400:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    # OpenCV chooses the image format by the suffix; names may have 255 bytes
    suffix = target.suffix[:16]
    return target.with_name(f'.{target.stem[:40]}.kbr-{secrets.token_hex(4)}{suffix}')


def write_text(path: str | Path, text: str, sync: bool = False) -> None:
    """Write a text file as `new_file` does; raises OSError."""
    with new_file(path, sync) as part:
        part.write_text(text, encoding='utf-8')


def json_text(value: Any, digits: int = 17, **layout: Any) -> str:
    """Format as JSON: floats with `digits` significant digits, null for NaN and infinity."""

    def plain(value: Any) -> Any:
        if hasattr(value, 'tolist'):  # a NumPy array or number
            value = value.tolist()
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        if isinstance(value, float):
            return float(f'{value:.{digits}g}') if math.isfinite(value) else None
        return value

    return json.dumps(plain(value), allow_nan=False, **layout)


def read_file(path: str | Path, most: int) -> bytes:
    """Read a file of at most `most` bytes; raises OSError, also for a pipe or device."""
    # O_NONBLOCK: do not wait for the writer of a pipe
    with open(path, 'rb', opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, 'is a device or a pipe: expected a file', str(path))
        if found.st_size > most:
            reason = f'has {found.st_size} bytes: expected at most {most}'
            raise OSError(errno.EFBIG, reason, str(path))
        return file.read()


def read_text(path: str | Path, errors: str = 'strict', most: int = 1 << 28) -> str:
    """Read a text file in UTF-8, or UTF-16 with a byte order mark; raises as `read_file`."""
    data = read_file(path, most)
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode('utf-16' if wide else 'utf-8-sig', errors)


def lock_file(file: BinaryIO | int, refusal: Exception) -> None:
    """Lock an open file until it is closed; raises `refusal` if another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise refusal from error


class FileLock:
    """
    Lock of a file, held by a hidden lock file in its folder, as the file itself may be replaced.

    `release` and the end of the process unlock it. Raises BlockingIOError that names the process
    which holds the lock, and another OSError when the folder cannot be written.
    """

    def __init__(self, target: Path) -> None:
        target = target.resolve()
        path = target.with_name(f'.{target.name[:60]}.lock')
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        self.release = weakref.finalize(self, os.close, handle)
        holder = os.pread(handle, 200, 0).decode(errors='replace') or 'another process'
        try:
            lock_file(handle, BlockingIOError(errno.EAGAIN, holder, str(path)))
        except BlockingIOError:
            self.release()
            raise
        except OSError:
            pass  # some file systems have no locks
        with suppress(OSError):  # on a full disk the lock has no name
            os.ftruncate(handle, 0)
            os.write(handle, f'process {os.getpid()} on {socket.gethostname()}'.encode())
