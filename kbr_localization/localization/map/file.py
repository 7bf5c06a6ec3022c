"""The map as one HDF5 file: written atomically, checked when read, never pickled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
import dataclasses
import datetime
from pathlib import Path
from typing import Any

import h5py
from kbr_localization import __version__
from kbr_localization.configuration import from_mapping, to_mapping
from kbr_localization.datasets.images import check_size
from kbr_localization.errors import MapError, MissingModuleError
from kbr_localization.files import new_file
from kbr_localization.localization.calibration import Calibration
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.map.checks import (
    check_arrays,
    check_calibration,
    check_cameras,
    check_index,
    check_means,
    check_noise,
    check_statistics,
)
from kbr_localization.localization.map.deferred_error_file import new_hdf5
from kbr_localization.localization.map.index import SketchIndex
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.map_statistics import MapStatistics
from kbr_localization.localization.map.mapping_record import MappingRecord
from kbr_localization.localization.map.storage import (
    read_array,
    read_thumbnails,
    write_array,
    write_thumbnails,
)
from kbr_localization.localization.map.structure import check_structure
from kbr_localization.localization.map.verified import VerifiedArray
from kbr_localization.localization.motion import MotionNoise
from kbr_localization.se2 import FloatArray
from kbr_localization.vision import describer_from_state
import numpy as np

FORMAT = 'kbr_localization map'
FORMAT_VERSION = 2
FIRST_VERSION = 1
"""Maps of one camera keep it, so that older packages read them."""
_SMALL_ARRAYS = ('poses', 'stamps_ns', 'run_index', 'controls', 'next_poses')
_MEASURED_WITH = {
    'image_kernel': 'centred; most evidence beyond the likeliest wrong places, frames left out'
}
"""With which image kernel and which evidence statistics were measured."""
_OF_ANOTHER_FILTER = {'covariance_scale', 'delta', 'outlier_rate', 'noise_scale'}
"""Parameters that meant something else to the filter of earlier packages."""
_ARRAYS = (*_SMALL_ARRAYS, 'descriptors')
Search = tuple[SketchIndex, FloatArray]
"""What a large map is searched by: the index, and the means (n,) of the image kernel."""


def write_map(kernel_map: KernelMap, path: Path) -> None:
    """
    Write to a temporary file beside `path` and rename it.

    Raises MapError, also for errors of the odometry that `read_map` would refuse.
    """
    try:
        check_noise(kernel_map.motion_noise)
        check_calibration(kernel_map.calibration)
    except MapError as error:
        raise MapError(
            f'cannot write the map {path}: {error}: are all poses and the odometry in metres?'
        ) from error
    try:
        _refuse_no_file(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path, sync=True) as part, ThreadPoolExecutor(2) as pool:
            # what a large map is searched by is made while the rest is written
            search = pool.submit(_search_of, kernel_map)
            # HDF5 does not survive an interrupt, which comes to the main thread only
            pool.submit(_write_file, part, kernel_map, search).result()
    except OSError as error:
        raise MapError(f'cannot write the map {path}: {error.strerror or error}') from error


def _refuse_no_file(path: Path) -> None:
    if path.exists() and not path.is_file():
        found = 'folder' if path.is_dir() else 'device or a pipe'
        raise MapError(f'cannot write the map {path}: expected the name of a file, got a {found}')


def read_map(path: Path) -> KernelMap:
    """Read and check a map file; raises MapError naming the file, the trouble and the remedy."""
    with opened(path) as file:
        return _read(file)


def count_images(path: Path) -> int:
    """Count the images of a map file without reading them; raises MapError as `read_map` does."""
    with opened(path) as file:
        return len(file['poses'])


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open a map file that holds all it has; whatever goes wrong inside becomes a MapError."""
    if path.is_dir():
        raise MapError(f'map {path} is a folder: expected a file made by `kbr map build`')
    if path.exists() and not path.is_file():
        raise MapError(f'map {path} is a device or a pipe: expected a file')
    if not path.is_file():
        raise MapError(
            f'map {path} does not exist: build it with `kbr map build RUN --out {path}`'
        )
    refusal = ''
    try:
        with h5py.File(path, 'r') as file:
            check_structure(file, path.stat().st_size)
            refusal = _refusal(file, path)
            if not refusal:
                yield file
    # a damaged file makes h5py and NumPy raise nearly anything
    except Exception as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, MapError) and str(path) in detail:
            raise
        if isinstance(error, MissingModuleError):
            raise MapError(f'map {path}: {detail}') from error
        raise MapError(
            f'map {path} is truncated, damaged or not a map ({detail}): build it again'
        ) from error
    if refusal:
        raise MapError(refusal)


def _write_file(part: Path, kernel_map: KernelMap, search: Future[Search | None]) -> None:
    with new_hdf5(part) as file:
        _write(file, kernel_map)
        _write_search(file, search.result())


def _write(file: h5py.File, kernel_map: KernelMap) -> None:
    file.attrs['format'] = _stored(FORMAT)
    file.attrs['format_version'] = FORMAT_VERSION if kernel_map.cameras else FIRST_VERSION
    file.attrs['package_version'] = _stored(__version__)
    file.attrs['created'] = _stored(datetime.datetime.now(datetime.timezone.utc).isoformat())
    file.attrs['image_shape'] = kernel_map.image_shape
    for name in _ARRAYS:
        write_array(file, name, getattr(kernel_map, name))
    # names of folders may be no text
    names = [name.encode(errors='surrogateescape') for name in kernel_map.run_names]
    write_array(file, 'run_names', np.array(names))
    _write_mapping(file.create_group('filter'), to_mapping(kernel_map.filter_config))
    _write_mapping(file.create_group('motion_noise'), to_mapping(kernel_map.motion_noise))
    _write_mapping(file.create_group('calibration'), to_mapping(kernel_map.calibration))
    _write_mapping(file.create_group('describer'), kernel_map.describer.state())
    if kernel_map.statistics is not None:
        _write_mapping(
            file.create_group('statistics'), to_mapping(kernel_map.statistics) | _MEASURED_WITH
        )
    if kernel_map.mapping is not None:
        _write_mapping(file.create_group('mapping'), kernel_map.mapping.arrays())
    for method, values in kernel_map.baselines.items():
        _write_mapping(file.create_group(f'baselines/{method}'), values)
    write_thumbnails(file, kernel_map.thumbnails)


def _search_of(kernel_map: KernelMap) -> Search | None:
    if not kernel_map.is_large:
        return None
    return kernel_map.search_index, kernel_map.centring.means


def _write_search(file: h5py.File, search: Search | None) -> None:
    if search is not None:
        index, means = search
        _write_mapping(file.create_group('index'), index.arrays)
        write_array(file, 'means', means)


def _write_mapping(group: h5py.Group, values: Any) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            _write_mapping(group.create_group(name), value)
        elif value is None:
            continue  # takes its default when it is read
        elif isinstance(value, (np.ndarray, VerifiedArray)) and value.ndim > 0:
            write_array(group, name, value)
        else:
            group.attrs[name] = _stored(value)


def _stored(value: Any) -> Any:
    # a text of fixed length: those of variable length stand where HDF5 has no checksum
    return np.bytes_(value.encode()) if isinstance(value, str) else value


def _text(value: Any) -> Any:
    # maps made before have texts of variable length, which come as str
    return value.decode() if isinstance(value, bytes) else value


def _refusal(file: h5py.File, path: Path) -> str:
    """Say why a whole file is not for this package, or nothing."""
    if _text(file.attrs.get('format')) != FORMAT:
        return (
            f'{path} is an HDF5 file but not a map of kbr_localization: give a file made by '
            '`kbr map build`'
        )
    version = _number(file, 'format_version', 1)
    if version > FORMAT_VERSION:
        package = _text(file.attrs.get('package_version'))
        return (
            f'map {path} has format {version} (package {package}), this '
            f'package {__version__} reads up to {FORMAT_VERSION}: update kbr_localization'
        )
    return ''


def _read(file: h5py.File) -> KernelMap:
    arrays = _read_arrays(file)
    height, width = _image_shape(file)
    run_names = _read_names(file)
    state = _read_mapping(file['describer'])
    check_cameras(state)
    describer = describer_from_state(state)
    check_arrays(arrays, describer, len(run_names), (height, width))
    noise = from_mapping(MotionNoise, _read_mapping(file['motion_noise']))
    check_noise(noise)
    return KernelMap(
        **arrays,
        run_names=run_names,
        describer=describer,
        image_shape=(height, width),
        filter_config=_read_filter(file['filter']),
        motion_noise=noise,
        thumbnails=read_thumbnails(file, len(arrays['poses'])),
        baselines=_read_baselines(file),
        index=_read_index(file),
        means=_read_means(file, len(arrays['poses'])),
        statistics=_read_statistics(file),
        calibration=_read_calibration(file),
        mapping=_read_record(file, len(arrays['poses'])),
    )


def _number(file: h5py.File, name: str, least: int) -> int:
    value = file.attrs.get(name)
    if not isinstance(value, np.integer) or value < least:
        raise MapError(f'{name} is {value!r:.80}: expected an integer from {least} on')
    return int(value)


def _image_shape(file: h5py.File) -> tuple[int, int]:
    sides = np.asarray(file.attrs.get('image_shape'))
    if sides.shape != (2,) or sides.dtype.kind not in 'iu':
        raise MapError(f'image_shape is {sides!s:.80}: expected two integers')
    check_size(int(sides[1]), int(sides[0]), 'of a map')
    return int(sides[0]), int(sides[1])


def _read_names(file: h5py.File) -> tuple[str, ...]:
    names = np.asarray(read_array(file['run_names']))
    if names.ndim != 1 or names.dtype.kind != 'S':
        raise MapError(f'run_names is {names.dtype} of shape {names.shape}: expected texts')
    return tuple(name.decode(errors='replace') for name in names)


def _read_arrays(file: h5py.File) -> dict[str, Any]:
    arrays: dict[str, Any] = {name: np.asarray(read_array(file[name])) for name in _SMALL_ARRAYS}
    return arrays | {'descriptors': read_array(file['descriptors'], finite=True)}


def _read_mapping(group: h5py.Group) -> dict[str, Any]:
    values: dict[str, Any] = {
        name: _read_mapping(item) if isinstance(item, h5py.Group) else np.asarray(read_array(item))
        for name, item in group.items()
    }
    for name, value in group.attrs.items():
        values[name] = _text(value.item() if isinstance(value, np.generic) else value)
    return values


def _read_index(file: h5py.File) -> SketchIndex | None:
    if 'index' not in file:
        return None
    arrays = {name: read_array(array) for name, array in file['index'].items()}
    check_index(arrays)
    return SketchIndex(arrays)


def _read_means(file: h5py.File, images: int) -> FloatArray | None:
    if 'means' not in file:
        return None
    means = np.asarray(read_array(file['means']))
    check_means(means, images)
    return means


def _read_statistics(file: h5py.File) -> MapStatistics | None:
    if 'statistics' not in file:
        return None
    values = _read_mapping(file['statistics'])
    measured_with = {name: values.pop(name, None) for name in _MEASURED_WITH}
    if measured_with != _MEASURED_WITH or values.keys() != to_mapping(MapStatistics()).keys():
        return None  # those of a package of another age: they are measured again
    statistics = from_mapping(MapStatistics, values)
    check_statistics(statistics)
    return statistics


def _read_calibration(file: h5py.File) -> Calibration:
    calibration = from_mapping(Calibration, _read_mapping(file['calibration']))
    check_calibration(calibration)
    return calibration


def _read_record(file: h5py.File, images: int) -> MappingRecord | None:
    if 'mapping' not in file:
        return None
    return MappingRecord.of_arrays(_read_mapping(file['mapping']), images)


def _read_filter(group: h5py.Group) -> KbrConfig:
    # a parameter that a later package dropped is left out; a new one takes its default
    known = {field.name for field in dataclasses.fields(KbrConfig)}
    stored = _read_mapping(group)
    if 'off_map' in stored:
        known -= _OF_ANOTHER_FILTER
    return from_mapping(KbrConfig, {n: value for n, value in stored.items() if n in known})


def _read_baselines(file: h5py.File) -> dict[str, dict[str, Any]]:
    groups = file.get('baselines', {})
    return {method: _read_mapping(groups[method]) for method in groups}
