"""Read topics and messages of bags of ROS 1 and ROS 2."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
import functools
import itertools
from pathlib import Path
import threading
from typing import Any
import weakref

from kbr_localization.datasets.frame import Skipped
from kbr_localization.datasets.opening import BAG_SUFFIXES
from kbr_localization.errors import DatasetError
from kbr_localization.files import read_file

try:
    from rosbags import rosbag1, rosbag2
    from rosbags.typesys import get_typestore, Stores
    from rosbags.typesys.msg import normalize_msgtype
except ImportError as error:
    # optional: a robot that only localizes reads no bags
    raise DatasetError('bags need the package rosbags: run `pip install rosbags`') from error

TYPESTORE, NOETIC = get_typestore(Stores.ROS2_JAZZY), get_typestore(Stores.ROS1_NOETIC)
METADATA = 'metadata.yaml'
RAW, COMPRESSED = 'sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage'
ODOMETRY, TF = 'nav_msgs/msg/Odometry', 'tf2_msgs/msg/TFMessage'
POSE = 'geometry_msgs/msg/PoseStamped'
POSE_WITH_COVARIANCE = 'geometry_msgs/msg/PoseWithCovarianceStamped'
NOETIC.register({TF: TYPESTORE.fielddefs[TF]})  # rosbags defines it for ROS 2 only


@dataclass(frozen=True)
class Topic:
    """A topic of a bag: its name, its type (package/msg/Name), the number of its messages."""

    name: str
    message_type: str
    count: int

    def __str__(self) -> str:
        return f'{self.name} ({self.message_type.replace("/msg/", "/")}, {self.count} messages)'

    def ends_with(self, names: Sequence[str]) -> bool:
        """Return whether the topic is called one of `names`, in any namespace."""
        return any(self.name.endswith(f'/{name}') for name in names)


class Bag:
    """
    An open bag: a folder with metadata.yaml, or one file (.mcap, .db3, .bag of ROS 1).

    Several threads may use it. It can be pickled: another process opens the file again. The file
    is closed when the object is deleted. Raises DatasetError when it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = _storage_of(path)
        self._lock = threading.Lock()
        # of `message`: topic, time of the last message and end of the records in `_cursor`
        self._position: tuple[Topic | None, int, int] = None, 0, 0
        self._cursor: list[Iterator[tuple[Topic, int, Any]]] = []
        self._is_ros1 = self.path.suffix == '.bag'
        self._read = NOETIC.deserialize_ros1 if self._is_ros1 else TYPESTORE.deserialize_cdr
        with self._as_dataset_errors():
            if self.path.is_dir():
                read_file(self.path / METADATA, most=1 << 22)  # rosbags has no limit of bytes
            self._reader = (rosbag1 if self._is_ros1 else rosbag2).Reader(self.path)
            self._reader.open()
            weakref.finalize(self, _close, self._reader, self._cursor)
            counts = Counter[tuple[str, str]]()
            for connection in self._reader.connections:
                counts[connection.topic, _type_of(connection)] += connection.msgcount
            self.topics = [Topic(*key, count) for key, count in sorted(counts.items()) if count]

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_once, (self.path, id(self))

    def messages(
        self, topics: Sequence[Topic], skipped: Skipped
    ) -> Iterator[tuple[Topic, int, Any]]:
        """Yield topic, time of recording in ns and message; count in `skipped` what is broken."""
        missing = Counter({topic: topic.count for topic in topics})
        with self._as_dataset_errors():
            for topic, time_ns, message in _records(self._reader, self._read, topics):
                missing[topic] -= 1
                if message is None:
                    expected = f'expected a {topic.message_type}, got other bytes'
                    skipped.add(f'bad message on {topic.name}', expected)
                else:
                    yield topic, time_ns, message
        for topic, count in missing.items():
            skipped.add(f'message missing on {topic.name}', count=max(count, 0))

    def message(self, topic: Topic, time_ns: int, ordinal: int) -> Any:
        """
        Return a message by topic, time of recording, and index among messages of that time.

        Later messages of the same second are read from the same cursor, because opening one
        searches all chunks of the bag and reads a whole chunk.
        """
        with self._lock, self._as_dataset_errors():
            last_topic, last_ns, end_ns = self._position
            if topic != last_topic or not last_ns < time_ns < end_ns:
                end_ns = time_ns + 10**9
                self._cursor[:] = [_records(self._reader, self._read, [topic], time_ns, end_ns)]
            self._position = None, 0, 0  # in case of an error
            readable = (record for record in self._cursor[0] if record[2] is not None)
            later = itertools.dropwhile(lambda record: record[1] < time_ns, readable)
            same = itertools.takewhile(lambda record: record[1] == time_ns, later)
            for _, _, message in itertools.islice(same, ordinal, None):
                self._position = topic, time_ns, end_ns
                return message
        raise DatasetError(f'bag {self.path}: a message of {topic.name} has disappeared')

    def frames_of(self, topic: Topic | None) -> tuple[str, str]:
        """Return frame id and child frame id of the first message of a topic; empty if none."""
        for *_, message in self.messages([topic], Skipped()) if topic else ():
            child = getattr(message, 'child_frame_id', '')
            return message.header.frame_id.strip('/'), child.strip('/')
        return '', ''

    @contextmanager
    def _as_dataset_errors(self) -> Iterator[None]:
        """Convert any error of rosbags, as a damaged bag causes, to a one-line DatasetError."""
        try:
            yield
        except Exception as error:
            reason = ' '.join(str(error).split())[:200].rstrip('.') or type(error).__name__
            remedy = (
                '`rosbag reindex` repairs a recording that was cut off'
                if self._is_ros1
                else f'`ros2 bag reindex` rewrites {METADATA}, `mcap recover` repairs an .mcap '
                'that was cut off, `pip install --upgrade rosbags` reads newer bags'
            )
            raise DatasetError(f'cannot read bag {self.path}: {reason}: {remedy}') from error


def _records(
    reader: Any, read: Callable[[Any, str], Any], topics: Sequence[Topic], *span: int
) -> Iterator[tuple[Topic, int, Any]]:
    """Yield topic, time of recording in ns and message, which is None if it is broken."""
    by_name = {(topic.name, topic.message_type): topic for topic in topics}
    wanted = [c for c in reader.connections if (c.topic, _type_of(c)) in by_name]
    topic_of = {c.id: by_name[c.topic, _type_of(c)] for c in wanted}
    for connection, time_ns, data in reader.messages(wanted, *span):
        topic = topic_of[connection.id]
        try:
            record = topic, int(time_ns), read(data, topic.message_type)
        except Exception:
            record = topic, 0, None
        yield record


def _close(reader: Any, cursor: list[Iterator[Any]]) -> None:
    cursor.clear()  # an iterator must not outlive the open file
    reader.close()


@functools.lru_cache(16)
def _open_once(path: Path, bag_id: int) -> Bag:
    """Open a pickled bag once in each process, as the index of a large bag takes long to read."""
    return Bag(path)


def _type_of(connection: Any) -> str:
    kind = normalize_msgtype(connection.msgtype)
    # the older name in ROS 1
    return TF if kind == 'tf/msg/tfMessage' else kind


def stamp_of(message: Any) -> int:
    """Return the stamp of a message in ns, 0 if unset; raises DatasetError if negative."""
    stamp_ns = int(message.header.stamp.sec) * 10**9 + int(message.header.stamp.nanosec)
    if stamp_ns < 0:
        raise DatasetError(f'expected a stamp of zero or more, got {stamp_ns * 1e-9:g} s')
    return stamp_ns


def _storage_of(path: Path) -> Path:
    """Return the path itself, or the only storage file of a folder without metadata."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        # opening a pipe would wait for its writer
        if not (file.is_file() or file.is_dir()):
            raise DatasetError(f'bag {file} is a device or a pipe: expected a file')
        log = file.with_name(f'{file.name}-wal')
        if file.suffix == '.db3' and log.is_file() and log.stat().st_size:
            raise DatasetError(
                f'bag {file}: its last messages are in {log.name}, as its recorder was killed or '
                f'still runs: `sqlite3 {file} "PRAGMA wal_checkpoint(TRUNCATE)"` merges them'
            )
    if not path.is_dir() or (path / METADATA).is_file():
        return path
    storages = [file for file in files if file.suffix in BAG_SUFFIXES]
    if len(storages) == 1:
        return storages[0]
    raise DatasetError(
        f'no {METADATA} in {path} and {len(storages)} storage files: '
        'give one of the files, or run `ros2 bag reindex` on the folder'
    )


def is_odometry_frame(frame: str, odometry_frame: str) -> bool:
    """Return whether poses in a frame drift as odometry does, unlike poses in a map."""
    return frame != '' and (frame == odometry_frame or 'odom' in frame.rpartition('/')[2])
