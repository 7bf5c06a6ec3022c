"""
The map as one HDF5 file: written atomically, checked by one schema, never pickled.

Arrays have the paths and forms of `SCHEMA`; single numbers and texts are attributes of their
groups. Small arrays are compressed, with a checksum (fletcher32) in every chunk. Arrays of
`MAPPED_BYTES` and more are contiguous and mapped into memory, so that a page is read when it is
first used; CRC-32 of their blocks are in the group `checksums`, at the same path. `check_map`
compares these, and `read_map` does once in the background.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
import dataclasses
import datetime
import io
import logging
import os
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
import zlib

import h5py
from h5py import h5d, h5z
from kbr_localization import __version__
from kbr_localization.configuration import from_mapping, to_mapping
from kbr_localization.errors import MapError, MissingModuleError
from kbr_localization.files import new_file
from kbr_localization.localization.calibration import Calibration, SIZE
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.map.decay import SimilarityDecay
from kbr_localization.localization.map.index import SketchIndex
from kbr_localization.localization.map.kernel_map import (
    KernelMap,
    MappingRecord,
    MapStatistics,
    OF_IMAGES,
)
from kbr_localization.localization.motion import MotionNoise
from kbr_localization.vision import Describer, describer_from_state
import numpy as np

LOG = logging.getLogger(__name__)

FORMAT = 'kbr_localization map'
FORMAT_VERSION = 2
"""Of maps of several cameras; maps of one camera have 1, so that older packages read them."""
MAPPED_BYTES = 1 << 25
FARTHEST = 1e7
"""Metres; no building is so large."""
_IMAGE_KERNEL = 'centred; log odds of the likeliest wrong places'  # that statistics are of
_MOST_NOISE = (2.0 * FARTHEST) ** 2  # m², of a reference that jumps from end to end
_CHECKSUMS = 'checksums'
_BLOCK = 1 << 16  # bytes that share a checksum
LargeArray = tuple[str, np.ndarray, np.ndarray | None]
"""Path, values and the CRC-32 (blocks,) of its blocks, if the file has them."""
_FILTERS = {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}


class Field(NamedTuple):
    """
    What an array of a map must be: types or kinds of types, shape, and range of the values.

    Names in the shape stand for sizes that are equal wherever they occur. `gaps`: NaN is allowed.
    """

    dtypes: str
    shape: tuple[int | str, ...]
    low: float = -1e30
    high: float = 1e30
    gaps: bool = False


_DECAY = {'top': -1.0, 'floor': -1.0, 'length': 1e-6, 'angle': 1e-6, 'spread': 1e-6}
SCHEMA = {
    'poses': Field('f8', ('images', 3), -FARTHEST, FARTHEST),
    'controls': Field('f8', ('images', 3), -FARTHEST, FARTHEST, gaps=True),
    'next_poses': Field('f8', ('images', 3), -FARTHEST, FARTHEST, gaps=True),
    'stamps_ns': Field('i8', ('images',)),
    'run_index': Field('i u', ('images',), 0),
    'run_names': Field('S', ('names',)),
    'image_shape': Field('i u', (2,), 1, 1e5),
    'descriptors': Field('i u f4 f8', ('images', 'entries')),
    'means': Field('f8', ('images',)),
    'thumbnails/jpeg': Field('u1', ('bytes',)),
    'thumbnails/sizes': Field('i u', ('images',), 0),
    'index/centre': Field('f4', ('entries',)),
    'index/axes': Field('f4', ('entries', 'axes')),
    'index/scale': Field('f4', (1,)),
    'index/codes': Field('i1', ('images', 'axes')),
    'index/order': Field('i4 i8', ('images',), 0),
    'index/starts': Field('i8', ('ends',), 0),
    'index/lists': Field('f4', ('lists', 'axes')),
    'statistics/evidence_limit': Field('f8', (), -100.0, 100.0),
    'statistics/typical_log_likelihood': Field('f8', (), -100.0, 100.0),
    'statistics/reference_log_likelihood': Field('f8', (), -100.0, 100.0),
    **{f'decay/{x}': Field('f8', (), low, 1e6) for x, low in _DECAY.items()},
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
    'mapping/closures': Field('i u', ('closures', 2), 0),
    'mapping/chain': Field('i u', ('closures',)),
    'mapping/relative': Field('f8', ('closures', 3)),
    'mapping/misses': Field('f8', ('closures', 3)),
    'mapping/score': Field('f8', ('closures',)),
    'mapping/kept': Field('i u', ('closures',), 0, 1),
    'mapping/aligned': Field('b1', ()),
}
_REQUIRED = (*OF_IMAGES, 'run_names', 'image_shape')


class Thumbnails(Sequence[bytes]):
    """JPEG files that lie one after the other in `jpeg` (bytes,), with `sizes` (n,)."""

    def __init__(self, jpeg: np.ndarray, sizes: np.ndarray) -> None:
        self.jpeg, self.sizes = jpeg, sizes
        self._ends = np.cumsum(sizes, dtype=np.int64)

    def __len__(self) -> int:
        """Count the files."""
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        """Return the bytes of one file."""
        end = int(self._ends[index])
        return self.jpeg[end - int(self.sizes[index]) : end].tobytes()  # noqa: E203


def write_map(kernel_map: KernelMap, path: Path) -> None:
    """Write to a temporary file next to `path` and rename it; raises MapError."""
    if path.exists() and not path.is_file():
        found = 'folder' if path.is_dir() else 'device or a pipe'
        raise MapError(f'cannot write the map {path}: expected the name of a file, got a {found}')
    values = _values_of(kernel_map)
    try:
        _check(values, kernel_map.describer)
    except MapError as error:
        raise MapError(
            f'cannot write the map {path}: {error}: are all poses and the odometry in metres?'
        ) from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path, sync=True) as part, ThreadPoolExecutor(1) as pool:
            # HDF5 does not survive an interrupt, which comes to the main thread only
            pool.submit(_write, part, values).result()
    except OSError as error:
        raise MapError(f'cannot write the map {path}: {error.strerror or error}') from error


def read_map(path: Path) -> KernelMap:
    """Read and check a map file; raises MapError naming the file, the trouble and the remedy."""

    def verify() -> None:
        try:
            for each in large:
                try:
                    _verify(path, raw, *each)
                except MapError as error:
                    LOG.error('%s', error)
        finally:
            os.close(raw)

    kernel_map, large = _read(path)
    if large:
        raw = os.open(path, os.O_RDONLY)  # what replaces the file meanwhile is not read
        Thread(target=verify, daemon=True).start()
    return kernel_map


def check_map(path: Path) -> tuple[int, list[str]]:
    """
    Read and verify all of a map file: `kbr map check`; raises MapError for what is wrong.

    Returns the number of images, and the names of large arrays that have no checksums.
    """
    kernel_map, large = _read(path)
    with path.open('rb') as raw:
        for each in large:
            _verify(path, raw.fileno(), *each)
    return len(kernel_map), [name for name, _, sums in large if sums is None]


class _OtherFileError(MapError):
    """A whole file that this package does not read."""


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """Open a map file; whatever goes wrong inside becomes a MapError of one line."""
    if not path.exists():
        raise MapError(
            f'map {path} does not exist: build it with `kbr map build RUN --out {path}`'
        )
    if not path.is_file():
        found = 'folder' if path.is_dir() else 'device or a pipe'
        raise MapError(f'map {path} is a {found}: expected a file made by `kbr map build`')
    try:
        with h5py.File(path, 'r') as file:
            _check_version(file.attrs)
            yield file
    except (_OtherFileError, MissingModuleError) as error:
        raise MapError(f'map {path}: {error}') from error
    # a damaged file makes h5py and NumPy raise nearly anything
    except Exception as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MapError(
            f'map {path} is truncated, damaged or not a map ({detail}): build it again'
        ) from error


def _check_version(attributes: Any) -> None:
    if _plain(attributes.get('format')) != FORMAT:
        raise _OtherFileError(
            'an HDF5 file but not a map of kbr_localization: give a file made by `kbr map build`'
        )
    version = attributes.get('format_version')
    if not isinstance(version, np.integer) or version < 1:
        raise MapError(f'format_version is {version!r:.80}: expected an integer from 1 on')
    if version > FORMAT_VERSION:
        raise _OtherFileError(
            f'it has format {version} (package {_plain(attributes["package_version"])}), this '
            f'package {__version__} reads up to {FORMAT_VERSION}: update kbr_localization'
        )


def _values_of(kernel_map: KernelMap) -> dict[str, Any]:
    """Return what a file keeps of a map: arrays, texts and numbers by their names in groups."""
    values: dict[str, Any] = {
        'format': FORMAT,
        'format_version': FORMAT_VERSION if kernel_map.cameras else 1,
        'package_version': __version__,
        'created': datetime.datetime.now(datetime.timezone.utc).isoformat(),
        'image_shape': kernel_map.image_shape,
        # names of folders may be no text
        'run_names': np.array([n.encode(errors='surrogateescape') for n in kernel_map.run_names]),
        **{name: getattr(kernel_map, name) for name in OF_IMAGES},
        'describer': kernel_map.describer.state(),
        'filter': to_mapping(kernel_map.filter_config),
        'baselines': kernel_map.baselines,
        'motion_noise': to_mapping(kernel_map.motion_noise),
        'calibration': to_mapping(kernel_map.calibration),
    }
    if kernel_map.mapping is not None:
        values['mapping'] = vars(kernel_map.mapping)
    if kernel_map.decay is not None:
        values['decay'] = to_mapping(kernel_map.decay)
    if kernel_map.statistics is not None:
        values['statistics'] = to_mapping(kernel_map.statistics) | {'image_kernel': _IMAGE_KERNEL}
    if kernel_map.is_large:
        values['index'] = kernel_map.search_index.arrays
        values['means'] = kernel_map.centring.means
    shown = kernel_map.thumbnails
    if isinstance(shown, Thumbnails):
        values['thumbnails'] = {'jpeg': shown.jpeg, 'sizes': shown.sizes}
    elif shown:
        jpeg = np.frombuffer(b''.join(shown), dtype=np.uint8)
        values['thumbnails'] = {'jpeg': jpeg, 'sizes': np.array([len(each) for each in shown])}
    return values


def _read(path: Path) -> tuple[KernelMap, list[LargeArray]]:
    """Read a map; its large arrays are not verified."""
    with _opened(path) as file:
        values = _read_values(file)
        large = [*_large_arrays(values, values.pop(_CHECKSUMS, {}))]
        return _map_of(values), large


def _large_arrays(
    values: Mapping[str, Any], sums: Mapping[str, Any], group: str = ''
) -> Iterator[LargeArray]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _large_arrays(value, sums.get(name, {}), f'{group}{name}/')
        elif isinstance(value, np.ndarray) and isinstance(value.base, np.memmap):
            yield group + name, value, sums.get(name)


def _map_of(values: dict[str, Any]) -> KernelMap:
    describer = describer_from_state(values['describer'])
    _check(values, describer)
    statistics, config = values.get('statistics', {}), values['filter']
    # those of another version are measured again
    current = statistics.pop('image_kernel', '') == _IMAGE_KERNEL
    if not current or statistics.keys() != to_mapping(MapStatistics()).keys():
        if statistics:
            config.pop('delta', None)  # its meaning differs between versions
        statistics = None
    # a parameter that another version has is left out; a new one takes its default
    known = {field.name for field in dataclasses.fields(KbrConfig)} & config.keys()
    index, mapping, thumbnails = (values.get(name) for name in ('index', 'mapping', 'thumbnails'))
    return KernelMap(
        **{name: values[name] for name in OF_IMAGES},
        run_names=tuple(name.decode(errors='replace') for name in values['run_names']),
        describer=describer,
        image_shape=(int(values['image_shape'][0]), int(values['image_shape'][1])),
        filter_config=KbrConfig(**{name: config[name] for name in known}),
        motion_noise=from_mapping(MotionNoise, values['motion_noise']),
        thumbnails=Thumbnails(**thumbnails) if thumbnails else (),
        baselines=values.get('baselines', {}),
        index=SketchIndex(index) if index else None,
        means=values.get('means'),
        statistics=statistics and MapStatistics(**statistics),
        decay=from_mapping(SimilarityDecay, values['decay']) if 'decay' in values else None,
        calibration=from_mapping(Calibration, values['calibration']),
        mapping=MappingRecord(**mapping) if mapping else None,
    )


def _check(values: Mapping[str, Any], describer: Describer) -> None:
    """Raise MapError unless what `SCHEMA` knows is as it says, and parts fit each other."""
    sizes = {'images': len(values['poses']), 'entries': describer.size}
    for path, field in SCHEMA.items():
        *groups, name = path.split('/')
        holder = values.get(groups[0], {}) if groups else values
        if holder.get(name) is not None:
            _check_array(path, field, np.asarray(holder[name]), sizes)
        elif path in _REQUIRED:
            raise MapError(f'it has no {path}')
    if values['descriptors'].dtype.kind != describer.dtype.kind:
        raise MapError(f'descriptors is {values["descriptors"].dtype}, not {describer.dtype}')
    if values['run_index'].max(initial=-1) >= len(values['run_names']):
        raise MapError(f'run_index has values beyond the {sizes["names"]} run names')
    shown = values.get('thumbnails', {'jpeg': (), 'sizes': np.zeros(0)})
    if shown['sizes'].sum(dtype=np.float64) != len(shown['jpeg']):
        raise MapError(f'thumbnails have {len(shown["jpeg"])} bytes, not those of their sizes')
    record, odometry = values.get('mapping', {}), values['calibration']
    if np.max(record.get('closures', 0), initial=0) >= sizes['images']:
        raise MapError(f'mapping/closures names images beyond the {sizes["images"]} of the map')
    if np.min(np.diagonal(record.get('covariances', np.eye(3)), axis1=-2, axis2=-1)) < -1e-6:
        raise MapError('mapping/covariances has negative variances')
    covariance, delay = odometry['covariance'], odometry.get('delay')
    symmetric = np.allclose(covariance, covariance.T, atol=1e-9)
    if not symmetric or np.linalg.eigvalsh(covariance)[0] <= 0.0:
        raise MapError('calibration/covariance: expected a covariance that has an inverse')
    if delay is not None and delay[1] < 0.0:
        raise MapError(f'calibration/delay is {delay}: expected a deviation')


def _check_array(path: str, field: Field, array: np.ndarray, sizes: dict[str, int]) -> None:
    for number, side in enumerate(field.shape):
        if isinstance(side, str):
            sizes.setdefault(side, array.shape[number] if number < array.ndim else -1)
    expected = tuple(sizes[side] if isinstance(side, str) else side for side in field.shape)
    kinds = {array.dtype.kind, array.dtype.str[1:]}
    fits = array.dtype.isnative and kinds & {*field.dtypes.split()}
    if not fits or array.shape != expected:
        raise MapError(
            f'{path} is {array.dtype} of shape {array.shape}: expected {field.dtypes} of shape '
            f'{expected}'
        )
    if not isinstance(array.base, np.memmap):
        _check_range(path, array)


def _check_range(path: str, array: np.ndarray) -> None:
    field = SCHEMA[path]
    if array.dtype.kind not in 'iuf':
        return
    for rows in np.array_split(np.atleast_1d(array), 1 + array.nbytes // MAPPED_BYTES):
        inside = (rows >= field.low) & (rows <= field.high)  # false for NaN
        if not np.all(inside | np.isnan(rows) if field.gaps else inside):
            allowed = f'[{field.low:g}, {field.high:g}]'
            raise MapError(f'{path} has values that are not finite or not in {allowed}')


def _verify(file: Path, raw: int, path: str, array: np.ndarray, sums: np.ndarray | None) -> None:
    """Compare a mapped array, read through `raw`, with its checksums and its range."""
    # not through the mapping: a file that is cut off under it ends the process
    assert isinstance(array.base, np.memmap)
    for number, start in enumerate(range(0, array.nbytes, _BLOCK)):
        size = min(_BLOCK, array.nbytes - start)
        block = os.pread(raw, size, array.base.offset + start)
        found = zlib.crc32(block)
        stored = found if sums is None else np.ravel(sums)[number : number + 1]  # noqa: E203
        if len(block) != size or not np.array_equal(np.ravel(stored), [found]):
            raise MapError(
                f'map {file}: {path} is damaged, its bytes are not those that were written: copy '
                'or build it again'
            )
        if path in SCHEMA and array.dtype.kind in 'iuf':
            _check_range(path, np.frombuffer(block, array.dtype))


def _checksums_of(array: np.ndarray) -> np.ndarray:
    """CRC-32 (blocks,) of the blocks of an array."""
    data = memoryview(np.ascontiguousarray(array).data).cast('B')
    starts = range(0, len(data), _BLOCK)
    return np.array([zlib.crc32(data[s : s + _BLOCK]) for s in starts], np.uint32)  # noqa: E203


def _read_values(group: h5py.Group, depth: int = 0) -> dict[str, Any]:
    """Return what a group holds; raises MapError for what is in other files or places."""
    if depth > 16:
        raise MapError('its groups are nested more than 16 deep')
    values: dict[str, Any] = {name: _plain(value) for name, value in group.attrs.items()}
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise MapError(f'{name} is a link to another place: a map holds all it has')
        item = group[name]
        grouped = isinstance(item, h5py.Group)
        values[name] = _read_values(item, depth + 1) if grouped else _read_array(item)
    return values


def _plain(value: Any) -> Any:
    """Return an attribute as Python has it."""
    value = value.item() if isinstance(value, np.generic) else value
    return value.decode() if isinstance(value, bytes) else value


def _read_array(dataset: h5py.Dataset) -> np.ndarray:
    """Read an array, or map it read-only if it is large and contiguous."""
    name, plan = dataset.name[1:], dataset.id.get_create_plist()
    # check this first: to ask a virtual array for its shape opens its sources
    if plan.get_external_count() > 0 or plan.get_layout() == h5d.VIRTUAL:
        raise MapError(f'{name} takes its numbers from another file: a map holds all it has')
    filters = {plan.get_filter(index)[0] for index in range(plan.get_nfilters())}
    if not filters <= _FILTERS or dataset.dtype.kind not in 'iufSb':
        raise MapError(f'{name} is {dataset.dtype} with filters {filters}: no map has such arrays')
    offset = dataset.id.get_offset()
    if dataset.nbytes >= MAPPED_BYTES and dataset.chunks is None and offset is not None:
        shape = dataset.shape
        return np.asarray(np.memmap(dataset.file.filename, dataset.dtype, 'r', offset, shape))
    try:
        return np.asarray(dataset[...])
    except OSError as error:
        raise MapError(f'{name} is not what was written: {error}') from error


class _DeferredErrorFile(io.FileIO):
    """
    A file that keeps its first write error in `error` and does not raise it.

    HDF5 keeps a file open that it cannot write, tries again when the process ends, and crashes.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast('B')
        count = len(left)
        try:
            while left:  # one call writes 2 GiB at most
                left = left[slice(super().write(left), None)]
        except OSError as error:
            self.error = self.error or error
        return count

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0


def _write(part: Path, values: Mapping[str, Any]) -> None:
    """Write a new HDF5 file; raises OSError at the end when writing failed."""
    with _DeferredErrorFile(part, 'w+') as raw:
        try:
            # HDF5 has checksums of its structures from 1.10 on: without them a single wrong
            # byte can make it read forever
            with h5py.File(raw, 'w', libver=('v110', 'v110')) as file:
                _write_values(file, values)
        finally:
            if raw.error is not None:
                raise raw.error


def _write_values(group: h5py.Group, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            _write_values(group.create_group(name), value)
        elif isinstance(value, np.ndarray) and value.ndim > 0:
            _write_array(group, name, value)
        elif isinstance(value, str):
            # of fixed length: HDF5 has no checksum of a text of variable length
            group.attrs[name] = np.bytes_(value.encode())
        elif value is not None:  # None takes its default when it is read
            group.attrs[name] = value


def _write_array(group: h5py.Group, name: str, array: np.ndarray) -> None:
    """Write an array in chunks with checksums, or contiguous if it is large or empty."""
    checked: dict[str, Any] = {'chunks': True, 'fletcher32': True}
    if array.nbytes >= MAPPED_BYTES:
        path = group.create_dataset(name, data=array).name
        group.file.create_dataset(_CHECKSUMS + path, data=_checksums_of(array), **checked)
    elif array.size:
        counts = array.dtype.kind == 'u' and array.ndim == 2
        packed = {'compression': 'gzip', 'compression_opts': 1} if counts else {}
        group.create_dataset(name, data=array, **checked, **packed)
    else:
        group.create_dataset(name, data=array)
