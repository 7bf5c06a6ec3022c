"""Words against brute force, flat and through a tree; k-means: repeatable, and right."""

from kbr_localization.errors import VisionError
from kbr_localization.vision.vocabulary import learn_vocabulary, nearest_words, Vocabulary
import numpy as np
import pytest


def learn_tree(data, words, seed):
    return Vocabulary.learn_tree(data, words, np.random.default_rng(seed))


def descriptors(seed, count=4000, size=12):
    rng = np.random.default_rng(seed)
    centres = rng.normal(0.0, 10.0, (60, size))
    chosen = centres[rng.integers(60, size=count)]
    return (chosen + rng.normal(0.0, 2.0, chosen.shape)).astype(np.float32)


@pytest.fixture(scope='module')
def tree():
    return learn_tree(descriptors(0), 150, 0)


def test_nearest_words_agree_with_the_distances():
    rng = np.random.default_rng(0)
    data = rng.uniform(0, 255, size=(3000, 128)).astype(np.float32)
    vocabulary = rng.uniform(0, 255, size=(40, 128)).astype(np.float32)
    distance = [np.linalg.norm(vocabulary - one, axis=1) for one in data]
    np.testing.assert_array_equal(nearest_words(data, vocabulary), np.argmin(distance, axis=1))


def test_words_are_the_means_of_their_patches():
    data = np.random.default_rng(2).uniform(size=(4000, 2)).astype(np.float32)
    words = learn_vocabulary(data, 12, np.random.default_rng(0))
    nearest = nearest_words(data, words)
    means = np.array([data[nearest == word].mean(axis=0) for word in range(12)])
    # after a single round they are off by 0.04
    np.testing.assert_allclose(words, means, atol=0.015)


@pytest.mark.parametrize('kind', ['flat', 'tree'])
def test_the_same_seed_gives_the_same_words_and_another_seed_another(kind):
    data = descriptors(2)
    first, again, other = (
        learn_tree(data, 90, seed).words
        if kind == 'tree'
        else learn_vocabulary(data, 90, np.random.default_rng(seed))
        for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize('learn', [learn_vocabulary, Vocabulary.learn_tree])
def test_fewer_distinct_patches_than_words_is_refused(learn):
    data = np.tile(np.eye(4, dtype=np.float32), (50, 1))
    with pytest.raises(VisionError, match='4 distinct patches'):
        learn(data, 10, np.random.default_rng(0))


def test_patches_that_are_nearly_all_equal_leave_enough_others_for_the_words():
    """As of blank walls: in the sample that seeds are taken from are fewer of them than words."""
    data = np.zeros((4000, 8), dtype=np.float32)
    data[::40] = np.random.default_rng(7).normal(size=(100, 8))
    words = learn_vocabulary(data, 50, np.random.default_rng(0))
    assert len(np.unique(words, axis=0)) == 50


def test_a_word_is_the_nearest_of_the_nearest_branch(tree):
    queries = descriptors(1, 700)
    starts = np.concatenate([[0], np.cumsum(tree.sizes)])
    expected = []
    for query in queries:
        branch = np.linalg.norm(tree.branches - query, axis=1).argmin()
        own = slice(starts[branch], starts[branch + 1])
        expected.append(starts[branch] + np.linalg.norm(tree.words[own] - query, axis=1).argmin())
    np.testing.assert_array_equal(tree.nearest(queries), expected)


def test_patches_that_are_often_the_same_leave_their_words_to_others():
    """A blank wall makes most patches equal: its branch cannot use many words."""
    data = np.concatenate([np.zeros((3000, 12), np.float32), descriptors(4, 300)])
    tree = learn_tree(data, 100, 2)
    assert tree.words.shape == (100, 12)
    assert len(np.unique(tree.words, axis=0)) == 100
    assert np.abs(tree.words[tree.nearest(data[:3000])]).max() == 0.0


def test_a_state_is_enough_and_a_damaged_one_refused(tree):
    again = Vocabulary.from_state(tree.words, tree.state(), tree=True)
    queries = descriptors(5, 100)
    np.testing.assert_array_equal(again.nearest(queries), tree.nearest(queries))
    damaged = [
        {'branches': tree.branches[:-1]},
        {'branches': np.full_like(tree.branches, np.nan)},
        {'branch_sizes': tree.sizes - 1},
        {'branch_sizes': np.where(np.arange(len(tree.sizes)) == 0, 0, tree.sizes)},
    ]
    for change in damaged:
        with pytest.raises(VisionError, match='build the map again'):
            Vocabulary.from_state(tree.words, tree.state() | change, tree=True)
