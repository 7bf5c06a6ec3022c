"""The kernel against its plain definition, and its algebra."""

from kbr_localization.vision import spatial_pyramid as spm
import numpy as np
import pytest

WORDS, LEVELS = 200, 2
LAYOUT = spm.Layout(WORDS, LEVELS)


def random_counts(rng, n, words=WORDS, levels=LEVELS, patches=4661):
    cells = 4**levels
    shares = rng.dirichlet(np.full(cells * words, 0.3), size=n)
    return np.stack([rng.multinomial(patches, share) for share in shares]).astype(np.uint16)


def plain_vector(counts, words=WORDS):
    """Return the 4200 numbers of the paper, written out cell by cell."""
    finest = counts.reshape(4, 4, words).astype(float)
    total = finest.sum()
    vector = list(finest.sum(axis=(0, 1)) / total / 4)
    for rows in (slice(0, 2), slice(2, 4)):
        for columns in (slice(0, 2), slice(2, 4)):
            vector += list(finest[rows, columns].sum(axis=(0, 1)) / total / 4)
    for row in range(4):
        for column in range(4):
            vector += list(finest[row, column] / total / 2)
    return np.array(vector)


def test_kernel_is_the_intersection_of_the_4200_weighted_numbers():
    rng = np.random.default_rng(1)
    left, right = random_counts(rng, 3), random_counts(rng, 70)
    a = np.stack([plain_vector(counts) for counts in left])
    b = np.stack([plain_vector(counts) for counts in right])
    assert a.shape[1] == 4200
    plain = np.minimum(a[:, np.newaxis], b).sum(axis=2)
    np.testing.assert_allclose(spm.cross_gram(left, right, LAYOUT), plain, atol=1e-6)


@pytest.mark.parametrize(('levels', 'strips'), [(1, 2), (2, 1), (2, 2), (2, 4), (3, 4), (3, 8)])
def test_strips_are_kept_by_the_coarse_levels(levels, strips):
    """Against the plain definition: each cell of each level by itself."""
    rng, layout = np.random.default_rng(8), spm.Layout(7, levels, strips)
    left, right = (random_counts(rng, n, 7, levels, 900) for n in (3, 40))
    side = 2**levels
    plain = np.zeros((3, 40))
    for level in range(levels + 1):
        rows, columns = max(2**level, strips), 2**level
        cells = [
            counts.reshape(-1, rows, side // rows, columns, side // columns, 7).sum(axis=(2, 4))
            for counts in (left.astype(int), right.astype(int))
        ]
        shared = np.minimum(cells[0][:, np.newaxis], cells[1]).sum(axis=(2, 3, 4))
        plain += spm.level_weights(levels)[level] * shared / 900
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
    prepared = spm.PreparedImages(kept, layout)
    np.testing.assert_array_equal(prepared.compared_with(kept[:4]).T, gram[:4])


@pytest.mark.parametrize('largest', [255, 65535, 100_000])
def test_large_counts_do_not_overflow(largest):
    """Sums beyond 16 bits, as of a huge image that is one blank wall."""
    counts = np.full((3, 16 * WORDS), largest, dtype=np.min_scalar_type(largest))
    counts[1, ::2] = 0
    counts[2] = largest // 2
    gram = spm.cross_gram(counts, counts, LAYOUT)
    part = (largest // 2) / largest
    expected = np.sqrt([[1.0, 0.5, part], [0.5, 1.0, 0.5 * part], [part, 0.5 * part, 1.0]])
    np.testing.assert_allclose(gram, expected, rtol=1e-4)
    prepared = spm.PreparedImages(counts, LAYOUT).compared_with(counts)
    np.testing.assert_allclose(prepared, gram, rtol=1e-6)


def test_images_without_counts_and_empty_sets():
    counts = np.zeros((3, 16 * WORDS), dtype=np.uint8)
    counts[0, 5] = 3
    np.testing.assert_array_equal(spm.cross_gram(counts, counts, LAYOUT), np.diag([1.0, 0.0, 0.0]))
    assert spm.cross_gram(counts[:0], counts, LAYOUT).shape == (0, 3)
    assert spm.cross_gram(counts, counts[:0], LAYOUT).shape == (3, 0)


def test_patches_are_counted_in_the_cell_they_lie_in():
    centres = np.array([[8, 8], [631, 8], [8, 471], [631, 471], [320, 240]])
    cells = spm.cell_of(centres, (480, 640), 2)
    np.testing.assert_array_equal(cells, [0, 3, 12, 15, 10])
