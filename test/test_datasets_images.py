"""Encoded and raw images: bounded before they are decoded, refused in one line when broken."""

import resource
import struct
from types import SimpleNamespace
import zlib

import cv2
from helpers import textured_image
from kbr_localization.datasets.images import (
    decode_image,
    decode_raw_image,
    encode_jpeg,
    encoded_bytes,
    ImageFile,
    MAX_PIXELS,
)
from kbr_localization.errors import DatasetError
import numpy as np
import pytest

BGR = np.stack([textured_image(seed, (24, 32)) for seed in range(3)], axis=-1)
GREY = textured_image(3, (24, 32))
WIDE = 257 * GREY.astype(np.uint16) - np.minimum(GREY, 3)
"""GREY with 16 bits, not all of them with a low byte that is the high one's."""
JPEG = encode_jpeg(textured_image(0), 'it')


def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))


def png_bomb(side):
    """Make a PNG of `side` x `side` black pixels in a thousandth of their size."""
    head = chunk(b'IHDR', struct.pack('>IIBBBBB', side, side, 8, 0, 0, 0, 0))
    data = zlib.compress(bytes((side + 1) * side))
    return b'\x89PNG\r\n\x1a\n' + head + chunk(b'IDAT', data) + chunk(b'IEND', b'')


def jpeg_bomb(side):
    """Make a JPEG whose header says that it has `side` x `side` pixels."""
    data = bytearray(JPEG)
    struct.pack_into('>HH', data, data.index(b'\xff\xc0') + 5, side, side)
    return bytes(data)


@pytest.mark.parametrize('bomb', [png_bomb, jpeg_bomb])
def test_an_image_of_gigabytes_is_refused_before_it_is_decoded(bomb):
    data = bomb(9000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DatasetError, match='image it: 9000x9000 pixels, expected at most'):
        decode_image(data, 'it')
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
    assert MAX_PIXELS >= 7680 * 4320


@pytest.mark.parametrize('behind', [b'', bytes(4096), b'\xff' * 5000 + b'film'])
def test_a_jpeg_is_whole_whatever_follows_it(behind):
    thumbnail = encode_jpeg(textured_image(1, (8, 8)), 'thumbnail')
    segment = b'\xff\xe1' + struct.pack('>H', len(thumbnail) + 2) + thumbnail
    whole = JPEG[:2] + segment + JPEG[2:]
    np.testing.assert_array_equal(decode_image(whole + behind, 'it'), decode_image(JPEG, 'it'))
    for length in (len(thumbnail) + 3, len(whole) // 2, len(whole) - 2):
        with pytest.raises(DatasetError, match=r'broken image it: .* a JPEG that is cut off'):
            decode_image(whole[:length] + behind.replace(b'\xff', b'\0'), 'it')


@pytest.mark.parametrize('suffix', ['.jpeg', '.png'])
def test_a_truncated_image_is_neither_decoded_nor_copied(tmp_path, suffix):
    file = tmp_path / f'it{suffix}'
    whole = cv2.imencode(suffix, textured_image(0))[1].tobytes()
    file.write_bytes(whole)
    assert encoded_bytes(ImageFile(file), 'it') == whole
    for length in (len(whole) // 2, len(whole) - 20):
        file.write_bytes(whole[:length])
        for read in (lambda: encoded_bytes(ImageFile(file), 'it'), ImageFile(file)):
            with pytest.raises(DatasetError, match=f'that is cut off after {length} b'):
                read()


def test_a_damaged_png_is_refused_before_libpng_complains_of_it(capfd):
    data = bytearray(cv2.imencode('.png', textured_image(0))[1].tobytes())
    data[len(data) // 2] ^= 255
    with pytest.raises(DatasetError, match='a PNG that is damaged'):
        decode_image(bytes(data), 'it')
    assert capfd.readouterr().err == ''


def test_an_image_is_turned_as_its_exif_says():
    orientation = struct.pack('<2sHIHHHIHHI', b'II', 42, 8, 1, 0x0112, 3, 1, 6, 0, 0)
    exif = b'Exif\0\0' + orientation
    turned = JPEG[:2] + b'\xff\xe1' + struct.pack('>H', len(exif) + 2) + exif + JPEG[2:]
    assert decode_image(JPEG, 'it').shape[:2] == decode_image(turned, 'it').shape[1::-1]


def raw(encoding, height, width, step, data, is_bigendian=False):
    return SimpleNamespace(**locals())


@pytest.mark.parametrize(
    ('encoding', 'channels'),
    [
        *(('mono8', [0]), ('8UC1', [0]), ('bgr8', [0, 1, 2]), ('8UC3', [0, 1, 2])),
        *(('rgb8', [2, 1, 0]), ('bgra8', [0, 1, 2, 3]), ('8UC4', [0, 1, 2, 3])),
        ('rgba8', [2, 1, 0, 3]),
    ],
)
def test_raw_images_come_out_grey_or_bgr_without_their_padding(encoding, channels):
    data = np.dstack([BGR, np.full(GREY.shape, 255, np.uint8)])[..., channels]
    rows = np.pad(data.reshape(24, -1), ((0, 0), (0, 6)))
    memory = bytearray(rows.tobytes()[:-6])
    image = decode_raw_image(raw(encoding, 24, 32, rows.shape[1], memory))
    memory[0] ^= 255
    np.testing.assert_array_equal(image, BGR[..., 0] if len(channels) == 1 else BGR)


@pytest.mark.parametrize('big_endian', [False, True])
def test_of_sixteen_bits_the_upper_eight_are_taken(big_endian):
    rows = WIDE.astype('>u2' if big_endian else '<u2').view(np.uint8)
    padded = np.pad(rows, ((0, 0), (0, 1)), constant_values=77).tobytes()
    image = decode_raw_image(raw('mono16', 24, 32, 65, padded, big_endian))
    np.testing.assert_array_equal(image, WIDE >> 8)
    png = cv2.imencode('.png', WIDE)[1].tobytes()
    np.testing.assert_array_equal(decode_image(png, 'file'), WIDE >> 8)


@pytest.mark.parametrize('pattern', ['rggb', 'bggr', 'gbrg', 'grbg'])
def test_bayer_patterns_give_back_a_flat_colour(pattern):
    colour = {'b': 200, 'g': 120, 'r': 40}
    tile = np.array([colour[c] for c in pattern], np.uint8).reshape(2, 2)
    image = decode_raw_image(raw(f'bayer_{pattern}8', 16, 16, 16, np.tile(tile, (8, 8)).tobytes()))
    np.testing.assert_array_equal(image[4:12, 4:12].reshape(-1, 3), [[200, 120, 40]] * 64)


@pytest.mark.parametrize('encoding, luma', [('yuv422_yuy2', 0), ('yuyv', 0), ('yuv422', 1)])
def test_yuv_keeps_the_brightness(encoding, luma):
    pixels = np.full((8, 8, 2), 128, np.uint8)
    pixels[..., luma] = np.linspace(30, 220, 64).reshape(8, 8).astype(np.uint8)
    image = decode_raw_image(raw(encoding, 8, 8, 16, pixels.tobytes()))
    grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY).astype(float).reshape(-1)
    assert np.all(np.diff(grey) >= 0) and grey[-1] - grey[0] > 190


@pytest.mark.parametrize(
    'fields, says',
    [
        (('nv12', 24, 32, 32, bytes(1536)), "'nv12' is not supported: expected one of mono8, "),
        (('16UC1', 24, 32, 64, bytes(1536)), "'16UC1' holds measurements.*'mono16'"),
        (('mono16', 24, 32, 63, bytes(1536)), 'at least 64 bytes a row'),
        (('mono8', 24, 32, 32, bytes(700)), 'cut off'),
        (('mono8', 0, 32, 32, b''), '32x0'),
        (('mono8', 10**6, 10**6, 10**6, b''), '1000000x1000000'),
        (('yuv422', 4, 3, 6, bytes(24)), 'message: 3x4 yuv422 cannot .*: expected an even width;'),
    ],
)
def test_impossible_raw_images_are_refused(fields, says):
    with pytest.raises(DatasetError, match=says):
        decode_raw_image(raw(*fields))
