"""
The map as one HDF5 file: written atomically, checked by one schema, never pickled.

`SCHEMA` gives path, type, shape and range of the arrays; single numbers and texts are attributes
of their groups. Small arrays are stored in chunks with a checksum each (fletcher32). Arrays of
`MAPPED_BYTES` or more are contiguous and mapped into memory, so that pages are read on first use;
the group `checksums` has the CRC-32 of their blocks, at the same path. `check_map` verifies these
checksums, and `read_map` does so once in the background.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
import dataclasses
import datetime
import io
import logging
import os
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO, NamedTuple
import zlib

import h5py
from h5py import h5d, h5z
from kbr_localization import __version__
from kbr_localization.errors import KbrError, MapError, MissingModuleError
from kbr_localization.files import new_file
from kbr_localization.localization.calibration import Calibration, MotionNoise, SIZE
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.map.decay import SimilarityDecay
from kbr_localization.localization.map.index import SketchIndex
from kbr_localization.localization.map.kernel_map import (
    KernelMap,
    MappingRecord,
    MapStatistics,
    PER_IMAGE,
)
from kbr_localization.vision import Describer, describer_from_state
from kbr_localization.workers import batches
import numpy as np

LOG = logging.getLogger(__name__)

FORMAT = 'kbr_localization map'
FORMAT_VERSION = 2
"""Version of a map of several cameras; a map of one camera has version 1."""
MAPPED_BYTES = 1 << 25
MAX_COORDINATE = 1e7
"""Metres, more than any building has."""
_STATISTICS_METHOD = 'centred; log odds of the likeliest wrong places'
_MAX_VARIANCE = (2.0 * MAX_COORDINATE) ** 2  # m², if the reference jumps from end to end
_CHECKSUMS = 'checksums'
_BLOCK = 1 << 16  # bytes per checksum
_PARTS: dict[str, Any] = {
    'motion_noise': MotionNoise,
    'calibration': Calibration,
    'mapping': MappingRecord,
    'decay': SimilarityDecay,
    'statistics': MapStatistics,
}


class Field(NamedTuple):
    """
    Allowed types or kinds of types, shape and range [low, high] of an array.

    A name in the shape is a size that is the same in all arrays that have it.
    """

    dtypes: str
    shape: tuple[int | str, ...]
    low: float = -1e30
    high: float = 1e30
    allow_nan: bool = False


_DECAY = {'top': -1.0, 'length': 1e-6, 'angle': 1e-6, 'spread': 1e-6}
SCHEMA = {
    'poses': Field('f8', ('images', 3), -MAX_COORDINATE, MAX_COORDINATE),
    'controls': Field('f8', ('images', 3), -MAX_COORDINATE, MAX_COORDINATE, allow_nan=True),
    'next_poses': Field('f8', ('images', 3), -MAX_COORDINATE, MAX_COORDINATE, allow_nan=True),
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
    **{f'statistics/{x}': Field('f8', (), -100.0, 100.0) for x in vars(MapStatistics())},
    **{f'decay/{x}': Field('f8', (), low, 1e6) for x, low in _DECAY.items()},
    'motion_noise/per_metre': Field('f8', (3,), 0.0, _MAX_VARIANCE),
    'motion_noise/per_radian': Field('f8', (3,), 0.0, _MAX_VARIANCE),
    'motion_noise/per_metre_aside': Field('f8', (3,), 0.0, _MAX_VARIANCE),
    'motion_noise/step': Field('f8', (4,), 0.0, _MAX_VARIANCE),
    'calibration/values': Field('f8', (SIZE,), -100.0, 100.0),
    'calibration/covariance': Field('f8', (SIZE, SIZE), -100.0, 100.0),
    'calibration/delay': Field('f8', (2,), -100.0, 100.0),
    'mapping/odometry': Field('f8', ('images', 3)),
    'mapping/covariances': Field('f8', ('images', 3, 3)),
    'mapping/parameters': Field('f8', ('runs', SIZE)),
    'mapping/point': Field('f8', (3,)),
    'mapping/closures': Field('i u', ('closures', 2), 0),
    'mapping/chain': Field('i u', ('closures',)),
    'mapping/relative': Field('f8', ('closures', 3)),
    'mapping/misses': Field('f8', ('closures', 3)),
    'mapping/score': Field('f8', ('closures',)),
    'mapping/kept': Field('i u', ('closures',), 0, 1),
    'mapping/aligned': Field('b1', ()),
}


class Thumbnails(Sequence[bytes]):
    """JPEG files of `sizes` (n,), concatenated in `jpeg` (bytes,)."""

    def __init__(self, jpeg: np.ndarray, sizes: np.ndarray) -> None:
        self.jpeg, self.sizes = jpeg, sizes
        self._ends = np.cumsum(sizes, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        end = int(self._ends[index])
        return self.jpeg[end - int(self.sizes[index]) : end].tobytes()  # noqa: E203


def write_map(kernel_map: KernelMap, path: Path) -> None:
    """Write to a temporary file next to `path` and rename it; raises MapError."""
    values = _to_values(kernel_map)
    try:
        if path.exists() and not path.is_file():
            raise MapError('expected the name of a file, got a folder or a device')
        _check(values, kernel_map.describer)
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path, sync=True) as part, ThreadPoolExecutor(1) as pool:
            # HDF5 cannot be interrupted safely; Ctrl-C interrupts only the main thread
            pool.submit(_write, part, values).result()
    except MapError as error:
        raise MapError(
            f'cannot write the map {path}: {error}; poses and odometry have to be in metres'
        ) from error
    except OSError as error:
        raise MapError(f'cannot write the map {path}: {error.strerror or error}') from error


def read_map(path: Path) -> KernelMap:
    """
    Read and check a map file; raises MapError with the file, the fault and the remedy.

    Checksums of mapped arrays are verified in the background; a fault is logged.
    """
    kernel_map, mapped, sums = _read(path)
    if mapped:
        raw = path.open('rb')  # the same file, even if it is replaced meanwhile

        def verify() -> None:
            try:
                _verify(raw, mapped, sums)
            except MapError as error:
                LOG.error('%s', error)

        Thread(target=verify, daemon=True).start()
    return kernel_map


def check_map(path: Path) -> int:
    """Verify a whole map file and return its number of images; raises MapError."""
    kernel_map, mapped, sums = _read(path)
    _verify(path.open('rb'), mapped, sums)
    return len(kernel_map)


def _read(path: Path) -> tuple[KernelMap, dict[str, np.ndarray], dict[str, Any]]:
    """Return a map, its mapped arrays, which are not verified yet, and their checksums."""
    if not path.is_file():
        if path.exists():
            raise MapError(f'map {path} is a folder or a device: expected the file of a map')
        raise MapError(f'map {path} does not exist: build it: kbr map build RUN --out {path}')
    try:
        with h5py.File(path, 'r') as file:
            if _plain(file.attrs.get('format')) != FORMAT:
                raise MapError('an HDF5 file but not a map of kbr_localization')
            version = file.attrs.get('format_version')
            if not isinstance(version, np.integer) or version < 1:
                raise MapError(f'format_version is {version!r:.80}: expected an integer from 1 on')
            if version > FORMAT_VERSION:
                raise MapError(
                    f'it has format {version} (package {_plain(file.attrs["package_version"])}), '
                    f'this package {__version__} reads up to {FORMAT_VERSION}'
                )
            values = _read_values(file)
        sums = dict(_leaves(values.pop(_CHECKSUMS, {})))
        mapped = {name: array for name, array in _leaves(values) if _is_mapped(array)}
        return _from_values(values), mapped, sums
    except MissingModuleError as error:
        raise MapError(f'map {path}: {error}') from error
    except KbrError as error:
        raise MapError(
            f'map {path} cannot be used: {error}; update kbr_localization or build it again'
        ) from error
    # h5py and NumPy raise exceptions of many types for a damaged file
    except Exception as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MapError(
            f'map {path} is truncated, damaged or not a map ({detail}): build it again'
        ) from error


def _to_values(kernel_map: KernelMap) -> dict[str, Any]:
    """Return the arrays, texts and numbers of a map in nested groups."""
    values: dict[str, Any] = {
        'format': FORMAT,
        'format_version': FORMAT_VERSION if kernel_map.cameras else 1,
        'package_version': __version__,
        'created': datetime.datetime.now(datetime.timezone.utc).isoformat(),
        'image_shape': kernel_map.image_shape,
        # a name of a folder may not be valid UTF-8
        'run_names': np.array([n.encode(errors='surrogateescape') for n in kernel_map.run_names]),
        **{name: getattr(kernel_map, name) for name in PER_IMAGE},
        'describer': kernel_map.describer.state(),
        'filter': vars(kernel_map.filter_config),
        'baselines': kernel_map.baselines,
    }
    for name in _PARTS:
        if (part := getattr(kernel_map, name)) is not None:
            values[name] = dict(vars(part))
    if kernel_map.statistics is not None:
        values['statistics']['image_kernel'] = _STATISTICS_METHOD
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


def _from_values(values: dict[str, Any]) -> KernelMap:
    describer = describer_from_state(values['describer'])
    _check(values, describer)
    statistics, config = values.get('statistics', {}), values['filter']
    # drop statistics of another version: they are measured again
    same_method = statistics.pop('image_kernel', '') == _STATISTICS_METHOD
    if statistics and not (same_method and statistics.keys() == vars(MapStatistics()).keys()):
        del values['statistics']
    # ignore parameters that only another version has; new ones take their defaults
    known = {field.name for field in dataclasses.fields(KbrConfig)} & config.keys()
    index, thumbnails = values.get('index'), values.get('thumbnails')
    return KernelMap(
        **{name: values[name] for name in PER_IMAGE},
        **{name: part(**values[name]) for name, part in _PARTS.items() if values.get(name)},
        run_names=tuple(name.decode(errors='replace') for name in values['run_names']),
        describer=describer,
        image_shape=tuple(values['image_shape'].tolist()),
        filter_config=KbrConfig(**{name: config[name] for name in known}),
        thumbnails=Thumbnails(**thumbnails) if thumbnails else (),
        baselines=values.get('baselines', {}),
        index=SketchIndex(index) if index else None,
        means=values.get('means'),
    )


def _leaves(values: Mapping[str, Any], group: str = '') -> Iterator[tuple[str, Any]]:
    """Yield path and value of all arrays, texts and numbers in nested groups."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f'{group}{name}/')
        else:
            yield group + name, value


def _check(values: Mapping[str, Any], describer: Describer) -> None:
    """Raise MapError unless all values fit `SCHEMA` and each other."""
    of = {path: value for path, value in _leaves(values) if value is not None}
    sizes = {'images': len(of['poses']), 'entries': describer.size}
    for path in SCHEMA:
        if path in of:
            _check_array(path, np.asarray(of[path]), sizes)
        elif path in (*PER_IMAGE, 'run_names', 'image_shape'):
            raise MapError(f'it has no {path}')
    if of['descriptors'].dtype.kind != describer.dtype.kind:
        raise MapError(f'descriptors is {of["descriptors"].dtype}, not {describer.dtype}')
    if of['run_index'].max(initial=-1) >= sizes['names']:
        raise MapError(f'run_index has values beyond the {sizes["names"]} run names')
    if of.get('thumbnails/sizes', np.zeros(0)).sum(dtype=np.float64) != sizes.get('bytes', 0):
        raise MapError(f'thumbnails have {sizes.get("bytes", 0)} bytes: not the sum of the sizes')
    if np.max(of.get('mapping/closures', 0), initial=0) >= sizes['images']:
        raise MapError(f'mapping/closures names images beyond the {sizes["images"]} of the map')
    variances = np.diagonal(of.get('mapping/covariances', np.eye(3)), axis1=-2, axis2=-1)
    if np.min(variances) < -1e-6:
        raise MapError('mapping/covariances has negative variances')
    covariance, delay = of['calibration/covariance'], of.get('calibration/delay')
    symmetric = np.allclose(covariance, covariance.T, atol=1e-9)
    if not symmetric or np.linalg.eigvalsh(covariance)[0] <= 0.0:
        raise MapError('calibration/covariance: expected a covariance that has an inverse')
    if delay is not None and delay[1] < 0.0:
        raise MapError(f'calibration/delay is {delay}: expected a deviation')


def _check_array(path: str, array: np.ndarray, sizes: dict[str, int]) -> None:
    """Raise MapError unless an array fits `SCHEMA`; add named sizes that are new to `sizes`."""
    dtypes, shape = SCHEMA[path].dtypes, SCHEMA[path].shape
    for side, length in zip(shape, array.shape, strict=False):
        if isinstance(side, str):
            sizes.setdefault(side, length)
    expected = tuple(sizes.get(side, side) if isinstance(side, str) else side for side in shape)
    kinds = {array.dtype.kind, array.dtype.str[1:]}
    if not array.dtype.isnative or not kinds & {*dtypes.split()} or array.shape != expected:
        raise MapError(
            f'{path} is {array.dtype} of shape {array.shape}: expected {dtypes} of shape '
            f'{expected}'
        )
    if not _is_mapped(array):
        _check_range(path, array)


def _check_range(path: str, array: np.ndarray) -> None:
    field = SCHEMA.get(path)
    if field is None or array.dtype.kind not in 'iuf':
        return
    known = array[~np.isnan(array)] if field.allow_nan else array
    # written so that NaN fails: a comparison with NaN is false
    if known.size and not (known.min() >= field.low and known.max() <= field.high):
        allowed = f'[{field.low:g}, {field.high:g}]'
        raise MapError(f'{path} has values that are not finite or not in {allowed}')


def _is_mapped(value: Any) -> bool:
    return isinstance(getattr(value, 'base', None), np.memmap)


def _verify(file: BinaryIO, mapped: Mapping[str, np.ndarray], sums: Mapping[str, Any]) -> None:
    """Compare mapped arrays, as read from `file`, with checksums and ranges; close the file."""
    with file:
        for path, array in mapped.items():
            assert isinstance(array.base, np.memmap)
            expected = dict(enumerate(np.ravel(sums.get(path, ()))))
            for number, start in enumerate(range(0, array.nbytes, _BLOCK)):
                size = min(_BLOCK, array.nbytes - start)
                # pread, as reading mapped pages of a file that was truncated kills the process
                block = os.pread(file.fileno(), size, array.base.offset + start)
                if len(block) < size or expected.get(number) != zlib.crc32(block):
                    raise MapError(
                        f'map {file.name}: {path} is damaged, its bytes do not match their '
                        'checksums: copy or build it again'
                    )
                _check_range(path, np.frombuffer(block, array.dtype))


def _read_values(group: h5py.Group, depth: int = 0) -> dict[str, Any]:
    if depth > 16:
        raise MapError('its groups are nested more than 16 deep')
    values: dict[str, Any] = {name: _plain(value) for name, value in group.attrs.items()}
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise MapError(f'{name} is a link to another place: a map must not have links')
        item = group[name]
        if isinstance(item, h5py.Group):
            values[name] = _read_values(item, depth + 1)
        else:
            values[name] = _read_array(item)
    return values


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return value.decode() if isinstance(value, bytes) else value


def _read_array(dataset: h5py.Dataset) -> np.ndarray:
    name, plan = dataset.name[1:], dataset.id.get_create_plist()
    # check this first: asking a virtual array for its shape opens its sources
    if plan.get_external_count() > 0 or plan.get_layout() == h5d.VIRTUAL:
        raise MapError(f'{name} takes its numbers from another file: a map must be one file')
    filters = {plan.get_filter(index)[0] for index in range(plan.get_nfilters())}
    allowed = {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}
    if not filters <= allowed or dataset.dtype.kind not in 'iufSb':
        raise MapError(f'{name} is {dataset.dtype} with filters {filters}: not allowed in a map')
    offset = dataset.id.get_offset()
    if dataset.nbytes < MAPPED_BYTES or offset is None or dataset.dtype.kind == 'S':
        return np.asarray(dataset[...])
    file = dataset.file.filename
    return np.asarray(np.memmap(file, dataset.dtype, 'r', offset, dataset.shape))


def _write(part: Path, values: Mapping[str, Any]) -> None:
    """Write a new HDF5 file; raises OSError if the disk is full."""
    leaves = {path: value for path, value in _leaves(values) if value is not None}
    arrays = {p: v for p, v in leaves.items() if isinstance(v, np.ndarray) and v.ndim > 0}
    # from format 1.10 on HDF5 has checksums of its structures: without them one wrong byte can
    # make it read forever
    version, empty = ('v110', 'v110'), io.BytesIO()
    h5py.File(empty, 'w', libver=version).close()
    with part.open('w+b') as raw:
        raw.write(empty.getvalue())
        raw.flush()
        # HDF5 crashes on a full disk: reserve all bytes first; chunks need more than their arrays
        sizes = [array.nbytes for array in arrays.values()]
        needed = (1 << 20) + sum(size if size >= MAPPED_BYTES else 2 * size for size in sizes)
        os.posix_fallocate(raw.fileno(), 0, needed)
        with h5py.File(raw, 'r+', libver=version) as file:
            for path, value in leaves.items():
                group, _, name = path.rpartition('/')
                if path in arrays:
                    _write_array(file, path, value)
                else:
                    # use texts of fixed length: HDF5 has no checksum of variable ones
                    text = np.bytes_(value.encode()) if isinstance(value, str) else value
                    file.require_group(f'/{group}').attrs[name] = text


def _write_array(file: h5py.File, path: str, array: np.ndarray) -> None:
    options: dict[str, Any] = {}
    if array.nbytes >= MAPPED_BYTES:
        data = memoryview(np.ascontiguousarray(array).data).cast('B')
        sums = [zlib.crc32(block) for block in batches(data, _BLOCK)]
        _write_array(file, f'{_CHECKSUMS}/{path}', np.array(sums, np.uint32))
    elif array.size:
        options = {'chunks': True, 'fletcher32': True}
        if array.dtype.kind == 'u' and array.ndim == 2:  # counts
            options |= {'compression': 'gzip', 'compression_opts': 1}
    file.create_dataset(path, data=array, **options)
