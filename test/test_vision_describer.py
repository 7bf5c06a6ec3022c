"""Describers of every kind on real pixels: shapes, round trip, refusals, kernel."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import cv2
from kbr_localization.errors import ConfigurationError, DatasetError, VisionError
from kbr_localization.vision import describer_from_state, fit_describer, VisionConfig
from kbr_localization.vision.config import DESCRIPTORS, LEARNED
import numpy as np
import pytest

SHAPE = (120, 160)
CONFIG = VisionConfig(words=200, vocabulary_samples=8000, scale_up=False)


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
    assert descriptor.shape == (describer.size,) == (4 * 200,)
    assert descriptor.dtype == describer.dtype == np.uint8
    # eighths of square roots of weighted counts of the 35 x 25 patches
    patches = describer._local.describe(describer.preparation.grey(images[0]))
    assert len(patches) == 35 * 25
    expected = describer.word_weights[describer.words(patches)].sum()
    np.testing.assert_allclose(np.sum((descriptor / 8.0) ** 2), expected, rtol=0.02)


@pytest.mark.parametrize('tree', [False, True])
def test_relative_counts_are_counts_over_the_words_mean_count(images, tree):
    # all patches are learnt from, so that frequencies are those of the images
    config = replace(CONFIG, vocabulary_samples=35 * 25 * len(images), vocabulary_tree=tree)
    relative = fit_describer(config, images, np.random.default_rng(0))
    plain = fit_describer(replace(config, relative_counts=False), images, np.random.default_rng(0))
    np.testing.assert_array_equal(relative.vocabulary.words, plain.vocabulary.words)
    found = [plain.words(plain._local.describe(plain.preparation.grey(one))) for one in images]
    counts = np.stack([np.bincount(words, minlength=config.words) for words in found])
    frequencies = counts.sum(axis=0) + 1.0
    weights = frequencies.mean() / frequencies
    np.testing.assert_allclose(relative.word_weights, weights, rtol=1e-6)
    for image, words in zip(images, found, strict=True):
        in_cells = np.zeros((4, config.words))
        np.add.at(in_cells, (plain._cells, words), 1.0)
        roots = np.sqrt(in_cells * weights).ravel()
        np.testing.assert_allclose(relative.describe(image) / 8.0, roots, atol=1 / 16 + 1e-6)
    # on average all words count alike, but for the one patch more that each is given
    mean = (counts * relative.word_weights).mean(axis=0)
    assert mean[counts.sum(axis=0) >= 20].std() < 0.05 * mean.mean()


def test_kernel_is_one_for_the_same_image_and_falls_with_displacement(describer, images):
    wide = scene(3, (120, 200))
    views = [wide[:, slice(shift, shift + 160)] for shift in (0, 4, 12, 40)]
    descriptors = np.stack([describer.describe(view) for view in views])
    kernel = describer.cross_gram(descriptors[:1], descriptors)[0]
    assert kernel[0] == pytest.approx(1.0, abs=1e-6)
    assert kernel[0] > kernel[1] > kernel[2] > kernel[3]


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


@pytest.mark.parametrize(
    ('image', 'message'),
    [
        (np.zeros(SHAPE, np.float32), 'float32: expected uint8'),
        (np.zeros((*SHAPE, 4), np.uint8), r'expected \(height, width\) or'),
        (np.zeros((60, 80), np.uint8), '80x60 pixels: expected the size of the map, 160x120'),
    ],
)
def test_bad_images_are_refused(describer, image, message):
    with pytest.raises(VisionError, match=message):
        describer.describe(image)


def test_no_images_are_refused_with_the_reason_where_there_is_one(images):
    def broken():
        raise DatasetError('encoding mono16 is not supported')

    with pytest.raises(VisionError, match='at least one'):
        fit_describer(CONFIG, [], np.random.default_rng(0))
    with pytest.raises(VisionError, match='mono16 is not supported'):
        fit_describer(CONFIG, [broken, broken], np.random.default_rng(0))
    assert fit_describer(CONFIG, [*[broken] * 9, images[0]], np.random.default_rng(0)).size


def test_an_image_of_another_size_is_not_learnt_from(images):
    mixed = [scene(1, (60, 80)), *images]
    describer = fit_describer(CONFIG, mixed, np.random.default_rng(0))
    assert describer.preparation.image_shape == images[0].shape


def test_incomplete_and_damaged_states_are_refused(describer):
    state = dict(describer.state())
    del state['vocabulary']
    with pytest.raises(VisionError, match="'vocabulary' is missing"):
        describer_from_state(state)
    with pytest.raises(VisionError, match='expected'):
        describer_from_state({**describer.state(), 'vocabulary': np.zeros((3, 5))})
    with pytest.raises(VisionError, match='word_weights: expected positive'):
        describer_from_state({**describer.state(), 'word_weights': np.zeros(200)})
    with pytest.raises(ConfigurationError, match='words'):
        describer_from_state({**describer.state(), 'words': 0})


@pytest.fixture
def kind_config(kind, tmp_path):
    """Return a small configuration of a descriptor, with its network if it has one."""
    config = replace(CONFIG, vocabulary_samples=2000, words=20)
    if kind not in ('onnx', LEARNED):
        return replace(config, descriptor=kind)
    pytest.importorskip('onnxruntime', reason='the extra learned is not installed')
    onnx_file = pytest.importorskip('onnx_file', reason='the package onnx is not installed')
    rng, path = np.random.default_rng(0), tmp_path / 'tiny.onnx'
    if kind == 'onnx':
        kernels = rng.normal(size=(8, 3, 5, 5)).astype(np.float32)
        path.write_bytes(onnx_file.convolution_network(kernels, 32))
    else:
        kernels = rng.normal(size=(12, 1, 8, 8)).astype(np.float32)
        path.write_bytes(onnx_file.feature_network(kernels))
    sizes = {'network_size': 32, 'network_width': 160}
    return replace(config, descriptor=kind, network_file=str(path), **sizes)


@pytest.mark.parametrize('kind', DESCRIPTORS)
def test_every_kind_of_descriptor_keeps_the_contract(kind_config, images):
    """One vector of the stated type, a kernel of range and rank, and a state that is enough."""
    config = kind_config
    describer = fit_describer(config, images, np.random.default_rng(0))
    descriptors = np.stack([describer.describe(image) for image in images])
    assert describer.kind == config.descriptor
    assert descriptors.shape == (len(images), describer.size)
    assert descriptors.dtype == describer.dtype
    gram = describer.cross_gram(descriptors, descriptors)
    np.testing.assert_allclose(np.diag(gram), 1.0, atol=1e-6)
    np.testing.assert_allclose(gram, gram.T, atol=1e-6)
    assert np.linalg.eigvalsh(gram).min() > -1e-6
    assert gram.min() >= 0.0
    nudged = describer.describe(np.roll(images[2], 1, axis=1))
    kernel = describer.cross_gram(nudged[np.newaxis], descriptors)[0]
    assert kernel.argmax() == 2
    prepared = describer.prepared(descriptors)
    np.testing.assert_allclose(prepared.compared_with(nudged), kernel, atol=1e-12)
    np.testing.assert_allclose(prepared.compared_with(descriptors), gram, atol=1e-6)
    again = describer_from_state(describer.state())
    np.testing.assert_array_equal(again.describe(images[1]), descriptors[1])


@pytest.mark.parametrize('kind', ['hog', 'onnx'])
def test_threads_may_share_a_describer(kind_config, images):
    """As those of a worker of a Dask cluster do: what is equalised, and what a network answers."""
    describer = fit_describer(kind_config, images, np.random.default_rng(0))
    alone = [describer.describe(image) for image in images]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(describer.describe, images * 40))
    np.testing.assert_array_equal(together, alone * 40)


def test_a_map_made_before_a_parameter_was_there_is_still_read(images):
    before = {
        'patch_components': 0,
        'vocabulary_tree': False,
        'gradient_sign': 1.0,
        'strips': 1,
        'relative_counts': False,
    }
    config = replace(CONFIG, **before)
    describer = fit_describer(config, images, np.random.default_rng(0))
    state = dict(describer.state())
    for name in before:
        del state[name]
    again = describer_from_state(state)
    assert again.config == config
    np.testing.assert_array_equal(again.describe(images[0]), describer.describe(images[0]))
