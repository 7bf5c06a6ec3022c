"""Which maps a node can use, by name, and what it reads and writes of them. No rclpy here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
import hashlib
from pathlib import Path
import time

from kbr_localization import se2
from kbr_localization.datasets.multi_camera import camera_name
from kbr_localization.errors import ConfigurationError, MapError
from kbr_localization.files import expanded
from kbr_localization.localization.filter.wrong_places import MEASURED_NOW, with_statistics
from kbr_localization.localization.map.grow import (
    grown,
    grown_form,
    grown_path,
    GrownFile,
    is_grown_from,
)
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros.parameters.map_files import parse_map_files
import numpy as np


@dataclass(frozen=True)
class MapInUse:
    """
    A map with the name that people call it by and the file that it grows into.

    `map_id`: short name of its contents, growth aside, by which a saved pose knows its map.
    """

    name: str
    file: GrownFile
    kernel_map: KernelMap
    map_id: str

    def distance(self, pose: se2.FloatArray) -> float:
        """Metres from a pose (3,) to the nearest image of the map."""
        offsets = self.kernel_map.poses[:, :2] - pose[:2]
        return float(np.hypot(*offsets.T).min())

    def with_map(self, kernel_map: KernelMap) -> MapInUse:
        """Give the same map after growth or with other parameters."""
        return replace(self, kernel_map=kernel_map)


class MapRegistry:
    """
    The maps of the parameters `map_file` and `map_files`.

    `map_file` is a path or one of the names; empty, it means the first name. The map with the
    images that were added to it is in a file of its own, which is read in its place: beside it,
    as in office_grown.h5, or of the same name in the folder `grow_into`; unless it is to be
    replaced itself, by `in_place`.
    """

    def __init__(
        self,
        map_files: Sequence[str],
        grow_into: str,
        log: Callable[[str, str], None],
        image_topics: Sequence[str] = (),
        in_place: bool = False,
    ) -> None:
        self._in_place = in_place
        self.paths = parse_map_files(map_files)
        self._grow_into, self._log = grow_into, log
        self._image_topics = image_topics
        self._tell_what_is_missing()

    def _tell_what_is_missing(self) -> None:
        # in one line: of lines that differ in numbers alone only the first is logged
        missing = [
            f'{name}={path}' for name, path in self.paths.items() if not expanded(path).exists()
        ]
        if missing:
            self._log(
                'warning',
                f'no such file of map_files: {", ".join(missing)}: correct the path, or put the '
                'map there before it is loaded',
            )

    def read(self, wanted: str) -> MapInUse:
        """
        Read a map by its name or path.

        Raises ConfigurationError when none is named or when it is one of other cameras than
        `image_topics` says, and MapError when it cannot be read.
        """
        name = wanted or next(iter(self.paths), '')
        if not name:
            raise ConfigurationError(
                "parameter 'map_file' is empty: give a map made by `kbr map build`"
            )
        path = expanded(self.paths.get(name, name))
        started, file = time.monotonic(), GrownFile(self._save_path(name, path))
        kernel_map = self._load(path, name, file.path)
        check_cameras(kernel_map.cameras, self._image_topics, path)
        height, width = kernel_map.image_shape
        called = f' ({name})' if name in self.paths else ''
        self._log(
            'info',
            f'map {path}{called}: {len(kernel_map)} images of {width}x{height} pixels, read in '
            f'{time.monotonic() - started:.1f} s',
        )
        if kernel_map.statistics is None:
            self._log('info', f'map {path}: {MEASURED_NOW}')
            kernel_map = with_statistics(kernel_map)
        return MapInUse(name, file, kernel_map, map_id(kernel_map))

    def _load(self, path: Path, name: str, added: Path) -> KernelMap:
        try:
            base = KernelMap.load(path)
        except MapError as error:
            if name in self.paths or not self.paths:
                raise
            known = ', '.join(self.paths)
            raise MapError(f'{error}; names out of map_files: {known}') from error
        return self._grown_form(base, path, added)

    def _grown_form(self, base: KernelMap, path: Path, added: Path) -> KernelMap:
        """Return the map with what was added to it in another file, where there is one."""
        if added == path or not added.is_file():
            return base
        try:
            kernel_map = KernelMap.load(added)
        except MapError as error:
            self._log('warning', f'{path} is used without what was added to it: {error}')
            return base
        if is_grown_from(kernel_map, base):
            count = len(kernel_map) - len(base)
            self._log('info', f'{count} images that were added to {path} are read from {added}')
            return grown_form(base, kernel_map)
        self._log(
            'warning',
            f'{added} is not grown from {path}, which was built anew: it is not used, and '
            'overwritten with the next image that is added',
        )
        return base

    def _save_path(self, name: str, path: Path) -> Path:
        if self._in_place:
            return path
        if not self._grow_into:
            return grown_path(path)
        # floors may have files of one name in different folders
        file_name = f'{name}.h5' if name in self.paths else path.name
        return expanded(self._grow_into) / file_name


def check_cameras(cameras: Sequence[str], topics: Sequence[str], path: Path) -> None:
    """Raise ConfigurationError unless there is a topic for each camera of a map, in its order."""
    listening = ', '.join(topics) or 'image'
    if max(1, len(cameras)) != max(1, len(topics)):
        raise ConfigurationError(
            f'map {path} is one of {", ".join(cameras) or "one camera"}, but images come on '
            f'{listening}: set image_topics to one topic for each camera of the map'
        )
    names = tuple(camera_name(topic) for topic in topics)
    if len(cameras) > 1 and names != tuple(cameras) and set(names) == set(cameras):
        raise ConfigurationError(
            f'map {path} has the cameras {", ".join(cameras)}, but image_topics are {listening}: '
            'give them in the order of the map'
        )


def map_id(kernel_map: KernelMap) -> str:
    """Short name of a map's contents but for what was added to it while localizing."""
    poses = np.ascontiguousarray(kernel_map.poses[~grown(kernel_map)])
    return hashlib.sha256(poses.tobytes()).hexdigest()[:16]
