"""
What a map file may be made of, looked at before anything is read: it reads nothing but itself.

HDF5 can take the numbers of an array from any other file that the user may read, load a filter
from a library, and declare arrays of terabytes in a kilobyte. A map has plain arrays in plain
groups, and their size fits that of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import h5py
from h5py import h5a, h5d, h5g, h5l, h5o, h5t, h5z
from kbr_localization.errors import MapError

MOST_OBJECTS = 10_000
MOST_ATTRIBUTES = 1000
"""Of a group or an array."""
DEEPEST = 16
"""Groups in each other."""
MOST_EXPANDED = 100
"""Bytes of a compressed array for each of the file: counts of words come to a tenth of it."""
_SMALL = 1 << 25  # what any array may be, however well it is compressed
_LARGEST_CHUNK = 1 << 27
_LARGEST_ATTRIBUTE = 1 << 20
_TYPES = (h5t.INTEGER, h5t.FLOAT, h5t.STRING, h5t.ENUM)
_FILTERS = (h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32)


def check_structure(file: h5py.File, size: int) -> None:
    """Raise MapError unless a file of so many bytes holds all that it has, as a map does."""
    for count, (name, item) in enumerate(_walk(file['/'].id)):
        if count > MOST_OBJECTS:
            raise MapError(f'it has more than {MOST_OBJECTS} parts')
        _check_attributes(name, item)
        if isinstance(item, h5d.DatasetID):
            _check_dataset(name, item, size)


def _walk(root: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over groups and datasets with their names; raises MapError for other links."""
    waiting, seen = [('', root)], {h5o.get_info(root).addr}
    while waiting:
        path, group = waiting.pop()
        if path.count('/') > DEEPEST:
            raise MapError(f'its groups are nested more than {DEEPEST} deep')
        yield path or '/', group
        for link in group:
            name = f'{path}/{link.decode(errors="replace")}'
            if group.links.get_info(link).type != h5l.TYPE_HARD:
                raise MapError(f'{name[1:]} is a link to another place: a map holds all it has')
            address = h5o.get_info(group, link).addr
            if address in seen:
                raise MapError(f'{name[1:]} stands at two places')
            seen.add(address)
            item = h5o.open(group, link)
            if isinstance(item, h5g.GroupID):
                waiting.append((name, item))
            elif isinstance(item, h5d.DatasetID):
                yield name[1:], item
            else:
                raise MapError(f'{name[1:]} is neither a group nor an array')


def _check_attributes(name: str, item: Any) -> None:
    count = h5a.get_num_attrs(item)
    if count > MOST_ATTRIBUTES:
        raise MapError(f'{name:.200} has {count} attributes: expected at most {MOST_ATTRIBUTES}')
    for index in range(count):
        attribute = h5a.open(item, index=index)
        kind, space = attribute.get_type(), attribute.get_space()
        size = kind.get_size() * max(space.get_simple_extent_npoints(), 0)
        if kind.get_class() not in _TYPES or size > _LARGEST_ATTRIBUTE:
            called = attribute.name.decode(errors='replace')
            raise MapError(
                f'{called} of {name} has {size} bytes: expected a number or a text of up to '
                f'{_LARGEST_ATTRIBUTE}'
            )


def _check_dataset(name: str, dataset: Any, file_size: int) -> None:
    plan = dataset.get_create_plist()
    layout = plan.get_layout()
    # first of all: to ask for more of a virtual array opens the files that it is made of
    if plan.get_external_count() > 0 or layout == h5d.VIRTUAL:
        raise MapError(f'{name} takes its numbers from another file: a map holds all it has')
    filters = [plan.get_filter(index)[0] for index in range(plan.get_nfilters())]
    if not set(filters) <= set(_FILTERS):
        raise MapError(f'{name} is compressed in a way that no map is (filters {filters})')
    kind = dataset.get_type()
    if kind.get_class() not in _TYPES or (kind.get_class() == h5t.STRING and _varies(kind)):
        raise MapError(f'{name} is {kind.dtype}: expected numbers or texts of fixed length')
    _check_size(name, dataset, h5z.FILTER_DEFLATE in filters, file_size)


def _check_size(name: str, dataset: Any, compressed: bool, file_size: int) -> None:
    """Compare the size that is declared with that of what is there."""
    width, plan = dataset.get_type().get_size(), dataset.get_create_plist()
    declared = width * _product(dataset.shape)
    stored = dataset.get_storage_size()
    if plan.get_layout() == h5d.CONTIGUOUS:
        start = dataset.get_offset()
        stored = 0 if start is None else min(stored, max(file_size - start, 0))
    most = max(_SMALL, MOST_EXPANDED * stored) if compressed else stored
    if stored > file_size or declared > most:
        raise MapError(f'{name} says it has {declared} bytes, of which the file holds {stored}')
    chunked = plan.get_layout() == h5d.CHUNKED
    if chunked and width * _product(plan.get_chunk()) > _LARGEST_CHUNK:
        raise MapError(f'{name} lies in pieces larger than {_LARGEST_CHUNK} bytes')


def _product(sizes: tuple[int, ...] | None) -> int:
    # that of NumPy would overflow
    result = 1
    for size in sizes or ():
        result *= int(size)
    return result


def _varies(kind: Any) -> bool:
    return bool(kind.is_variable_str())
