"""Words found through a tree: by the plain formula, repeatable, as many as were asked for."""

from kbr_localization.errors import VisionError
from kbr_localization.vision.vocabulary import learn_vocabulary, nearest_words
from kbr_localization.vision.vocabulary_tree import VocabularyTree
import numpy as np
import pytest


def learn(data, words, seed):
    return VocabularyTree.learn(data, words, np.random.default_rng(seed))


def descriptors(seed, count=4000, size=12):
    rng = np.random.default_rng(seed)
    centres = rng.normal(0.0, 10.0, (60, size))
    chosen = centres[rng.integers(60, size=count)]
    return (chosen + rng.normal(0.0, 2.0, chosen.shape)).astype(np.float32)


@pytest.fixture(scope='module')
def tree():
    return learn(descriptors(0), 150, 0)


def test_a_word_is_the_nearest_of_the_nearest_branch(tree):
    queries = descriptors(1, 700)
    starts = np.concatenate([[0], np.cumsum(tree.sizes)])
    expected = []
    for query in queries:
        branch = np.linalg.norm(tree.branches - query, axis=1).argmin()
        own = slice(starts[branch], starts[branch + 1])
        expected.append(starts[branch] + np.linalg.norm(tree.words[own] - query, axis=1).argmin())
    np.testing.assert_array_equal(tree.nearest(queries), expected)


def test_a_tree_quantises_nearly_as_finely_as_a_flat_vocabulary(tree):
    data = descriptors(0)
    flat = learn_vocabulary(data, 150, np.random.default_rng(0))

    def error(words, found):
        return np.mean((words[found] - data) ** 2)

    exact = error(flat, nearest_words(data, flat))
    assert error(tree.words, tree.nearest(data)) < 1.25 * exact
    assert error(tree.branches, nearest_words(data, tree.branches)) > 2.0 * exact


def test_the_same_seed_gives_the_same_tree():
    data = descriptors(2)
    first, again, other = (learn(data, 90, seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.words, again.words)
    np.testing.assert_array_equal(first.sizes, again.sizes)
    assert not np.array_equal(first.words, other.words)


@pytest.mark.parametrize('words', [2, 3, 5, 37, 150])
def test_there_are_as_many_words_as_were_asked_for(words):
    tree = learn(descriptors(3, 900), words, 1)
    assert tree.words.shape == (words, 12)
    assert tree.sizes.sum() == words
    assert tree.sizes.min() >= 1
    assert np.isfinite(tree.words).all()


def test_patches_that_are_often_the_same_leave_their_words_to_others():
    """A blank wall makes most patches equal: its branch cannot use many words."""
    varied = descriptors(4, 300)
    data = np.concatenate([np.zeros((3000, 12), np.float32), varied])
    tree = learn(data, 100, 2)
    assert tree.words.shape == (100, 12)
    assert len(np.unique(tree.words, axis=0)) == 100
    blank = tree.words[tree.nearest(data[:3000])]
    assert np.abs(blank).max() == 0.0


def test_fewer_distinct_patches_than_words_is_refused():
    data = np.tile(np.eye(4, dtype=np.float32), (50, 1))
    with pytest.raises(VisionError, match='4 distinct patches'):
        learn(data, 10, 0)


def test_a_state_is_enough_and_a_damaged_one_refused(tree):
    again = VocabularyTree.from_state(tree.words, tree.state())
    queries = descriptors(5, 100)
    np.testing.assert_array_equal(again.nearest(queries), tree.nearest(queries))
    damaged = [
        {'branches': tree.branches[:-1]},
        {'branches': tree.branches[:, :-1]},
        {'branches': np.full_like(tree.branches, np.nan)},
        {'branch_sizes': tree.sizes - 1},
        {'branch_sizes': np.where(np.arange(len(tree.sizes)) == 0, 0, tree.sizes)},
    ]
    for change in damaged:
        with pytest.raises(VisionError, match='build the map again'):
            VocabularyTree.from_state(tree.words, tree.state() | change)
