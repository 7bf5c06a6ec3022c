"""
Dense local descriptors: one for each patch of a regular grid, at one scale and orientation.

Each class describes a grey image (height, width) of the shape of its grid by k descriptors
(k, size). Their entries are multiples of `step`, a power of two of about 1/2048 of the length of
a descriptor; see `vocabulary` for why.
"""

import math
from typing import Any, cast

import cv2
from kbr_localization.errors import VisionError
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
import skimage.feature

Image = NDArray[np.uint8]
Float32Array = NDArray[np.float32]
MAX_PATCHES = 1_000_000  # whose descriptors take half a gigabyte
_CELLS = 4  # along each side of a patch
_GRADIENTS = ((0, 1), (1, 1), (1, 0), (1, -1))  # rows, columns; followed by their opposites


def rounded(values: NDArray[Any], step: float) -> Float32Array:
    """Round to multiples of `step`."""
    return np.asarray(np.rint(values / step) * step, dtype=np.float32)


class PatchGrid:
    """
    Square patches on a regular grid, in row-major order, that lie inside an image.

    `shape`: (height, width) of the image. `patch_size`, `spacing`: in pixels. `wraps`: the first
    and last columns of the image are neighbours, as in a panorama, and patches extend across.
    `counts`: rows and columns of patches. `corner`: row and column of the first pixel of the
    first patch; the grid is centred. Raises VisionError if no patch fits, or more than
    `MAX_PATCHES` do.
    """

    def __init__(
        self, shape: tuple[int, int], patch_size: int, spacing: int, wraps: bool = False
    ) -> None:
        self.shape, self.patch_size, self.spacing, self.wraps = shape, patch_size, spacing, wraps
        size = f'image of {shape[1]}x{shape[0]} pixels (after scaling)'
        if min(shape) < patch_size:
            raise VisionError(
                f'{size}: expected at least the patch size {patch_size} each way; use larger '
                'images, a larger vision.working_width (of a wide panorama) or a smaller '
                'vision.patch_size'
            )
        rows, columns = ((side - patch_size) // spacing + 1 for side in shape)
        top, left = ((side - patch_size) % spacing // 2 for side in shape)
        if wraps:
            columns, left = math.ceil(shape[1] / spacing), 0
        self.counts, self.corner = (rows, columns), (top, left)
        if rows * columns > MAX_PATCHES:
            raise VisionError(
                f'{size} with {rows} x {columns} patches: expected at most {MAX_PATCHES}; use a '
                'larger vision.spacing or a smaller vision.working_width'
            )

    @property
    def centres(self) -> NDArray[np.int64]:
        """Centres x, y of the patches (k, 2) in the image, in pixels."""
        rows, columns = (
            start + self.patch_size // 2 + self.spacing * np.arange(count)
            for start, count in zip(self.corner, self.counts, strict=True)
        )
        return np.stack(np.meshgrid(columns % self.shape[1], rows), axis=-1).reshape(-1, 2)

    def crop(self, image: Image, margin: int) -> Image:
        """Crop to the grid plus a margin, padded with edge pixels or wrapped around."""
        sides = 0 if self.wraps else margin
        extended: NDArray[Any] = image
        if self.wraps:
            columns = np.arange(-margin, self.shape[1] + self.patch_size + margin)
            extended = image[:, columns % self.shape[1]]
        extended = cv2.copyMakeBorder(extended, margin, margin, sides, sides, cv2.BORDER_REPLICATE)
        top, left = self.corner
        return np.asarray(extended[top:, left:], dtype=np.uint8)


class DenseSift:
    """
    Dense RootSIFT; a patch without gradients gets zeros.

    A patch has 4 x 4 cells; each sums the gradients along each of 8 directions. Patches that
    overlap share cells, so the gradients are summed once, on a lattice of cells, and a descriptor
    is a window of 4 x 4 of them. Unlike keypoint SIFT, a gradient is weighted by the cosine of
    its angle to each direction, cells are boxes without a Gaussian window, and the cells are
    replaced by their square roots, so that the Euclidean distance of descriptors is the
    Hellinger distance of the cells. `blur`: standard deviation of the presmoothing, in pixels.
    """

    size, step = 128, 2**-11

    def __init__(self, grid: PatchGrid, blur: float = 0.8) -> None:
        cell = grid.patch_size // _CELLS
        self.grid, self._blur = grid, blur
        self._pitch = math.gcd(cell, grid.spacing)
        self._per_cell, self._stride = cell // self._pitch, grid.spacing // self._pitch
        window = _CELLS * self._per_cell
        self._lattice = [(count - 1) * self._stride + window for count in grid.counts]

    def describe(self, grey: Image) -> Float32Array:
        """Return descriptors (k, 128) of unit length."""
        windows = self._windows(self._cell_sums(self._gradients(grey)))
        # the sum over a window, exact in float64, is the squared length of its root vector
        length = np.sqrt(cv2.reduce(windows, 1, cv2.REDUCE_SUM, dtype=cv2.CV_64F))
        np.sqrt(windows, out=windows)
        windows *= (1.0 / (self.step * np.maximum(length, 1e-6))).astype(np.float32)
        np.rint(windows, out=windows)
        windows *= np.float32(self.step)
        return windows

    def _gradients(self, grey: Image) -> Image:
        """Return pixel differences (8, height, width) along 8 directions, zero where negative."""
        margin = 1 + math.ceil(4 * self._blur)
        extended: NDArray[Any] = self.grid.crop(grey, margin)
        if self._blur > 0.0:
            extended = cv2.GaussianBlur(extended, (0, 0), self._blur)
        height, width = (side * self._pitch for side in self._lattice)
        result = np.empty((2 * len(_GRADIENTS), height, width), dtype=np.uint8)
        for index, (row, column) in enumerate(_GRADIENTS):
            ahead = extended[margin + row :, margin + column :][:height, :width]  # noqa: E203
            behind = extended[margin - row :, margin - column :][:height, :width]  # noqa: E203
            # unsigned differences saturate at zero
            cv2.subtract(ahead, behind, dst=result[index])
            cv2.subtract(behind, ahead, dst=result[index + len(_GRADIENTS)])
        return result

    def _cell_sums(self, gradients: Image) -> Float32Array:
        """Return the sums (rows, columns, 8) over the cell that starts at each lattice point."""
        count, height, width = gradients.shape
        pitch = self._pitch
        bands = gradients.reshape(count, height // pitch, pitch, width)
        # adding slices in place is four times as fast as sums over short axes
        strips = bands[:, :, 0].astype(np.uint16)
        for row in range(1, pitch):
            strips += bands[:, :, row]
        lattice = strips[..., ::pitch].astype(np.float32)
        for column in range(1, pitch):
            lattice += strips[..., column::pitch]
        side = (self._per_cell, self._per_cell)
        for plane in lattice if self._per_cell > 1 else ():
            plane[:] = cv2.boxFilter(
                plane, -1, side, anchor=(0, 0), normalize=False, borderType=cv2.BORDER_CONSTANT
            )
        # diagonal neighbours are sqrt(2) apart; scale last, since integer sums are exact
        lattice[1::2] *= math.sqrt(0.5)
        return np.ascontiguousarray(lattice.transpose(1, 2, 0))

    def _windows(self, cells: Float32Array) -> Float32Array:
        """Return the cells (k, 128) of each patch."""
        down, right, one = cells.strides
        shape = (*self.grid.counts, _CELLS, _CELLS, cells.shape[2])
        steps = (self._stride, self._per_cell)
        strides = [step * axis for step in steps for axis in (down, right)]
        windows = as_strided(cells, shape, (*strides, one), writeable=False)
        return windows.copy().reshape(-1, self.size)


def sign_weighting(weight: float = 0.3) -> Float32Array:
    """Return a matrix (128, 128) that scales differences of opposite directions by `weight`."""
    half = len(_GRADIENTS)
    swapped = np.roll(np.eye(2 * half), half, axis=1)
    cell = (1.0 + weight) / 2.0 * np.eye(2 * half) + (1.0 - weight) / 2.0 * swapped
    return np.asarray(np.kron(np.eye(_CELLS**2), cell), dtype=np.float32)


class DenseDaisy:
    """Dense DAISY of scikit-image, with two rings of six histograms around each centre."""

    size, step = (2 * 6 + 1) * 8, 2**-13

    def __init__(self, grid: PatchGrid) -> None:
        self.grid = grid

    def describe(self, grey: Image) -> Float32Array:
        spacing, (rows, columns) = self.grid.spacing, self.grid.counts
        # describe a margin of patches too, so that the blur sees the padding, not a cut edge
        extra = -(-self.grid.patch_size // spacing)
        descriptors = cast(Any, skimage.feature.daisy)(
            self.grid.crop(grey, extra * spacing),
            step=spacing,
            radius=self.grid.patch_size // 2,
            rings=2,
            histograms=6,
            orientations=8,
        )
        wanted = descriptors[extra : extra + rows, extra : extra + columns]  # noqa: E203
        return rounded(wanted.reshape(-1, self.size), self.step)
