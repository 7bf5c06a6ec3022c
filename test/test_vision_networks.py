"""Networks in ONNX files: words of their local features, vectors of whole images, refusals."""

from dataclasses import replace

from kbr_localization.errors import VisionError
from kbr_localization.vision import describer_from_state, fit_describer, VisionConfig
import numpy as np
import pytest

pytest.importorskip('onnxruntime', reason='the extra learned is not installed')
onnx_file = pytest.importorskip('onnx_file', reason='the package onnx is not installed')
convolution_network, feature_network = onnx_file.convolution_network, onnx_file.feature_network

KERNELS = np.random.default_rng(0).normal(size=(6, 1, 8, 8)).astype(np.float32)
IMAGES = list(np.random.default_rng(1).integers(0, 256, (4, 96, 128), dtype=np.uint8))
LOCAL = VisionConfig(
    descriptor='learned_pyramid', network_width=128, words=20, vocabulary_samples=1000
)
WHOLE = VisionConfig(descriptor='onnx', network_size=32, network_input='grey')


def fitted(tmp_path, network, images=IMAGES, config=LOCAL, **changes):
    path = tmp_path / 'net.onnx'
    path.write_bytes(network)
    config = replace(config, network_file=str(path), **changes)
    return fit_describer(config, images, np.random.default_rng(0))


def plain_features(image):
    """Features (rows, columns, 6) of a grey image, patch by patch, and of unit length."""
    blocks = (image / 255.0).reshape(12, 8, 16, 8)
    features = np.einsum('rycx,oyx->rco', blocks, KERNELS[:, 0])
    return features, np.rint(2048 * features / np.linalg.norm(features, axis=2)[..., None]) / 2048


def test_features_are_counted_by_their_reliability(tmp_path):
    """The descriptor is that of the plain definition: nearest word, cell, sum, square root."""
    describer = fitted(tmp_path, feature_network(KERNELS), vocabulary_tree=False)
    words = describer.vocabulary.words

    def nearest(feature):
        return np.linalg.norm(words - feature, axis=1).argmin()

    # the vocabulary was learnt from all features, so that frequencies are those of the images
    counts = np.ones(len(words))
    for image in IMAGES:
        np.add.at(counts, [nearest(one) for one in plain_features(image)[1].reshape(-1, 6)], 1.0)
    features, unit = plain_features(IMAGES[2])
    weights = np.maximum(features[:, :, 0], 0.0)
    sums = np.zeros((2, 2, len(words)))
    for row, column in np.ndindex(12, 16):
        word = nearest(unit[row, column])
        sums[row * 2 // 12, column * 2 // 16, word] += weights[row, column] / weights.mean()
    found = describer.describe(IMAGES[2]).astype(float)
    assert found.sum() > 0
    roots = np.sqrt(sums * (counts.mean() / counts))
    np.testing.assert_allclose(found, 8 * roots.ravel(), atol=0.6)


@pytest.mark.parametrize(
    'shape, width, features',
    [(('height', 'width'), 128, 12 * 16), ((64, 160), 128, 8 * 20), (('h', 'w'), 64, 8 * 8)],
)
def test_a_network_gets_the_size_that_it_takes(tmp_path, shape, width, features):
    """Its own, or that of `network_width`, both sides rounded up to multiples of 32."""
    network = feature_network(KERNELS, reliable=False, shape=shape)
    describer = fitted(tmp_path, network, network_width=width, words=2)
    counts = (describer.describe(IMAGES[0]).reshape(4, 2) / 8.0) ** 2
    # without reliability all features count alike
    weights = describer.learnt['word_weights']
    np.testing.assert_allclose((counts / weights).sum(axis=1), features / 4, rtol=0.05)


@pytest.mark.parametrize('kind, channels', [('rgb', 3), ('imagenet', 3), ('grey', 1)])
def test_a_network_gets_the_colours_that_it_wants(tmp_path, kind, channels):
    image = np.random.default_rng(3).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    network = convolution_network(np.eye(channels, dtype=np.float32)[:, :, None, None], 8)
    describer = fitted(
        tmp_path, network, [image], WHOLE, network_input=kind, network_size=8, scale_up=False
    )
    planes = image[:, :, ::-1].transpose(2, 0, 1) / 255.0
    if kind == 'grey':
        planes = np.tensordot([0.299, 0.587, 0.114], planes, 1)[np.newaxis]
    elif kind == 'imagenet':
        mean, deviation = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])
        planes = (planes - mean[:, None, None]) / deviation[:, None, None]
    pooled = np.maximum(planes, 0).reshape(channels, 2, 4, 2, 4).mean(axis=(2, 4)).ravel()
    expected = pooled / np.linalg.norm(pooled)
    np.testing.assert_allclose(describer.describe(image), expected, atol=2e-3)


def test_the_map_keeps_the_network(tmp_path):
    describer = fitted(tmp_path, feature_network(KERNELS))
    # maps of earlier versions have a checksum of their own for it
    state = {**describer.state(), 'network_sha256': 'abc'}
    (tmp_path / 'net.onnx').unlink()
    again = describer_from_state(state)
    np.testing.assert_array_equal(again.describe(IMAGES[0]), describer.describe(IMAGES[0]))
    del state['network']
    with pytest.raises(VisionError, match="'network' is missing"):
        describer_from_state(state)


SMALL = KERNELS[:, :, :5, :5].repeat(3, axis=1)


@pytest.mark.parametrize(
    'network, config, says',
    [
        (b'no network', LOCAL, 'net.onnx cannot be used: onnxruntime cannot read it'),
        (convolution_network(SMALL, 96), LOCAL, r'outputs are \(1, .*expected features of shape'),
        (convolution_network(np.full_like(KERNELS, np.nan), 32), WHOLE, 'are not finite'),
        (convolution_network(0 * KERNELS, 32), WHOLE, 'returns zeros only'),
    ],
)
def test_networks_that_are_no_use_are_refused(tmp_path, network, config, says):
    with pytest.raises(VisionError, match=says):
        fitted(tmp_path, network, config=config)


@pytest.mark.parametrize(
    ('file', 'says'),
    [('', r'expected vision\.network_file, an ONNX file'), ('no.onnx', 'No such file')],
)
def test_a_file_is_wanted(file, says):
    with pytest.raises(VisionError, match=says):
        fit_describer(replace(LOCAL, network_file=file), IMAGES, np.random.default_rng(0))
