"""Several cameras: names, synchronization of images, and runs."""

import bisect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
import itertools
from typing import Any, Generic, TypeVar

import cv2
from kbr_localization.datasets.frame import Dataset, Frame, Image
from kbr_localization.errors import DatasetError
import numpy as np

Source = Image | Callable[[], Image]
Item = TypeVar('Item')
ImageSet = tuple[int, tuple[Item | None, ...]]
"""Stamp in ns, and the image of each camera or None."""

STAMP_TOLERANCE = 0.05
"""Maximum difference in seconds of the stamps of a set of images."""
_IMAGE_WORDS = (
    *('image', 'image_raw', 'image_color', 'image_mono', 'image_rect', 'image_rect_color'),
    *('image_rect_gray', 'image_rect_raw', 'compressed', 'color', 'gray', 'mono', 'rgb', 'raw'),
    'rect',
)
"""Last parts of a topic that describe the image, not the camera."""


def camera_name(source: str) -> str:
    """Return `front` for the topic /robot/front/image_raw or the folder front_cam, or ''."""
    parts = source.strip('/').split('/')
    while parts and parts[-1] in _IMAGE_WORDS:
        parts.pop()
    return parts[-1].removesuffix('_cam') if parts else ''


def camera_names(sources: Sequence[str]) -> tuple[str, ...]:
    """Return the names of several cameras; raises DatasetError unless they differ."""
    names = tuple(camera_name(source) for source in sources)
    if len(set(names)) < len(names) or '' in names or any(',' in name for name in names):
        raise DatasetError(
            f'cameras {", ".join(sources)} would be called {", ".join(names)}: expected a '
            'different name for each, as in front/image and rear/image'
        )
    return names


class Synchronizer(Generic[Item]):
    """
    Match images of several cameras to sets with one image of each camera.

    A set has the stamp of the first camera's image, and the other stamps differ by at most
    `tolerance` seconds. Two images do not match if the next image of one camera is less than half
    as far from the image of the other, as after a lost image. A camera that sends nothing for
    `silent` seconds of the others' stamps has None in the sets until it sends again. At most
    `size` images of a camera wait. `dropped` counts unmatched images by reason. Stamps that jump
    back reset everything.
    """

    def __init__(
        self,
        names: Sequence[str],
        tolerance: float = STAMP_TOLERANCE,
        silent: float = 1.0,
        size: int = 100,
    ) -> None:
        self.names, self._size = tuple(names), size
        self.dropped: Counter[str] = Counter()
        self._tolerance_ns, self._silent_ns = round(tolerance * 1e9), round(silent * 1e9)
        self._reset()

    def _reset(self) -> None:
        cameras = len(self.names)
        self._waiting: list[list[tuple[int, Item]]] = [[] for _ in range(cameras)]
        self._newest, self._period_ns = [0] * cameras, [0] * cameras
        self._missed_since: list[int | None] = [None] * cameras

    @property
    def silent(self) -> list[str]:
        """Names of the cameras that sets do not wait for."""
        return [name for camera, name in enumerate(self.names) if self._is_silent(camera)]

    def _is_silent(self, camera: int) -> bool:
        since = self._missed_since[camera]
        return since is not None and max(self._newest) - since > self._silent_ns

    def add(self, camera: int, stamp_ns: int, item: Item) -> list[ImageSet[Item]]:
        """Add an image of a camera, by its index; return the sets that are complete now."""
        if stamp_ns < self._newest[camera] - 10**9:
            self.clear('before a time jump')
        bisect.insort(self._waiting[camera], (stamp_ns, item), key=lambda image: image[0])
        if stamp_ns > self._newest[camera]:
            self._period_ns[camera] = stamp_ns - self._newest[camera]
            self._newest[camera] = stamp_ns
        # silence starts at the first later image of another camera, not at the last own image: a
        # robot that records nothing while it stands has no silent cameras
        for other, newest_ns in enumerate(self._newest):
            if other == camera:
                self._missed_since[other] = None
            elif self._missed_since[other] is None and stamp_ns > newest_ns + self._tolerance_ns:
                self._missed_since[other] = stamp_ns
        if len(self._waiting[camera]) > self._size:
            self._drop(camera, 'waited too long for other cameras')
        return self._complete()

    def clear(self, reason: str) -> None:
        """Drop all waiting images; the next stamps may be earlier."""
        if count := sum(map(len, self._waiting)):
            self.dropped[reason] += count
        self._reset()

    def finish(self) -> list[ImageSet[Item]]:
        """Return the sets of the waiting images when no more images come."""
        return self._complete(last=True)

    def _complete(self, last: bool = False) -> list[ImageSet[Item]]:
        found: list[ImageSet[Item]] = []
        while True:
            first, *others = (c for c in range(len(self.names)) if not self._is_silent(c))
            if not self._waiting[first]:
                return found
            partners = {other: self._partner(first, other, last) for other in others}
            if None in partners.values():
                return found
            if unmatched := [other for other, index in partners.items() if index == -1]:
                self._drop(first, f'no image of {self.names[unmatched[0]]} near')
                continue
            images: list[Item | None] = [None] * len(self.names)
            stamp_ns = self._waiting[first][0][0]
            for camera, index in {first: 0, **partners}.items():
                for _ in range(index or 0):
                    self._drop(camera, f'no image of {self.names[first]} near')
                _, images[camera] = self._waiting[camera].pop(0)
            found.append((stamp_ns, tuple(images)))

    def _partner(self, first: int, other: int, last: bool) -> int | None:
        """
        Return the index of the other camera's image that matches the first of the first camera.

        -1 if none does, None if that depends on later images.
        """
        stamp_ns = self._waiting[first][0][0]
        gaps_ns = [abs(waiting_ns - stamp_ns) for waiting_ns, _ in self._waiting[other]]
        gap_ns = min(gaps_ns, default=self._tolerance_ns + 1)
        if gap_ns > self._tolerance_ns:
            known = last or self._newest[other] > stamp_ns + self._tolerance_ns
            return -1 if known else None
        index = gaps_ns.index(gap_ns)
        partner_ns = self._waiting[other][index][0]
        following = self._waiting[first][1:2]
        if following and 2 * abs(following[0][0] - partner_ns) < gap_ns:
            return -1
        # the next image of the camera whose image is earlier may be nearer
        earlier = first if stamp_ns < partner_ns else other
        is_newest = self._newest[earlier] == min(stamp_ns, partner_ns)
        nearer = 2 * (self._period_ns[earlier] - gap_ns) < gap_ns
        return None if is_newest and nearer and not last else index

    def _drop(self, camera: int, reason: str) -> None:
        del self._waiting[camera][0]
        self.dropped[f'{self.names[camera]}: {reason}'] += 1


class MultiImage(tuple[Image | None, ...]):
    """One image of each camera at one moment, None for a camera without one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first image."""
        return next(image.shape for image in self if image is not None)


@dataclass(frozen=True)
class LazyImages:
    """Images of one moment, loaded on demand: a source for each camera, or None."""

    sources: tuple[Source | None, ...]

    def __call__(self) -> Any:
        """Load a `MultiImage` with None for broken images; raises DatasetError if all are."""
        images, error = list[Image | None](), DatasetError('no camera has an image')
        for source in self.sources:
            try:
                images.append(source() if callable(source) else source)
            except DatasetError as broken:
                images.append(None)
                error = broken
        if all(image is None for image in images):
            raise error
        return MultiImage(images)


def join_cameras(cameras: Sequence[str], runs: Sequence[Dataset]) -> Dataset:
    """Join runs of one camera each to a run of `MultiImage`s; raises DatasetError if none."""
    first, synchronizer = runs[0], Synchronizer[Frame](cameras)
    arrivals = [(frame, camera) for camera, run in enumerate(runs) for frame in run]
    arrivals.sort(key=lambda arrival: arrival[0].stamp_ns)
    sets = [synchronizer.add(camera, frame.stamp_ns, frame) for frame, camera in arrivals]
    sets.append(synchronizer.finish())
    matched = [found for _, found in itertools.chain(*sets)]
    if all(None in found for found in matched):
        raise DatasetError(
            f'{first.name}: no images of {", ".join(cameras)} within {STAMP_TOLERANCE} s of each '
            'other: are their stamps of one clock?'
        )
    skipped = {
        f'{camera}: {reason}': count
        for camera, run in zip(cameras, runs, strict=True)
        for reason, count in run.skipped.items()
    } | dict(synchronizer.dropped)
    frames = []
    for found in matched:
        images = LazyImages(tuple(None if frame is None else frame.image for frame in found))
        frames.append(replace(next(filter(None, found)), image=images))
    joined = Dataset(first.name, first.odometry, skipped, frames)
    parts = zip(*(run.sources for run in runs), strict=True)
    joined.cameras, joined.notes = tuple(cameras), first.notes
    joined.sources = tuple(dict.fromkeys(itertools.chain(*parts)))
    joined.reference, joined.reference_frame = first.fixes, first.reference_frame
    return joined


def side_by_side(image: Image | MultiImage) -> Image:
    """Return an image, or those of several cameras in a row, scaled to the first one's height."""
    if not isinstance(image, MultiImage):
        return image
    present = [one for one in image if one is not None]
    if any(one.ndim == 3 for one in present):
        present = [np.dstack([one] * 3) if one.ndim == 2 else one for one in present]
    height = present[0].shape[0]
    sizes = [(max(1, round(one.shape[1] * height / one.shape[0])), height) for one in present]
    parts = [cv2.resize(one, size) for one, size in zip(present, sizes, strict=True)]
    return np.asarray(np.concatenate(parts, axis=1), dtype=np.uint8)


def sources_of(frame: Frame) -> tuple[Source | None, ...]:
    """Return the image of each camera of a frame, or a function that loads it, or None."""
    return frame.image.sources if isinstance(frame.image, LazyImages) else (frame.image,)
