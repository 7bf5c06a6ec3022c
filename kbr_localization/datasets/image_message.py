"""Pixels of a raw image message (sensor_msgs/Image), from its plain fields: no ROS is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
from kbr_localization import conversions
from kbr_localization.datasets.frame import Image
from kbr_localization.datasets.image_size import check_size
from kbr_localization.errors import DatasetError
import numpy as np


@dataclass(frozen=True)
class _Encoding:
    """Channels of a pixel, bytes of each, and OpenCV's conversion to grey or BGR."""

    channels: int
    conversion: int | None = None
    depth: int = 1


# sensor_msgs names a Bayer pattern by its first row, OpenCV by the second one from its second
# pixel on, hence the crossed names
ENCODINGS = {
    'mono8': _Encoding(1),
    '8UC1': _Encoding(1),
    'bgr8': _Encoding(3),
    '8UC3': _Encoding(3),
    'rgb8': _Encoding(3, cv2.COLOR_RGB2BGR),
    'bgra8': _Encoding(4, cv2.COLOR_BGRA2BGR),
    '8UC4': _Encoding(4, cv2.COLOR_BGRA2BGR),
    'rgba8': _Encoding(4, cv2.COLOR_RGBA2BGR),
    'bayer_rggb8': _Encoding(1, cv2.COLOR_BayerBG2BGR),
    'bayer_bggr8': _Encoding(1, cv2.COLOR_BayerRG2BGR),
    'bayer_gbrg8': _Encoding(1, cv2.COLOR_BayerGR2BGR),
    'bayer_grbg8': _Encoding(1, cv2.COLOR_BayerGB2BGR),
    'yuv422': _Encoding(2, cv2.COLOR_YUV2BGR_UYVY),
    'uyvy': _Encoding(2, cv2.COLOR_YUV2BGR_UYVY),
    'yuv422_yuy2': _Encoding(2, cv2.COLOR_YUV2BGR_YUY2),
    'yuyv': _Encoding(2, cv2.COLOR_YUV2BGR_YUY2),
    'mono16': _Encoding(1, depth=2),
}
NO_PICTURES = ('16UC1', '16SC1', '32SC1', '32FC1', '64FC1')
"""Encodings of depths, temperatures and the like: what of them is black and white nobody says."""
MAX_SIDE = 32768


def decode_raw_image(
    encoding: str,
    height: int,
    width: int,
    step: int,
    data: Any,
    name: str = 'message',
    big_endian: bool = False,
) -> Image:
    """
    Pixels of a raw image: grey to (height, width), colour to (height, width, 3) BGR, uint8.

    `step` is the length of a row in bytes, padding included; `data` is anything with a buffer.
    Of 16 bits the upper 8 are taken, as of a PNG file, whatever else is in the image: a scale from
    its darkest to its brightest pixel would flicker. `big_endian`: the upper bits come first. The
    result does not share memory with `data`. Raises DatasetError for an encoding that is not in
    `ENCODINGS`, for sizes that are not positive or too large, and when there are fewer bytes than
    needed.
    """
    layout = _layout(encoding, name)
    row = width * layout.channels * layout.depth
    if not (0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE and step >= row):
        raise DatasetError(
            f'image {name}: expected a size of 1 to {MAX_SIDE} and at least {max(row, 1)} bytes '
            f'a row, got {width}x{height} {encoding} with a step of {step}'
        )
    check_size(width, height, name)
    values = np.frombuffer(data, dtype=np.uint8)
    # the last row need not be padded
    if values.size < step * (height - 1) + row:
        raise DatasetError(
            f'image {name}: {width}x{height} {encoding} with a step of {step} needs '
            f'{step * height} bytes, got {values.size}: it was cut off'
        )
    rows = _rows(values, height, row, step)
    if layout.depth == 2:
        upper = 0 if big_endian else 1
        rows = rows[:, upper::2]
        conversions.notice(name, conversions.of_sixteen_bits(rows))
    try:
        return _convert(rows, height, width, layout)
    except cv2.error as error:
        raise DatasetError(
            f'image {name}: {width}x{height} {encoding} cannot be converted ({error.err}): '
            'expected an even width; set the camera driver to one'
        ) from error


def check_compressed_format(stated: str, name: str) -> None:
    """
    Raise DatasetError for a compressed image that is no picture.

    `stated`: the format of the message; image_transport begins it with the encoding of the raw
    image, as in '16UC1; png compressed'. Whether the bytes are a PNG or JPEG, they tell.
    """
    _refuse_measurements(stated.partition(';')[0].strip(), name)


def _refuse_measurements(encoding: str, name: str) -> None:
    if encoding in NO_PICTURES:
        raise DatasetError(
            f'image {name}: encoding {encoding!r} is of measurements, as depth, not of a picture: '
            "expected one of a camera, as 'mono8', or 'mono16' with brightness up to 65535"
        )


def _layout(encoding: str, name: str) -> _Encoding:
    if encoding in ENCODINGS:
        return ENCODINGS[encoding]
    _refuse_measurements(encoding, name)
    raise DatasetError(
        f'image {name}: encoding {encoding!r} is not supported: expected one of '
        f'{", ".join(ENCODINGS)}; set the camera driver to one of them'
    )


def _rows(values: np.ndarray, height: int, row: int, step: int) -> np.ndarray:
    shape, strides = (height, row), (step, 1)
    return np.lib.stride_tricks.as_strided(values, shape, strides, writeable=False)


def _convert(rows: np.ndarray, height: int, width: int, layout: _Encoding) -> Image:
    shape = (height, width) if layout.channels == 1 else (height, width, layout.channels)
    pixels = np.array(rows).reshape(shape)
    if layout.conversion is None:
        return pixels
    return np.asarray(cv2.cvtColor(pixels, layout.conversion), dtype=np.uint8)
