"""Words of the local features of a network: what they count, and what is refused."""

from dataclasses import replace
import subprocess
import sys

from kbr_localization.errors import MapError, VisionError
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.vision import describer_from_state, fit_describer, VisionConfig
from kbr_localization.vision.network_trial import ONNXRUNTIME, try_network
from map_helpers import TinyRun
import numpy as np
from onnx_file import convolution_network, feature_network
import pytest

SIDE = 8
"""Pixels of a feature of the tiny networks."""
KERNELS = np.random.default_rng(0).normal(size=(6, 1, SIDE, SIDE)).astype(np.float32)
IMAGES = list(np.random.default_rng(1).integers(0, 256, (4, 96, 128), dtype=np.uint8))
CONFIG = VisionConfig(
    descriptor='learned_pyramid', network_width=128, words=20, vocabulary_samples=1000
)

needs_runtime = pytest.mark.usefixtures('runtime')


@pytest.fixture(scope='session')
def runtime():
    return pytest.importorskip('onnxruntime', reason='the extra learned is not installed')


def fitted(tmp_path, network, images=IMAGES, **changes):
    path = tmp_path / 'net.onnx'
    path.write_bytes(network)
    config = replace(CONFIG, network_file=str(path), **changes)
    return fit_describer(config, images, np.random.default_rng(0))


def plain_features(image, kernels=KERNELS):
    """Features (rows, columns, C) of a grey image, patch by patch."""
    rows, columns = (side // SIDE for side in image.shape)
    blocks = (image / 255.0).reshape(rows, SIDE, columns, SIDE)
    return np.einsum('rycx,oyx->rco', blocks, kernels[:, 0])


@needs_runtime
def test_features_are_counted_by_their_reliability(tmp_path):
    """The descriptor is that of the plain definition: nearest word, cell, sum, square root."""
    describer = fitted(tmp_path, feature_network(KERNELS), vocabulary_tree=False)
    words, image = describer.vocabulary.words, IMAGES[2]
    # the vocabulary was learnt from all features, so that frequencies are those of the images
    counts = np.ones(len(words))
    for feature in np.concatenate([plain_features(one).reshape(-1, 6) for one in IMAGES]):
        unit = feature / np.linalg.norm(feature)
        counts[np.linalg.norm(words - unit, axis=1).argmin()] += 1.0
    relative = counts.mean() / counts
    features = plain_features(image)
    weights = np.maximum(features[:, :, 0], 0.0)
    features /= np.linalg.norm(features, axis=2, keepdims=True)
    sums = np.zeros((2, 2, len(words)))
    for row, column in np.ndindex(features.shape[:2]):
        nearest = np.linalg.norm(words - features[row, column], axis=1).argmin()
        cell = row * 2 // features.shape[0], column * 2 // features.shape[1]
        sums[(*cell, nearest)] += weights[row, column] / weights.mean()
    found = describer.describe(image).astype(float)
    assert found.sum() > 0
    np.testing.assert_allclose(found, 8 * np.sqrt(sums * relative).ravel(), atol=0.6)


@needs_runtime
@pytest.mark.parametrize('root', [True, False])
def test_without_reliability_all_features_count_alike(tmp_path, root):
    network = feature_network(KERNELS, reliable=False)
    describer = fitted(tmp_path, network, root_counts=root, relative_counts=False)
    found = describer.describe(IMAGES[0]).astype(float)
    counts = (found / 8) ** 2 if root else found / 8
    assert counts.sum() == pytest.approx(12 * 16, rel=0.03)
    assert describer.dtype == (np.uint8 if root else np.uint16)
    assert describer.describe(IMAGES[0]).dtype == describer.dtype


@needs_runtime
@pytest.mark.parametrize('levels', [0, 1, 2])
def test_the_kernel_is_one_of_images(tmp_path, levels):
    network, strips = feature_network(KERNELS), 2 ** min(levels, 1)
    describer = fitted(tmp_path, network, levels=levels, strips=strips)
    described = np.stack([describer.describe(image) for image in IMAGES])
    gram = describer.cross_gram(described, described)
    np.testing.assert_allclose(np.diag(gram), 1.0, atol=1e-6)
    assert np.linalg.eigvalsh(gram).min() > -1e-6
    nudged = describer.describe(np.roll(IMAGES[1], SIDE, axis=1))
    assert describer.cross_gram(nudged[np.newaxis], described)[0].argmax() == 1


@needs_runtime
def test_the_map_keeps_the_network_and_its_hash(tmp_path):
    describer = fitted(tmp_path, feature_network(KERNELS))
    state = dict(describer.state())
    (tmp_path / 'net.onnx').unlink()
    again = describer_from_state(state)
    np.testing.assert_array_equal(again.describe(IMAGES[0]), describer.describe(IMAGES[0]))
    other = np.frombuffer(feature_network(2 * KERNELS), dtype=np.uint8)
    with pytest.raises(VisionError, match=r'network of the map: expected one of SHA-256'):
        describer_from_state(state | {'network': other})
    with pytest.raises(VisionError, match="'network' is missing"):
        describer_from_state({name: one for name, one in state.items() if name != 'network'})


@needs_runtime
def test_a_network_of_one_size_gets_that_size(tmp_path):
    describer = fitted(tmp_path, feature_network(KERNELS, shape=(64, 160)))
    assert describer._local.grid.shape == (8, 20)
    wide = fitted(tmp_path, feature_network(KERNELS), network_width=64)
    assert wide._local.grid.shape == (64 // SIDE, 64 // SIDE)  # 48 rows, rounded up


@needs_runtime
@pytest.mark.parametrize('kind, channels', [('rgb', 3), ('imagenet', 3), ('grey', 1)])
def test_a_network_gets_the_colours_that_it_wants(tmp_path, kind, channels):
    kernels = np.random.default_rng(2).normal(size=(4, channels, SIDE, SIDE)).astype(np.float32)
    network = feature_network(kernels)
    image = np.random.default_rng(3).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    describer = fitted(tmp_path, network, [image], network_input=kind, words=4)
    assert describer.describe(image).any()


@needs_runtime
@pytest.mark.parametrize(
    'network, changes, says',
    [
        (b'no network', {}, 'net.onnx cannot be used: not an ONNX network'),
        (feature_network(KERNELS)[:-300], {}, 'net.onnx cannot be used: '),
        (
            convolution_network(KERNELS[:, :, :5, :5].repeat(3, axis=1), 96),
            {},
            r'it answers \(1, .*expected features of shape \(1, C, rows, columns\)',
        ),
        (
            feature_network(KERNELS.repeat(3, axis=1)),
            {'network_input': 'grey'},
            'its input has 3 channels: expected 1',
        ),
        (feature_network(KERNELS.repeat(2, axis=1)), {}, 'its input has 2 channels: expected'),
        (feature_network(np.full_like(KERNELS, np.nan)), {}, 'numbers that are not finite'),
        (feature_network(0 * KERNELS), {}, 'have 1 distinct patches only'),
    ],
)
def test_networks_that_are_no_use_are_refused(tmp_path, network, changes, says):
    with pytest.raises(VisionError, match=says):
        fitted(tmp_path, network, **changes)


@needs_runtime
def test_a_network_that_answers_too_much_is_refused():
    with pytest.raises(VisionError, match='returns 1344 numbers, expected at most 1000'):
        try_network(feature_network(3 * KERNELS), (1, 1, 96, 128), ONNXRUNTIME, 1000)


def test_a_network_is_wanted(tmp_path):
    expected = r'learned_pyramid: expected vision\.network_file, an ONNX file'
    with pytest.raises(VisionError, match=expected):
        fit_describer(CONFIG, IMAGES, np.random.default_rng(0))


def test_without_the_runtime_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'onnxruntime', None)
    with pytest.raises(
        VisionError, match=r"onnxruntime.*pip install 'kbr-localization\[learned\]"
    ):
        fitted(tmp_path, feature_network(KERNELS))


@needs_runtime
def test_a_map_of_learnt_words_says_what_is_missing(tmp_path, monkeypatch):
    """Loading it without the extra names the extra, not a damaged map."""
    (tmp_path / 'net.onnx').write_bytes(feature_network(KERNELS))
    config = replace(CONFIG, network_file=str(tmp_path / 'net.onnx'))
    path = tmp_path / 'map.h5'
    build_map([TinyRun(12)], config).save(path)
    assert KernelMap.load(path).describer.kind == 'learned_pyramid'
    monkeypatch.setitem(sys.modules, 'onnxruntime', None)
    with pytest.raises(MapError, match=r'map.h5: .* needs the Python module onnxruntime') as told:
        KernelMap.load(path)
    assert 'damaged' not in str(told.value)


def test_onnxruntime_is_imported_for_learnt_words_only():
    code = (
        'import sys, kbr_localization.vision, kbr_localization.vision.learned_features; '
        'assert "onnxruntime" not in sys.modules'
    )
    subprocess.run([sys.executable, '-c', code], check=True)
