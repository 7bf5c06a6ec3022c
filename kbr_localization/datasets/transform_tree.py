"""Poses of a bag that are known only as transforms: /tf and /tf_static."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
import itertools

from kbr_localization import se2
from kbr_localization.datasets.frame import OdometryTrack
from kbr_localization.datasets.selection import make_track
from kbr_localization.errors import DatasetError
import numpy as np

MAP_FRAMES, ODOMETRY_FRAMES = ('map',), ('odom',)
BASE_FRAMES = ('base_footprint', 'base_link', 'base')
Edge = tuple[str, str]


@dataclass(frozen=True)
class Transform:
    """A pose (3,) of a child frame in its parent at a stamp, or for all times where `fixed`."""

    parent: str
    child: str
    stamp_ns: int
    pose: se2.FloatArray
    fixed: bool = False


class TransformTree:
    """
    Planar poses of frames in each other, over time.

    Made of transforms in any order; of a frame with several parents the last one counts, as in
    tf2.
    """

    def __init__(self, transforms: Iterable[Transform]) -> None:
        self._parents: dict[str, str] = {}
        collected: dict[Edge, list[Transform]] = {}
        for transform in transforms:
            self._parents[transform.child] = transform.parent
            collected.setdefault((transform.parent, transform.child), []).append(transform)
        self._tracks = {edge: _track(found) for edge, found in collected.items()}
        self._fixed = {edge for edge, found in collected.items() if all(t.fixed for t in found)}

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
        return edge in self._fixed or len(self._tracks[edge].stamps_ns) == 1

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


def _track(transforms: Sequence[Transform]) -> OdometryTrack:
    return make_track([t.stamp_ns for t in transforms], [t.pose for t in transforms])[0]


def _is_called(frame: str, name: str) -> bool:
    return frame == name or frame.rpartition('/')[2] == name
