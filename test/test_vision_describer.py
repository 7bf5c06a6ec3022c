"""Describers of every kind on real pixels: the kernel, round trips, refusals, processors."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
import hashlib
import os
import subprocess
import sys

import cv2
from helpers import textured_image
from kbr_localization.errors import DatasetError, KbrError, VisionError
from kbr_localization.vision import describer_from_state, fit_describer, VisionConfig
from kbr_localization.vision.config import DESCRIPTORS, LEARNED
from kbr_localization.vision.local_descriptors import (
    DenseSift,
    PatchGrid,
    rounded,
    sign_weighting,
)
from kbr_localization.vision.spatial_pyramid import cell_of
import numpy as np
import pytest

SHAPE = (120, 160)
CONFIG = VisionConfig(words=200, vocabulary_samples=8000, scale_up=False)


IMAGES = [textured_image(seed, SHAPE) for seed in range(8)]


def fitted(config, images=IMAGES):
    return fit_describer(config, images, np.random.default_rng(0))


@pytest.fixture(scope='module')
def describer():
    return fitted(CONFIG)


@pytest.mark.parametrize('tree', [False, True])
def test_a_descriptor_is_the_root_of_counts_over_the_mean_count_of_each_word(tree):
    """By the plain definition: patch, nearest word, cell, in eighths."""
    # all patches are learnt from, so that frequencies are those of the images
    samples = 35 * 25 * len(IMAGES)
    config = replace(CONFIG, vocabulary_samples=samples, vocabulary_tree=tree, patch_components=0)
    describer, grid = fitted(config), PatchGrid(SHAPE, 24, 4)
    sift, cells = DenseSift(grid, config.blur), cell_of(grid.centres, SHAPE)
    patches = [sift.describe(describer.preparation.grey(image)) for image in IMAGES]
    weighting = rounded(sign_weighting(0.3), 2**-11)
    found = [describer.vocabulary.nearest(rounded(p @ weighting, 2**-11)) for p in patches]
    counts = np.stack([np.bincount(words, minlength=200) for words in found])
    weights = (counts.sum() / 200 + 1) / (counts.sum(axis=0) + 1.0)
    for image, words in zip(IMAGES, found, strict=True):
        in_cells = np.zeros((4, 200))
        np.add.at(in_cells, (cells, words), 1.0)
        descriptor = describer.describe(image)
        assert descriptor.shape == (describer.size,) == (4 * 200,)
        assert descriptor.dtype == describer.dtype == np.uint8
        roots = np.sqrt(in_cells * weights).ravel()
        np.testing.assert_allclose(descriptor / 8.0, roots, atol=1 / 16 + 1e-5)


def test_the_pyramid_of_the_papers_is_their_formula():
    """Plain SIFT, the nearest of 200 words, 21 cells that weigh 1/4, 1/4, 1/2 by level."""
    plain = {'patch_size': 16, 'spacing': 8, 'vocabulary_tree': False, 'patch_components': 0}
    describer = fitted(replace(CONFIG, pyramid='papers', **plain))
    grid, histograms = PatchGrid(SHAPE, 16, 8), np.zeros((8, 21, 200))
    for image, histogram in zip(IMAGES, histograms, strict=True):
        patches = DenseSift(grid, CONFIG.blur).describe(describer.preparation.grey(image))
        for patch, (x, y) in zip(patches, grid.centres, strict=True):
            word = np.linalg.norm(describer.vocabulary.words - patch, axis=1).argmin()
            for first, side, weight in (0, 1, 1 / 4), (1, 2, 1 / 4), (5, 4, 1 / 2):
                cell = int(y / SHAPE[0] * side) * side + int(x / SHAPE[1] * side)
                histogram[first + cell, word] += weight / len(patches)
    descriptors = np.stack([describer.describe(image) for image in IMAGES])
    assert descriptors.shape == (8, describer.size) == (8, 4200)
    flat = histograms.reshape(8, 4200)
    np.testing.assert_allclose(descriptors / (4.0 * len(grid.centres)), flat, atol=1e-12)
    kernel = [[np.minimum(one, other).sum() for other in np.tile(flat, (9, 1))] for one in flat]
    many = np.tile(descriptors, (9, 1))
    np.testing.assert_allclose(describer.cross_gram(descriptors, many), kernel, atol=1e-12)
    similarities = describer.comparer(many)(descriptors[3])
    np.testing.assert_allclose(similarities, kernel[3], atol=1e-12)


def test_bad_images_are_refused(describer):
    grey = np.zeros(SHAPE, np.uint8)
    for image in (grey.astype(np.float32), (grey, grey), np.zeros((*SHAPE, 4), np.uint8)):
        with pytest.raises(VisionError, match=r'expected uint8 .* of one camera.* got'):
            describer.describe(image)


def test_images_that_are_broken_or_of_another_size_are_not_learnt_from():
    def broken():
        raise DatasetError('encoding mono16 is not supported')

    with pytest.raises(VisionError, match='at least one'):
        fitted(CONFIG, [])
    with pytest.raises(VisionError, match='mono16 is not supported'):
        fitted(CONFIG, [broken, broken])
    describer = fitted(CONFIG, [*[broken] * 9, textured_image(1, (60, 80)), *IMAGES])
    assert describer.preparation.image_shape == SHAPE


def test_incomplete_and_damaged_states_are_refused(describer):
    state = dict(describer.state())
    for change, says in (
        ({'vocabulary': np.zeros((3, 5))}, 'expected'),
        ({'branches': state['branches'][:-1]}, 'build the map again'),
        ({'branch_sizes': [0, 200]}, 'build the map again'),
        ({'word_weights': np.zeros(200)}, 'word_weights: expected positive'),
        ({'levels': 2}, 'levels=2: expected 1; build the map again'),
        ({'words': 0}, 'words'),
    ):
        with pytest.raises(KbrError, match=says):
            describer_from_state(state | change)
    del state['vocabulary']
    with pytest.raises(VisionError, match="'vocabulary' is missing; build the map again"):
        describer_from_state(state)


@pytest.fixture
def kind_config(kind, tmp_path):
    """Return a small configuration of a descriptor, with its network if it has one."""
    config = replace(CONFIG, vocabulary_samples=2000, words=20, spacing=8)
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
def test_every_kind_of_descriptor_keeps_the_contract(kind_config):
    """One vector of the stated type, a kernel of range and rank, and a state that is enough."""
    describer = fitted(kind_config)
    descriptors = np.stack([describer.describe(image) for image in IMAGES])
    assert describer.kind == kind_config.descriptor
    assert descriptors.shape == (len(IMAGES), describer.size)
    assert descriptors.dtype == describer.dtype
    gram = describer.cross_gram(descriptors, descriptors)
    np.testing.assert_allclose(np.diag(gram), 1.0, atol=1e-6)
    np.testing.assert_allclose(gram, gram.T, atol=1e-6)
    assert np.linalg.eigvalsh(gram).min() > -1e-6 and gram.min() >= 0.0
    if descriptors.dtype == np.float32:
        np.testing.assert_allclose(gram, (1.0 + descriptors @ descriptors.T) / 2.0, atol=1e-6)
    nudged = describer.describe(np.roll(IMAGES[2], 1, axis=1))
    kernel = describer.cross_gram(nudged[np.newaxis], descriptors)[0]
    assert kernel.argmax() == 2
    prepared = describer.comparer(descriptors)
    np.testing.assert_allclose(prepared(nudged), kernel, atol=1e-12)
    np.testing.assert_allclose(prepared(descriptors), gram, atol=1e-6)
    # as a file gives it back
    kept = {
        name: value if isinstance(value, str) else np.asarray(value)[()]
        for name, value in describer.state().items()
    }
    again = describer_from_state(kept)
    assert (again.kind, again.size) == (kind_config.descriptor, describer.size)
    np.testing.assert_array_equal(again.describe(IMAGES[1]), descriptors[1])


@pytest.mark.parametrize('kind', ['hog', 'onnx'])
def test_threads_may_share_a_describer(kind_config):
    """As those of a worker of a Dask cluster do: what is equalised, and what a network answers."""
    describer = fitted(kind_config)
    alone = [describer.describe(image) for image in IMAGES]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(describer.describe, IMAGES * 15))
    np.testing.assert_array_equal(together, alone * 15)


def hashes():
    """Hashes of the words and of the descriptors of some images, for three configurations."""
    noise = np.random.default_rng(0).integers(0, 256, size=(4, 120, 160), dtype=np.uint8)
    images = [cv2.equalizeHist(cv2.GaussianBlur(one, (0, 0), 2.5)) for one in noise]
    config, found = replace(CONFIG, words=60, vocabulary_samples=3000), []
    for other in {}, {'vocabulary_tree': False, 'patch_components': 0}, {'descriptor': 'daisy'}:
        describer = fitted(replace(config, **other), images)
        arrays = [describer.vocabulary.words, *map(describer.describe, images)]
        found += [hashlib.sha256(one.tobytes()).hexdigest() for one in arrays]
    return found


def test_words_and_histograms_are_equal_on_another_kind_of_processor():
    """One without AVX, as far as libraries can be told."""
    told = {
        'OPENBLAS_CORETYPE': 'Nehalem',
        'OPENCV_CPU_DISABLE': 'AVX2,FMA3,AVX,FP16',
        'OPENCV_IPP': 'disabled',
        'NPY_DISABLE_CPU_FEATURES': 'X86_V3 AVX2 FMA3',
        'PYTHONPATH': os.pathsep.join(sys.path),
    }
    code = 'import test_vision_describer as test; print(*test.hashes())'
    command = [sys.executable, '-W', 'ignore', '-c', code]
    there = subprocess.run(command, env=os.environ | told, check=True, stdout=subprocess.PIPE)
    assert there.stdout.decode().split() == hashes()
