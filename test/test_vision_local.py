"""Local descriptors against their plain definition, on grids of every kind."""

import cv2
from kbr_localization.vision.local_descriptors import (
    DenseDaisy,
    DenseSift,
    PatchGrid,
    sign_weighting,
)
import numpy as np
import pytest

LOCAL = [DenseSift, DenseDaisy]
DIRECTIONS = [(0, 1), (1, 1), (1, 0), (1, -1)]


def texture(shape, seed=0):
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, size=shape, dtype=np.uint8)
    return cv2.equalizeHist(cv2.GaussianBlur(noise, (0, 0), 2.5))


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
    grey = texture((73, 90))
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
    grey = texture(shape)
    before = local(grid).describe(grey)
    assert before.shape == (len(grid.centres), local.size)
    assert before.dtype == np.float32
    grey[: shape[0] // 4, : shape[1] // 4] = 255
    changed = np.abs(local(grid).describe(grey) - before).max(axis=1) > 1e-6
    far = np.any(grid.centres > np.array(shape[::-1]) // 4 + 24, axis=1)
    assert changed[0]
    assert not changed[far].any()


@pytest.mark.parametrize('local', LOCAL)
def test_patches_go_across_the_seam_of_a_panorama(local):
    """Turning the camera by whole patches shifts the descriptors and changes none."""
    grey = texture((40, 120))
    grid = PatchGrid(grey.shape, 16, 8, wraps=True)
    assert grid.counts == (4, 15)
    here = local(grid).describe(grey).reshape(4, 15, -1)
    turned = local(grid).describe(np.roll(grey, 24, axis=1)).reshape(4, 15, -1)
    np.testing.assert_allclose(turned, np.roll(here, 3, axis=1), atol=1e-5)


def test_the_sign_of_gradients_may_count_less():
    """An image and its negative have one descriptor where the sign is nothing."""
    grey = texture((64, 64))
    sift = DenseSift(PatchGrid(grey.shape, 16, 8), 0.0)
    here, negative = sift.describe(grey), sift.describe(255 - grey)
    np.testing.assert_allclose(here @ sign_weighting(1.0), here, atol=1e-6)
    blind = sign_weighting(0.0)
    np.testing.assert_allclose(here @ blind, negative @ blind, atol=5e-4)
    between = np.linalg.norm((here - negative) @ sign_weighting(0.3), axis=1)
    np.testing.assert_allclose(between, 0.3 * np.linalg.norm(here - negative, axis=1), rtol=1e-3)
