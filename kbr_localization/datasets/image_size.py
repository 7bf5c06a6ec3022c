"""
How large an encoded image is, from its header alone.

A megabyte of PNG can be an image of gigabytes. So sizes are compared with a limit before anything
is decoded, and what does not say its size here is not decoded at all.
"""

from __future__ import annotations

from collections.abc import Callable
import os
import struct

from kbr_localization.errors import DatasetError

MAX_PIXELS = 1 << 25
"""Of an image; 8192 x 4096, a panorama of 8K. Decoded it takes up to 0.1 GB, 0.3 GB meanwhile."""
VARIABLE = 'KBR_MAX_IMAGE_PIXELS'
"""Environment variable with another limit."""
MOST_SCANS = 100
"""Of a JPEG; encoders make up to 20. A short one goes over all of the image like a long one."""
_JPEG_START = b'\xff\xd8'
_JPEG_END = b'\xff\xd9'
_SCAN = b'\xff\xda'
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})

Size = tuple[int, int]


def max_pixels() -> int:
    """Limit on the pixels of an image; raises DatasetError for a variable that is no number."""
    given = os.environ.get(VARIABLE, '')
    if not given:
        return MAX_PIXELS
    if not given.isdecimal() or int(given) < 1:
        raise DatasetError(f'{VARIABLE}={given}: expected a positive number of pixels')
    return int(given)


def check_size(width: int, height: int, name: str) -> None:
    """Raise DatasetError when an image has more pixels than are allowed."""
    most = max_pixels()
    if width * height > most:
        raise DatasetError(
            f'image {name}: {width}x{height} pixels, expected at most {most} in all; scale it '
            f'down, or set {VARIABLE} to a larger number'
        )


def check_scans(data: bytes, name: str) -> None:
    """Raise DatasetError for a JPEG of more scans than an encoder makes, each of which costs."""
    if data.startswith(_JPEG_START) and data.count(_SCAN) > MOST_SCANS:
        raise DatasetError(
            f'image {name}: {data.count(_SCAN)} scans, expected at most {MOST_SCANS}'
        )


def encoded_size(data: bytes) -> Size | None:
    """Width and height that a JPEG or PNG says it has; None for anything else."""
    for start, read in _FORMATS:
        if data.startswith(start):
            try:
                return read(data)
            except (struct.error, IndexError, ValueError):
                return None
    return None


def _png(data: bytes) -> Size:
    width, height = struct.unpack_from('>II', data, 16)
    return width, height


def is_whole_jpeg(data: bytes) -> bool:
    """
    Whether the end marker of a JPEG's image is there, whatever follows it.

    Cameras pad their files or put a film behind the image. Before the frame there may be a
    thumbnail with an end marker of its own; within scans its bytes do not occur.
    """
    try:
        return data.rfind(_JPEG_END, _jpeg_frame(data)) >= 0
    except (struct.error, IndexError, ValueError):
        return False


def _jpeg(data: bytes) -> Size:
    height, width = struct.unpack_from('>HH', data, _jpeg_frame(data) + 3)
    return width, height


def _jpeg_frame(data: bytes) -> int:
    """Go from segment to segment to that which starts the frame; return where it is."""
    at = 2
    while True:
        at = data.index(b'\xff', at)
        while data[at] == 0xFF:
            at += 1
        marker, at = data[at], at + 1
        if marker in _JPEG_SIZES:
            return at
        if marker not in _JPEG_ALONE and marker != 0x00:
            at += max(struct.unpack_from('>H', data, at)[0], 2)


_FORMATS: tuple[tuple[bytes, Callable[[bytes], Size]], ...] = (
    (b'\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR', _png),
    (_JPEG_START, _jpeg),
)
