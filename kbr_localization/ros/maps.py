"""The map of a running node: opened by name, and extended by new images; no rclpy."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
import hashlib
import math
from pathlib import Path
import time
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets.multi_camera import camera_name
from kbr_localization.errors import ConfigurationError, MapError
from kbr_localization.files import expanded
from kbr_localization.localization.filter.wrong_places import MEASURED_NOW, with_statistics
from kbr_localization.localization.map import grow
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros.buffers import Log
from kbr_localization.ros.config import NodeConfig
from kbr_localization.ros.session import Answer
from kbr_localization.vision.describer import missing_cameras
import numpy as np


@dataclass(frozen=True)
class MapInUse:
    """A map, its name, the file for added images; `map_id`: hash of the map without those."""

    name: str
    file: grow.GrownFile
    kernel_map: KernelMap
    map_id: str


def open_map(name: str, config: NodeConfig, log: Log) -> MapInUse:
    """
    Read a map by its path or its name in `map_files`; '' means the first of these.

    A map with added images is in a second file, which is read instead: office_grown.h5 for
    office.h5, or a file in `grow_into`. With `grow_in_place` it is in the first file. Raises
    ConfigurationError if there is no name, or if `image_topics` do not fit the cameras of the map,
    and MapError if the map cannot be read.
    """
    paths = config.maps
    name = name or next(iter(paths), '')
    if not name:
        raise ConfigurationError(
            "parameter 'map_file' is empty: give a map made by `kbr map build`"
        )
    path, started = expanded(paths.get(name, name)), time.monotonic()
    file = path if config.grow_in_place else grow.grown_path(path)
    if config.grow_into:
        # maps of several floors may have the same file name in different folders
        file = expanded(config.grow_into) / (f'{name}.h5' if name in paths else path.name)
    grown_file = grow.GrownFile(file)
    try:
        kernel_map = KernelMap.load(path)
    except MapError as error:
        known = f'; names in map_files: {", ".join(paths)}' if paths else ''
        raise MapError(f'{error}{known}') from error
    check_cameras(kernel_map.cameras, config.image_topics, path)
    if file != path and file.is_file():
        try:
            kernel_map = grow.with_settings_of(kernel_map, KernelMap.load(file))
            log('info', f'the images added to {path} are read from {file}')
        except MapError as error:
            log('warning', f'{path} is used without the images added to it in {file}: {error}')
    height, width = kernel_map.image_shape
    log(
        'info',
        f'map {path}{f" ({name})" if name in paths else ""}: {len(kernel_map)} images of '
        f'{width}x{height} pixels, read in {time.monotonic() - started:.1f} s',
    )
    if kernel_map.statistics is None:
        log('info', f'map {path}: {MEASURED_NOW}')
        kernel_map = with_statistics(kernel_map)
    poses = np.ascontiguousarray(kernel_map.poses[~grow.added_images(kernel_map)])
    map_id = hashlib.sha256(poses.tobytes()).hexdigest()[:16]
    return MapInUse(name, grown_file, kernel_map, map_id)


def check_cameras(cameras: Sequence[str], topics: Sequence[str], path: Path) -> None:
    """Raise ConfigurationError unless the topics fit the cameras of a map, in their order."""
    names = [camera_name(topic) for topic in topics]
    swapped = len(cameras) > 1 and names != list(cameras) and set(names) == set(cameras)
    if swapped or max(1, len(cameras)) != max(1, len(topics)):
        raise ConfigurationError(
            f'map {path} was built for {", ".join(cameras) or "one camera"}, but images come on '
            f'{", ".join(topics) or "image"}: set image_topics to one topic for each camera, in '
            'the order of the map'
        )


class GrowingMap:
    """
    Add images to the map in use where the environment has changed, and write them.

    An image is added only while the filter has confirmed the map, and only if other views match:
    in another light all views match badly. A covered or stuck camera matches badly too, so an
    image is a candidate until a later one matches the map again. `counts`: images added, and
    candidates not added, by reason. `failure`: why images cannot be added or written, or ''. For
    the worker thread only, except `save` and `close` (for the thread of `background`, or after its
    end) and `status_values`.
    """

    def __init__(
        self, in_use: MapInUse, config: Callable[[], NodeConfig], background: Executor, log: Log
    ) -> None:
        self._config, self._background, self._log = config, background, log
        self.in_use, self._written = in_use, len(in_use.kernel_map)
        self._added_poses = in_use.kernel_map.poses[grow.added_images(in_use.kernel_map)]
        self._saved, self.counts, self.failure = time.monotonic(), Counter[str](), ''
        self._travel = 0.0
        self._odometry: se2.FloatArray | None = None
        self._similarities: deque[float] = deque(maxlen=30)
        self._candidates: list[grow.NewImage] = []
        self._frozen = self._recoveries = 0.0

    @property
    def unsaved(self) -> int:
        """Count of added images that are not yet written."""
        return len(self.in_use.kernel_map) - self._written

    def process(self, answer: Answer) -> KernelMap | None:
        """Consider the image of an answer; return the map if images have been added now."""
        if self.unsaved and time.monotonic() - self._saved > 10.0:
            self._saved = time.monotonic()
            self._background.submit(self.save)
        config, estimate = self._config(), answer.estimate
        may_add = self._update_travel(answer)
        if not (config.grow_map and estimate.updated and may_add):
            return None
        # a localization method without `best_similarity` adds nothing
        best = np.array(estimate.diagnostics.get('best_similarity', math.inf))
        similarity = float(self.in_use.kernel_map.per_camera(best))
        self._similarities.append(similarity)
        if similarity >= config.grow_below:
            return self._add_candidates()
        obstacle, describer = self._obstacle(answer), self.in_use.kernel_map.describer
        if not obstacle:
            image = answer.image.load()
            descriptor = describer.describe(image)
            if missing_cameras(describer, descriptor):
                obstacle = 'a camera has no image'
            else:
                thumbnail = grow.make_thumbnail(image)
                self._candidates.append(
                    grow.NewImage(answer.stamp_ns, estimate.pose, descriptor, thumbnail)
                )
        if obstacle:
            self.counts[f'not added: {obstacle}'] += 1
        return None

    def save(self) -> None:
        """Write the added images; after a failure they are written by the next call."""
        in_use, unsaved = self.in_use, self.unsaved
        if not unsaved:
            return
        try:
            in_use.file.write(in_use.kernel_map)
        except MapError as error:
            self.failure = f'{unsaved} added images are not written: {error}'
            self._log('error', self.failure)
        else:
            self._written, self.failure = len(in_use.kernel_map), ''

    def switch_to(self, in_use: MapInUse) -> GrowingMap:
        """Close this map and return the GrowingMap of another map."""
        if in_use.file.path != self.in_use.file.path:
            self._background.submit(self.close)
        else:  # the file was read before the latest images were added, and stays as it was read
            self.close(write=False)
        return GrowingMap(in_use, self._config, self._background, self._log)

    def close(self, write: bool = True) -> None:
        """Write the added images, and let other processes add to the file."""
        if write:
            self.save()
        if self.unsaved and not self.failure:
            self._log('warning', f'{self.unsaved} images added to the previous map are lost')
        self.in_use.file.release()

    def status_values(self) -> dict[str, Any]:
        """Return name, size and counts of the map for the diagnostics."""
        counts = dict(self.counts)  # a copy, as the worker may add a reason meanwhile
        return {
            'map': self.in_use.name,
            'images': len(self.in_use.kernel_map),
            'images added in all': len(self._added_poses),
            'images added and not yet written': self.unsaved,
            **{f'images {reason}': count for reason, count in counts.items()},
        }

    def _update_travel(self, answer: Answer) -> bool:
        """Return whether the pose has been sure for two metres, and the camera is not frozen."""
        odometry, estimate = answer.continuous, answer.estimate
        variance = float(np.linalg.eigvalsh(estimate.covariance[:2, :2])[-1])
        sure = estimate.localized and estimate.confidence >= 0.95
        sure = sure and variance <= self._config().grow_max_sd ** 2
        x, y, _ = se2.between(odometry if self._odometry is None else self._odometry, odometry)
        self._travel = self._travel + math.hypot(x, y) if sure else 0.0
        frozen = estimate.diagnostics.get('frozen_images', 0.0)
        recoveries = estimate.diagnostics.get('recoveries', 0.0)
        if not sure or recoveries != self._recoveries:
            self._candidates = []
        alive = frozen <= self._frozen
        self._odometry, self._frozen, self._recoveries = odometry, frozen, recoveries
        return alive and self._travel >= 2.0

    def _obstacle(self, answer: Answer) -> str:
        """Return why an image that matches badly cannot be added, or ''."""
        config = self._config()
        if len(self._similarities) < 8:
            return 'too few views yet to compare with'
        if answer.estimate.diagnostics.get('map_confirmed', 0.0) <= 0.0:
            return 'no proof yet that the robot is on this map'
        if float(np.median(self._similarities)) < config.grow_below:
            return 'nearly all views match badly, as in another light'
        taken = np.array([*self._added_poses, *(image.pose for image in self._candidates)])
        x, y, turn = (taken.reshape(-1, 3) - answer.estimate.pose).T
        near = np.hypot(x, y) < config.grow_spacing_d
        if np.any(near & (np.abs(se2.wrap_angle(turn)) < config.grow_spacing_a)):
            return 'near one that was added'
        if len(self.in_use.kernel_map) > grow.MAX_IMAGES_TO_GROW:
            return 'the map is too large'
        return 'grow_max_images reached' if len(taken) >= config.grow_max_images else ''

    def _add_candidates(self) -> KernelMap | None:
        """Add the candidates, except those that look like a candidate at another place."""
        images, self._candidates = self._candidates, []
        kernel_map = self.in_use.kernel_map
        if not images:
            return None
        try:
            self.in_use.file.claim()
        except MapError as error:
            self.failure = f'no images are added to the map: {error}'
            self._log('error', self.failure)
            return None
        rows = np.stack([image.descriptor for image in images])
        similarities = kernel_map.per_camera(kernel_map.describer.cross_gram(rows, rows))
        poses = np.array([image.pose for image in images])
        radius = 2.0 * kernel_map.filter_config.localized_radius
        far = ~np.array([se2.within(poses, pose, radius) for pose in poses])
        similar = similarities >= np.median(self._similarities)
        moved_along = np.any(far & similar, axis=1)
        if moved_along.any():
            reason = 'not added: the view moved along with the robot'
            self.counts[reason] += int(moved_along.sum())
        kept = [image for image, bad in zip(images, moved_along, strict=True) if not bad]
        if not kept:
            return None
        self.in_use = replace(self.in_use, kernel_map=grow.with_images(kernel_map, kept))
        self._added_poses = np.concatenate([self._added_poses, poses[~moved_along]])
        self.counts['added by itself'] += len(kept)
        return self.in_use.kernel_map
