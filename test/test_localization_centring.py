"""The image kernel centred by the mean of the map, against features that are centred by hand."""

from kbr_localization.localization.map.similarity import Centring, Similarity
from map_helpers import GramDescriber
import numpy as np
import pytest


def unit_features(seed, images, size=6, common=1.0):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((images, size)) + common
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def centring_of(features, first=None):
    """Centring by the first images; the others are new ones."""
    describer = GramDescriber(features @ features.T)
    return Centring(describer, np.arange(first or len(features))[:, np.newaxis])


def cosines(features, mean):
    away = features - mean
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    return away @ away.T


@pytest.mark.parametrize('images', [3, 7, 60])
def test_it_is_the_cosine_of_features_without_their_mean(images):
    features = unit_features(images, images + 1)
    centring = centring_of(features, images)
    plain = cosines(features, features[:images].mean(axis=0))
    at = np.arange(images)
    np.testing.assert_allclose(centring.gram(at, at), plain[:images, :images], atol=1e-9)
    seen = centring.centre(Similarity.from_vector(features[:images] @ features[images]))
    np.testing.assert_allclose(seen.values_at(at), plain[images, :images], atol=1e-9)
    assert seen.best == pytest.approx(plain[images, :images].max())


def test_an_image_that_the_mean_all_but_equals_has_no_cosine_of_one_with_itself():
    features = np.eye(2)[[0] * 20 + [1]]
    found = np.diag(centring_of(features).gram(np.array([0, 20]), np.array([0, 20])))
    left = np.sum((features[0] - features.mean(axis=0)) ** 2)
    np.testing.assert_allclose(found, [left / 0.01, 1.0])
    assert left < 0.01 and centring_of(features[:1]).gram(*np.zeros((2, 1), dtype=int)) == 0.0


def test_images_that_are_added_leave_the_kernel_as_it_is():
    features = unit_features(5, 50)
    before = centring_of(features, 40)
    after = before.extended(np.arange(50)[:, np.newaxis])
    plain = cosines(features, features[:40].mean(axis=0))
    every = np.arange(50)
    np.testing.assert_allclose(after.gram(every, every), plain, atol=1e-9)
    np.testing.assert_allclose(before.gram(every[:40], every[:40]), plain[:40, :40], atol=1e-9)
