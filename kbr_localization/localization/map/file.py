"""
The map as one HDF5 file: written atomically, checked by one schema, never pickled.

Arrays have the paths and forms of `SCHEMA`; single numbers and texts are attributes of their
groups. Everything that is small is verified when a map is loaded. Arrays that are mapped into
memory are compared with their checksums by `check_map`, and once in the background after loading.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
import dataclasses
import datetime
import logging
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import h5py
from kbr_localization import __version__
from kbr_localization.configuration import from_mapping, to_mapping
from kbr_localization.datasets.images import check_size
from kbr_localization.errors import MapError, MissingModuleError
from kbr_localization.files import new_file
from kbr_localization.localization.calibration import Calibration, SIZE
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.map import storage
from kbr_localization.localization.map.index import SketchIndex
from kbr_localization.localization.map.kernel_map import KernelMap, MappingRecord
from kbr_localization.localization.map.map_statistics import MapStatistics
from kbr_localization.localization.map.storage import (
    check_plain,
    CHECKSUMS,
    checksums_of,
    is_mapped,
    new_hdf5,
    read_array,
    stored_checksums,
    Thumbnails,
    write_array,
    write_thumbnails,
)
from kbr_localization.localization.motion import MotionNoise
from kbr_localization.vision import Describer, describer_from_state
import numpy as np

LOG = logging.getLogger(__name__)

FORMAT = 'kbr_localization map'
FORMAT_VERSION = 2
"""Of maps of several cameras; maps of one camera have 1, so that older packages read them."""
FARTHEST = 1e7
"""Metres; no building is so large."""
_MEASURED_WITH = {'image_kernel': 'centred; log odds of the likeliest wrong places'}
"""With which image kernel and which evidence statistics were measured."""
_FINITE = 1e30
_MOST_NOISE = (2.0 * FARTHEST) ** 2  # m², of a reference that jumps from end to end


class Field(NamedTuple):
    """
    What an array of a map must be: types, shape, and range of the values.

    Names in the shape stand for sizes that are equal wherever they occur. `gaps`: NaN is allowed.
    """

    dtypes: str
    shape: tuple[int | str, ...]
    low: float = -_FINITE
    high: float = _FINITE
    gaps: bool = False


_INTEGERS = 'i1 i2 i4 i8 u1 u2 u4 u8'
SCHEMA = {
    'poses': Field('f8', ('images', 3), -FARTHEST, FARTHEST),
    'controls': Field('f8', ('images', 3), -FARTHEST, FARTHEST, gaps=True),
    'next_poses': Field('f8', ('images', 3), -FARTHEST, FARTHEST, gaps=True),
    'stamps_ns': Field('i8', ('images',)),
    'run_index': Field(_INTEGERS, ('images',), 0),
    'descriptors': Field(f'{_INTEGERS} f4 f8', ('images', 'entries')),
    'means': Field('f8', ('images',)),
    'thumbnails/jpeg': Field('u1', ('bytes',)),
    'thumbnails/sizes': Field(_INTEGERS, ('images',), 0),
    'index/centre': Field('f4', ('entries',)),
    'index/axes': Field('f4', ('entries', 'axes')),
    'index/scale': Field('f4', (1,)),
    'index/codes': Field('i1', ('images', 'axes')),
    'index/order': Field('i4 i8', ('images',), 0),
    'index/starts': Field('i8', ('ends',), 0),
    'index/lists': Field('f4', ('lists', 'axes')),
    'motion_noise/per_metre': Field('f8', (3,), 0.0, _MOST_NOISE),
    'motion_noise/per_radian': Field('f8', (3,), 0.0, _MOST_NOISE),
    'motion_noise/per_metre_aside': Field('f8', (3,), 0.0, _MOST_NOISE),
    'motion_noise/step': Field('f8', (4,), 0.0, _MOST_NOISE),
    'calibration/values': Field('f8', (SIZE,), -100.0, 100.0),
    'calibration/covariance': Field('f8', (SIZE, SIZE), -100.0, 100.0),
    'calibration/delay': Field('f8', (2,), -100.0, 100.0),
    'mapping/odometry': Field('f8', ('images', 3)),
    'mapping/covariances': Field('f8', ('images', 3, 3)),
    'mapping/parameters': Field('f8', ('runs', 6)),
    'mapping/point': Field('f8', (3,)),
    'mapping/closures': Field(_INTEGERS, ('closures', 2), 0),
    'mapping/chain': Field(_INTEGERS, ('closures',)),
    'mapping/relative': Field('f8', ('closures', 3)),
    'mapping/misses': Field('f8', ('closures', 3)),
    'mapping/score': Field('f8', ('closures',)),
    'mapping/kept': Field(_INTEGERS, ('closures',), 0, 1),
}
_OF_IMAGES = ('poses', 'controls', 'next_poses', 'stamps_ns', 'run_index', 'descriptors')


def write_map(kernel_map: KernelMap, path: Path) -> None:
    """Write to a temporary file next to `path` and rename it; raises MapError."""
    if path.exists() and not path.is_file():
        found = 'folder' if path.is_dir() else 'device or a pipe'
        raise MapError(f'cannot write the map {path}: expected the name of a file, got a {found}')
    arrays = _arrays_of(kernel_map)
    try:
        _check(arrays, {'entries': kernel_map.describer.size})
        _check_calibration(kernel_map.calibration)
    except MapError as error:
        raise MapError(
            f'cannot write the map {path}: {error}: are all poses and the odometry in metres?'
        ) from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path, sync=True) as part, ThreadPoolExecutor(1) as pool:
            # HDF5 does not survive an interrupt, which comes to the main thread only
            pool.submit(_write, part, kernel_map, arrays).result()
    except OSError as error:
        raise MapError(f'cannot write the map {path}: {error.strerror or error}') from error


def read_map(path: Path) -> KernelMap:
    """Read and check a map file; raises MapError naming the file, the trouble and the remedy."""

    def verify_mapped() -> None:
        for name, array, checksums in mapped:
            try:
                _verify(name, array, checksums)
            except MapError as error:
                LOG.error('map %s: %s: copy or build it again', path, error)

    with opened(path) as file:
        kernel_map = _read(file)
        mapped = [
            (name, read_array(item), stored_checksums(item))
            for name, item in _datasets(file)
            if is_mapped(item)
        ]
    if mapped:
        Thread(target=verify_mapped, daemon=True).start()
    return kernel_map


def _datasets(file: h5py.File) -> list[tuple[str, h5py.Dataset]]:
    names: list[str] = []
    file.visit(names.append)
    return [(name, file[name]) for name in names if isinstance(file[name], h5py.Dataset)]


def count_images(path: Path) -> int:
    """Count the images of a map file without reading them; raises MapError as `read_map` does."""
    with opened(path) as file:
        return len(file['poses'])


class CheckedMap(NamedTuple):
    """
    What was found in a map file without a wrong byte.

    `size`: of the file in bytes. `unverified`: names of large arrays without checksums.
    """

    images: int
    arrays: int
    size: int
    unverified: tuple[str, ...]


def check_map(path: Path) -> CheckedMap:
    """Read and verify all of a map file: `kbr map check`; raises MapError for what is wrong."""
    unverified: list[str] = []
    with opened(path) as file:
        kernel_map, datasets = _read(file), _datasets(file)
        for name, item in datasets:
            checksums = stored_checksums(item)
            _verify(name, read_array(item), checksums)
            if checksums is None and not item.fletcher32 and item.size:
                unverified.append(name)
    return CheckedMap(len(kernel_map), len(datasets), path.stat().st_size, tuple(unverified))


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open a map file; whatever goes wrong inside becomes a MapError of one line."""
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
            check_plain(file, path.stat().st_size)
            refusal = _refusal(file, path)
            if not refusal:
                yield file
    # a damaged file makes h5py and NumPy raise nearly anything
    except Exception as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, MissingModuleError):
            raise MapError(f'map {path}: {detail}') from error
        raise MapError(
            f'map {path} is truncated, damaged or not a map ({detail}): build it again'
        ) from error
    if refusal:
        raise MapError(refusal)


def _refusal(file: h5py.File, path: Path) -> str:
    """Say why a whole file is not for this package, or nothing."""
    if _text(file.attrs.get('format')) != FORMAT:
        return (
            f'{path} is an HDF5 file but not a map of kbr_localization: give a file made by '
            '`kbr map build`'
        )
    version = file.attrs.get('format_version')
    if not isinstance(version, np.integer) or version < 1:
        raise MapError(f'format_version is {version!r:.80}: expected an integer from 1 on')
    if version > FORMAT_VERSION:
        return (
            f'map {path} has format {version} (package {_text(file.attrs["package_version"])}), '
            f'this package {__version__} reads up to {FORMAT_VERSION}: update kbr_localization'
        )
    return ''


def _arrays_of(kernel_map: KernelMap) -> dict[str, np.ndarray]:
    """Return the arrays of a map by their paths, the small ones first."""
    arrays = {name: getattr(kernel_map, name) for name in _OF_IMAGES}
    groups: dict[str, Mapping[str, Any]] = {
        'motion_noise': to_mapping(kernel_map.motion_noise),
        'calibration': to_mapping(kernel_map.calibration),
    }
    if kernel_map.mapping is not None:
        groups['mapping'] = vars(kernel_map.mapping)
    if kernel_map.is_large:
        groups['index'] = kernel_map.search_index.arrays
        arrays['means'] = kernel_map.centring.means
    for group, values in groups.items():
        for name, value in values.items():
            if f'{group}/{name}' in SCHEMA and value is not None and np.size(value):
                arrays[f'{group}/{name}'] = np.asarray(value)
    return arrays


def _write(part: Path, kernel_map: KernelMap, arrays: Mapping[str, np.ndarray]) -> None:
    with new_hdf5(part) as file:
        _write_attributes(file, kernel_map)
        for path, array in arrays.items():
            write_array(file, path, array)
        # names of folders may be no text
        names = [name.encode(errors='surrogateescape') for name in kernel_map.run_names]
        write_array(file, 'run_names', np.array(names))
        write_thumbnails(file, kernel_map.thumbnails)


def _write_attributes(file: h5py.File, kernel_map: KernelMap) -> None:
    created = datetime.datetime.now(datetime.timezone.utc).isoformat()
    values: dict[str, Any] = {
        'format': FORMAT,
        'format_version': FORMAT_VERSION if kernel_map.cameras else 1,
        'package_version': __version__,
        'created': created,
        'image_shape': kernel_map.image_shape,
        'filter': to_mapping(kernel_map.filter_config),
        'describer': kernel_map.describer.state(),
        'baselines': kernel_map.baselines,
    }
    if kernel_map.statistics is not None:
        values['statistics'] = to_mapping(kernel_map.statistics) | _MEASURED_WITH
    if kernel_map.mapping is not None:
        values['mapping'] = {'aligned': kernel_map.mapping.aligned}
    _write_values(file, values)


def _write_values(group: h5py.Group, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            _write_values(group.create_group(name), value)
        elif isinstance(value, np.ndarray) and value.ndim > 0:
            write_array(group, name, value)
        elif isinstance(value, str):
            # of fixed length: HDF5 has no checksum of a text of variable length
            group.attrs[name] = np.bytes_(value.encode())
        elif value is not None:  # None takes its default when it is read
            group.attrs[name] = value


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _read(file: h5py.File) -> KernelMap:
    values = _read_values(file)
    describer = _describer(values)
    _check(_by_path(values), {'images': len(values['poses']), 'entries': describer.size})
    _check_references(values, describer)
    calibration = from_mapping(Calibration, values['calibration'])
    _check_calibration(calibration)
    statistics = _statistics(values.get('statistics'))
    if 'statistics' in values and statistics is None:
        values['filter'].pop('delta', None)  # its meaning differs between versions
    index, mapping, thumbnails = (values.get(name) for name in ('index', 'mapping', 'thumbnails'))
    return KernelMap(
        **{name: values[name] for name in _OF_IMAGES},
        run_names=tuple(name.decode(errors='replace') for name in values['run_names']),
        describer=describer,
        image_shape=(int(values['image_shape'][0]), int(values['image_shape'][1])),
        filter_config=_known_fields(KbrConfig, values['filter']),
        motion_noise=from_mapping(MotionNoise, values['motion_noise']),
        thumbnails=_thumbnails(**thumbnails) if thumbnails else (),
        baselines=values.get('baselines', {}),
        index=SketchIndex(index) if index else None,
        means=values.get('means'),
        statistics=statistics,
        calibration=calibration,
        mapping=MappingRecord(**mapping) if mapping else None,
    )


def _read_values(group: h5py.Group) -> dict[str, Any]:
    values: dict[str, Any] = {
        name: _read_values(item) if isinstance(item, h5py.Group) else read_array(item)
        for name, item in group.items()
        if item.name != f'/{CHECKSUMS}'
    }
    for name, value in group.attrs.items():
        values[name] = _text(value.item() if isinstance(value, np.generic) else value)
    return values


def _by_path(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `SCHEMA` knows of the values of a file; raises MapError for what is missing."""
    found = {}
    for path in SCHEMA:
        *groups, name = path.split('/')
        holder = values.get(groups[0], {}) if groups else values
        if name in holder:
            found[path] = holder[name]
        elif not groups and path != 'means':
            raise MapError(f'it has no {path}')
    return found


def _check(arrays: Mapping[str, Any], sizes: dict[str, int]) -> None:
    """Raise MapError unless arrays, by their paths, are what `SCHEMA` says."""
    for path, array in arrays.items():
        field = SCHEMA[path]
        shape, dtype = np.shape(array), getattr(array, 'dtype', None)
        for number, side in enumerate(field.shape):
            if isinstance(side, str):
                sizes.setdefault(side, shape[number] if number < len(shape) else -1)
        expected = tuple(sizes[side] if isinstance(side, str) else side for side in field.shape)
        fits = dtype is not None and dtype.isnative and dtype.str[1:] in field.dtypes.split()
        if not fits or shape != expected:
            raise MapError(
                f'{path} is {dtype} of shape {shape}: expected {field.dtypes} of shape {expected}'
            )
        if array.nbytes < storage.MAPPED_BYTES:
            _check_range(path, array)


def _check_range(path: str, array: np.ndarray) -> None:
    field = SCHEMA[path]
    for rows in np.array_split(array, 1 + array.nbytes // storage.MAPPED_BYTES):
        inside = (rows >= field.low) & (rows <= field.high)  # false for NaN
        if not np.all(inside | np.isnan(rows) if field.gaps else inside):
            allowed = f'[{field.low:g}, {field.high:g}]'
            raise MapError(f'{path} has values that are not finite or not in {allowed}')


def _verify(path: str, array: np.ndarray, checksums: np.ndarray | None) -> None:
    if checksums is not None and not np.array_equal(checksums, checksums_of(array)):
        raise MapError(f'{path} is damaged: its bytes are not those that were written')
    if path in SCHEMA:
        _check_range(path, array)


def _check_references(values: Mapping[str, Any], describer: Describer) -> None:
    """Raise MapError where parts of a map do not fit each other."""
    images, names = len(values['poses']), values['run_names']
    if names.ndim != 1 or names.dtype.kind != 'S':
        raise MapError(f'run_names is {names.dtype} of shape {names.shape}: expected texts')
    if values['run_index'].max(initial=-1) >= len(names):
        raise MapError(f'run_index has values beyond the {len(names)} run names')
    if values['descriptors'].dtype.kind != describer.dtype.kind:
        raise MapError(f'descriptors is {values["descriptors"].dtype}, not {describer.dtype}')
    record = values.get('mapping', {})
    if np.max(record.get('closures', 0), initial=0) >= images:
        raise MapError(f'mapping/closures names images beyond the {images} of the map')
    if np.min(np.diagonal(record.get('covariances', np.eye(3)), axis1=-2, axis2=-1)) < -1e-6:
        raise MapError('mapping/covariances has negative variances')
    aligned = record.get('aligned')
    if not isinstance(aligned, (bool, type(None))):
        raise MapError(f'mapping/aligned is {aligned!r:.80}: expected true or false')


def _check_calibration(calibration: Calibration) -> None:
    covariance = calibration.covariance
    symmetric = np.allclose(covariance, covariance.T, atol=1e-9)
    if not symmetric or np.linalg.eigvalsh(covariance)[0] <= 0.0:
        raise MapError('calibration/covariance: expected a covariance that has an inverse')
    if calibration.delay is not None and calibration.delay[1] < 0.0:
        raise MapError(f'calibration/delay is {calibration.delay}: expected a deviation')


def _describer(values: Mapping[str, Any]) -> Describer:
    """Make the describer, once its images are known to be of a size that can be decoded."""
    state = values['describer']
    cameras = [part for part in state.values() if isinstance(part, Mapping)]
    shapes = [values['image_shape']]
    shapes += [(of.get('image_height', 1), of.get('image_width', 1)) for of in (state, *cameras)]
    for shape in shapes:
        sides = np.asarray(shape)
        if sides.shape != (2,) or sides.dtype.kind not in 'iu' or sides.min() < 1:
            raise MapError(f'image_shape is {shape!s:.80}: expected two positive integers')
        check_size(int(sides[1]), int(sides[0]), 'of a map')
    return describer_from_state(state)


def _thumbnails(jpeg: np.ndarray, sizes: np.ndarray) -> Thumbnails | tuple[bytes, ...]:
    if sizes.max(initial=0) > len(jpeg) or sizes.sum() != len(jpeg):
        raise MapError(f'thumbnails have {len(jpeg)} bytes, which are not those of their sizes')
    thumbnails = Thumbnails(jpeg, sizes.astype(np.int64))
    return thumbnails if jpeg.nbytes >= storage.MAPPED_BYTES else tuple(thumbnails)


def _statistics(values: dict[str, Any] | None) -> MapStatistics | None:
    if values is None:
        return None
    measured_with = {name: values.pop(name, None) for name in _MEASURED_WITH}
    if measured_with != _MEASURED_WITH or values.keys() != to_mapping(MapStatistics()).keys():
        return None  # of another version: measured again
    wrong = [name for name, value in values.items() if not np.all(np.abs(value) <= 100.0)]
    if wrong:
        raise MapError(f'statistics/{wrong[0]} is {values[wrong[0]]}: expected a small number')
    return from_mapping(MapStatistics, values)


def _known_fields(config_class: type[KbrConfig], values: Mapping[str, Any]) -> KbrConfig:
    # a parameter that another version has is left out; a new one takes its default
    known = {field.name for field in dataclasses.fields(config_class)}
    return config_class(**{name: value for name, value in values.items() if name in known})
