"""Raw image messages of every supported encoding, and those that must be refused."""

import array

import cv2
from helpers import textured_image
from hypothesis import given
from hypothesis import strategies as st
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
        (('mono16', 24, 32, 64, bytes(1536)), "'mono16' is not supported"),
        (('mono8', 24, 32, 32, bytes(700)), 'cut off'),
        (('mono8', 24, 32, 31, bytes(768)), 'step of 31'),
        (('mono8', 0, 32, 32, b''), '32x0'),
        (('bgr8', 24, 32, 32, bytes(768)), 'at least 96 bytes a row'),
        (('mono8', 10**6, 10**6, 10**6, b''), '1000000x1000000'),
        (('yuv422', 3, 3, 6, bytes(18)), 'even'),
    ],
)
def test_what_cannot_be_an_image_is_refused(fields, says):
    with pytest.raises(DatasetError, match=says):
        decode_raw_image(*fields)


@given(
    st.sampled_from([*ENCODINGS, 'mono16', '', 'jpeg']),
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(0, 200),
    st.binary(max_size=4000),
)
def test_random_fields_give_an_image_or_the_rooms_error(encoding, height, width, step, data):
    try:
        image = decode_raw_image(encoding, height, width, step, data)
    except DatasetError:
        return
    assert image.dtype == np.uint8 and image.shape[:2] == (height, width)
