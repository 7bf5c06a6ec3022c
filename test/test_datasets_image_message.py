"""Raw image messages of every supported encoding, and those that must be refused."""

import array

import cv2
from helpers import textured_image
from hypothesis import given
from hypothesis import strategies as st
from kbr_localization.conversions import DEPTH, FAINT, noticed
from kbr_localization.datasets.image_file import decode_image
from kbr_localization.datasets.image_message import decode_raw_image, ENCODINGS
from kbr_localization.errors import DatasetError
import numpy as np
import pytest

BGR = np.stack([textured_image(seed, (24, 32)) for seed in range(3)], axis=-1)
GREY = textured_image(3, (24, 32))


def stored(encoding):
    """Bytes of BGR (or GREY) as a driver would send them, without padding."""
    reorder = {'rgb8': [2, 1, 0], 'bgr8': [0, 1, 2], '8UC3': [0, 1, 2]}
    if encoding in reorder:
        return np.ascontiguousarray(BGR[..., reorder[encoding]])
    alpha = np.full((*GREY.shape, 1), 255, np.uint8)
    if encoding in ('bgra8', '8UC4', 'rgba8'):
        colours = BGR[..., ::-1] if encoding == 'rgba8' else BGR
        return np.concatenate([colours, alpha], axis=-1)
    return GREY


@pytest.mark.parametrize('encoding', ['bgr8', 'rgb8', 'bgra8', 'rgba8', '8UC3', '8UC4'])
def test_colour_comes_out_as_bgr(encoding):
    data = stored(encoding)
    image = decode_raw_image(encoding, 24, 32, data.strides[0], data.tobytes())
    np.testing.assert_array_equal(image, BGR)


@pytest.mark.parametrize('encoding', ['mono8', '8UC1'])
def test_grey_stays_grey_and_does_not_share_memory(encoding):
    data = array.array('B', GREY.tobytes())
    image = decode_raw_image(encoding, 24, 32, 32, data)
    np.testing.assert_array_equal(image, GREY)
    data[0] ^= 255
    np.testing.assert_array_equal(image, GREY)


WIDE = 257 * GREY.astype(np.uint16) - np.minimum(GREY, 3)
"""GREY with 16 bits, not all of them with a low byte that is the high one's."""


@pytest.mark.parametrize('big_endian', [False, True])
@pytest.mark.parametrize('padding', [0, 1, 6])
def test_of_sixteen_bits_the_upper_eight_are_taken(big_endian, padding):
    order = '>u2' if big_endian else '<u2'
    rows = WIDE.astype(order).view(np.uint8)
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=77).tobytes()
    with noticed() as converted:
        image = decode_raw_image(
            'mono16', 24, 32, 64 + padding, padded, 'front', big_endian=big_endian
        )
    np.testing.assert_array_equal(image, WIDE >> 8)
    assert list(converted) == [('front', DEPTH)]


@pytest.mark.parametrize('values', [(0, 4095), (29315, 30315)], ids=['12 bits', 'temperature'])
def test_sixteen_bits_of_which_little_is_left_are_told(values):
    pixels = np.linspace(*values, 24 * 32).astype('<u2')
    pixels = pixels.reshape(24, 32)
    with noticed() as converted:
        decode_raw_image('mono16', 24, 32, 64, pixels.tobytes(), 'front')
        decode_image(cv2.imencode('.png', pixels)[1].tobytes(), 'file')
    assert list(converted) == [('front', FAINT), ('file', FAINT)]


def test_a_brightness_of_sixteen_bits_is_the_same_whatever_else_is_in_the_image():
    """A scale that follows the darkest and the brightest pixel would flicker with them."""
    usual, with_lamp = WIDE // 4, WIDE // 4
    with_lamp[0, 0] = 65535
    images = [decode_raw_image('mono16', 24, 32, 64, i.tobytes()) for i in (usual, with_lamp)]
    np.testing.assert_array_equal(images[0].flat[1:], images[1].flat[1:])


def test_sixteen_bits_are_read_from_a_message_as_from_a_file():
    png = cv2.imencode('.png', WIDE)[1].tobytes()
    np.testing.assert_array_equal(
        decode_image(png, 'file'), decode_raw_image('mono16', 24, 32, 64, WIDE.tobytes())
    )


def test_padded_rows_are_cut():
    padded = np.zeros((24, 128), np.uint8)
    padded[:, :96] = BGR.reshape(24, 96)
    for data in (padded.tobytes(), padded.tobytes()[:-32]):
        np.testing.assert_array_equal(decode_raw_image('bgr8', 24, 32, 128, data), BGR)


@pytest.mark.parametrize(
    'encoding, first_row, second_row',
    [
        ('bayer_rggb8', 'rg', 'gb'),
        ('bayer_bggr8', 'bg', 'gr'),
        ('bayer_gbrg8', 'gb', 'rg'),
        ('bayer_grbg8', 'gr', 'bg'),
    ],
)
def test_bayer_patterns_give_back_a_flat_colour(encoding, first_row, second_row):
    colour = {'b': 200, 'g': 120, 'r': 40}
    tile = np.array([[colour[c] for c in row] for row in (first_row, second_row)], np.uint8)
    image = decode_raw_image(encoding, 16, 16, 16, np.tile(tile, (8, 8)).tobytes())
    np.testing.assert_array_equal(image[4:12, 4:12].reshape(-1, 3), [[200, 120, 40]] * 64)


@pytest.mark.parametrize('encoding, luma_first', [('yuv422_yuy2', True), ('yuv422', False)])
def test_yuv_keeps_the_brightness(encoding, luma_first):
    pixels = np.full((8, 8, 2), 128, np.uint8)
    pixels[..., 0 if luma_first else 1] = np.linspace(30, 220, 64).reshape(8, 8).astype(np.uint8)
    image = decode_raw_image(encoding, 8, 8, 16, pixels.tobytes())
    grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY).astype(float).reshape(-1)
    assert np.all(np.diff(grey) >= 0) and grey[-1] - grey[0] > 190


@pytest.mark.parametrize(
    'fields, says',
    [
        (('nv12', 24, 32, 32, bytes(1536)), "'nv12' is not supported: expected one of mono8, "),
        (('16UC1', 24, 32, 64, bytes(1536)), "'16UC1' is of measurements.*'mono16'"),
        (('32FC1', 24, 32, 128, bytes(3072)), "'32FC1' is of measurements.*'mono8'"),
        (('mono16', 24, 32, 63, bytes(1536)), 'at least 64 bytes a row'),
        (('mono16', 24, 32, 64, bytes(1535)), 'cut off'),
        (('mono8', 24, 32, 32, bytes(700)), 'cut off'),
        (('mono8', 24, 32, 31, bytes(768)), 'step of 31'),
        (('mono8', 0, 32, 32, b''), '32x0'),
        (('bgr8', 24, 32, 32, bytes(768)), 'at least 96 bytes a row'),
        (('mono8', 10**6, 10**6, 10**6, b''), '1000000x1000000'),
        (('yuv422', 4, 3, 6, bytes(24)), 'message: 3x4 yuv422 cannot .*: expected an even width;'),
    ],
)
def test_what_cannot_be_an_image_is_refused(fields, says):
    with pytest.raises(DatasetError, match=says):
        decode_raw_image(*fields)


@given(
    st.sampled_from([*ENCODINGS, '16UC1', '', 'jpeg']),
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(0, 200),
    st.binary(max_size=4000),
    st.booleans(),
)
def test_random_fields_give_an_image_or_the_rooms_error(
    encoding, height, width, step, data, big_endian
):
    try:
        image = decode_raw_image(encoding, height, width, step, data, big_endian=big_endian)
    except DatasetError:
        return
    assert image.dtype == np.uint8 and image.shape[:2] == (height, width)
