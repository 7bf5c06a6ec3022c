"""Odometry and reference poses of a bag that exist on /tf alone."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
import functools
import itertools
from types import SimpleNamespace
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets.bag_reader import Bag, TF, Topic
from kbr_localization.datasets.frame import OdometryTrack, Skipped
from kbr_localization.datasets.poses import planar_pose
from kbr_localization.datasets.selection import foreign_stamps
from kbr_localization.errors import DatasetError
import numpy as np

MAP_FRAMES, ODOMETRY_FRAMES = ('map',), ('odom',)
BASE_FRAMES = ('base_footprint', 'base_link', 'base')
Edge = tuple[str, str]
Placed = tuple[str, str, int, se2.FloatArray, bool, bool]


class TransformTree:
    """
    Planar poses of frames in each other, over time.

    Of a frame with several parents the last one counts, as in tf2.
    """

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}
        # stamps, whether they are times of recording, poses: a bag has millions of them
        self._samples: dict[Edge, tuple[array[int], array[int], array[float]]] = {}
        self._moving: set[Edge] = set()

    def add(
        self,
        parent: str,
        child: str,
        stamp_ns: int,
        pose: se2.FloatArray,
        fixed: bool = False,
        stamped: bool = True,
    ) -> None:
        """
        Take in a pose (3,) of a child frame in its parent, in any order of time.

        `fixed`: for all times. `stamped`: the stamp is its own, not the time of recording.
        """
        edge = parent, child
        self._parents[child] = parent
        columns = self._samples.setdefault(edge, (array('q'), array('b'), array('d')))
        columns[0].append(stamp_ns)
        columns[1].append(not (stamped or fixed))
        columns[2].extend(pose)
        if not fixed:
            self._moving.add(edge)

    @property
    def frames(self) -> tuple[str, ...]:
        """Frames that have a parent."""
        return tuple(self._parents)

    @functools.cached_property
    def _tracks(self) -> dict[Edge, OdometryTrack]:
        """Sort each transform by time; of equal stamps the first counts."""
        tracks = {}
        for edge, columns in self._samples.items():
            stamps, unstamped = np.array(columns[0]), np.array(columns[1], dtype=bool)
            foreign = foreign_stamps(stamps[~unstamped].tolist(), stamps[unstamped].tolist())
            kept = ~(unstamped & np.isin(stamps, list(foreign)))
            unique, first = np.unique(stamps[kept], return_index=True)
            tracks[edge] = OdometryTrack(unique, np.reshape(columns[2], (-1, 3))[kept][first])
        return tracks

    def chain(self, above: Sequence[str], below: Sequence[str]) -> tuple[str, ...]:
        """
        Frames from one of `above` down to one of `below`, both in order of preference.

        A name stands for the frame of any robot that ends with it (`robot1/base_link`). Empty
        where there is no such chain.
        """
        for name in below:
            called = [frame for frame in sorted(self._parents) if _is_called(frame, name)]
            for frame in [name] if name in called else called:
                upward = self._up(frame)
                tops = [f for top in above for f in upward[1:] if _is_called(f, top)]
                if tops:
                    return tuple(upward[: upward.index(tops[0]) + 1][::-1])
        return ()

    def track(self, chain: Sequence[str]) -> OdometryTrack:
        """
        Poses of the last frame of a chain in its first, at the stamps of its quickest transform.

        Raises DatasetError when the transforms do not overlap in time.
        """
        stamps = self.stamps(chain)
        if stamps.size == 0:
            raise DatasetError(
                f'transforms {" -> ".join(chain)} do not overlap in time: expected all of them '
                'over the whole recording'
            )
        poses = np.zeros((stamps.size, 3))
        for edge in itertools.pairwise(chain):
            track, step = self._tracks[edge], self._tracks[edge].poses[-1]
            if not self._is_constant(edge):
                step = se2.interpolate(track.stamps_ns, track.poses, stamps)
            poses = se2.compose(poses, step)
        return OdometryTrack(stamps, poses)

    def stamps(self, chain: Sequence[str]) -> se2.StampArray:
        """Stamps (m,) of the quickest transform of a chain at which all of them are known."""
        edges = list(itertools.pairwise(chain))
        moving = [edge for edge in edges if not self._is_constant(edge)] or edges[-1:]
        tracks = [self._tracks[edge].stamps_ns for edge in moving]
        start, end = max(t[0] for t in tracks), min(t[-1] for t in tracks)
        quickest = max(tracks, key=len)
        return np.asarray(quickest[(quickest >= start) & (quickest <= end)])

    def _is_constant(self, edge: Edge) -> bool:
        """Whether a transform holds for all times: a fixed one, or one that was sent once."""
        return edge not in self._moving or len(self._tracks[edge].stamps_ns) == 1

    def _up(self, frame: str) -> list[str]:
        chain = [frame]
        # stop where a circle closes
        while chain[-1] in self._parents and self._parents[chain[-1]] not in chain:
            chain.append(self._parents[chain[-1]])
        return chain


def _is_called(frame: str, name: str) -> bool:
    return frame == name or frame.rpartition('/')[2] == name


class BagTransforms:
    """
    The transforms of a bag; they are read when they are asked for.

    `odometry`: the topic whose messages stand for the transform from their frame to their child's
    where /tf has none, or None.
    """

    def __init__(self, bag: Bag, skipped: Skipped, odometry: Topic | None = None) -> None:
        self._bag, self._skipped, self._odometry = bag, skipped, odometry
        self._topics = [topic for topic in bag.topics if topic.message_type == TF]

    def odometry_topic(self) -> Topic | None:
        """Return the topic of transforms from odom to the base, None where there are none."""
        return self._topic(self.odometry_chain)

    def reference_topic(self) -> Topic | None:
        """Return the topic of transforms from map to the base, None where there are none."""
        return self._topic(self.reference_chain)

    @property
    def odometry_chain(self) -> tuple[str, ...]:
        """Frames from odom down to the base."""
        return self._tree.chain(ODOMETRY_FRAMES, BASE_FRAMES)

    @property
    def reference_chain(self) -> tuple[str, ...]:
        """Frames from map down to the base, which may be called as the odometry calls it."""
        bases = [child for _, child, *_ in itertools.islice(self._from_odometry(), 1)]
        return self._tree.chain(MAP_FRAMES, (*bases, *BASE_FRAMES))

    def track(self, chain: Sequence[str]) -> OdometryTrack:
        """Poses of the last frame of a chain in its first; raises DatasetError."""
        try:
            return self._tree.track(chain)
        except DatasetError as error:
            raise DatasetError(f'bag {self._bag.path}: {error}') from error

    def _topic(self, chain: tuple[str, ...]) -> Topic | None:
        if not (self._topics and chain and self._tree.stamps(chain).size):
            return None
        return self._topics[0]

    @functools.cached_property
    def _tree(self) -> TransformTree:
        tree = TransformTree()
        for topic in self._topics:
            fixed = topic.name.endswith('tf_static')
            for message, time_ns in self._messages(topic):
                for sent in message.transforms:
                    pose = SimpleNamespace(
                        position=sent.transform.translation, orientation=sent.transform.rotation
                    )
                    for found in self._placed(topic, sent, pose, time_ns, fixed):
                        tree.add(*found)
        placed = tree.frames
        for found in self._from_odometry() if self._topics else ():
            if found[1] not in placed:
                tree.add(*found)
        return tree

    def _from_odometry(self) -> Iterator[Placed]:
        if self._odometry is not None:
            for message, time_ns in self._messages(self._odometry):
                yield from self._placed(
                    self._odometry, message, message.pose.pose, time_ns, fixed=False
                )

    def _messages(self, topic: Topic) -> Iterator[tuple[Any, int]]:
        for _, time_ns, data in self._bag.messages([topic]):
            try:
                yield self._bag.deserialize(topic, data), time_ns
            except DatasetError as error:
                self._skip(topic, error)

    def _placed(
        self, topic: Topic, message: Any, pose: Any, time_ns: int, fixed: bool
    ) -> Iterator[Placed]:
        """Give what `TransformTree.add` takes of a message; nothing of what is no pose."""
        parent, child = message.header.frame_id.strip('/'), message.child_frame_id.strip('/')
        stamp = message.header.stamp
        header_ns = stamp.sec * 10**9 + stamp.nanosec
        stamp_ns = header_ns or time_ns
        try:
            if parent and child and (fixed or stamp_ns >= 0):
                planar = planar_pose(pose)
                yield parent, child, stamp_ns, planar, fixed, header_ns != 0
        except DatasetError as error:
            self._skip(topic, error)

    def _skip(self, topic: Topic, error: DatasetError) -> None:
        # messages of the odometry are counted where their poses are read
        if topic != self._odometry:
            self._skipped.add(f'bad message on {topic.name}', error)
