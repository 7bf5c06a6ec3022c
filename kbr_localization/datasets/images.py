"""Decode and encode images of files and messages, with a limit of pixels and bytes."""

from collections.abc import Callable
from dataclasses import dataclass
import io
from pathlib import Path
from typing import Any

import cv2
from kbr_localization.datasets.frame import Image
from kbr_localization.errors import DatasetError
from kbr_localization.files import read_file
import numpy as np
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

MAX_PIXELS = 1 << 25
"""An 8K panorama of 8192 x 4096; decoding takes up to 0.3 GB."""
IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png')
MAX_FILE_BYTES = 1 << 28

# sensor_msgs names a Bayer pattern by its first row, OpenCV by its second row from the second
# pixel, so the names differ
ENCODINGS: dict[str, tuple[int, int | None]] = {
    'mono8': (1, None),
    '8UC1': (1, None),
    'bgr8': (3, None),
    '8UC3': (3, None),
    'rgb8': (3, cv2.COLOR_RGB2BGR),
    'bgra8': (4, cv2.COLOR_BGRA2BGR),
    '8UC4': (4, cv2.COLOR_BGRA2BGR),
    'rgba8': (4, cv2.COLOR_RGBA2BGR),
    'bayer_rggb8': (1, cv2.COLOR_BayerBG2BGR),
    'bayer_bggr8': (1, cv2.COLOR_BayerRG2BGR),
    'bayer_gbrg8': (1, cv2.COLOR_BayerGR2BGR),
    'bayer_grbg8': (1, cv2.COLOR_BayerGB2BGR),
    'yuv422': (2, cv2.COLOR_YUV2BGR_UYVY),
    'uyvy': (2, cv2.COLOR_YUV2BGR_UYVY),
    'yuv422_yuy2': (2, cv2.COLOR_YUV2BGR_YUY2),
    'yuyv': (2, cv2.COLOR_YUV2BGR_YUY2),
    'mono16': (1, None),
}
"""Number of channels, and OpenCV's conversion to BGR or None."""
MEASUREMENT_ENCODINGS = ('16UC1', '16SC1', '32SC1', '32FC1', '64FC1')
"""Encodings of depth, temperature and the like, which have no scale of brightness."""


@dataclass(frozen=True)
class ImageFile:
    """A lazy image on disk."""

    path: Path

    def __call__(self) -> Image:
        return decode_image(self.encoded(), str(self.path))

    def encoded(self, quality: int = 95) -> bytes:
        """Return the bytes of the file; raises DatasetError."""
        try:
            return read_file(self.path, MAX_FILE_BYTES)
        except OSError as error:
            raise DatasetError(
                f'cannot read image {self.path}: {error.strerror}: restore or delete the file'
            ) from error


@dataclass(frozen=True)
class MessageImage:
    """A lazy image: a sensor_msgs/Image or CompressedImage, or a function that reads one."""

    message: Any
    name: str = 'message'

    def _read(self) -> Any:
        return self.message() if callable(self.message) else self.message

    def __call__(self) -> Image:
        message = self._read()
        if hasattr(message, 'format'):
            return decode_image(MessageImage(message, self.name).encoded(), self.name)
        return decode_raw_image(message, self.name)

    def encoded(self, quality: int = 95) -> bytes:
        """Return the bytes of a compressed message, else a new JPEG; raises DatasetError."""
        message = self._read()
        if hasattr(message, 'format'):
            # image_transport puts the encoding of the raw image first: '16UC1; png compressed'
            _refuse_measurements(message.format.partition(';')[0].strip(), self.name)
            return bytes(message.data)
        return encode_jpeg(decode_raw_image(message, self.name), self.name, quality)


def image_files(folder: Path) -> list[Path]:
    """Return the images of a folder by name, without the hidden copies that macOS adds."""
    files = (file for file in folder.iterdir() if not file.name.startswith('.'))
    return sorted(file for file in files if file.suffix.lower() in IMAGE_SUFFIXES)


def _check_pixels(width: int, height: int, name: str) -> None:
    if width * height > MAX_PIXELS:
        raise DatasetError(
            f'image {name}: {width}x{height} pixels, expected at most {MAX_PIXELS} in all: scale '
            'it down'
        )


def decode_image(data: bytes, name: str) -> Image:
    """
    Decode JPEG or PNG bytes to uint8: grey to (h, w), colour to (h, w, 3) BGR.

    EXIF orientation is applied, 16 bits are reduced to the upper 8, transparency is ignored.
    Raises DatasetError for other formats, truncated or damaged data, and, before decoding, for
    more than `MAX_PIXELS`. `name`: used in messages.
    """
    _check_pixels(*_check_whole(data, name), name)
    try:
        image = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_ANYCOLOR)
    except cv2.error as error:
        raise _broken(name, f'bytes that OpenCV refuses ({error.err})') from error
    if image is None:
        raise _broken(name, f'{len(data)} bytes that cannot be decoded')
    return np.asarray(image, dtype=np.uint8)


def encode_jpeg(image: Image, name: str, quality: int = 95) -> bytes:
    """Encode a grey (h, w) or BGR (h, w, 3) uint8 image as JPEG; raises DatasetError."""
    is_grey_or_bgr = image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)
    if image.dtype != np.uint8 or not is_grey_or_bgr or image.size == 0:
        raise DatasetError(
            f'image {name}: expected a uint8 array of shape (h, w) or (h, w, 3), '
            f'got {image.dtype} {image.shape}'
        )
    done, data = cv2.imencode('.jpeg', image, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise DatasetError(f'image {name}: {image.shape} cannot be encoded as JPEG')
    return bytes(data)


def encoded_bytes(image: Image | Callable[[], Image], name: str, quality: int = 95) -> bytes:
    """Return the JPEG or PNG bytes of an image, else a new JPEG; raises DatasetError."""
    if not hasattr(image, 'encoded'):
        return encode_jpeg(image() if callable(image) else image, name, quality)
    data: bytes = image.encoded(quality)
    _check_whole(data, name)
    return data


def decode_raw_image(message: Any, name: str = 'message') -> Image:
    """
    Convert a sensor_msgs/Image to uint8: grey to (h, w), colour to (h, w, 3) BGR.

    The data may be any buffer, and are copied. 16 bits are reduced to the upper 8, because scaling
    from the darkest to the brightest pixel would flicker. Raises DatasetError for unsupported
    encodings and impossible sizes.
    """
    encoding, height, width, step = message.encoding, message.height, message.width, message.step
    if encoding not in ENCODINGS:
        _refuse_measurements(encoding, name)
        raise DatasetError(
            f'image {name}: encoding {encoding!r} is not supported: expected one of '
            f'{", ".join(ENCODINGS)}; set the camera driver to one of them'
        )
    channels, conversion = ENCODINGS[encoding]
    depth = 2 if encoding == 'mono16' else 1
    row = width * channels * depth
    if not (height > 0 and width > 0 and step >= row):
        raise DatasetError(
            f'image {name}: expected a positive size and at least {max(row, 1)} bytes '
            f'a row, got {width}x{height} {encoding} with a step of {step}'
        )
    _check_pixels(width, height, name)
    values = np.frombuffer(message.data, dtype=np.uint8)
    needed = step * (height - 1) + row  # the last row need not be padded
    if values.size < needed:
        raise DatasetError(
            f'image {name}: {width}x{height} {encoding} with a step of {step} needs '
            f'{needed} bytes, got {values.size}: it was cut off'
        )
    rows = np.lib.stride_tricks.as_strided(values, (height, row), (step, 1), writeable=False)
    if depth == 2:
        rows = rows[:, (0 if message.is_bigendian else 1) :: 2]  # noqa: E203
    shape = (height, width) if channels == 1 else (height, width, channels)
    pixels = np.array(rows).reshape(shape)
    if conversion is None:
        return pixels
    try:
        return np.asarray(cv2.cvtColor(pixels, conversion), dtype=np.uint8)
    except cv2.error as error:
        raise DatasetError(
            f'image {name}: {width}x{height} {encoding} cannot be converted ({error.err}): '
            'expected an even width; set the camera driver to one'
        ) from error


def _refuse_measurements(encoding: str, name: str) -> None:
    if encoding in MEASUREMENT_ENCODINGS:
        raise DatasetError(
            f'image {name}: encoding {encoding!r} holds measurements such as depth: expected one '
            "of a camera, such as 'mono8', or 'mono16' with brightness up to 65535"
        )


def _check_whole(data: bytes, name: str) -> tuple[int, int]:
    """Return width and height of a whole JPEG or PNG; raises DatasetError."""
    reader: type[JpegImageFile | PngImageFile]
    if data.startswith(b'\x89PNG\r\n\x1a\n'):
        kind, reader, is_whole = 'PNG', PngImageFile, b'IEND\xaeB`\x82' in data
    elif data.startswith(b'\xff\xd8'):
        # OpenCV would fill missing parts with grey. Search for the last end marker: a thumbnail
        # ends before the scan of the image, and cameras pad their files
        is_whole = data.rfind(b'\xff\xd9') > data.rfind(b'\xff\xda')
        kind, reader = 'JPEG', JpegImageFile
    else:
        raise _broken(name, f'{len(data)} bytes of another kind')
    if not is_whole:
        raise _broken(name, f'a {kind} that is cut off after {len(data)} bytes')
    try:
        with reader(io.BytesIO(data)) as image:
            size = image.size
            # find damaged chunks, of which libpng would complain on stderr
            image.verify()
    except Exception as error:
        raise _broken(name, f'a {kind} that is damaged ({error})') from error
    return size


def _broken(name: str, found: str) -> DatasetError:
    return DatasetError(f'broken image {name}: expected a whole JPEG or PNG, got {found}')
