"""Images on disk and in messages: encoded bytes to arrays and back, with every failure named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import cv2
from kbr_localization import conversions
from kbr_localization.datasets.frame import Image
from kbr_localization.datasets.image_size import (
    check_scans,
    check_size,
    encoded_size,
    is_whole_jpeg,
    Size,
)
from kbr_localization.errors import DatasetError
from kbr_localization.files import read_file
import numpy as np

JPEG_START = b'\xff\xd8'
PNG_START = b'\x89PNG'
_TURNED = (b'Exif\0\0', b'eXIf')  # of a JPEG and of a PNG that may say how it was held
_PNG_DEPTH, _PNG_ALPHA, _PNG_HEAD, _PNG_END = 24, (4, 6), 4096, b'IEND'
LARGEST_FILE = 1 << 28
"""Bytes; more than any image that may be decoded has."""


@runtime_checkable
class EncodedImage(Protocol):
    """A lazy image that can also give its compressed bytes, so that copies lose nothing."""

    def __call__(self) -> Image:
        """Return the image; raises DatasetError when it cannot be decoded."""
        ...

    def encoded(self) -> bytes:
        """Return the JPEG or PNG bytes; raises DatasetError when they cannot be read."""
        ...


@dataclass(frozen=True)
class ImageFile:
    """A lazy image on disk."""

    path: Path

    def __call__(self) -> Image:
        """Read and decode the file; raises DatasetError."""
        return decode_image(self.encoded(), str(self.path))

    def encoded(self) -> bytes:
        """Return the file's bytes; raises DatasetError."""
        try:
            return read_file(self.path, LARGEST_FILE)
        except OSError as error:
            raise DatasetError(
                f'cannot read image {self.path}: {error.strerror}: restore or delete the file'
            ) from error


def decode_image(data: bytes, name: str) -> Image:
    """
    Decode JPEG or PNG bytes: grey to (h, w), colour to (h, w, 3) BGR, uint8.

    An image that says how it was held (EXIF) is turned upright, as OpenCV does.
    Raises DatasetError for empty, foreign, truncated or undecodable data, and for an image of
    more pixels than `image_size` allows, which is not decoded; `name` is what the message calls
    the image. OpenCV fills the missing part of a truncated JPEG with grey, hence the check of the
    end marker.
    """
    _refuse_cut_off(data, name)
    if not data:
        raise _broken(name, 'no bytes')
    size = encoded_size(data)
    if size is None:
        raise _broken(name, f'{len(data)} bytes of another kind')
    check_size(*size, name)
    check_scans(data, name)
    try:
        image = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_ANYCOLOR)
    except cv2.error as error:
        raise _broken(name, f'bytes that OpenCV refuses ({error.err})') from error
    if image is None:
        raise _broken(name, f'{len(data)} bytes that cannot be decoded')
    pixels = np.asarray(image, dtype=np.uint8)
    for kind in _conversions(data, pixels):
        conversions.notice(name, kind)
    return pixels


def shown_size(data: bytes, name: str) -> Size | None:
    """
    Width and height that a JPEG or PNG has when it is decoded; None for what cannot be.

    That is what its header says, but where EXIF may turn it, which decoding tells.
    """
    if not any(mark in data for mark in _TURNED):
        return encoded_size(data)
    try:
        height, width = decode_image(data, name).shape[:2]
    except DatasetError:
        return None
    return width, height


def _conversions(data: bytes, pixels: Image) -> list[str]:
    """Say what decoding changes about an image; a JPEG has nothing that could be lost."""
    if not data.startswith(PNG_START):
        return []
    depth, colours = data[_PNG_DEPTH], data[_PNG_DEPTH + 1]
    found = [conversions.of_sixteen_bits(pixels)] if depth > 8 else []
    transparent = colours in _PNG_ALPHA or b'tRNS' in data[:_PNG_HEAD].partition(b'IDAT')[0]
    return [*found, conversions.ALPHA] if transparent else found


def encode_jpeg(image: Image, name: str, quality: int = 95) -> bytes:
    """
    Encode a grey (h, w) or BGR (h, w, 3) uint8 image as JPEG.

    Raises DatasetError for an array of another shape or type.
    """
    shape_is_good = image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)
    if image.dtype != np.uint8 or not shape_is_good or image.size == 0:
        raise DatasetError(
            f'image {name}: expected a uint8 array of shape (h, w) or (h, w, 3), '
            f'got {image.dtype} {image.shape}'
        )
    done, data = cv2.imencode('.jpeg', image, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise DatasetError(f'image {name}: {image.shape} cannot be encoded as JPEG')
    return bytes(data)


def encoded_bytes(image: Image | Callable[[], Image], name: str, quality: int = 95) -> bytes:
    """
    Compressed bytes of a frame's image: its own where it has them, else a new JPEG.

    Raises DatasetError for bytes that are no JPEG or PNG, or that are cut off.
    """
    if isinstance(image, EncodedImage):
        data = image.encoded()
        _refuse_cut_off(data, name)
        # a copy of what lies under the name of an image could be of any file
        if encoded_size(data) is None:
            raise _broken(name, f'{len(data)} bytes of another kind')
        return data
    return encode_jpeg(image() if callable(image) else image, name, quality)


def _refuse_cut_off(data: bytes, name: str) -> None:
    """Raise DatasetError for an image that lacks its end, as of a full disk or a lost packet."""
    if data.startswith(JPEG_START) and not is_whole_jpeg(data):
        raise _broken(name, f'a JPEG that is cut off after {len(data)} bytes')
    if data.startswith(PNG_START) and data.rfind(_PNG_END) < 0:
        raise _broken(name, f'a PNG that is cut off after {len(data)} bytes')


def _broken(name: str, found: str) -> DatasetError:
    return DatasetError(f'broken image {name}: expected a whole JPEG or PNG, got {found}')
