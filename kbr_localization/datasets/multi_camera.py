"""Several cameras: their names, which images belong together, and runs of them."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
import itertools
from typing import Any, Generic, TypeVar

import cv2
from kbr_localization.datasets.frame import Dataset, Frame, Image, OdometryTrack
from kbr_localization.errors import DatasetError
import numpy as np

Source = Image | Callable[[], Image]
Item = TypeVar('Item')

TOLERANCE = 0.05
"""Seconds by which the stamps of images that belong together may differ."""
_IMAGE_WORDS = (
    *('image', 'image_raw', 'image_color', 'image_mono', 'image_rect', 'image_rect_color'),
    *('image_rect_gray', 'image_rect_raw', 'compressed', 'color', 'gray', 'mono', 'rgb', 'raw'),
    'rect',
)
"""Parts at the end of a topic that describe the image, not the camera."""


def camera_name(where: str) -> str:
    """
    Name of a camera: `front` for the topic /robot/front/image_raw and for the folder front_cam.

    Empty for a topic that names none, such as /image.
    """
    parts = where.strip('/').split('/')
    while parts and parts[-1] in _IMAGE_WORDS:
        parts.pop()
    return parts[-1].removesuffix('_cam') if parts else ''


def camera_names(places: Sequence[str]) -> tuple[str, ...]:
    """Names of several cameras; raises DatasetError unless each has its own."""
    names = tuple(camera_name(place) for place in places)
    if len(set(names)) < len(names) or '' in names or any(',' in name for name in names):
        raise DatasetError(
            f'cameras {", ".join(places)} would be called {", ".join(names)}: expected a '
            'different name for each, as in front/image and rear/image'
        )
    return names


class Synchronizer(Generic[Item]):
    """
    Sort the images of `names` into sets with one image of each camera.

    A set has the stamp of the first camera's image; the other stamps lie within
    `tolerance` seconds. Two images do not go together where the next one of either camera is less
    than half as far from the other one, as after a lost image. A camera that is silent for
    `silent` seconds of the others' stamps is left out, None standing for its image, until it
    sends again. At most `size` images of a camera wait. `dropped` counts by reason the images that
    found no set. Stamps that jump back start everything over.
    """

    def __init__(
        self,
        names: Sequence[str],
        tolerance: float = TOLERANCE,
        silent: float = 1.0,
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
        return [name for camera, name in enumerate(self.names) if self._is_silent(camera)]

    def add(
        self, camera: int, stamp_ns: int, item: Item
    ) -> list[tuple[int, tuple[Item | None, ...]]]:
        """Take in an image of a camera by its number; return the sets that are complete now."""
        if stamp_ns < self._newest[camera] - 10**9:
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
        """Drop all waiting images; stamps may start over."""
        if count := sum(map(len, self._stamps)):
            self.dropped[reason] += count
        self._forget()

    def finish(self) -> list[tuple[int, tuple[Item | None, ...]]]:
        """Return the sets that remain when nothing more comes."""
        return self._sets(last=True)

    def _forget(self) -> None:
        cameras = len(self.names)
        self._stamps: list[list[int]] = [[] for _ in range(cameras)]
        self._items: list[list[Item]] = [[] for _ in range(cameras)]
        self._newest, self._period_ns = [0] * cameras, [0] * cameras
        self._missed_since: list[int | None] = [None] * cameras

    def _note_silence(self, camera: int, stamp_ns: int) -> None:
        # counted from the first image of another camera that the last of this one does not go
        # with: a robot that records nothing while it stands has no silent cameras
        self._missed_since[camera] = None
        for other, since in enumerate(self._missed_since):
            late = stamp_ns > self._newest[other] + self._tolerance_ns
            if other != camera and since is None and late:
                self._missed_since[other] = stamp_ns

    def _is_silent(self, camera: int) -> bool:
        since = self._missed_since[camera]
        return since is not None and max(self._newest) - since > self._silent_ns

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
            lacking = [c for c, at in nearest.items() if not self._belongs(first, c, at)]
            if lacking:
                self._drop_first(first, 1, f'no image of {self.names[lacking[0]]} near')
            else:
                stamp_ns = self._stamps[first][0]
                found.append((stamp_ns, self._take(first, {first: 0, **nearest})))

    def _nearest(self, first: int, camera: int) -> int:
        """Place of the image nearest to the first one of another camera; -1 beyond tolerance."""
        stamps, stamp_ns = self._stamps[camera], self._stamps[first][0]
        at = bisect.bisect_left(stamps, stamp_ns)
        around = range(max(at - 1, 0), min(at + 1, len(stamps)))
        nearest = min(around, key=lambda i: abs(stamps[i] - stamp_ns), default=-1)
        far = nearest < 0 or abs(stamps[nearest] - stamp_ns) > self._tolerance_ns
        return -1 if far else nearest

    def _may_be_nearer(self, first: int, camera: int, at: int) -> bool:
        """Whether the next image of one of two cameras may go better with the other one's."""
        stamp_ns = self._stamps[first][0]
        if at < 0:
            return self._newest[camera] <= stamp_ns + self._tolerance_ns
        gap_ns = self._stamps[camera][at] - stamp_ns
        earlier, earlier_ns = (camera, stamp_ns + gap_ns) if gap_ns < 0 else (first, stamp_ns)
        next_ns = self._period_ns[earlier] - abs(gap_ns)
        return self._newest[earlier] == earlier_ns and 2 * next_ns < abs(gap_ns)

    def _belongs(self, first: int, camera: int, at: int) -> bool:
        """Whether the nearest image goes with the first of another camera, not with its next."""
        if at < 0:
            return False
        gaps = [abs(stamp - self._stamps[camera][at]) for stamp in self._stamps[first][:2]]
        return 2 * gaps[-1] >= gaps[0]

    def _take(self, first: int, places: dict[int, int]) -> tuple[Item | None, ...]:
        taken: list[Item | None] = [None] * len(self.names)
        for camera, at in places.items():
            self._drop_first(camera, at, f'no image of {self.names[first]} near')
            taken[camera] = self._items[camera][0]
            del self._stamps[camera][0], self._items[camera][0]
        return tuple(taken)

    def _drop_first(self, camera: int, count: int, reason: str) -> None:
        if count:
            del self._stamps[camera][:count], self._items[camera][:count]
            self.dropped[f'{self.names[camera]}: {reason}'] += count


class MultiImage(tuple[Image | None, ...]):
    """One image for each camera at one moment, None for a camera that has none."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first camera's image."""
        return next(image.shape for image in self if image is not None)

    def side_by_side(self) -> Image:
        """Return all images in one, as high as the first: BGR, or grey where all are grey."""
        present = [image for image in self if image is not None]
        if any(image.ndim == 3 for image in present):
            present = [np.dstack([image] * 3) if image.ndim == 2 else image for image in present]
        height = present[0].shape[0]
        sizes = [(max(1, round(i.shape[1] * height / i.shape[0])), height) for i in present]
        parts = [cv2.resize(image, size) for image, size in zip(present, sizes, strict=True)]
        return np.asarray(np.concatenate(parts, axis=1), dtype=np.uint8)


@dataclass(frozen=True)
class LazyImages:
    """Images of one moment that are loaded when asked for: one source for each camera, or None."""

    sources: tuple[Source | None, ...]

    def __call__(self) -> Any:
        """
        Load a `MultiImage`; a camera whose image is broken has none.

        Raises the first DatasetError when no image can be read.
        """
        errors, images = list[DatasetError](), list[Image | None]()
        for source in self.sources:
            try:
                images.append(source() if callable(source) else source)
            except DatasetError as error:
                errors.append(error)
                images.append(None)
        if all(image is None for image in images):
            raise errors[0] if errors else DatasetError('no camera has an image')
        return MultiImage(images)

    def of_camera(self, index: int) -> Source | None:
        """Return the source of one camera's image, None where there is none."""
        return self.sources[index]


class MultiCameraRun(Dataset):
    """
    A run of several cameras, made of one run for each, whose images are `MultiImage`s.

    `cameras`: their names. `runs`: in the same order; odometry and reference poses come from
    the first one. Images belong together when their stamps differ by at most `tolerance` seconds.
    Raises DatasetError when no images belong together.
    """

    def __init__(
        self, cameras: Sequence[str], runs: Sequence[Dataset], tolerance: float = TOLERANCE
    ) -> None:
        self.cameras, self._runs = tuple(cameras), tuple(runs)
        self.name, self.odometry = runs[0].name, runs[0].odometry
        parts = (run.sources for run in runs)
        self.sources = tuple(dict.fromkeys(itertools.chain(*zip(*parts, strict=True))))
        self.notes, self.reference_frame = runs[0].notes, runs[0].reference_frame
        synchronizer: Synchronizer[int] = Synchronizer(self.cameras, tolerance)
        arrivals = sorted(
            (run[index].stamp_ns, camera, index)
            for camera, run in enumerate(runs)
            for index in range(len(run))
        )
        sets = [synchronizer.add(camera, stamp_ns, index) for stamp_ns, camera, index in arrivals]
        sets.append(synchronizer.finish())
        self._sets = [indices for _, indices in itertools.chain(*sets)]
        self.skipped = {
            f'{camera}: {reason}': count
            for camera, run in zip(cameras, runs, strict=True)
            for reason, count in run.skipped.items()
        } | dict(synchronizer.dropped)
        if not any(None not in indices for indices in self._sets):
            raise DatasetError(
                f'{self.name}: no images of {", ".join(cameras)} within {tolerance} s of each '
                'other: are their stamps of one clock?'
            )

    @property
    def fixes(self) -> OdometryTrack | None:
        """Return the known poses of the first run, or None."""
        return self._runs[0].fixes

    def __len__(self) -> int:
        return len(self._sets)

    def __getitem__(self, index: int) -> Frame:
        frames = [
            None if at is None else run[at]
            for run, at in zip(self._runs, self._sets[index], strict=True)
        ]
        first = next(frame for frame in frames if frame is not None)
        images = LazyImages(tuple(None if frame is None else frame.image for frame in frames))
        return replace(first, image=images)


def one_picture(image: Image | MultiImage) -> Image:
    """Return an image; several cameras' images side by side."""
    return image.side_by_side() if isinstance(image, MultiImage) else image


def sources_of(frame: Frame) -> tuple[Source | None, ...]:
    """Return the images of a frame, or what loads them: one for each camera, None for none."""
    return frame.image.sources if isinstance(frame.image, LazyImages) else (frame.image,)
