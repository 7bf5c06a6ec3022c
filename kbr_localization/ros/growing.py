"""Adding images to the map while the robot localizes on it, and writing them. No rclpy here."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
import math
import time
from typing import Any

from kbr_localization import se2
from kbr_localization.errors import LocalizationError, MapError
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.map.grow import (
    grown,
    LARGEST_TO_GROW,
    make_thumbnail,
    NewImage,
    with_images,
)
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros.config import NodeConfig
from kbr_localization.ros.maps import MapInUse
from kbr_localization.ros.session import Answer
from kbr_localization.vision.describer import missing_cameras
import numpy as np

SURE_MASS = 0.95
"""Fraction of the belief about the pose from which an image may join the map."""


class GrowingMap:
    """
    The map in use, its growth, and the writing of it.

    An image is added automatically only while the filter has confirmed the map, and only where
    the place has changed: in another light every view matches badly. A covered or stuck camera
    also matches badly, so an image is a candidate until a later one matches the map again.
    `counts`: images added, and good ones not added, by reason. Everything belongs to the worker's
    thread but `save`, which runs in the one thread of `background`, and `facts`.
    """

    def __init__(
        self,
        in_use: MapInUse,
        config: Callable[[], NodeConfig],
        background: Executor,
        log: Callable[[str, str], None],
    ) -> None:
        self._config, self._background, self._log = config, background, log
        self.counts = Counter[str]()
        self._saved = time.monotonic()
        self._begin_on(in_use)

    def _begin_on(self, in_use: MapInUse) -> None:
        self.in_use, self._written = in_use, in_use.kernel_map
        self._added = in_use.kernel_map.poses[grown(in_use.kernel_map)]
        self._travel = 0.0
        self._odometry: se2.FloatArray | None = None
        self._recent: deque[float] = deque(maxlen=30)
        self._candidates: list[NewImage] = []
        self._frozen = self._recoveries = 0.0
        self._write_failure = self._claim_failure = ''

    @property
    def failure(self) -> str:
        """Say what keeps images from being written or added, or nothing."""
        return self._write_failure or self._claim_failure

    @property
    def unsaved(self) -> int:
        """Images that were added and are not yet written."""
        return len(self.in_use.kernel_map) - len(self._written)

    def use(self, in_use: MapInUse) -> None:
        """
        Go on with another map; what was added to the old one is written.

        Save before the same map is read again: what is added while it is read is not kept.
        """
        before, unsaved = self.in_use, self.unsaved
        if in_use.file.path != before.file.path:
            self._background.submit(self._leave, before, unsaved)
        else:
            before.file.release()
            if unsaved:
                text = f'{unsaved} images that were not written yet are not in the map read again'
                self._log('warning', text)
        self._begin_on(in_use)

    def look(self, answer: Answer) -> KernelMap | None:
        """Return the map with what has proved to be worth adding, or None."""
        if self.unsaved and time.monotonic() - self._saved > 10.0:
            self._saved = time.monotonic()
            self._background.submit(self.save)
        config, estimate = self._config(), answer.estimate
        ready = self._follow(answer)
        if not (config.grow_map and estimate.updated and ready):
            return None
        # a method without `best_similarity` adds nothing automatically
        best = np.array(estimate.diagnostics.get('best_similarity', math.inf))
        similarity = float(self.in_use.kernel_map.per_camera(best))
        self._recent.append(similarity)
        if similarity >= config.grow_below:
            return self._settle()
        obstacle = self._obstacle(answer)
        try:
            if not obstacle:
                self._candidates.append(self._described(answer))
        except LocalizationError:
            obstacle = 'a camera has no image'
        if obstacle:
            self.counts[f'not added: {obstacle}'] += 1
        return None

    def add(self, answer: Answer | None) -> KernelMap:
        """
        Return the map with the image of the last answer, because asked for.

        Raises KbrError when there is none, when it is old, or when its pose is unsure.
        """
        self.in_use.file.claim()
        config, age = self._config(), time.monotonic() - (answer.image.received if answer else 0.0)
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
        if len(self._added) >= config.grow_max_images:
            raise LocalizationError(
                f'{len(self._added)} images were added to the map: raise grow_max_images, or '
                'build the map again'
            )
        return self._with([self._described(answer)], 'added on request')

    def save(self) -> str:
        """Write the added images, return the path; raises MapError, and it is tried again."""
        in_use, unsaved = self.in_use, self.unsaved
        if unsaved:
            try:
                in_use.file.write(in_use.kernel_map)
            except MapError as error:
                self._write_failure = str(error)
                self._log('error', f'{unsaved} added images are not written yet: {error}')
                raise
            if self.in_use.name == in_use.name:
                self._written, self._write_failure = in_use.kernel_map, ''
        return str(in_use.file.path)

    def close(self) -> None:
        """Let other processes add to the file."""
        self.in_use.file.release()

    def facts(self) -> dict[str, Any]:
        """Name and size of the map, and what became of its growth."""
        counts = dict(self.counts)  # the worker may count something new meanwhile
        return {
            'map': self.in_use.name,
            'images': len(self.in_use.kernel_map),
            'images added in all': len(self._added),
            'images added and not yet written': self.unsaved,
            **{f'images {reason}': count for reason, count in counts.items()},
        }

    def _leave(self, before: MapInUse, unsaved: int) -> None:
        try:
            if unsaved:
                before.file.write(before.kernel_map)
        except MapError as error:
            self._log('error', f'{unsaved} added images are lost with the map left: {error}')
        before.file.release()

    def _is_sure(self, answer: Answer) -> bool:
        estimate = answer.estimate
        sure = estimate.localized and estimate.confidence >= SURE_MASS
        return sure and _deviation(answer) <= self._config().grow_max_sd

    def _follow(self, answer: Answer) -> bool:
        """Return whether the pose has been sure for two metres, and the camera is alive."""
        odometry, told = answer.continued, answer.estimate.diagnostics
        sure, before = self._is_sure(answer), self._odometry
        x, y, _ = se2.between(odometry if before is None else before, odometry)
        self._travel = self._travel + math.hypot(x, y) if sure else 0.0
        frozen, recoveries = told.get('frozen_images', 0.0), told.get('recoveries', 0.0)
        if not sure or recoveries != self._recoveries:
            self._candidates = []
        alive = frozen <= self._frozen
        self._odometry, self._frozen, self._recoveries = odometry, frozen, recoveries
        return alive and self._travel >= 2.0

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
        if len(self.in_use.kernel_map) > LARGEST_TO_GROW:
            return 'the map is too large'
        return 'grow_max_images reached' if len(taken) >= config.grow_max_images else ''

    def _settle(self) -> KernelMap | None:
        """Add the candidates except those that look like a candidate of another place."""
        images, self._candidates = self._candidates, []
        if not images or not self._claim():
            return None
        kernel_map = self.in_use.kernel_map
        rows = np.stack([image.descriptor for image in images])
        alike = kernel_map.per_camera(kernel_map.describer.cross_gram(rows, rows))
        points = Points(np.array([image.pose for image in images]), np.ones(len(images)))
        radius = 2.0 * kernel_map.filter_config.localized_radius
        elsewhere = np.array([~points.within(image.pose, radius) for image in images])
        moved_along = np.any(elsewhere & (alike >= float(np.median(self._recent))), axis=1)
        if moved_along.any():
            reason = 'not added: the view moved along with the robot'
            self.counts[reason] += int(moved_along.sum())
        kept = [image for image, bad in zip(images, moved_along, strict=True) if not bad]
        return self._with(kept, 'added by itself') if kept else None

    def _claim(self) -> bool:
        """Whether no other process adds to the file."""
        self._claim_failure = ''
        try:
            self.in_use.file.claim()
        except MapError as error:
            self._claim_failure = f'no images are added to the map: {error}'
            self._log('error', self._claim_failure)
        return not self._claim_failure

    def _described(self, answer: Answer) -> NewImage:
        image, describer = answer.image.load(), self.in_use.kernel_map.describer
        descriptor = describer.describe(image)
        if missing_cameras(describer, descriptor):
            raise LocalizationError('a camera has no image: only images of all join the map')
        return NewImage(answer.stamp_ns, answer.estimate.pose, descriptor, make_thumbnail(image))

    def _with(self, images: list[NewImage], how: str) -> KernelMap:
        kernel_map = with_images(self.in_use.kernel_map, images)
        self.in_use = replace(self.in_use, kernel_map=kernel_map)
        self._added = np.concatenate([self._added, [image.pose for image in images]])
        self.counts[how] += len(images)
        return kernel_map


def _deviation(answer: Answer) -> float:
    """Largest standard deviation of the position in metres."""
    largest = float(np.linalg.eigvalsh(answer.estimate.covariance[:2, :2])[-1])
    return math.sqrt(max(largest, 0.0))
