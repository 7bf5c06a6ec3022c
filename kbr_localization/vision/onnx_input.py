"""
What image a network in an ONNX file expects: its declared input shape.

OpenCV runs a network on an input of the wrong shape without a word, so the shape is read from the
file: protocol buffers, nested records of numbered fields. The numbers are those of onnx.proto3.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbr_localization.errors import VisionError

_GRAPH, _INITIALIZER, _INPUT = 7, 5, 11
_INPUT_NAME, _INITIALIZER_NAME = 1, 8
_TYPE, _TENSOR, _SHAPE, _DIMENSION, _SIZE = 2, 1, 2, 1, 1
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_LONGEST = 10  # bytes of a number of 64 bits
_NEGATIVE = 1 << 63  # from which on such numbers are less than zero
Field = tuple[int, int, memoryview, int]


def input_shape(network: bytes) -> tuple[int, ...]:
    """
    Sizes of the network's image input, batch first; 0 stands for one that is left open.

    So is one of -1, as exporters write that have no name for it, and any that is negative.
    Raises VisionError when the bytes are no ONNX network.
    """
    try:
        graph = next(data for number, _, data, _ in fields(network) if number == _GRAPH)
        weights = {
            bytes(name)
            for number, _, record, _ in fields(graph)
            if number == _INITIALIZER
            for name in _inside(record, _INITIALIZER_NAME)
        }
        inputs = [data for number, _, data, _ in fields(graph) if number == _INPUT]
        # old files list the weights among the inputs
        image = next(
            one for one in inputs if bytes(next(_inside(one, _INPUT_NAME))) not in weights
        )
        shape = next(_inside(image, _TYPE, _TENSOR, _SHAPE))
        return tuple(_size(dimension) for dimension in _inside(shape, _DIMENSION))
    except (StopIteration, IndexError, ValueError) as error:
        raise VisionError('not an ONNX network, or one without an input') from error


def _size(dimension: bytes | memoryview) -> int:
    size = next((value for number, value, _, _ in fields(dimension) if number == _SIZE), 0)
    return size if size < _NEGATIVE else 0


def _inside(record: bytes | memoryview, *path: int) -> Iterator[memoryview]:
    """Iterate over the nested records at the end of a path of field numbers."""
    for number, _, data, _ in fields(record):
        if number == path[0]:
            if len(path) == 1:
                yield data
            else:
                yield from _inside(data, *path[1:])


def fields(record: bytes | memoryview) -> Iterator[Field]:
    """
    Iterate over number, integer value, bytes and wire type of the fields of a record.

    Raises ValueError or IndexError for bytes that are no record.
    """
    view, position = memoryview(record), 0
    while position < len(view):
        key, position = _varint(view, position)
        value, length = 0, 0
        if key & 7 == VARINT:
            value, position = _varint(view, position)
        elif key & 7 == BYTES:
            length, position = _varint(view, position)
        elif key & 7 in (FIXED64, FIXED32):
            length = 8 if key & 7 == FIXED64 else 4
        else:
            raise ValueError('unknown wire type')
        end = position + length
        if end > len(view):
            raise ValueError('truncated')
        yield key >> 3, value, view[position:end], key & 7
        position = end


def varints(data: memoryview) -> list[int]:
    """Return the integers of a packed field; raises ValueError or IndexError."""
    values, position = [], 0
    while position < len(data):
        value, position = _varint(data, position)
        values.append(value)
    return values


def _varint(record: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for place in range(_LONGEST):
        byte = record[position + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, position + place + 1
    raise ValueError('a number of more than 64 bits')
