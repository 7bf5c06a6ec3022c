"""
What image a network in an ONNX file expects: its declared input shape.

OpenCV runs a network on an input of the wrong shape without a word, so the shape is read from the
file. These are the numbers of onnx.proto3 that lead to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbr_localization.errors import VisionError
from kbr_localization.vision.protobuf import fields

_GRAPH, _INITIALIZER, _INPUT = 7, 5, 11
_INPUT_NAME, _INITIALIZER_NAME = 1, 8
_TYPE, _TENSOR, _SHAPE, _DIMENSION, _SIZE = 2, 1, 2, 1, 1


def input_shape(network: bytes) -> tuple[int, ...]:
    """
    Sizes of the network's image input, batch first; 0 stands for one that is left open.

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
    return next((value for number, value, _, _ in fields(dimension) if number == _SIZE), 0)


def _inside(record: bytes | memoryview, *path: int) -> Iterator[memoryview]:
    """Iterate over the nested records at the end of a path of field numbers."""
    for number, _, data, _ in fields(record):
        if number == path[0]:
            if len(path) == 1:
                yield data
            else:
                yield from _inside(data, *path[1:])
