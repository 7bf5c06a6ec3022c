"""Local descriptors, words and the pyramid kernel against their plain definitions."""

import cv2
from helpers import textured_image
from kbr_localization.errors import VisionError
from kbr_localization.vision import spatial_pyramid as spm
from kbr_localization.vision.local_descriptors import (
    DenseDaisy,
    DenseSift,
    PatchGrid,
    sign_weighting,
)
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


def plain_kernel(a, b):
    """Kernel of the roots (28,) of seven words in the cells of two images, cell by cell."""
    total = np.zeros(3)
    for level in (lambda cells: cells, lambda cells: np.sqrt(np.sum(cells**2, axis=1))):
        one, two = (np.rint(level(roots.astype(float).reshape(2, 2, 7))) for roots in (a, b))
        total += [np.minimum(one, two).sum(), one.sum(), two.sum()]
    return total[0] / np.sqrt(total[1] * total[2])


@pytest.mark.parametrize('largest', [40, 255])
def test_kernel_is_the_intersection_of_the_roots_of_halves_and_cells(largest):
    """A half of two cells of 255 has 361, beyond a byte."""
    rng = np.random.default_rng(8)
    left, right = (rng.integers(0, largest + 1, (n, 28), np.uint8) for n in (3, 90))
    right[::2] = np.where(rng.random((45, 28)) < 0.5, largest, 0)
    plain = [[plain_kernel(one, other) for other in right] for one in left]
    np.testing.assert_allclose(spm.cross_gram(left, right), plain, atol=1e-12)
    prepared = spm.PyramidComparer(right)
    np.testing.assert_allclose(prepared(left).T, plain, atol=1e-12)
    np.testing.assert_allclose(prepared(left[1]), plain[1], atol=1e-12)


LOCAL = [DenseSift, DenseDaisy]
DIRECTIONS = [(0, 1), (1, 1), (1, 0), (1, -1)]


def plain_descriptor(grey, centre, patch_size, blur):
    """Sum the gradients of one patch cell by cell and direction by direction."""
    smooth = cv2.GaussianBlur(grey, (0, 0), blur) if blur else grey
    smooth = smooth.astype(float)
    half, cell = patch_size // 2, patch_size // 4
    descriptor = np.zeros((4, 4, 8))
    for v in range(patch_size):
        for u in range(patch_size):
            x, y = centre[0] - half + u, centre[1] - half + v
            for index, (down, right) in enumerate(DIRECTIONS):
                difference = smooth[y + down, x + right] - smooth[y - down, x - right]
                difference *= np.sqrt(0.5) if down and right else 1.0
                bins = descriptor[v // cell, u // cell]
                bins[index] += max(difference, 0.0)
                bins[index + 4] += max(-difference, 0.0)
    return np.sqrt(descriptor / descriptor.sum()).ravel()


@pytest.mark.parametrize(
    ('patch_size', 'spacing', 'blur'),
    [(16, 8, 0.8), (16, 4, 0.0), (24, 8, 1.5), (20, 7, 0.8), (8, 16, 0.8)],
)
def test_dense_sift_agrees_with_its_definition(patch_size, spacing, blur):
    grey = textured_image(0, (73, 90))
    grid = PatchGrid(grey.shape, patch_size, spacing)
    descriptors = DenseSift(grid, blur).describe(grey)
    assert descriptors.shape == (np.prod(grid.counts), 128)
    margin = patch_size // 2 + 4  # where the image's edge has no say
    inside = np.all(
        (grid.centres >= margin) & (grid.centres < np.array([90, 73]) - margin), axis=1
    )
    for index in np.flatnonzero(inside)[::5]:
        plain = plain_descriptor(grey, grid.centres[index], patch_size, blur)
        np.testing.assert_allclose(descriptors[index], plain, atol=2.5e-4)


@pytest.mark.parametrize('local', LOCAL)
@pytest.mark.parametrize('shape', [(64, 96), (67, 101), (16, 16)])
def test_patches_are_those_of_the_grid(local, shape):
    """Changing one corner of the image changes the descriptors of the patches there only."""
    grid = PatchGrid(shape, 16, 4)
    grey = textured_image(0, shape)
    before = local(grid).describe(grey)
    assert before.shape == (len(grid.centres), local.size)
    grey[: shape[0] // 4, : shape[1] // 4] = 255
    changed = np.abs(local(grid).describe(grey) - before).max(axis=1) > 1e-6
    far = np.any(grid.centres > np.array(shape[::-1]) // 4 + 24, axis=1)
    assert changed[0]
    assert not changed[far].any()


@pytest.mark.parametrize('local', LOCAL)
def test_patches_go_across_the_seam_of_a_panorama(local):
    """Turning the camera by whole patches shifts the descriptors and changes none."""
    grey = textured_image(0, (40, 120))
    grid = PatchGrid(grey.shape, 16, 8, wraps=True)
    assert grid.counts == (4, 15) and grid.centres[:, 0].max() < 120
    here = local(grid).describe(grey).reshape(4, 15, -1)
    turned = local(grid).describe(np.roll(grey, 24, axis=1)).reshape(4, 15, -1)
    np.testing.assert_allclose(turned, np.roll(here, 3, axis=1), atol=1e-5)


def test_the_sign_of_gradients_may_count_less():
    """An image and its negative have one descriptor where the sign is nothing."""
    grey = textured_image(0, (64, 64))
    sift = DenseSift(PatchGrid(grey.shape, 16, 8), 0.0)
    here, negative = sift.describe(grey), sift.describe(255 - grey)
    np.testing.assert_allclose(here @ sign_weighting(1.0), here, atol=1e-6)
    blind = sign_weighting(0.0)
    np.testing.assert_allclose(here @ blind, negative @ blind, atol=5e-4)
    between = np.linalg.norm((here - negative) @ sign_weighting(0.3), axis=1)
    np.testing.assert_allclose(between, 0.3 * np.linalg.norm(here - negative, axis=1), rtol=1e-3)
