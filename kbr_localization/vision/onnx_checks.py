"""
What an ONNX file may hold before a runtime sees it: all that it needs, and no less than it says.

A tensor may name another file that its numbers are in, and OpenCV believes a tensor that says it
has more numbers than it holds. So both are looked for in every tensor of the file, those inside of
nodes and of their subgraphs included. The numbers are those of onnx.proto3.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbr_localization.errors import VisionError
from kbr_localization.vision.onnx_input import Field, fields, FIXED32, FIXED64, VARINT, varints
import numpy as np

_ATTRIBUTE = {5: 'tensor', 6: 'graph', 10: 'tensor', 11: 'graph', 22: 'sparse', 23: 'sparse'}
_INSIDE = {
    'model': {7: 'graph', 20: 'training', 25: 'function'},
    'training': {1: 'graph', 2: 'graph'},
    'graph': {1: 'node', 5: 'tensor', 15: 'sparse'},
    'function': {7: 'node', 11: 'attribute'},
    'node': {5: 'attribute'},
    'attribute': _ATTRIBUTE,
    'sparse': {1: 'tensor', 2: 'tensor'},
}
_ONCE = {'model': (7,), 'attribute': (5, 6, 22), 'sparse': (1, 2)}
"""Parts that would be merged if they came twice, and be at odds with themselves."""
_DEEPEST = 32
_MOST_AXES = 64
_MOST_PARTS = 2_000_000
"""Fields that are looked at: some 10 s of them; networks have thousands."""
_LONGEST_SIZES = 10 * (_MOST_AXES + 1)  # bytes of so many sizes, and of one more
_DIMS, _TYPE, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
_BITS = {1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64}
_BITS |= {14: 64, 15: 128, 16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4}
_TEXT = 8
_FLOATS, _INT32S, _TEXTS, _INT64S, _DOUBLES, _UINT64S = 4, 5, 6, 7, 10, 11
_HELD = {1: _FLOATS, 14: _FLOATS, 7: _INT64S, 11: _DOUBLES, 15: _DOUBLES}
_HELD |= {12: _UINT64S, 13: _UINT64S, _TEXT: _TEXTS}
_PARTS = {14: 2, 15: 2}
"""Numbers of an element, of a complex one."""


def check_tensors(network: bytes) -> None:
    """Raise VisionError unless every tensor of an ONNX network holds the numbers it declares."""
    left = iter(range(_MOST_PARTS))
    try:
        for tensor in _tensors('model', memoryview(network), 0, left):
            _check(tensor, left)
    except (IndexError, ValueError) as error:
        raise VisionError('not an ONNX network, or a damaged one') from error


def _counted(record: memoryview, left: Iterator[int]) -> Iterator[Field]:
    for field in fields(record):
        if next(left, None) is None:
            raise VisionError(f'it has more than {_MOST_PARTS} parts')
        yield field


def _tensors(
    kind: str, record: memoryview, depth: int, left: Iterator[int]
) -> Iterator[memoryview]:
    if depth > _DEEPEST:
        raise VisionError(f'its graphs are nested more than {_DEEPEST} deep')
    seen = set[int]()
    for number, _, data, _ in _counted(record, left):
        inside = _INSIDE[kind].get(number)
        if number in seen and number in _ONCE.get(kind, ()):
            raise ValueError('a part that comes twice')
        seen.add(number)
        if inside == 'tensor':
            yield data
        elif inside is not None:
            yield from _tensors(inside, data, depth + 1, left)


def _check(tensor: memoryview, left: Iterator[int]) -> None:
    """Compare the sizes that a tensor declares with the numbers that it holds."""
    kind, raw, name, sizes = 0, -1, '', list[int]()
    held = dict.fromkeys((*_HELD.values(), _INT32S), 0)
    for number, value, data, wire in _counted(tensor, left):
        if number == _EXTERNAL or (number == _LOCATION and value):
            raise VisionError('its weights are in another file: export it as a single file')
        if number == _DIMS:
            sizes += [value] if wire == VARINT else varints(data[:_LONGEST_SIZES])
            if len(sizes) > _MOST_AXES:
                raise VisionError(f'it has a tensor of more than {_MOST_AXES} axes')
        elif number == _TYPE:
            kind = value
        elif number == _NAME:
            name = bytes(data[:80]).decode(errors='replace')
        elif number == _RAW:
            raw = len(data)
        elif number in held:
            held[number] += _count(number, data, wire)
    if raw >= 0 and any(held.values()):
        raise VisionError(f'its tensor {name!r} has its numbers twice: it is damaged')
    _compare(name, kind, _elements(sizes), raw, held[_HELD.get(kind, _INT32S)])


def _elements(sizes: list[int]) -> int:
    count = 1
    for size in sizes:
        count *= size  # a negative one is huge here
    return count


def _compare(name: str, kind: int, count: int, raw: int, numbers: int) -> None:
    if kind != _TEXT and kind not in _BITS:
        raise VisionError(f'its tensor {name!r} is of the unknown type {kind}')
    if raw >= 0:
        expected, found, unit = -(-count * _BITS.get(kind, 8) // 8), raw, 'bytes'
    else:
        halves = kind in (21, 22, 23)
        expected = -(-count // 2) if halves else count * _PARTS.get(kind, 1)
        found, unit = numbers, 'numbers'
    if expected != found:
        raise VisionError(
            f'its tensor {name!r} declares {expected} {unit} and holds {found}: it is damaged'
        )


def _count(number: int, data: memoryview, wire: int) -> int:
    """Count the numbers in a field, packed or not."""
    if number == _TEXTS or wire in (VARINT, FIXED32, FIXED64):
        return 1
    if number == _FLOATS:
        return len(data) // 4
    if number == _DOUBLES:
        return len(data) // 8
    # the last byte of each has no high bit; they are not read, there may be a billion
    return int(np.count_nonzero(np.frombuffer(data, dtype=np.uint8) < 0x80))
