"""What happens to an image before it is described; omnidirectional cameras."""

from dataclasses import replace

import cv2
from kbr_localization.errors import VisionError
from kbr_localization.vision import VisionConfig
from kbr_localization.vision.preparation import find_mirror, Mirror, Preparation
import numpy as np
import pytest

MIRROR = Mirror(166.0, 115.0, 30.0, 104.0)
SHAPE = (240, 320)
PLAIN = VisionConfig(illumination='none', scale_up=False)
LEARNED = VisionConfig(descriptor='learned_pyramid', network_file='features.onnx')


def surroundings(seed, width=720, height=120):
    """Return what a robot sees all around it, one column for half a degree."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, size=(height, width), dtype=np.uint8)
    smooth = cv2.GaussianBlur(np.hstack([noise] * 3), (0, 0), 4.0)[:, slice(width, 2 * width)]
    return cv2.equalizeHist(smooth)


def omnidirectional(view):
    """Reflect surroundings in a mirror; outside of its ring nothing changes."""
    rows, columns = np.indices(SHAPE, dtype=np.float32)
    radius = np.hypot(columns - MIRROR.x, rows - MIRROR.y)
    angle = np.arctan2(rows - MIRROR.y, columns - MIRROR.x)
    share = (MIRROR.outer - radius) / (MIRROR.outer - MIRROR.inner)
    u = np.mod(angle, 2 * np.pi) / (2 * np.pi) * view.shape[1] - 0.5
    v = share * view.shape[0] - 0.5
    image = cv2.remap(view, u.astype(np.float32), v.astype(np.float32), cv2.INTER_LINEAR)
    fixed = np.where(radius < MIRROR.inner, 140, 20).astype(np.uint8)
    return np.where((radius >= MIRROR.inner) & (radius < MIRROR.outer), image, fixed)


TURNING = [omnidirectional(surroundings(seed)) for seed in range(12)]


@pytest.mark.parametrize(
    'config, camera, shape',
    [
        (VisionConfig(), (480, 640), (240, 320)),
        (VisionConfig(), (120, 160), (240, 320)),
        (VisionConfig(), (160, 120), (320, 240)),
        (VisionConfig(scale_up=False), (120, 160), (120, 160)),
        (LEARNED, (120, 160), (120, 160)),
        (LEARNED, (960, 1280), (480, 640)),
    ],
)
def test_images_are_scaled_to_the_working_width_narrow_ones_unless_they_are_to_stay(
    config, camera, shape
):
    assert Preparation(config, camera).shape == shape


def test_wide_images_are_averaged_and_colour_becomes_grey_and_back():
    image = np.random.default_rng(0).integers(0, 256, size=(480, 640), dtype=np.uint8)
    means = image.reshape(240, 2, 320, 2).mean(axis=(1, 3))
    np.testing.assert_allclose(Preparation(PLAIN, (480, 640)).grey(image), means, atol=1)
    preparation, red = Preparation(PLAIN, (4, 6)), np.zeros((4, 6, 3), np.uint8)
    red[:, :, 2] = 255
    np.testing.assert_array_equal(preparation.grey(red), 76)
    assert preparation.colour(np.zeros((4, 6), np.uint8)).shape == (4, 6, 3)
    np.testing.assert_array_equal(preparation.grey(np.full((4, 6, 1), 9, np.uint8)), 9)


def test_another_size_is_refused_unless_any_scale_is_set():
    image = np.zeros((60, 80), np.uint8)
    with pytest.raises(VisionError, match='80x60 pixels: expected the size of the map, 160x120'):
        Preparation(VisionConfig(), (120, 160)).grey(image)
    tolerant = Preparation(VisionConfig(any_scale=True), (120, 160))
    assert tolerant.grey(image).shape == (240, 320)
    assert tolerant.grey(np.zeros((239, 320), np.uint8)).shape == (240, 320)
    for shape in ((80, 80), (62, 80)):
        with pytest.raises(VisionError, match='expected the aspect ratio of the map, 160x120'):
            tolerant.grey(np.zeros(shape, np.uint8))


def test_the_mirror_is_found_in_the_images_of_a_moving_robot():
    found = find_mirror(TURNING)
    for name in ('x', 'y', 'inner', 'outer'):
        assert getattr(found, name) == pytest.approx(getattr(MIRROR, name), abs=3.0)
    for standing in ([TURNING[0]] * 8, TURNING[:2]):
        found = find_mirror(standing)
        assert (found.x, found.y) == (160.0, 120.0) and 0 < found.inner < found.outer <= 120


def test_panorama_shows_the_surroundings():
    view = surroundings(3)
    preparation = Preparation(replace(PLAIN, working_width=360), SHAPE, MIRROR)
    shown = preparation.grey(omnidirectional(view))
    assert shown.shape == preparation.shape
    expected = cv2.resize(view, shown.shape[::-1], interpolation=cv2.INTER_AREA)
    middle = slice(5, -5)  # the ring's rims are mixed with what is beyond
    assert np.corrcoef(shown[middle].ravel(), expected[middle].ravel())[0, 1] > 0.95


def test_the_mirror_is_kept_and_a_damaged_one_is_refused():
    """HOG would describe a black panorama without a word."""
    config = replace(PLAIN, projection='omnidirectional')
    fitted = Preparation.fit(config, TURNING)
    state = fitted.state()
    assert Preparation.from_state(config, state).mirror == fitted.mirror
    for mirror in ([332, 115, 30, 104], [166, 500, 30, 104], [166, 115, 90, 80], [np.nan] * 4):
        with pytest.raises(VisionError, match='the image of 320x240 pixels; build'):
            Preparation.from_state(config, state | {'mirror': mirror})
