"""
Dense SIFT: one descriptor for every patch of a regular grid, upright and of one scale.

A patch has 4 x 4 cells; each holds the gradients that point in each of 8 directions. Patches that
overlap share cells, so the gradients are summed once, on a lattice of cells, and a descriptor is
a window of 4 x 4 of them. Compared with keypoint SIFT: a gradient counts in a direction by the
cosine of the angle between them, cells are boxes without a Gaussian window, and the square roots
of the cells are compared (RootSIFT), so that the Euclidean distance of two descriptors is their
Hellinger distance. Brightness and contrast of the image change nothing but rounding.
"""

from __future__ import annotations

import math
from typing import Any

import cv2
from kbr_localization.vision.patch_grid import PatchGrid
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Image = NDArray[np.uint8]
Float32Array = NDArray[np.float32]

_CELLS = 4
_DIRECTIONS = ((0, 1), (1, 1), (1, 0), (1, -1))  # rows, columns; their opposites come after
_SMALLEST = 1e-6


class DenseSift:
    """
    Dense RootSIFT of the images that a grid is made for.

    `blur`: standard deviation in pixels of the smoothing before gradients.
    """

    size = 128

    def __init__(self, grid: PatchGrid, blur: float = 0.8) -> None:
        cell = grid.patch_size // _CELLS
        self.grid, self._blur = grid, blur
        self._pitch = math.gcd(cell, grid.spacing)
        self._per_cell, self._stride = cell // self._pitch, grid.spacing // self._pitch
        rows, columns = grid.counts
        window = _CELLS * self._per_cell
        self._lattice = (
            (rows - 1) * self._stride + window,
            (columns - 1) * self._stride + window,
        )

    def describe(self, grey: Image) -> Float32Array:
        """
        Describe the patches of an image (height, width): (k, 128) of unit length.

        A patch without gradients gets zeros. Raises VisionError for an image of another size.
        """
        windows = self._windows(self._cell_sums(self._gradients(grey)))
        # the sum over a window is the squared length of its square roots
        length = np.sqrt(windows @ np.ones(self.size, dtype=np.float32))
        np.sqrt(windows, out=windows)
        windows *= (1.0 / np.maximum(length, _SMALLEST))[:, np.newaxis]
        return windows

    def _gradients(self, grey: Image) -> Image:
        """Take differences (8, height, width) along eight directions, zero where negative."""
        margin = 1 + math.ceil(4 * self._blur)
        extended: NDArray[Any] = self.grid.crop(grey, margin)
        if self._blur > 0.0:
            extended = cv2.GaussianBlur(extended, (0, 0), self._blur)
        height, width = (side * self._pitch for side in self._lattice)
        result = np.empty((2 * len(_DIRECTIONS), height, width), dtype=np.uint8)
        for index, (row, column) in enumerate(_DIRECTIONS):
            ahead = extended[slice(margin + row, None), slice(margin + column, None)][
                :height, :width
            ]
            behind = extended[slice(margin - row, None), slice(margin - column, None)][
                :height, :width
            ]
            # unsigned differences saturate at zero: just what is wanted
            cv2.subtract(ahead, behind, dst=result[index])
            cv2.subtract(behind, ahead, dst=result[index + len(_DIRECTIONS)])
        return result

    def _cell_sums(self, gradients: Image) -> Float32Array:
        """Sum (rows, columns, 8) over the cells that start at each point of the lattice."""
        lattice = _sum_blocks(gradients, self._pitch)
        lattice[1::2] *= math.sqrt(0.5)  # a diagonal difference reaches farther by that much
        if self._per_cell > 1:
            lattice = np.stack([_sum_neighbours(plane, self._per_cell) for plane in lattice])
        return np.ascontiguousarray(lattice.transpose(1, 2, 0))

    def _windows(self, cells: Float32Array) -> Float32Array:
        rows, columns = self.grid.counts
        down, right, one = cells.strides
        windows = as_strided(
            cells,
            (rows, columns, _CELLS, _CELLS, cells.shape[2]),
            (
                down * self._stride,
                right * self._stride,
                down * self._per_cell,
                right * self._per_cell,
                one,
            ),
            writeable=False,
        )
        return windows.copy().reshape(-1, self.size)


def sign_weighting(weight: float) -> Float32Array:
    """
    Matrix (128, 128) that scales by `weight` what opposite directions of a descriptor differ in.

    What they have in common stays: at 0 a dark edge and a bright one are the same.
    """
    half = len(_DIRECTIONS)
    swapped = np.roll(np.eye(2 * half), half, axis=1)
    cell = (1.0 + weight) / 2.0 * np.eye(2 * half) + (1.0 - weight) / 2.0 * swapped
    return np.asarray(np.kron(np.eye(_CELLS**2), cell), dtype=np.float32)


def _sum_blocks(planes: Image, side: int) -> Float32Array:
    """Sum over blocks of side x side pixels: (p, h, w) -> (p, h / side, w / side)."""
    count, height, width = planes.shape
    bands = planes.reshape(count, height // side, side, width)
    strips = bands[:, :, 0].astype(np.uint16)
    for offset in range(1, side):
        strips += bands[:, :, offset]
    sums = strips[..., ::side].astype(np.float32)
    for offset in range(1, side):
        sums += strips[..., offset::side]
    return sums


def _sum_neighbours(plane: Float32Array, side: int) -> Float32Array:
    """Sum over the side x side entries that start at each one; edges see zeros."""
    sums = cv2.boxFilter(
        plane, -1, (side, side), anchor=(0, 0), normalize=False, borderType=cv2.BORDER_CONSTANT
    )
    return np.asarray(sums, dtype=np.float32)
