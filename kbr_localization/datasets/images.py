"""Images of files and messages: encoded or raw bytes to arrays and back, of bounded size."""

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
"""Of an image: 8192 x 4096, an 8K panorama. Decoding it takes up to 0.3 GB."""
IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png')
LARGEST_FILE = 1 << 28
"""Bytes."""

# sensor_msgs names a Bayer pattern by its first row, OpenCV by the second one from its second
# pixel on, hence the crossed names
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
"""Channels, and OpenCV's conversion to grey or BGR where one is needed."""
MEASUREMENT_ENCODINGS = ('16UC1', '16SC1', '32SC1', '32FC1', '64FC1')
"""Encodings of depth, temperature and the like, which have no scale of brightness."""


@dataclass(frozen=True)
class ImageFile:
    """A lazy image on disk."""

    path: Path

    def __call__(self) -> Image:
        """Read and decode the file; raises DatasetError."""
        return decode_image(self.encoded(), str(self.path))

    def encoded(self, quality: int = 95) -> bytes:
        """Return the file's bytes; raises DatasetError."""
        try:
            return read_file(self.path, LARGEST_FILE)
        except OSError as error:
            raise DatasetError(
                f'cannot read image {self.path}: {error.strerror}: restore or delete the file'
            ) from error


@dataclass(frozen=True)
class MessageImage:
    """A lazy sensor_msgs/Image or CompressedImage, itself or a function that reads it."""

    message: Any
    name: str = 'message'

    def _read(self) -> Any:
        return self.message() if callable(self.message) else self.message

    def __call__(self) -> Image:
        """Decode or convert the message; raises DatasetError."""
        message = self._read()
        if hasattr(message, 'format'):
            return decode_image(MessageImage(message, self.name).encoded(), self.name)
        return decode_raw_image(message, self.name)

    def encoded(self, quality: int = 95) -> bytes:
        """Return the bytes of a compressed message, else of a new JPEG; raises DatasetError."""
        message = self._read()
        if hasattr(message, 'format'):
            # image_transport begins with the raw image's encoding: '16UC1; png compressed'
            _refuse_measurements(message.format.partition(';')[0].strip(), self.name)
            return bytes(message.data)
        return encode_jpeg(decode_raw_image(message, self.name), self.name, quality)


def image_files(folder: Path) -> list[Path]:
    """Images of a folder by name; hidden files, as macOS adds to each, are none."""
    files = (file for file in folder.iterdir() if not file.name.startswith('.'))
    return sorted(file for file in files if file.suffix.lower() in IMAGE_SUFFIXES)


def check_size(width: int, height: int, name: str) -> None:
    """Raise DatasetError when an image has more pixels than are allowed."""
    if width * height > MAX_PIXELS:
        raise DatasetError(
            f'image {name}: {width}x{height} pixels, expected at most {MAX_PIXELS} in all: scale '
            'it down'
        )


def decode_image(data: bytes, name: str) -> Image:
    """
    Decode JPEG or PNG bytes: grey to (h, w), colour to (h, w, 3) BGR, uint8.

    EXIF orientation is applied; of 16 bits the upper 8 are taken, transparency is ignored. Raises
    DatasetError for foreign, truncated or undecodable data, and for an image of more pixels than
    are allowed, before it is decoded. `name`: used in messages.
    """
    check_size(*_checked_size(data, name), name)
    try:
        image = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_ANYCOLOR)
    except cv2.error as error:
        raise _broken(name, f'bytes that OpenCV refuses ({error.err})') from error
    if image is None:
        raise _broken(name, f'{len(data)} bytes that cannot be decoded')
    return np.asarray(image, dtype=np.uint8)


def encode_jpeg(image: Image, name: str, quality: int = 95) -> bytes:
    """Encode a grey (h, w) or BGR (h, w, 3) uint8 image as JPEG; raises DatasetError."""
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
    """Compressed bytes of an image, its own or a new JPEG; raises DatasetError if broken."""
    if not hasattr(image, 'encoded'):
        return encode_jpeg(image() if callable(image) else image, name, quality)
    data: bytes = image.encoded(quality)
    _checked_size(data, name)
    return data


def decode_raw_image(message: Any, name: str = 'message') -> Image:
    """
    Pixels of a sensor_msgs/Image: grey to (height, width), colour to (height, width, 3) BGR uint8.

    Its data may be anything with a buffer, which the result does not share. Of 16 bits the upper 8
    are taken: a scale from the darkest to the brightest pixel would flicker. Raises DatasetError
    for an unsupported encoding and for impossible sizes.
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
    check_size(width, height, name)
    values = np.frombuffer(message.data, dtype=np.uint8)
    # the last row need not be padded
    if values.size < step * (height - 1) + row:
        raise DatasetError(
            f'image {name}: {width}x{height} {encoding} with a step of {step} needs '
            f'{step * height} bytes, got {values.size}: it was cut off'
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
            f'image {name}: encoding {encoding!r} is of measurements, as depth, not of a picture: '
            "expected one of a camera, as 'mono8', or 'mono16' with brightness up to 65535"
        )


def _checked_size(data: bytes, name: str) -> tuple[int, int]:
    """Width and height of a whole JPEG or PNG; raises DatasetError for anything else."""
    reader: type[JpegImageFile | PngImageFile]
    if data.startswith(b'\x89PNG\r\n\x1a\n'):
        kind, reader, is_whole = 'PNG', PngImageFile, b'IEND\xaeB`\x82' in data
    elif data.startswith(b'\xff\xd8'):
        # OpenCV fills what is missing with grey. The end of a thumbnail is before the scan of the
        # image; cameras pad their files
        is_whole = data.rfind(b'\xff\xd9') > data.rfind(b'\xff\xda')
        kind, reader = 'JPEG', JpegImageFile
    else:
        raise _broken(name, f'{len(data)} bytes of another kind')
    if not is_whole:
        raise _broken(name, f'a {kind} that is cut off after {len(data)} bytes')
    try:
        with reader(io.BytesIO(data)) as image:
            size = image.size
            # libpng would complain of a damaged chunk on stderr
            image.verify()
    except Exception as error:
        raise _broken(name, f'a {kind} that is damaged ({error})') from error
    return size


def _broken(name: str, found: str) -> DatasetError:
    return DatasetError(f'broken image {name}: expected a whole JPEG or PNG, got {found}')
