"""Quantisation against brute force; k-means: repeatable, and right on separable data."""

from kbr_localization.errors import VisionError
from kbr_localization.vision import vocabulary as module
from kbr_localization.vision.vocabulary import learn_vocabulary, nearest_words
import numpy as np
import pytest


def clusters(rng, centres, per_cluster=60, spread=1.0):
    noise = rng.normal(0.0, spread, size=(len(centres), per_cluster, centres.shape[1]))
    return (centres[:, np.newaxis] + noise).reshape(-1, centres.shape[1]).astype(np.float32)


def test_nearest_words_agree_with_the_distances():
    rng = np.random.default_rng(0)
    descriptors = rng.uniform(0, 255, size=(500, 128)).astype(np.float32)
    vocabulary = rng.uniform(0, 255, size=(40, 128)).astype(np.float32)
    distance = np.linalg.norm(descriptors[:, np.newaxis] - vocabulary, axis=2)
    np.testing.assert_array_equal(nearest_words(descriptors, vocabulary), distance.argmin(axis=1))


def test_k_means_finds_separate_clusters():
    rng = np.random.default_rng(1)
    truth = rng.uniform(0, 200, size=(8, 16))
    found = learn_vocabulary(clusters(rng, truth), 8, rng)
    nearest = np.linalg.norm(found[:, np.newaxis] - truth, axis=2).min(axis=0)
    assert nearest.max() < 1.0


def test_words_are_the_means_of_their_patches():
    data = np.random.default_rng(2).uniform(size=(4000, 2)).astype(np.float32)
    words = learn_vocabulary(data, 12, np.random.default_rng(0))
    nearest = nearest_words(data, words)
    means = np.array([data[nearest == word].mean(axis=0) for word in range(12)])
    # after a single round they are off by 0.04
    np.testing.assert_allclose(words, means, atol=0.015)


def test_the_same_seed_gives_the_same_vocabulary_and_another_seed_another():
    data = np.random.default_rng(2).uniform(0, 255, size=(3000, 32)).astype(np.float32)
    first, again, other = (
        learn_vocabulary(data, 20, np.random.default_rng(seed)) for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_fewer_distinct_patches_than_words_is_refused():
    data = np.tile(np.eye(4, dtype=np.float32), (50, 1))
    with pytest.raises(VisionError, match='4 distinct patches'):
        learn_vocabulary(data, 10, np.random.default_rng(0))


def test_patches_that_are_nearly_all_equal_leave_enough_others_for_the_words():
    """As of blank walls: in the sample that seeds are taken from are fewer of them than words."""
    data = np.zeros((4000, 8), dtype=np.float32)
    data[::40] = np.random.default_rng(7).normal(size=(100, 8))
    words = learn_vocabulary(data, 50, np.random.default_rng(0))
    assert len(np.unique(words, axis=0)) == 50
    with pytest.raises(VisionError, match='101 distinct patches'):
        learn_vocabulary(data, 102, np.random.default_rng(0))


def test_sums_of_clusters_are_those_of_their_members_and_a_word_without_any_stays():
    rng = np.random.default_rng(5)
    descriptors = rng.normal(0.0, 50.0, (3000, 7)).astype(np.float32)
    centres = descriptors[rng.choice(3000, 40, replace=False)]
    centres[7] = 1e4  # a word without patches
    assigned, sums, sizes = module._cluster_sums(descriptors, centres)
    for word in range(40):
        members = descriptors[assigned == word]
        assert sizes[word] == len(members)
        np.testing.assert_allclose(sums[word], members.sum(axis=0), rtol=1e-4, atol=1e-2)
    means = module._means(sums, centres, sizes)
    np.testing.assert_array_equal(means[7], centres[7])
    np.testing.assert_allclose(means[8], descriptors[assigned == 8].mean(axis=0), atol=1e-3)
