"""Words against brute force, k-means, and the pyramid kernel against its plain definition."""

from kbr_localization.errors import VisionError
from kbr_localization.vision import spatial_pyramid as spm
from kbr_localization.vision.vocabulary import (
    learn_tree,
    learn_vocabulary,
    nearest_words,
    Vocabulary,
)
import numpy as np
import pytest


def descriptors(seed, count=4000, size=12):
    rng = np.random.default_rng(seed)
    centres = rng.normal(0.0, 10.0, (60, size))
    chosen = centres[rng.integers(60, size=count)]
    return (chosen + rng.normal(0.0, 2.0, chosen.shape)).astype(np.float32)


def learnt(kind, data, words, seed=0):
    rng = np.random.default_rng(seed)
    if kind == 'tree':
        return learn_tree(data, words, rng)
    return Vocabulary(learn_vocabulary(data, words, rng))


@pytest.fixture(scope='module')
def tree():
    return learnt('tree', descriptors(0), 150)


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
def test_the_seed_decides_and_fewer_distinct_patches_than_words_are_refused(kind):
    first, again, other = (learnt(kind, descriptors(2), 90, seed).words for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    with pytest.raises(VisionError, match='4 distinct patches'):
        learnt(kind, np.tile(np.eye(4, dtype=np.float32), (50, 1)), 10)


@pytest.mark.parametrize('kind', ['flat', 'tree'])
def test_patches_that_are_often_the_same_leave_their_words_to_others(kind):
    """A blank wall makes most patches equal: its branch cannot use many words."""
    data = np.concatenate([np.zeros((9000, 12), np.float32), descriptors(4, 300)])
    vocabulary = learnt(kind, data, 100, 2)
    assert vocabulary.words.shape == np.unique(vocabulary.words, axis=0).shape == (100, 12)
    assert np.abs(vocabulary.words[vocabulary.nearest(data[:3000])]).max() < 0.05


def test_a_word_is_the_nearest_of_the_nearest_branch(tree):
    queries = descriptors(1, 700)
    starts = np.concatenate([[0], np.cumsum(tree.sizes)])
    expected = []
    for query in queries:
        branch = np.linalg.norm(tree.branches - query, axis=1).argmin()
        own = slice(starts[branch], starts[branch + 1])
        expected.append(starts[branch] + np.linalg.norm(tree.words[own] - query, axis=1).argmin())
    np.testing.assert_array_equal(tree.nearest(queries), expected)


def random_counts(rng, n, words, levels, patches):
    shares = rng.dirichlet(np.full(4**levels * words, 0.3), size=n)
    return np.stack([rng.multinomial(patches, share) for share in shares]).astype(np.uint16)


@pytest.mark.parametrize(('levels', 'strips'), [(1, 2), (2, 1), (2, 4), (3, 4), (3, 8)])
def test_kernel_is_the_weighted_intersection_of_the_cells_of_all_levels(levels, strips):
    """Against the plain definition: each cell of each level by itself. (2, 1) is the papers'."""
    rng, layout, side = np.random.default_rng(8), spm.Layout(7, levels, strips), 2**levels
    left, right = (random_counts(rng, n, 7, levels, 900) for n in (3, 40))
    plain = np.zeros((3, 40))
    for level in range(levels + 1):
        rows, columns = max(2**level, strips), 2**level
        cells = [
            counts.reshape(-1, rows, side // rows, columns, side // columns, 7).sum(axis=(2, 4))
            for counts in (left.astype(int), right.astype(int))
        ]
        shared = np.minimum(cells[0][:, np.newaxis], cells[1]).sum(axis=(2, 3, 4))
        weight = 0.5**levels if level == 0 else 0.5 ** (levels - level + 1)
        plain += weight * shared / 900
    np.testing.assert_allclose(spm.cross_gram(left, right, layout), plain, atol=1e-6)
    prepared = spm.PreparedImages(right, layout)
    np.testing.assert_allclose(prepared.compared_with(left).T, plain, atol=1e-6)


def test_coarse_levels_of_roots_are_roots_of_sums():
    """Against the kernel of the square roots of plain sums of counts, in eighths."""
    rng, layout = np.random.default_rng(9), spm.Layout(7, 1, strips=2, rooted=True)
    counts = rng.integers(0, 400, size=(30, 4 * 7))
    kept = np.rint(8 * np.sqrt(counts)).astype(np.uint8)
    fine = np.sqrt(counts)
    strips = np.sqrt(counts.reshape(30, 2, 2, 7).sum(axis=2).reshape(30, -1))
    total = 0.5 * (fine.sum(axis=1) + strips.sum(axis=1))
    shared = [np.minimum(level[:, np.newaxis], level).sum(axis=2) for level in (fine, strips)]
    plain = 0.5 * (shared[0] + shared[1]) / np.sqrt(np.outer(total, total))
    gram = spm.cross_gram(kept, kept, layout)
    np.testing.assert_allclose(gram, plain, atol=2e-3)
    np.testing.assert_allclose(np.diag(gram), 1.0, atol=1e-12)


@pytest.mark.parametrize('largest', [255, 65535, 100_000])
def test_large_counts_do_not_overflow(largest):
    """Sums beyond 16 bits, as of a huge image that is one blank wall."""
    counts = np.full((3, 16 * 20), largest, dtype=np.min_scalar_type(largest))
    counts[1, ::2] = 0
    counts[2] = largest // 2
    part = (largest // 2) / largest
    expected = np.sqrt([[1.0, 0.5, part], [0.5, 1.0, 0.5 * part], [part, 0.5 * part, 1.0]])
    layout = spm.Layout(20, 2)
    np.testing.assert_allclose(spm.cross_gram(counts, counts, layout), expected, rtol=1e-4)


def test_images_without_counts_and_empty_sets():
    layout, counts = spm.Layout(20, 2), np.zeros((3, 16 * 20), dtype=np.uint8)
    counts[0, 5] = 3
    np.testing.assert_array_equal(spm.cross_gram(counts, counts, layout), np.diag([1.0, 0.0, 0.0]))
    assert spm.cross_gram(counts[:0], counts, layout).shape == (0, 3)
    assert spm.cross_gram(counts, counts[:0], layout).shape == (3, 0)


def test_patches_are_counted_in_the_cell_they_lie_in():
    centres = np.array([[8, 8], [631, 8], [8, 471], [631, 471], [320, 240]])
    cells = spm.cell_of(centres, (480, 640), 2)
    np.testing.assert_array_equal(cells, [0, 3, 12, 15, 10])
