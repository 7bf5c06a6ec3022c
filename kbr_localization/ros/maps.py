"""The maps that a node can use, by name, and the file that each grows into. No rclpy here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import hashlib
from pathlib import Path
import time

from kbr_localization import se2
from kbr_localization.datasets.multi_camera import camera_name
from kbr_localization.errors import ConfigurationError, MapError
from kbr_localization.files import expanded
from kbr_localization.localization.filter.wrong_places import MEASURED_NOW, with_statistics
from kbr_localization.localization.map.grow import grown, grown_form, grown_path, GrownFile
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros.config import NodeConfig, parse_map_files
import numpy as np

Log = Callable[[str, str], None]


@dataclass(frozen=True)
class MapInUse:
    """
    A map with the name that people call it by and the file that it grows into.

    `map_id`: hash of its contents without growth, by which a saved pose knows its map.
    """

    name: str
    file: GrownFile
    kernel_map: KernelMap
    map_id: str

    def distance(self, pose: se2.FloatArray) -> float:
        """Metres from a pose (3,) to the nearest image of the map."""
        return float(np.hypot(*(self.kernel_map.poses[:, :2] - pose[:2]).T).min())


def read_map(wanted: str, config: NodeConfig, log: Log) -> MapInUse:
    """
    Read a map by its path or its name in `map_files`; empty means the first of these.

    Images that were added to it are in another file, which is read instead: office_grown.h5 in the
    same folder, or a file of the same name in `grow_into`; unless `grow_in_place` is set. Raises
    ConfigurationError when none is named or it is of other cameras than `image_topics`, and
    MapError when it cannot be read.
    """
    paths = parse_map_files(config.map_files)
    name = wanted or next(iter(paths), '')
    if not name:
        raise ConfigurationError(
            "parameter 'map_file' is empty: give a map made by `kbr map build`"
        )
    path, started = expanded(paths.get(name, name)), time.monotonic()
    file = path if config.grow_in_place else grown_path(path)
    if config.grow_into:
        # floors may have files of one name in different folders
        file = expanded(config.grow_into) / (f'{name}.h5' if name in paths else path.name)
    claimed = GrownFile(file)
    try:
        kernel_map = KernelMap.load(path)
    except MapError as error:
        known = f'; names out of map_files: {", ".join(paths)}' if paths else ''
        raise MapError(f'{error}{known}') from error
    check_cameras(kernel_map.cameras, config.image_topics, path)
    if file != path and file.is_file():
        kernel_map = _with_added(kernel_map, path, file, log)
    height, width = kernel_map.image_shape
    log(
        'info',
        f'map {path}{f" ({name})" if name in paths else ""}: {len(kernel_map)} images of '
        f'{width}x{height} pixels, read in {time.monotonic() - started:.1f} s',
    )
    if kernel_map.statistics is None:
        log('info', f'map {path}: {MEASURED_NOW}')
        kernel_map = with_statistics(kernel_map)
    poses = np.ascontiguousarray(kernel_map.poses[~grown(kernel_map)])
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


def _with_added(base: KernelMap, path: Path, added: Path, log: Log) -> KernelMap:
    """Return the map with what was added to it in another file."""
    try:
        kernel_map = grown_form(base, KernelMap.load(added))
    except MapError as error:
        log('warning', f'{path} is used without what was added to it in {added}: {error}')
        return base
    count = len(kernel_map) - len(base)
    log('info', f'{count} images that were added to {path} are read from {added}')
    return kernel_map
