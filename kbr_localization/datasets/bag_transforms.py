"""Odometry and reference poses of a bag that exist on /tf alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
import functools
import logging
from types import SimpleNamespace
from typing import Any

from kbr_localization.datasets.bag_reader import Bag, deserialize, Topic
from kbr_localization.datasets.frame import OdometryTrack
from kbr_localization.datasets.pose_message import planar_pose
from kbr_localization.datasets.selection import of_another_clock
from kbr_localization.datasets.transform_tree import (
    BASE_FRAMES,
    Edge,
    MAP_FRAMES,
    ODOMETRY_FRAMES,
    Transform,
    TransformTree,
)
from kbr_localization.errors import DatasetError

LOG = logging.getLogger(__name__)

TF = 'tf2_msgs/msg/TFMessage'
STATIC = 'tf_static'


class BagTransforms:
    """
    The transforms of a bag; they are read when they are asked for.

    `odometry`: the topic whose messages stand for the transform from their frame to their child's
    where /tf has none, or None.
    """

    def __init__(self, bag: Bag, odometry: Topic | None = None) -> None:
        self._bag, self._odometry = bag, odometry
        self._topics = [topic for topic in bag.topics if topic.message_type == TF]

    def odometry_topic(self) -> Topic | None:
        """Return the topic of transforms from odom to the base, None where there are none."""
        return self._topic(self.odometry_way)

    def reference_topic(self) -> Topic | None:
        """Return the topic of transforms from map to the base, None where there are none."""
        return self._topic(self.reference_way)

    @property
    def odometry_way(self) -> tuple[str, ...]:
        """Frames from odom down to the base."""
        return self._tree.way(ODOMETRY_FRAMES, BASE_FRAMES)

    @property
    def reference_way(self) -> tuple[str, ...]:
        """Frames from map down to the base."""
        return self._tree.way(MAP_FRAMES, self._bases)

    def track(self, way: Sequence[str]) -> OdometryTrack:
        """Poses of the last frame of a way in its first; raises DatasetError."""
        try:
            return self._tree.track(way)
        except DatasetError as error:
            raise DatasetError(f'bag {self._bag.path}: {error}') from error

    def _topic(self, way: tuple[str, ...]) -> Topic | None:
        if not (self._topics and way and self._tree.stamps(way).size):
            return None
        return self._topics[0]

    @property
    def _bases(self) -> Sequence[str]:
        child = next((t.child for t in self._from_odometry()), '')
        return (child, *BASE_FRAMES) if child else BASE_FRAMES

    @functools.cached_property
    def _tree(self) -> TransformTree:
        if not self._topics:
            return TransformTree(())
        tree = TransformTree(_of_one_clock(self._sent()))
        tree.complete(_of_one_clock(self._from_odometry()))
        return tree

    def _sent(self) -> Iterator[Transform]:
        for topic in self._topics:
            for message, time_ns in self._messages(topic):
                for transform in message.transforms:
                    yield from _read(transform, time_ns, topic.name.endswith(STATIC))

    def _from_odometry(self) -> Iterator[Transform]:
        if self._odometry is not None:
            for message, time_ns in self._messages(self._odometry):
                yield from _of_odometry(message, time_ns)

    def _messages(self, topic: Topic) -> Iterator[tuple[Any, int]]:
        """Messages of a topic with the times of their recording; broken ones are left out."""
        for name, time_ns, data in self._bag.messages([topic.name]):
            try:
                message = deserialize(data, topic.message_type)
            except DatasetError as error:
                LOG.debug('%s at %d ns skipped: %s', name, time_ns, error)
            else:
                yield message, time_ns


def _of_one_clock(sent: Iterable[Transform]) -> Iterator[Transform]:
    """
    Leave out those without a stamp whose times of recording do not go with the other stamps.

    They come last; the others are not kept, as a bag has millions of them.
    """
    spans: dict[Edge, tuple[int, int]] = {}
    unstamped = defaultdict[Edge, list[Transform]](list)
    for transform in sent:
        if transform.fixed or transform.stamped:
            first, last = spans.get(transform.edge, (transform.stamp_ns,) * 2)
            spans[transform.edge] = min(first, transform.stamp_ns), max(last, transform.stamp_ns)
            yield transform
        else:
            unstamped[transform.edge].append(transform)
    for edge, transforms in unstamped.items():
        foreign = of_another_clock(spans.get(edge, ()), [t.stamp_ns for t in transforms])
        yield from (t for t in transforms if t.stamp_ns not in foreign)


def _read(message: Any, time_ns: int, fixed: bool) -> Iterator[Transform]:
    """Give the transform of a message, or nothing where it is no pose in the plane."""
    moved = message.transform
    pose = SimpleNamespace(position=moved.translation, orientation=moved.rotation)
    yield from _placed(message, pose, time_ns, fixed)


def _of_odometry(message: Any, time_ns: int) -> Iterator[Transform]:
    yield from _placed(message, message.pose.pose, time_ns, False)


def _placed(message: Any, pose: Any, time_ns: int, fixed: bool) -> Iterator[Transform]:
    parent, child = message.header.frame_id.strip('/'), message.child_frame_id.strip('/')
    stamp = message.header.stamp
    header_ns = stamp.sec * 10**9 + stamp.nanosec
    stamp_ns = header_ns or time_ns
    try:
        # no run has a time before zero, see `header_stamp_ns`
        if parent and child and (fixed or stamp_ns >= 0):
            yield Transform(parent, child, stamp_ns, planar_pose(pose), fixed, header_ns != 0)
    except DatasetError as error:
        LOG.debug('%s -> %s at %d ns skipped: %s', parent, child, stamp_ns, error)
