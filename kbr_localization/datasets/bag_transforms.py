"""Poses of a bag that exist on /tf alone."""

from __future__ import annotations

from collections.abc import Sequence
import itertools
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets.bag_reader import Bag, stamp_of, TF, Topic
from kbr_localization.datasets.frame import OdometryTrack, Skipped
from kbr_localization.datasets.tables import floor_pose
from kbr_localization.datasets.tracks import make_track, StampedRows
from kbr_localization.errors import DatasetError
import numpy as np

MAP_FRAMES, ODOMETRY_FRAMES = ('map',), ('odom',)
BASE_FRAMES = ('base_footprint', 'base_link', 'base')
Edge = tuple[str, str]


class TransformTree:
    """
    Planar poses of the frames of a bag in each other, over time.

    Of a frame with several parents the last one counts, as in tf2. `topic`: where they come from,
    or None.
    """

    def __init__(self, bag: Bag, skipped: Skipped) -> None:
        self._parents: dict[str, str] = {}
        self._fixed: dict[Edge, se2.FloatArray] = {}
        self._moving: dict[Edge, StampedRows] = {}
        self._tracks: dict[Edge, OdometryTrack] = {}
        topics = [topic for topic in bag.topics if topic.message_type == TF]
        self.topic = topics[0] if topics else None
        for topic, time_ns, message in bag.messages(topics, skipped) if topics else ():
            for sent in message.transforms:
                try:
                    self._add(topic, time_ns, sent)
                except DatasetError as error:
                    skipped.add(f'bad message on {topic.name}', error)

    def _add(self, topic: Topic, time_ns: int, sent: Any) -> None:
        edge = sent.header.frame_id.strip('/'), sent.child_frame_id.strip('/')
        if not all(edge):
            return
        pose = floor_pose(sent.transform.translation, sent.transform.rotation)
        if topic.name.endswith('tf_static'):
            self._fixed[edge] = pose
        else:
            self._moving.setdefault(edge, StampedRows('d')).add(stamp_of(sent), time_ns, pose)
        self._parents[edge[1]] = edge[0]

    def add_odometry(self, frame: str, child: str, track: OdometryTrack) -> None:
        """Let messages of odometry stand for a transform that is not sent."""
        if frame and child and child not in self._parents:
            self._parents[child] = frame
            self._tracks[frame, child] = track

    def chain(self, above: Sequence[str], below: Sequence[str]) -> tuple[str, ...]:
        """
        Frames from one of `above` down to one of `below`, both in order of preference.

        A name stands for the frame of any robot that ends with it (`robot1/base_link`). Empty
        where there is no such chain, or where its transforms do not overlap in time.
        """
        for name in below:
            called = [frame for frame in sorted(self._parents) if _is_called(frame, name)]
            for frame in [name] if name in called else called:
                upward = self._up(frame)
                tops = [f for top in above for f in upward[1:] if _is_called(f, top)]
                if tops:
                    chain = tuple(upward[: upward.index(tops[0]) + 1][::-1])
                    return chain if self._stamps(chain).size else ()
        return ()

    def track(self, chain: Sequence[str]) -> OdometryTrack:
        """Poses of the last frame of a chain in its first, at stamps of its quickest transform."""
        stamps = self._stamps(chain)
        poses = np.zeros((stamps.size, 3))
        for edge in itertools.pairwise(chain):
            track = self._track(edge)
            step = track.poses[-1]
            if not self._is_constant(edge):
                step = se2.interpolate(track.stamps_ns, track.poses, stamps)
            poses = se2.compose(poses, step)
        return OdometryTrack(stamps, poses)

    def _stamps(self, chain: Sequence[str]) -> se2.StampArray:
        """Stamps of the quickest transform of a chain at which all of them are known."""
        edges = list(itertools.pairwise(chain))
        moving = [edge for edge in edges if not self._is_constant(edge)] or edges[-1:]
        tracks = [self._track(edge).stamps_ns for edge in moving]
        start, end = max(t[0] for t in tracks), min(t[-1] for t in tracks)
        quickest = max(tracks, key=len)
        return np.asarray(quickest[(quickest >= start) & (quickest <= end)])

    def _track(self, edge: Edge) -> OdometryTrack:
        if edge in self._fixed:
            return OdometryTrack(np.zeros(1, dtype=np.int64), self._fixed[edge][np.newaxis])
        if edge not in self._tracks:
            samples, _ = self._moving[edge].of_one_clock()
            self._tracks[edge] = make_track(samples, Skipped(), '')
        return self._tracks[edge]

    def _is_constant(self, edge: Edge) -> bool:
        """Whether a transform holds for all times: a fixed one, or one that was sent once."""
        return edge in self._fixed or len(self._track(edge).stamps_ns) == 1

    def _up(self, frame: str) -> list[str]:
        chain = [frame]
        # stop where a circle closes
        while chain[-1] in self._parents and self._parents[chain[-1]] not in chain:
            chain.append(self._parents[chain[-1]])
        return chain


def _is_called(frame: str, name: str) -> bool:
    return frame == name or frame.rpartition('/')[2] == name
