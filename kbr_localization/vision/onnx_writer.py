"""
Write networks as ONNX files: the protocol buffer by hand, so that no package is needed for it.

The numbers of the fields are those of onnx.proto3.
"""

from __future__ import annotations

from collections.abc import Sequence
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOAT, INT, TEXT, INTS = 1, 2, 3, 7
_IR_VERSION, _OPSET = 7, 13


def varint(value: int) -> bytes:
    """Return an integer that is not negative as seven bits a byte."""
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def number(field: int, value: int) -> bytes:
    """Field with an integer."""
    return varint(field << 3) + varint(value)


def fixed32(field: int, value: float) -> bytes:
    """Field with a number of 32 bits."""
    return varint(field << 3 | 5) + struct.pack('<f', value)


def record(field: int, *values: str | bytes) -> bytes:
    """Field with a text, bytes or the fields of a record."""
    data = b''.join(value.encode() if isinstance(value, str) else value for value in values)
    return varint(field << 3 | 2) + varint(len(data)) + data


def attribute(name: str, value: int | float | str | Sequence[int]) -> bytes:
    """Attribute of a node: an integer, a number, a text or integers."""
    if isinstance(value, str):
        held = record(4, value) + number(20, TEXT)
    elif isinstance(value, int):
        held = number(3, value) + number(20, INT)
    elif isinstance(value, float):
        held = fixed32(2, value) + number(20, FLOAT)
    else:
        held = b''.join(number(8, one) for one in value) + number(20, INTS)
    return record(5, record(1, name) + held)


def node(
    kind: str, inputs: Sequence[str], outputs: Sequence[str], attributes: bytes = b''
) -> bytes:
    """Node of a graph."""
    names = b''.join(record(1, name) for name in inputs)
    names += b''.join(record(2, name) for name in outputs)
    return record(1, names + record(4, kind) + attributes)


def tensor(name: str, array: NDArray[np.float32]) -> bytes:
    """Tensor of a graph with an array of float32."""
    dims = b''.join(number(1, size) for size in array.shape)
    raw = np.ascontiguousarray(array, dtype='<f4').tobytes()
    return record(5, dims + number(2, FLOAT) + record(8, name) + record(9, raw))


def value(field: int, name: str, shape: Sequence[int | str]) -> bytes:
    """Input (field 11) or output (field 12) of a graph; a text is a size that is left open."""
    dims = b''.join(
        record(1, record(2, size) if isinstance(size, str) else number(1, size)) for size in shape
    )
    kind = record(1, number(1, FLOAT) + record(2, dims))
    return record(field, record(1, name) + record(2, kind))


def model(graph: bytes, opset: int = _OPSET) -> bytes:
    """File of a graph."""
    return number(1, _IR_VERSION) + record(7, graph) + record(8, record(1, '') + number(2, opset))


class GraphWriter:
    """A graph of one input (1, channels, height, width) of open height and width, node by node."""

    def __init__(self, name: str, channels: int) -> None:
        self._nodes: list[bytes] = []
        self._tensors: list[bytes] = []
        self._ends = [value(11, 'image', (1, channels, 'height', 'width'))]
        self._name = name

    def tensor(self, array: Any) -> str:
        """Add an array (float32) and return its name."""
        name = f't{len(self._tensors)}'
        self._tensors.append(tensor(name, np.asarray(array, dtype=np.float32)))
        return name

    def node(self, kind: str, *inputs: str, output: str = '', **attributes: Any) -> str:
        """Add a node of an operator and return the name of its output."""
        output = output or f'n{len(self._nodes)}'
        parts = b''.join(attribute(name, one) for name, one in attributes.items())
        self._nodes.append(node(kind, inputs, [output], parts))
        return output

    def output(self, name: str, channels: int) -> None:
        """Declare what the network answers, (1, channels, h, w)."""
        self._ends.append(value(12, name, (1, channels, 'rows', 'columns')))

    def file(self) -> bytes:
        """Return the file."""
        parts = [*self._nodes, record(2, self._name), *self._tensors, *self._ends]
        return model(b''.join(parts))
