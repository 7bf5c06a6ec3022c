"""Protocol buffers, as far as ONNX files need them: nested records of numbered fields."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_LONGEST = 10  # bytes of a number of 64 bits

Field = tuple[int, int, memoryview, int]


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
