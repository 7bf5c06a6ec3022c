"""Files that appear as a whole or not at all, and those that grow by lines of JSON."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
import errno
import fcntl
import hashlib
import json
import os
from pathlib import Path
import re
import secrets
import shutil
import socket
import stat
from typing import Any, BinaryIO
import weakref

_OURS = '.kbr-'
_TEMPORARY = re.compile(rf'\..+{re.escape(_OURS)}[0-9a-f]{{8}}(\.[^.]*)?', re.DOTALL)
"""In the names of our own temporaries."""
LARGEST_TEXT = 1 << 28
"""Bytes of a text file that is read; the odometry of a day has less."""
_HOLDER = 200  # bytes that name a process
_LONGEST_NAME, _LONGEST_SUFFIX = 255, 16  # bytes; what file systems take, and any that tells much
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def expanded(path: str | Path) -> Path:
    """Put the folder of a user in the place of `~`; that of one whom nobody knows stays."""
    with suppress(RuntimeError):
        return Path(path).expanduser()
    return Path(path)


@contextmanager
def new_file(path: str | Path, sync: bool = False) -> Iterator[Path]:
    """
    Give a path to write to, which takes the place of `path` when the block ends without an error.

    After an error `path` is what it was. A device or a pipe is written as it is, but for the null
    device, which keeps nothing. `sync`: it is on the disk before it takes the place, so that a
    power cut cannot leave an empty file. What processes that were killed have left of any file in
    that folder is removed. Raises OSError when the folder cannot be written.
    """
    path = Path(path)
    refuse_null_device(path)
    if path.exists() and not path.is_file():
        # a pipe behind a link, as /dev/stdout, is nowhere under the name that the link resolves to
        yield path
        return
    target = path.resolve()
    try:
        with _part_of(target) as part:
            yield part
            if sync:
                _sync(part)
            part.replace(target)
    except OSError as error:
        # a full disk does not say whose file it was
        error.filename = str(target)
        raise


def refuse_null_device(path: Path) -> None:
    """Raise OSError for the device that forgets what it is told."""
    if path.is_char_device() and path.samefile(os.devnull):
        reason = 'is the null device, which keeps nothing: expected the name of a file'
        raise OSError(errno.EINVAL, reason, str(path))


def write_text(path: str | Path, text: str, sync: bool = False) -> None:
    """Write a text file; raises OSError."""
    with new_file(path, sync) as part:
        part.write_text(text, encoding='utf-8')


def read_file(path: str | Path, most: int) -> bytes:
    """
    Read a file of at most so many bytes; raises OSError.

    What is no file, as a pipe or a device, is refused: nobody knows when it ends.
    """
    with open(path, 'rb', opener=_open_at_once) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, 'is a device or a pipe: expected a file', str(path))
        if found.st_size > most:
            reason = f'has {found.st_size} bytes: expected at most {most}'
            raise OSError(errno.EFBIG, reason, str(path))
        return file.read()


def _open_at_once(path: str, flags: int) -> int:
    """Open also a pipe without waiting for somebody who writes."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_text(path: str | Path, errors: str = 'strict', most: int = LARGEST_TEXT) -> str:
    """
    Read a text of UTF-8 and at most so many bytes from a file; what is none is refused.

    A byte order mark, with which editors of Windows begin a file, is left out; one of UTF-16, as
    its shell writes, is gone by.

    Raises OSError, and UnicodeDecodeError unless `errors` says otherwise.
    """
    data = read_file(path, most)
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode('utf-16' if wide else 'utf-8-sig', errors)


def hidden_name(name: str, ending: str) -> str:
    """
    Return the name of a hidden file beside one of that name.

    Where it would be longer than file systems take, a digest stands for the end of `name`.
    """
    whole = f'.{name}{ending}'
    if len(os.fsencode(whole)) <= _LONGEST_NAME:
        return whole
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
    room = _LONGEST_NAME - len(os.fsencode(f'.~{digest}{ending}'))
    return f'.{os.fsencode(name)[:room].decode(errors="ignore")}~{digest}{ending}'


def claim(file: BinaryIO | int, refusal: Exception) -> None:
    """Keep other processes from claiming an open file until it is closed, or raise `refusal`."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise refusal from error


class LockBeside:
    """
    Claim of a file through a hidden file beside it: the file itself may be replaced meanwhile.

    The system ends it with the process. Raises BlockingIOError that names the process that has
    it, and another OSError where the folder cannot be written.
    """

    def __init__(self, target: Path) -> None:
        target = target.resolve()
        self._path = target.with_name(hidden_name(target.name, '.lock'))
        self._handle = self._open()
        while not self._is_there():  # whoever had it has just let it go
            os.close(self._handle)
            self._handle = self._open()
        self._close = weakref.finalize(self, os.close, self._handle)
        with suppress(OSError):  # a full disk: it is claimed without a name
            os.ftruncate(self._handle, 0)
            os.write(self._handle, f'process {os.getpid()} on {socket.gethostname()}'.encode())

    def _open(self) -> int:
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | _SAFELY, 0o666)
        holder = os.pread(handle, _HOLDER, 0).decode(errors='replace') or 'another process'
        try:
            claim(handle, BlockingIOError(errno.EAGAIN, holder, str(self._path)))
        except BlockingIOError:
            os.close(handle)
            raise
        except OSError:
            pass  # not every file system can
        return handle

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._handle))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let other processes claim it."""
        if self._is_there():
            self._path.unlink(missing_ok=True)
        self._close()


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
    with temporary_of(target, lambda part: os.close(os.open(part, _NEW, 0o666))) as part:
        try:
            if target.exists():
                part.chmod(stat.S_IMODE(target.stat().st_mode))
            yield part
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def temporary_of(target: Path, make: Callable[[Path], Any]) -> Iterator[Path]:
    """
    Make a file or folder beside another one and keep it claimed while this process lives.

    What processes that were killed have left there is removed. Raises what `make` raises.
    """
    remove_stale(target)
    handle = -1
    while handle < 0:
        # the suffix tells the format of a picture
        suffix = target.suffix if len(os.fsencode(target.suffix)) <= _LONGEST_SUFFIX else ''
        part = target.with_name(hidden_name(target.stem, f'{_OURS}{secrets.token_hex(4)}{suffix}'))
        make(part)
        handle = _claim_temporary(part)
    try:
        yield part
    finally:
        os.close(handle)


def _claim_temporary(part: Path) -> int:
    """Return the handle that holds the claim, -1 where somebody took it for a stale one."""
    try:
        handle = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    with suppress(OSError):  # not every file system can; then nobody can clean up there either
        # readers of what takes the place may share the claim, those that clean up may not
        fcntl.flock(handle, fcntl.LOCK_SH)
    if part.exists():
        return handle
    os.close(handle)
    return -1


def remove_stale(target: Path) -> None:
    """
    Remove what killed processes left under temporary names beside a file or folder.

    Those of living processes are claimed by them. Nothing is raised: it may be tried again.
    """
    try:
        beside = list(target.parent.iterdir())
    except OSError:
        return
    for path in beside:
        if _TEMPORARY.fullmatch(path.name) and not path.is_symlink():
            with suppress(OSError):
                _remove_unclaimed(path)


def _remove_unclaimed(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    finally:
        os.close(handle)


def _sync(path: Path) -> None:
    with path.open('rb') as file:
        os.fsync(file.fileno())
