"""Bytes of a rosbag2, by topic and time, with every failure as a DatasetError."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
import threading
from typing import Any
import weakref

from kbr_localization.datasets.bag_sizes import (
    check_files,
    check_message,
    compression,
    METADATA,
)
from kbr_localization.errors import DatasetError

try:
    from rosbags.interfaces import Connection
    from rosbags.rosbag2 import Reader
    from rosbags.typesys import get_typestore, Stores
except ImportError as error:
    # an optional dependency: a robot that only localizes reads no bags
    raise DatasetError('bags need the package rosbags: run `pip install rosbags`') from error

TYPESTORE = get_typestore(Stores.ROS2_JAZZY)
STORAGE_SUFFIXES = ('.mcap', '.db3')


@dataclass(frozen=True)
class Topic:
    """A topic of a bag: its name, its type, the number of its messages."""

    name: str
    message_type: str
    count: int

    def __str__(self) -> str:
        """Name the topic in messages."""
        return f'{self.name} ({self.message_type.replace("/msg/", "/")}, {self.count} messages)'


class Bag:
    """
    An open rosbag2: a folder with metadata.yaml, or one storage file.

    It may be pickled and used by several threads; the file is opened again where needed and
    closed with the object. Raises DatasetError when it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = _storage_of(path)
        with self._failures():
            self._check_room()
        self._open()

    def _check_room(self) -> None:
        """Raise DatasetError when there is no room for what is compressed."""
        check_files(self.path)
        mode, files = compression(self.path) if self.path.is_dir() else ('', [])
        for file in files if mode == 'message' else []:
            with Reader(file) as storage:  # the messages as they lie there
                for _, _, data in storage.messages():
                    check_message(data, self.path)

    def _open(self) -> None:
        self._lock = threading.Lock()
        with self._failures():
            self._reader = Reader(self.path)
            self._reader.open()
            weakref.finalize(self, self._reader.close)
            self._connections: dict[str, list[Connection]] = defaultdict(list)
            for connection in self._reader.connections:
                self._connections[connection.topic].append(connection)

    def __getstate__(self) -> dict[str, Any]:
        return {'path': self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path = state['path']
        self._open()

    @property
    def topics(self) -> list[Topic]:
        """All topics that have messages, by name."""
        return sorted(
            (
                Topic(name, connections[0].msgtype, sum(c.msgcount for c in connections))
                for name, connections in self._connections.items()
                if any(c.msgcount for c in connections)
            ),
            key=lambda topic: topic.name,
        )

    def messages(self, names: Sequence[str]) -> Iterator[tuple[str, int, bytes]]:
        """Topic, time of recording in nanoseconds and bytes of the messages of some topics."""
        wanted = [connection for name in names for connection in self._connections[name]]
        with self._lock, self._failures():
            for connection, time_ns, data in self._reader.messages(wanted):
                yield connection.topic, time_ns, data

    def message(self, name: str, time_ns: int, ordinal: int) -> bytes:
        """Bytes of the message of a topic that is the `ordinal`-th recorded at one time."""
        wanted = self._connections[name]
        with self._lock, self._failures():
            found = self._reader.messages(wanted, start=time_ns, stop=time_ns + 1)
            for index, (_, _, data) in enumerate(found):
                if index == ordinal:
                    return data
        raise DatasetError(f'bag {self.path}: the message of {name} at {time_ns} ns is gone')

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn whatever a damaged bag makes the reader raise into one line."""
        try:
            yield
        except DatasetError:
            raise
        except Exception as error:
            raise DatasetError(f'cannot read bag {self.path}: {_explained(error)}') from error


def _explained(error: Exception) -> str:
    """Say in one line what the reader found, and what helps."""
    reason = ' '.join(str(error).split())[:200].rstrip('.') or type(error).__name__
    if 'not supported' in reason:
        reason = reason.removesuffix('; please report issue')
        return (
            f'{reason}: `pip install --upgrade rosbags`, or write it anew with `ros2 bag convert`'
        )
    if reason.startswith(METADATA):
        return f'{reason}: `ros2 bag reindex` writes it anew'
    return (
        f'{reason}: is it complete? `ros2 bag reindex` repairs the metadata of a recording that '
        'was cut off, `mcap recover` its .mcap'
    )


def deserialize(data: bytes, type_name: str) -> Any:
    """Message of CDR bytes; raises DatasetError when they are no message of that type."""
    try:
        return TYPESTORE.deserialize_cdr(data, type_name)
    except Exception as error:
        raise DatasetError(f'expected a {type_name}, got {len(data)} other bytes') from error


def _check_log(file: Path) -> None:
    """Raise DatasetError where the last messages are in a log beside, which is not read."""
    log = file.with_name(f'{file.name}-wal')
    if file.suffix in STORAGE_SUFFIXES and log.is_file() and log.stat().st_size:
        raise DatasetError(
            f'bag {file}: its last messages are in {log.name}, as its recorder was cut off or is '
            f'not done: `sqlite3 {file} "PRAGMA wal_checkpoint(TRUNCATE)"` takes them over'
        )


def _storage_of(path: Path) -> Path:
    """Return the path itself, or the only storage file of a folder that has lost its metadata."""
    if not path.exists():
        raise DatasetError(f'no such bag: {path}: expected a rosbag2 folder or file')
    # a storage would wait for somebody who writes into the pipe
    for file in path.iterdir() if path.is_dir() else [path]:
        if not (file.is_file() or file.is_dir()):
            raise DatasetError(f'bag {file} is a device or a pipe: expected a file')
        _check_log(file)
    if not path.is_dir() or (path / METADATA).is_file():
        return path
    files = [file for file in sorted(path.iterdir()) if file.suffix in STORAGE_SUFFIXES]
    if len(files) == 1:
        return files[0]
    raise DatasetError(
        f'no {METADATA} in {path} and {len(files)} storage files: '
        'give one of the files, or run `ros2 bag reindex` on the folder'
    )
