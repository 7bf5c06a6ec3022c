"""
What image a network in an ONNX file expects: its declared input shape.

OpenCV runs a network on an input of the wrong shape without a word, so the shape is read from the
file. ONNX is a protocol buffer: nested records of numbered fields; these are the numbers of
onnx.proto3 that lead to the shape.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbr_localization.errors import VisionError

_GRAPH, _INITIALIZER, _INPUT = 7, 5, 11
_INPUT_NAME, _INITIALIZER_NAME = 1, 8
_TYPE, _TENSOR, _SHAPE, _DIMENSION, _SIZE = 2, 1, 2, 1, 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Field = tuple[int, int, bytes]


def input_shape(network: bytes) -> tuple[int, ...]:
    """
    Sizes of the network's image input, batch first; 0 stands for one that is left open.

    Raises VisionError when the bytes are no ONNX network.
    """
    try:
        graph = next(data for number, _, data in _fields(network) if number == _GRAPH)
        weights = {
            name
            for number, _, record in _fields(graph)
            if number == _INITIALIZER
            for name in _inside(record, _INITIALIZER_NAME)
        }
        inputs = [data for number, _, data in _fields(graph) if number == _INPUT]
        # old files list the weights among the inputs
        image = next(one for one in inputs if next(_inside(one, _INPUT_NAME)) not in weights)
        shape = next(_inside(image, _TYPE, _TENSOR, _SHAPE))
    except (StopIteration, IndexError, ValueError) as error:
        raise VisionError('not an ONNX network, or one without an input') from error
    sizes = (dimension for dimension in _inside(shape, _DIMENSION))
    return tuple(_size(dimension) for dimension in sizes)


def _size(dimension: bytes) -> int:
    return next((value for number, value, _ in _fields(dimension) if number == _SIZE), 0)


def _inside(record: bytes, *path: int) -> Iterator[bytes]:
    """Iterate over the nested records at the end of a path of field numbers."""
    for number, _, data in _fields(record):
        if number == path[0]:
            if len(path) == 1:
                yield data
            else:
                yield from _inside(data, *path[1:])


def _fields(record: bytes) -> Iterator[Field]:
    """Iterate over number, integer value and bytes of the fields of a record."""
    position = 0
    while position < len(record):
        key, position = _varint(record, position)
        value, length = 0, 0
        if key & 7 == _VARINT:
            value, position = _varint(record, position)
        elif key & 7 == _BYTES:
            length, position = _varint(record, position)
        elif key & 7 in (_FIXED64, _FIXED32):
            length = 8 if key & 7 == _FIXED64 else 4
        else:
            raise ValueError('unknown wire type')
        if position + length > len(record):
            raise ValueError('truncated')
        yield key >> 3, value, record[slice(position, position + length)]
        position += length


def _varint(record: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = record[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
