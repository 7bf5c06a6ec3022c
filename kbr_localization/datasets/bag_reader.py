"""Messages of bags of ROS 1 and ROS 2 by topic and time, with every failure as a DatasetError."""

from __future__ import annotations

import bz2
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
import struct
import threading
from typing import Any
import weakref

from kbr_localization.datasets.images import LARGEST_FILE
from kbr_localization.datasets.tables import load_yaml
from kbr_localization.errors import DatasetError

try:
    import lz4.frame
    from rosbags import rosbag1, rosbag2
    from rosbags.interfaces import Connection
    from rosbags.rosbag1 import reader as rosbag1_reader
    from rosbags.rosbag2 import metadata as rosbag2_metadata
    from rosbags.rosbag2 import reader as rosbag2_reader
    from rosbags.rosbag2 import storage_mcap
    from rosbags.typesys import get_typestore, Stores
    from rosbags.typesys.msg import normalize_msgtype
except ImportError as error:
    # an optional dependency: a robot that only localizes reads no bags
    raise DatasetError('bags need the package rosbags: run `pip install rosbags`') from error

TYPESTORE = get_typestore(Stores.ROS2_JAZZY)
TF = 'tf2_msgs/msg/TFMessage'
METADATA = 'metadata.yaml'
STORAGE_SUFFIXES = ('.mcap', '.db3', '.bag')


def _bounded(decompressor: Callable[[], Any]) -> Callable[..., bytes]:
    def unpack(data: bytes, *_: Any) -> bytes:
        unpacker = decompressor()
        unpacked: bytes = unpacker.decompress(data, LARGEST_FILE)
        if not unpacker.eof:
            raise DatasetError(
                f'{len(data)} compressed bytes become more than {LARGEST_FILE}, or are cut off'
            )
        return unpacked

    return unpack


class _BoundedYaml(rosbag2_metadata.YAML):  # type: ignore[name-defined,misc]
    """Read the metadata of a bag by the bounded loader."""

    def load(self, stream: str) -> Any:
        """Load YAML of a stranger."""
        return load_yaml(stream)


# rosbags itself has no limits
unpack_zstd = _bounded(rosbag2_reader.zstd.ZstdDecompressor)  # type: ignore[attr-defined]
unpack_lz4 = _bounded(lz4.frame.LZ4FrameDecompressor)
storage_mcap.DECOMPRESSORS.update(lz4=unpack_lz4, zstd=unpack_zstd)
rosbag1_reader.decompressors.update(lz4=unpack_lz4, bz2=_bounded(bz2.BZ2Decompressor))
rosbag2_metadata.YAML = rosbag2_reader.YAML = _BoundedYaml  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Topic:
    """A topic of a bag: its name, its type (package/msg/Name), the number of its messages."""

    name: str
    message_type: str
    count: int

    def __str__(self) -> str:
        return f'{self.name} ({self.message_type.replace("/msg/", "/")}, {self.count} messages)'


class Bag:
    """
    An open bag: a folder with metadata.yaml, or one file (.mcap, .db3, .bag of ROS 1).

    It may be pickled and used by several threads; the file is opened again where needed and
    closed with the object. Raises DatasetError when it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = _storage_of(path)
        self._lock = threading.Lock()
        self._is_ros1, self._is_packed = self.path.suffix == '.bag', False
        with self._failures():
            self._reader = (rosbag1 if self._is_ros1 else rosbag2).Reader(self.path)
            self._reader.open()
            weakref.finalize(self, self._reader.close)
            if not self._is_ros1 and self._reader.compression_mode == 'message':
                # unpack in `cdr`, so that one bad message is not the end of the bag
                storage = self._reader.storage
                storage.metadata = storage.metadata._replace(compression_mode=None)
                self._is_packed = True
            self._connections: dict[str, list[Connection]] = defaultdict(list)
            for connection in self._reader.connections:
                self._connections[connection.topic].append(connection)

    def __reduce__(self) -> tuple[Any, ...]:
        return Bag, (self.path,)

    @property
    def topics(self) -> list[Topic]:
        """All topics that have messages, by name."""
        found = []
        for name, connections in sorted(self._connections.items()):
            message_type = normalize_msgtype(connections[0].msgtype)
            if message_type == 'tf/msg/tfMessage':  # the name that ROS 1 had first
                message_type = TF
            if count := sum(connection.msgcount for connection in connections):
                found.append(Topic(name, message_type, count))
        return found

    def messages(self, topics: Sequence[Topic]) -> Iterator[tuple[str, int, bytes]]:
        """Name of the topic, time of recording in nanoseconds and raw bytes of messages."""
        wanted = [connection for topic in topics for connection in self._connections[topic.name]]
        with self._lock, self._failures():
            for connection, time_ns, data in self._reader.messages(wanted):
                # in a database any value may stand there: no bytes are a bad message
                whole = isinstance(time_ns, int) and isinstance(data, (bytes, memoryview))
                yield (connection.topic, time_ns, data) if whole else (connection.topic, 0, b'')

    def message(self, topic: Topic, time_ns: int, ordinal: int) -> Any:
        """Return the message of a topic that is the `ordinal`-th recorded at one time."""
        wanted = self._connections[topic.name]
        with self._lock, self._failures():
            found = self._reader.messages(wanted, start=time_ns, stop=time_ns + 1)
            data = next((d for index, (_, _, d) in enumerate(found) if index == ordinal), None)
        if data is None:
            raise DatasetError(f'bag {self.path}: a message of {topic.name} is gone')
        return self.deserialize(topic, data)

    def cdr(self, topic: Topic, data: bytes) -> bytes:
        """Return raw bytes as a serialized ROS 2 message; raises DatasetError."""
        try:
            if self._is_ros1:
                return bytes(TYPESTORE.ros1_to_cdr(data, topic.message_type))
            return unpack_zstd(data) if self._is_packed else data
        except Exception as error:
            raise _not_of(topic, data) from error

    def deserialize(self, topic: Topic, data: bytes) -> Any:
        """Message of raw bytes; raises DatasetError when they are none of the topic's type."""
        try:
            return TYPESTORE.deserialize_cdr(self.cdr(topic, data), topic.message_type)
        except Exception as error:
            raise _not_of(topic, data) from error

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn whatever a damaged bag makes the reader raise into one line."""
        try:
            yield
        except Exception as error:
            raise DatasetError(f'cannot read bag {self.path}: {self._explained(error)}') from error

    def _explained(self, error: Exception) -> str:
        reason = ' '.join(str(error).split())[:200].rstrip('.') or type(error).__name__
        if 'not supported' in reason:
            reason = reason.removesuffix('; please report issue')
            remedy = '`pip install --upgrade rosbags`, or write it anew with `ros2 bag convert`'
        elif self.path.is_dir() and ('metadata' in reason or 'YAML' in reason):
            remedy = f'`ros2 bag reindex` writes {METADATA} anew'
        elif self._is_ros1:
            remedy = 'is it complete? `rosbag reindex` repairs a recording that was cut off'
        else:
            remedy = (
                'is it complete? `ros2 bag reindex` repairs the metadata of a recording that was '
                'cut off, `mcap recover` its .mcap'
            )
        return f'{reason}: {remedy}'


def _not_of(topic: Topic, data: bytes) -> DatasetError:
    return DatasetError(f'expected a {topic.message_type}, got {len(data)} other bytes')


def header_stamp_ns(data: bytes) -> int:
    """
    Stamp in nanoseconds of a serialized (CDR) message that begins with a std_msgs/Header.

    Raises DatasetError for fewer than twelve bytes and for a negative time, as of a delay that is
    taken off the first stamps of a simulation.
    """
    if len(data) < 12:
        raise DatasetError(f'expected a message with a header, got {len(data)} bytes')
    seconds, nanoseconds = struct.unpack_from('<iI' if data[1] & 1 else '>iI', data, 4)
    if seconds < 0:
        raise DatasetError(f'expected a stamp of zero seconds or more, got {seconds}')
    return int(seconds) * 10**9 + int(nanoseconds)


def header_frame(data: bytes) -> str:
    """Frame of the same kind of message, without slashes at its ends; empty where it has none."""
    if len(data) < 16:
        return ''
    (length,) = struct.unpack_from('<I' if data[1] & 1 else '>I', data, 12)
    end = 16 + length
    return data[16:end].rstrip(b'\0').decode(errors='replace').strip('/')


def _storage_of(path: Path) -> Path:
    """Return the path itself, or the only storage file of a folder that has lost its metadata."""
    if not path.exists():
        raise DatasetError(f'no such bag: {path}: expected a folder or file of a bag')
    # a storage would wait for somebody who writes into the pipe
    for file in path.iterdir() if path.is_dir() else [path]:
        if not (file.is_file() or file.is_dir()):
            raise DatasetError(f'bag {file} is a device or a pipe: expected a file')
        log = file.with_name(f'{file.name}-wal')
        if file.suffix == '.db3' and log.is_file() and log.stat().st_size:
            raise DatasetError(
                f'bag {file}: its last messages are in {log.name}, as its recorder was cut off or '
                f'is not done: `sqlite3 {file} "PRAGMA wal_checkpoint(TRUNCATE)"` takes them over'
            )
    if not path.is_dir() or (path / METADATA).is_file():
        return path
    files = [file for file in sorted(path.iterdir()) if file.suffix in STORAGE_SUFFIXES]
    if len(files) == 1:
        return files[0]
    raise DatasetError(
        f'no {METADATA} in {path} and {len(files)} storage files: '
        'give one of the files, or run `ros2 bag reindex` on the folder'
    )
