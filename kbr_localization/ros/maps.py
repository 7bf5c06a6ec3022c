"""The maps that a node can use, and the images that join one while it is used. No rclpy here."""

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
from kbr_localization.ros.config import NodeConfig
from kbr_localization.ros.session import Answer
from kbr_localization.vision.describer import missing_cameras
import numpy as np

Log = Callable[[str, str], None]


@dataclass(frozen=True)
class MapInUse:
    """A map, its name, the file that it grows into; `map_id`: hash of it without growth."""

    name: str
    file: grow.GrownFile
    kernel_map: KernelMap
    map_id: str


def read_map(wanted: str, config: NodeConfig, log: Log) -> MapInUse:
    """
    Read a map by its path or its name in `map_files`; empty means the first of these.

    Images that were added to it are in another file, which is read instead: office_grown.h5 in the
    same folder, or a file of the same name in `grow_into`; unless `grow_in_place` is set. Raises
    ConfigurationError when none is named or it is of other cameras than `image_topics`, and
    MapError when it cannot be read.
    """
    paths = config.maps
    name = wanted or next(iter(paths), '')
    if not name:
        raise ConfigurationError(
            "parameter 'map_file' is empty: give a map made by `kbr map build`"
        )
    path, started = expanded(paths.get(name, name)), time.monotonic()
    file = path if config.grow_in_place else grow.grown_path(path)
    if config.grow_into:
        # floors may have files of one name in different folders
        file = expanded(config.grow_into) / (f'{name}.h5' if name in paths else path.name)
    claimed = grow.GrownFile(file)
    try:
        kernel_map = KernelMap.load(path)
    except MapError as error:
        known = f'; names out of map_files: {", ".join(paths)}' if paths else ''
        raise MapError(f'{error}{known}') from error
    check_cameras(kernel_map.cameras, config.image_topics, path)
    if file != path and file.is_file():
        try:
            kernel_map = grow.with_settings_of(kernel_map, KernelMap.load(file))
            log('info', f'what was added to {path} is read from {file}')
        except MapError as error:
            log('warning', f'{path} is used without what was added to it in {file}: {error}')
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
    return MapInUse(name, claimed, kernel_map, map_id)


def check_cameras(cameras: Sequence[str], topics: Sequence[str], path: Path) -> None:
    """Raise ConfigurationError unless there is a topic for each camera of a map, in its order."""
    names = [camera_name(topic) for topic in topics]
    swapped = len(cameras) > 1 and names != list(cameras) and set(names) == set(cameras)
    if swapped or max(1, len(cameras)) != max(1, len(topics)):
        raise ConfigurationError(
            f'map {path} is one of {", ".join(cameras) or "one camera"}, but images come on '
            f'{", ".join(topics) or "image"}: set image_topics to one topic for each camera, in '
            'the order of the map'
        )


class GrowingMap:
    """
    A map in use, its growth, and the writing of it.

    An image is added automatically only while the filter has confirmed the map, and only where
    the place has changed: in another light every view matches badly. A covered or stuck camera
    also matches badly, so an image is a candidate until a later one matches the map again.
    `counts`: images added, and good ones not added, by reason. `failure`: what keeps images from
    being added or written, or nothing. Everything belongs to the worker's thread but `save` and
    `close`, which write in the one thread of `background` or after its end, and `facts`.
    """

    def __init__(
        self, in_use: MapInUse, config: Callable[[], NodeConfig], background: Executor, log: Log
    ) -> None:
        self._config, self._background, self._log = config, background, log
        self.in_use, self._written = in_use, len(in_use.kernel_map)
        self._added = in_use.kernel_map.poses[grow.added_images(in_use.kernel_map)]
        self._saved, self.counts, self.failure = time.monotonic(), Counter[str](), ''
        self._travel = 0.0
        self._odometry: se2.FloatArray | None = None
        self._recent: deque[float] = deque(maxlen=30)
        self._candidates: list[grow.NewImage] = []
        self._frozen = self._recoveries = 0.0

    @property
    def unsaved(self) -> int:
        """Images that were added and are not yet written."""
        return len(self.in_use.kernel_map) - self._written

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
        obstacle, describer = self._obstacle(answer), self.in_use.kernel_map.describer
        if not obstacle:
            image = answer.image.load()
            descriptor = describer.describe(image)
            if missing_cameras(describer, descriptor):
                obstacle = 'a camera has no image'
            else:
                seen = (answer.stamp_ns, estimate.pose, descriptor, grow.make_thumbnail(image))
                self._candidates.append(grow.NewImage(*seen))
        if obstacle:
            self.counts[f'not added: {obstacle}'] += 1
        return None

    def save(self) -> None:
        """Write the added images; where that fails `failure` says so, and it is tried again."""
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

    def followed_by(self, in_use: MapInUse) -> GrowingMap:
        """Return the growth of another map; what was added to this one is written."""
        if in_use.file.path != self.in_use.file.path:
            self._background.submit(self.close)
        else:  # read again, without what was added meanwhile
            self.close(write=False)
        return GrowingMap(in_use, self._config, self._background, self._log)

    def close(self, write: bool = True) -> None:
        """Write what was added, and let other processes add to the file."""
        if write:
            self.save()
        if self.unsaved and not self.failure:
            self._log('warning', f'{self.unsaved} added images are lost with the map left')
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

    def _follow(self, answer: Answer) -> bool:
        """Return whether the pose has been sure for two metres, and the camera is alive."""
        odometry, estimate, told = answer.continued, answer.estimate, answer.estimate.diagnostics
        variance = float(np.linalg.eigvalsh(estimate.covariance[:2, :2])[-1])
        sure = estimate.localized and estimate.confidence >= 0.95
        sure = sure and variance <= self._config().grow_max_sd ** 2
        x, y, _ = se2.between(odometry if self._odometry is None else self._odometry, odometry)
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
        x, y, turn = (taken.reshape(-1, 3) - answer.estimate.pose).T
        near = np.hypot(x, y) < config.grow_spacing_d
        if np.any(near & (np.abs(se2.wrap_angle(turn)) < config.grow_spacing_a)):
            return 'near one that was added'
        if len(self.in_use.kernel_map) > grow.MAX_IMAGES_TO_GROW:
            return 'the map is too large'
        return 'grow_max_images reached' if len(taken) >= config.grow_max_images else ''

    def _settle(self) -> KernelMap | None:
        """Add the candidates except those that look like a candidate of another place."""
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
        alike = kernel_map.per_camera(kernel_map.describer.cross_gram(rows, rows))
        poses = np.array([image.pose for image in images])
        radius = 2.0 * kernel_map.filter_config.localized_radius
        near = [se2.within(poses, pose, radius) for pose in poses]
        moved_along = np.any(~np.array(near) & (alike >= np.median(self._recent)), axis=1)
        if moved_along.any():
            reason = 'not added: the view moved along with the robot'
            self.counts[reason] += int(moved_along.sum())
        kept = [image for image, bad in zip(images, moved_along, strict=True) if not bad]
        if not kept:
            return None
        self.in_use = replace(self.in_use, kernel_map=grow.with_images(kernel_map, kept))
        self._added = np.concatenate([self._added, poses[~moved_along]])
        self.counts['added by itself'] += len(kept)
        return self.in_use.kernel_map
