"""Images of several cameras that belong together, by their stamps."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence
from typing import Generic, TypeVar

Item = TypeVar('Item')

TOLERANCE = 0.05
"""Seconds by which the stamps of images that belong together may differ."""
SILENT_SECONDS = 1.0
"""A camera that sends nothing for so long while others do is not waited for."""
JUMP_NS = 1_000_000_000


class Synchronizer(Generic[Item]):
    """
    Sort the images of `names` into sets with one image of each camera.

    The set's stamp is that of the first camera's image; those of the others lie within
    `tolerance` seconds. Two images do not go together where the next one of either camera is less
    than half as far from the other one, as behind an image that was lost. A camera that is silent
    for `silent` seconds of the others' stamps is left out, None standing for its image, until it
    sends again. At most `size` images of a camera wait. `dropped` counts by reason the images that
    found no set. Stamps that jump back start everything over.
    """

    def __init__(
        self,
        names: Sequence[str],
        tolerance: float = TOLERANCE,
        silent: float = SILENT_SECONDS,
        size: int = 100,
    ) -> None:
        self.names = tuple(names)
        self.dropped: Counter[str] = Counter()
        self._tolerance_ns, self._silent_ns = round(tolerance * 1e9), round(silent * 1e9)
        self._size = size
        self._forget()

    @property
    def silent(self) -> list[str]:
        """Names of the cameras that are not waited for."""
        return [self.names[camera] for camera in range(len(self.names)) if self._is_silent(camera)]

    def add(
        self, camera: int, stamp_ns: int, item: Item
    ) -> list[tuple[int, tuple[Item | None, ...]]]:
        """Take in an image of a camera by its number; return the sets that are whole now."""
        if stamp_ns < self._newest[camera] - JUMP_NS:
            self.clear('before a time jump')
        at = bisect.bisect_right(self._stamps[camera], stamp_ns)
        self._stamps[camera].insert(at, stamp_ns)
        self._items[camera].insert(at, item)
        if stamp_ns > self._newest[camera]:
            self._period_ns[camera] = stamp_ns - self._newest[camera]
            self._newest[camera] = stamp_ns
        self._note_silence(camera, stamp_ns)
        if len(self._stamps[camera]) > self._size:
            self._drop_first(camera, 1, 'waited too long for other cameras')
        return self._sets(last=False)

    def clear(self, reason: str) -> None:
        """Let all waiting images go; stamps may start over."""
        self._drop(reason, sum(map(len, self._stamps)))
        self._forget()

    def finish(self) -> list[tuple[int, tuple[Item | None, ...]]]:
        """Return the sets that remain when nothing more comes."""
        return self._sets(last=True)

    def _forget(self) -> None:
        count = range(len(self.names))
        self._stamps: list[list[int]] = [[] for _ in count]
        self._items: list[list[Item]] = [[] for _ in count]
        self._newest = [0 for _ in count]
        self._period_ns = [0 for _ in count]
        self._missed_since: list[int | None] = [None for _ in count]
        self._last_ns = 0

    def _note_silence(self, camera: int, stamp_ns: int) -> None:
        # counted from the first image of another camera that the last of this one does not go
        # with: a robot that records nothing while it stands has no silent cameras
        self._last_ns = max(self._newest)
        for other in range(len(self.names)):
            if other == camera:
                self._missed_since[other] = None
            elif (
                self._missed_since[other] is None
                and stamp_ns > self._newest[other] + self._tolerance_ns
            ):
                self._missed_since[other] = stamp_ns

    def _is_silent(self, camera: int) -> bool:
        since = self._missed_since[camera]
        return since is not None and self._last_ns - since > self._silent_ns

    def _sets(self, last: bool) -> list[tuple[int, tuple[Item | None, ...]]]:
        found: list[tuple[int, tuple[Item | None, ...]]] = []
        while True:
            alive = [camera for camera in range(len(self.names)) if not self._is_silent(camera)]
            first = alive[0]
            if not self._stamps[first]:
                return found
            nearest = {camera: self._nearest(first, camera) for camera in alive[1:]}
            if not last and any(self._may_be_nearer(first, *one) for one in nearest.items()):
                return found
            partners = {camera: self._partner(first, camera, at) for camera, at in nearest.items()}
            lacking = [camera for camera, at in partners.items() if at is None]
            if lacking:
                self._drop_first(first, 1, f'no image of {self.names[lacking[0]]} near')
            else:
                found.append((self._stamps[first][0], self._take({first: 0, **partners})))

    def _may_be_nearer(self, first: int, camera: int, at: int | None) -> bool:
        """Whether the next image of one of two cameras may go better with the other one's."""
        stamp_ns = self._stamps[first][0]
        if at is None:
            return self._newest[camera] <= stamp_ns + self._tolerance_ns
        gap_ns = self._stamps[camera][at] - stamp_ns
        earlier, earlier_ns = (camera, stamp_ns + gap_ns) if gap_ns < 0 else (first, stamp_ns)
        next_ns = self._period_ns[earlier] - abs(gap_ns)
        return self._newest[earlier] == earlier_ns and 2 * next_ns < abs(gap_ns)

    def _partner(self, first: int, camera: int, at: int | None) -> int | None:
        """Give the nearest image's place, if any, where it goes with the first of another."""
        if at is not None:
            gaps = [abs(stamp - self._stamps[camera][at]) for stamp in self._stamps[first][:2]]
            if 2 * gaps[-1] < gaps[0]:
                return None
        return at

    def _nearest(self, first: int, camera: int) -> int | None:
        """Place of the image nearest to the first one of another camera, within the tolerance."""
        stamps, stamp_ns = self._stamps[camera], self._stamps[first][0]
        at = bisect.bisect_left(stamps, stamp_ns)
        around = range(max(at - 1, 0), min(at + 1, len(stamps)))
        nearest = min(around, key=lambda i: abs(stamps[i] - stamp_ns), default=None)
        if nearest is None or abs(stamps[nearest] - stamp_ns) > self._tolerance_ns:
            return None
        return nearest

    def _take(self, places: dict[int, int | None]) -> tuple[Item | None, ...]:
        taken: list[Item | None] = [None] * len(self.names)
        for camera, at in places.items():
            assert at is not None
            self._drop_first(camera, at, f'no image of {self.names[min(places)]} near')
            taken[camera] = self._items[camera][0]
            del self._stamps[camera][0], self._items[camera][0]
        return tuple(taken)

    def _drop_first(self, camera: int, count: int, reason: str) -> None:
        del self._stamps[camera][:count], self._items[camera][:count]
        self._drop(f'{self.names[camera]}: {reason}', count)

    def _drop(self, reason: str, count: int) -> None:
        if count:
            self.dropped[reason] += count
