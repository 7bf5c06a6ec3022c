"""Poses of a bag that are known only as transforms: /tf and /tf_static."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
import functools
import itertools

from kbr_localization import se2
from kbr_localization.datasets.frame import OdometryTrack
from kbr_localization.errors import DatasetError
import numpy as np

MAP_FRAMES, ODOMETRY_FRAMES = ('map',), ('odom',)
BASE_FRAMES = ('base_footprint', 'base_link', 'base')
Edge = tuple[str, str]


@dataclass(frozen=True)
class Transform:
    """
    A pose (3,) of a child frame in its parent at a stamp, or for all times where `fixed`.

    `stamped`: whether the stamp is its own, and no time of recording.
    """

    parent: str
    child: str
    stamp_ns: int
    pose: se2.FloatArray
    fixed: bool = False
    stamped: bool = True

    @property
    def edge(self) -> Edge:
        """Name the two frames."""
        return self.parent, self.child


class _Samples:
    """Stamps and poses of one transform, in little memory: a bag has millions of them."""

    def __init__(self) -> None:
        self.fixed = True
        self._stamps, self._poses = array('q'), array('d')

    def add(self, transform: Transform) -> None:
        self.fixed = self.fixed and transform.fixed
        self._stamps.append(transform.stamp_ns)
        self._poses.extend(transform.pose)

    def track(self) -> OdometryTrack:
        """Return them by time; of equal stamps the first counts."""
        stamps, first = np.unique(np.array(self._stamps, dtype=np.int64), return_index=True)
        poses = np.array(self._poses, dtype=np.float64).reshape(-1, 3)
        return OdometryTrack(stamps, poses[first])


class TransformTree:
    """
    Planar poses of frames in each other, over time.

    Made of transforms in any order; of a frame with several parents the last one counts, as in
    tf2.
    """

    def __init__(self, transforms: Iterable[Transform] = ()) -> None:
        self._parents: dict[str, str] = {}
        self._samples: dict[Edge, _Samples] = {}
        for transform in transforms:
            self._take(transform)

    def complete(self, transforms: Iterable[Transform]) -> None:
        """Take those of frames that no transform has placed yet."""
        placed = set(self._parents)
        for transform in transforms:
            if transform.child not in placed:
                self._take(transform)

    def _take(self, transform: Transform) -> None:
        self._parents[transform.child] = transform.parent
        self._samples.setdefault(transform.edge, _Samples()).add(transform)

    @functools.cached_property
    def _tracks(self) -> dict[Edge, OdometryTrack]:
        return {edge: samples.track() for edge, samples in self._samples.items()}

    @property
    def edges(self) -> list[str]:
        """Name the transforms there are, for messages."""
        return sorted(f'{parent} -> {child}' for child, parent in self._parents.items())

    def way(self, above: Sequence[str], below: Sequence[str]) -> tuple[str, ...]:
        """
        Frames from one of `above` down to one of `below`, both in order of preference.

        A name stands for the frame of any robot that ends with it (`robot1/base_link`). Empty
        where there is no such way.
        """
        for name in below:
            for frame in self._called(name):
                chain = self._up(frame)
                tops = [f for top in above for f in chain[1:] if _is_called(f, top)]
                if tops:
                    return tuple(chain[: chain.index(tops[0]) + 1][::-1])
        return ()

    def track(self, way: Sequence[str]) -> OdometryTrack:
        """
        Poses of the last frame of a way in its first, at the stamps of its quickest transform.

        Raises DatasetError when the transforms do not overlap in time.
        """
        edges, stamps = list(itertools.pairwise(way)), self.stamps(way)
        if stamps.size == 0:
            raise DatasetError(
                f'transforms {" -> ".join(way)} do not overlap in time: expected all of them over '
                'the whole recording'
            )
        poses = np.zeros((stamps.size, 3))
        for edge in edges:
            poses = se2.compose(poses, self._at(edge, stamps))
        return OdometryTrack(stamps, poses)

    def stamps(self, way: Sequence[str]) -> se2.StampArray:
        """Stamps (m,) of the quickest transform of a way at which all of them are known."""
        edges = list(itertools.pairwise(way))
        moving = [edge for edge in edges if not self._still(edge)] or edges[-1:]
        return self._common_stamps(moving)

    def _common_stamps(self, edges: Sequence[Edge]) -> se2.StampArray:
        tracks = [self._tracks[edge].stamps_ns for edge in edges]
        start, end = max(t[0] for t in tracks), min(t[-1] for t in tracks)
        quickest = max(tracks, key=len)
        common: se2.StampArray = quickest[(quickest >= start) & (quickest <= end)]
        return common

    def _at(self, edge: Edge, stamps_ns: se2.StampArray) -> se2.FloatArray:
        track = self._tracks[edge]
        if self._still(edge):
            return np.asarray(track.poses[-1])
        return se2.interpolate(track.stamps_ns, track.poses, stamps_ns)

    def _still(self, edge: Edge) -> bool:
        """Whether a transform holds for all times: a fixed one, or one that was sent once."""
        return self._samples[edge].fixed or len(self._tracks[edge].stamps_ns) == 1

    def _called(self, name: str) -> list[str]:
        frames = sorted(self._parents)
        return [frame for frame in frames if frame == name] or [
            frame for frame in frames if _is_called(frame, name)
        ]

    def _up(self, frame: str) -> list[str]:
        chain = [frame]
        # a circle is no tree: stop where it closes
        while chain[-1] in self._parents and self._parents[chain[-1]] not in chain:
            chain.append(self._parents[chain[-1]])
        return chain


def _is_called(frame: str, name: str) -> bool:
    return frame == name or frame.rpartition('/')[2] == name
