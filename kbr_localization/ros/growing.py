"""Adding images to the map while the robot localizes on it, and writing them. No rclpy here."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
import math
import os
import threading
import time
from typing import Any

from kbr_localization import se2
from kbr_localization.errors import LocalizationError, MapError
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.map.build import make_thumbnail
from kbr_localization.localization.map.grow import grown, LARGEST_TO_GROW, NewImage, with_images
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros.config import NodeConfig
from kbr_localization.ros.maps import MapInUse
from kbr_localization.ros.session import Answer
from kbr_localization.vision.describer import missing_cameras
import numpy as np

SURE_MASS = 0.95
"""Fraction of the belief about the pose from which an image may join the map."""
RETRY_SECONDS = 10.0
"""Between two writings of a growing map, and two attempts at a file that another process has."""


class MapGrowth:
    """
    Decide which images join a map; everything belongs to the worker's thread.

    An image is added automatically only while the filter has confirmed the map, and only where
    the place has changed: in another light every view matches badly. A covered or stuck camera
    also matches badly, so an image is a candidate until a later one matches the map again.
    `counts`: images added, and good ones not added, by reason.
    """

    def __init__(self, config: Callable[[], NodeConfig], kernel_map: KernelMap) -> None:
        self._config = config
        self.counts: Counter[str] = Counter()
        self.use(kernel_map)

    def use(self, kernel_map: KernelMap) -> None:
        """Go on with another map."""
        self._map = kernel_map
        self._added = kernel_map.poses[grown(kernel_map)]
        self._travel = 0.0
        self._odometry: se2.FloatArray | None = None
        self._recent: deque[float] = deque(maxlen=30)
        self._candidates: list[NewImage] = []
        self._noise_level: float | None = None
        self._frozen = self._recoveries = 0.0

    @property
    def added(self) -> int:
        """Images in the map that were added while localizing, in this and earlier runs."""
        return len(self._added)

    def look(self, answer: Answer) -> KernelMap | None:
        """Return the map with what has proved to be worth adding, or None."""
        config, estimate = self._config(), answer.estimate
        sure = self._is_sure(answer)
        alive = self._follow(answer, sure)
        # sure for two metres
        wanted = config.grow_map and sure and self._travel >= 2.0
        if not (wanted and estimate.updated and alive):
            return None
        # a method without `best_similarity` adds nothing automatically
        best = np.array(estimate.diagnostics.get('best_similarity', math.inf))
        similarity = float(self._map.per_camera(best))
        self._recent.append(similarity)
        if similarity >= config.grow_below:
            return self._settle()
        try:
            obstacle = self._obstacle(answer) or self._put_aside(answer, similarity)
        except LocalizationError:
            obstacle = 'a camera has no image'
        if obstacle:
            self.counts[f'not added: {obstacle}'] += 1
        return None

    def add(self, answer: Answer | None, age: float) -> KernelMap:
        """
        Return the map with the image of the last answer, `age` seconds old, because asked for.

        Raises LocalizationError when there is none, when it is old, or when its pose is unsure.
        """
        config = self._config()
        if answer is None or age > 2.0:
            when = 'no image has been used' if answer is None else f'the last is {age:.1f} s old'
            raise LocalizationError(f'no current image to add: {when}; see /diagnostics')
        if not self._is_sure(answer):
            estimate = answer.estimate
            raise LocalizationError(
                f'the pose of the image is not sure ({estimate.status}, confidence '
                f'{estimate.confidence:.2f}, standard deviation {_deviation(answer):.2f} m): '
                f'expected localized, {SURE_MASS} and {config.grow_max_sd} m; drive on'
            )
        if self.added >= config.grow_max_images:
            raise LocalizationError(
                f'{self.added} images were added to the map: raise grow_max_images, or build the '
                'map again'
            )
        return self._with([self._described(answer)], 'added on request')

    def _is_sure(self, answer: Answer) -> bool:
        estimate = answer.estimate
        sure = estimate.localized and estimate.confidence >= SURE_MASS
        return sure and _deviation(answer) <= self._config().grow_max_sd

    def _follow(self, answer: Answer, sure: bool) -> bool:
        """Measure the way for which the pose has been sure; return whether the camera is alive."""
        odometry, told = answer.odometry.continued, answer.estimate.diagnostics
        x, y, _ = se2.between(odometry if self._odometry is None else self._odometry, odometry)
        self._travel = self._travel + math.hypot(x, y) if sure else 0.0
        self._odometry = odometry
        frozen, recoveries = told.get('frozen_images', 0.0), told.get('recoveries', 0.0)
        if not sure or recoveries != self._recoveries:
            self._candidates.clear()
        alive = frozen <= self._frozen
        self._frozen, self._recoveries = frozen, recoveries
        return alive

    def _obstacle(self, answer: Answer) -> str:
        """Say why an image that is worth adding must stay outside, or nothing."""
        config = self._config()
        if len(self._recent) < 8:
            return 'too few views yet to compare with'
        if answer.estimate.diagnostics.get('map_confirmed', 0.0) <= 0.0:
            return 'no proof yet that the robot is on this map'
        if float(np.median(self._recent)) < config.grow_below:
            return 'nearly all views match badly, as in another light'
        taken = np.array([*self._added, *(image.pose for image in self._candidates)])
        offsets = taken.reshape(-1, 3) - answer.estimate.pose
        near = np.hypot(offsets[:, 0], offsets[:, 1]) < config.grow_spacing_d
        if np.any(near & (np.abs(se2.wrap_angle(offsets[:, 2])) < config.grow_spacing_a)):
            return 'near one that was added'
        if len(self._map) > LARGEST_TO_GROW:
            return 'the map is too large'
        return 'grow_max_images reached' if len(taken) >= config.grow_max_images else ''

    def _put_aside(self, answer: Answer, similarity: float) -> str:
        """Keep an image until the map is recognised again; say why not, or nothing."""
        new = self._described(answer)
        if self._noise_level is None:
            self._noise_level = self._similarity_of_noise(answer.image.load())
        if similarity < self._noise_level:
            return 'the view shows nothing, as of a covered camera'
        self._candidates.append(new)
        return ''

    def _settle(self) -> KernelMap | None:
        """Add the candidates except those that look like a candidate of another place."""
        images, self._candidates = self._candidates, []
        if not images:
            return None
        rows = np.stack([image.descriptor for image in images])
        gram = self._map.per_camera(self._map.describer.cross_gram(rows, rows))
        elsewhere = _elsewhere(self._map, np.array([image.pose for image in images]))
        moved_along = np.any(elsewhere & (gram >= float(np.median(self._recent))), axis=1)
        if moved_along.any():
            reason = 'not added: the view moved along with the robot'
            self.counts[reason] += int(moved_along.sum())
        kept = [image for image, bad in zip(images, moved_along, strict=True) if not bad]
        return self._with(kept, 'added by itself') if kept else None

    def _similarity_of_noise(self, image: Any) -> float:
        """
        Similarity below which an image shows nothing of a building; 0 for a map of one place.

        The mean of two similarities: of noise, and the smallest that an image of the map has with
        its best match at another place.
        """
        some = np.unique(np.linspace(0, len(self._map) - 1, 300).astype(np.intp))
        poses, rows = self._map.poses[some], self._map.descriptors[some]
        elsewhere, describer = _elsewhere(self._map, poses), self._map.describer
        known = elsewhere.any(axis=1)
        if not known.any():
            return 0.0
        best = np.where(elsewhere, describer.cross_gram(rows, rows), -np.inf).max(axis=1)
        rng = np.random.default_rng(0)
        images = image if isinstance(image, tuple) else (image,)
        noise: Any = tuple(rng.integers(0, 256, one.shape, dtype=np.uint8) for one in images)
        row = describer.describe(noise if isinstance(image, tuple) else noise[0])[np.newaxis]
        levels = np.array([best[known].min(), describer.cross_gram(row, rows).max()])
        return float(self._map.per_camera(levels).mean())

    def _described(self, answer: Answer) -> NewImage:
        image = answer.image.load()
        descriptor = self._map.describer.describe(image)
        if missing_cameras(self._map.describer, descriptor):
            raise LocalizationError('a camera has no image: only images of all join the map')
        return NewImage(answer.stamp_ns, answer.estimate.pose, descriptor, make_thumbnail(image))

    def _with(self, images: list[NewImage], how: str) -> KernelMap:
        self._map = with_images(self._map, images)
        self._added = np.concatenate([self._added, [image.pose for image in images]])
        self.counts[how] += len(images)
        return self._map


class GrowingMap:
    """
    The map in use, its growth, and the writing of it.

    All but `save` and `facts` belongs to the worker's thread. `background` writes: the disk must
    not hold up the worker.
    """

    def __init__(
        self,
        in_use: MapInUse,
        config: Callable[[], NodeConfig],
        background: Executor,
        log: Callable[[str, str], None],
    ) -> None:
        self.in_use, self._config = in_use, config
        self._growth = MapGrowth(config, in_use.kernel_map)
        self._background, self._log = background, log
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._unsaved: MapInUse | None = None
        self._unsaved_images = 0
        self._saved = time.monotonic()
        self._write_failure = self._claim_failure = ''
        self._claim_at = 0.0
        self._check_folder()

    @property
    def failure(self) -> str:
        """Say what keeps images from being written or added, or nothing."""
        return self._write_failure or self._claim_failure

    def use(self, in_use: MapInUse) -> None:
        """
        Go on with another map; what was added to the old one is written.

        Save before the same map is read again: what is added while it is read is not kept.
        """
        before, self.in_use = self.in_use, in_use
        if in_use.file.path == before.file.path:
            in_use.file.take_over(before.file)
            with self._lock:
                dropped, self._unsaved, self._unsaved_images = self._unsaved_images, None, 0
            if dropped:
                text = f'{dropped} images that were not written yet are not in the map read again'
                self._log('warning', text)
        else:
            self._background.submit(self._leave, before)
        self._growth.use(in_use.kernel_map)
        self._check_folder()

    def look(self, answer: Answer) -> KernelMap | None:
        """Return the map with what has proved to be worth adding, or None."""
        kernel_map = self._growth.look(answer) if self._may_grow() else None
        if kernel_map is not None:
            self._take(kernel_map)
        if self._unsaved is not None and time.monotonic() - self._saved > RETRY_SECONDS:
            self._saved = time.monotonic()
            self._background.submit(self.save)
        return kernel_map

    def add(self, answer: Answer | None) -> KernelMap:
        """Return the map with the last answer's image; raises KbrError when that is no good."""
        self.in_use.file.claim()
        age = 0.0 if answer is None else time.monotonic() - answer.image.received
        kernel_map = self._growth.add(answer, age)
        self._take(kernel_map)
        return kernel_map

    def save(self) -> str:
        """Write the added images, in any thread; return the path. Failures are logged, retried."""
        # one at a time, or the thread with the older map might write last
        with self._writing:
            with self._lock:
                unsaved, images = self._unsaved, self._unsaved_images
                self._unsaved, self._unsaved_images = None, 0
            if unsaved is None:
                return str(self.in_use.file.path)
            try:
                unsaved.file.write(unsaved.kernel_map)
            except MapError as error:
                self._put_back(unsaved, images, error)
                raise
            self._write_failure = ''
            return str(unsaved.file.path)

    def close(self) -> None:
        """Let other processes add to the file."""
        self.in_use.file.release()

    def facts(self) -> dict[str, Any]:
        """Name and size of the map, and what became of its growth."""
        counts = dict(self._growth.counts)  # the worker may count something new meanwhile
        return {
            'map': self.in_use.name,
            'images': len(self.in_use.kernel_map),
            'images added in all': self._growth.added,
            'images added and not yet written': self._unsaved_images,
            **{f'images {reason}': count for reason, count in counts.items()},
        }

    def _leave(self, before: MapInUse) -> None:
        with suppress(MapError):  # logged there
            self.save()
        before.file.release()

    def _put_back(self, unsaved: MapInUse, images: int, error: MapError) -> None:
        """Keep for the next attempt what could not be written, unless its map was left."""
        if unsaved.name != self.in_use.name:
            self._write_failure = ''
            self._log('error', f'{images} added images are lost with the map left: {error}')
            return
        self._write_failure = str(error)
        self._log('error', f'{images} added images are not written yet: {error}')
        with self._lock:
            self._unsaved = self._unsaved or unsaved
            self._unsaved_images += images

    def _check_folder(self) -> None:
        """Tell at once, not after hours of driving, that what is added cannot be written."""
        folder = self.in_use.file.path.parent
        self._claim_at = 0.0
        if not (self._config().grow_map and self._may_grow()):
            return
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if not (folder.is_dir() and os.access(folder, os.W_OK)):
            self._log(
                'error',
                f'images that are added to the map cannot be written to {folder}: set grow_into '
                'to a folder that can be written, or grow_map to false',
            )

    def _may_grow(self) -> bool:
        """Whether no other process adds to the file, which is asked now and then."""
        if not self._config().grow_map:
            self._claim_failure = ''
            return True
        if time.monotonic() < self._claim_at:
            return not self._claim_failure
        self._claim_at = time.monotonic() + RETRY_SECONDS
        before, self._claim_failure = self._claim_failure, ''
        try:
            self.in_use.file.claim()
        except MapError as error:
            self._claim_failure = f'no images are added to the map: {error}'
            if self._claim_failure != before:
                self._log('error', self._claim_failure)
            return False
        if before:
            self._growth.use(self.in_use.kernel_map)
        return True

    def _take(self, kernel_map: KernelMap) -> None:
        added = len(kernel_map) - len(self.in_use.kernel_map)
        self.in_use = replace(self.in_use, kernel_map=kernel_map)
        with self._lock:
            self._unsaved = self.in_use
            self._unsaved_images += added


def _elsewhere(kernel_map: KernelMap, poses: se2.FloatArray) -> np.ndarray:
    """Which of poses (n, 3) are another place than each of them (n, n)."""
    radius, points = (
        2.0 * kernel_map.filter_config.localized_radius,
        Points(poses, np.ones(len(poses))),
    )
    return np.array([~points.within(pose, radius) for pose in poses])


def _deviation(answer: Answer) -> float:
    """Largest standard deviation of the position in metres."""
    largest = float(np.linalg.eigvalsh(answer.estimate.covariance[:2, :2])[-1])
    return math.sqrt(max(largest, 0.0))
