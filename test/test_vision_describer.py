"""Describers made from real pixels: shapes, round trip, refusals, and what the kernel sees."""

import cv2
from kbr_localization.errors import ConfigurationError, VisionError
from kbr_localization.vision import describer_from_state, fit_describer, VisionConfig
from kbr_localization.vision.dense_sift import DenseSift
import numpy as np
import pytest

SHAPE = (120, 160)
CONFIG = VisionConfig(words=40, vocabulary_samples=4000)


def scene(seed, shape=SHAPE):
    """Return a grey image with structure at several scales."""
    rng = np.random.default_rng(seed)
    image = np.zeros(shape)
    for step in (7, 19, 45):
        coarse = rng.uniform(0, 255, size=(shape[0] // step + 1, shape[1] // step + 1))
        image += cv2.resize(coarse, shape[::-1], interpolation=cv2.INTER_CUBIC)
    return np.clip(image / 3, 0, 255).astype(np.uint8)


@pytest.fixture(scope='module')
def images():
    return [scene(seed) for seed in range(8)]


@pytest.fixture(scope='module')
def describer(images):
    return fit_describer(CONFIG, images, np.random.default_rng(0))


def test_descriptor_is_a_vector_of_small_counts_of_all_patches(describer, images):
    descriptor = describer.describe(images[0])
    assert descriptor.shape == (describer.size,) == (16 * 40,)
    assert descriptor.dtype == describer.dtype == np.uint8
    assert descriptor.sum() == 19 * 14


def test_kernel_is_one_for_the_same_image_and_falls_with_displacement(describer, images):
    wide = scene(3, (120, 200))
    views = [wide[:, slice(shift, shift + 160)] for shift in (0, 2, 5, 40)]
    descriptors = np.stack([describer.describe(view) for view in views])
    kernel = describer.cross_gram(descriptors[:1], descriptors)[0]
    assert kernel[0] == pytest.approx(1.0, abs=1e-6)
    assert kernel[0] > kernel[1] > kernel[2] > kernel[3]


def test_kernel_survives_a_change_of_light(describer, images):
    darker = (0.5 * images[0] + 20).astype(np.uint8)
    pair = np.stack([describer.describe(image) for image in (images[0], darker, images[1])])
    kernel = describer.cross_gram(pair[:1], pair)[0]
    assert kernel[1] > 0.8
    assert kernel[2] < 0.6


def test_colour_and_grey_images_of_the_same_scene_agree(describer, images):
    colour = np.repeat(images[0][:, :, np.newaxis], 3, axis=2)
    np.testing.assert_array_equal(describer.describe(colour), describer.describe(images[0]))


def test_state_round_trip_through_numpy_scalars(describer, images):
    state = {
        key: np.asarray(value)[()] if not isinstance(value, str) else value.encode()
        for key, value in describer.state().items()
    }
    again = describer_from_state(state)
    assert (again.kind, again.size, again.dtype) == (
        describer.kind,
        describer.size,
        describer.dtype,
    )
    np.testing.assert_array_equal(again.describe(images[2]), describer.describe(images[2]))


def test_fitting_is_repeatable_and_takes_images_once(images):
    class Once(list):
        taken = 0

        def __iter__(self):
            for image in super().__iter__():
                self.taken += 1
                yield image

    lazy = Once(images)
    first = fit_describer(CONFIG, lazy, np.random.default_rng(4)).state()['vocabulary']
    again = fit_describer(CONFIG, images, np.random.default_rng(4)).state()['vocabulary']
    np.testing.assert_array_equal(first, again)
    assert lazy.taken == len(images)


@pytest.mark.parametrize(
    ('image', 'message'),
    [
        (np.zeros(SHAPE, np.float32), 'float32: expected uint8'),
        (np.zeros((*SHAPE, 4), np.uint8), r'expected \(height, width\) or'),
        (np.zeros((0, 160), np.uint8), 'empty'),
        (None, 'NoneType: expected uint8'),
        (np.zeros((60, 80), np.uint8), '80x60 pixels: the map was built from 160x120'),
    ],
)
def test_bad_images_are_refused(describer, image, message):
    with pytest.raises(VisionError, match=message):
        describer.describe(image)


def test_no_images_and_images_of_two_sizes_are_refused(images):
    with pytest.raises(VisionError, match='at least one'):
        fit_describer(CONFIG, [], np.random.default_rng(0))
    with pytest.raises(VisionError, match='80x60'):
        fit_describer(CONFIG, [images[0], scene(1, (60, 80))], np.random.default_rng(0))


def test_incomplete_and_damaged_states_are_refused(describer):
    state = dict(describer.state())
    del state['vocabulary']
    with pytest.raises(VisionError, match="'vocabulary' is missing"):
        describer_from_state(state)
    with pytest.raises(VisionError, match='expected'):
        describer_from_state({**describer.state(), 'vocabulary': np.zeros((3, 5))})
    with pytest.raises(ConfigurationError, match='words'):
        describer_from_state({**describer.state(), 'words': 0})


def test_sift_describes_sixteen_pixel_patches():
    """A change outside of the patch and its blur must not be seen: OpenCV's window is 6 sizes."""
    sift = DenseSift((128, 128))
    image = scene(5, (128, 128))
    changed = image.copy()
    changed[:, 80:] = 255 - changed[:, 80:]
    difference = np.abs(sift.describe(image) - sift.describe(changed)).max(axis=1)
    x = sift.centres[:, 0]
    assert difference[x <= 80 - 8 - 8].max() == 0
    assert difference[np.abs(x - 80) <= 8].min() > 0


def test_patches_larger_than_the_image_are_refused():
    with pytest.raises(VisionError, match='patch size 16'):
        DenseSift((10, 100))
