"""Describers that count visual words of local descriptors in a spatial pyramid."""

from collections.abc import Sequence
import functools
from typing import Any

from kbr_localization.errors import DatasetError, VisionError
from kbr_localization.progress import report
from kbr_localization.vision import spatial_pyramid
from kbr_localization.vision.config import LEARNED, VisionConfig
from kbr_localization.vision.describer import CameraDescriber, Comparer, State
from kbr_localization.vision.local_descriptors import (
    DenseDaisy,
    DenseSift,
    PatchGrid,
    rounded,
    sign_weighting,
)
from kbr_localization.vision.network import LearnedFeatures, NETWORK
from kbr_localization.vision.preparation import Image, load, LoadableImage, Preparation
from kbr_localization.vision.vocabulary import learn_tree, learn_vocabulary, Vocabulary
from kbr_localization.workers import batches, one_thread, run_batches
import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
LocalDescriptor = DenseSift | DenseDaisy | LearnedFeatures


def local_descriptor(
    config: VisionConfig, preparation: Preparation, network: State
) -> LocalDescriptor:
    """Return the local descriptor that the configuration names; `network`: see `read_network`."""
    if config.descriptor == LEARNED:
        return LearnedFeatures(config, preparation, network)
    grid = PatchGrid(preparation.shape, config.patch_size, config.spacing, preparation.wraps)
    return DenseDaisy(grid) if config.descriptor == 'daisy' else DenseSift(grid, config.blur)


class PyramidDescriber(CameraDescriber):
    """
    Describer by the square roots of weighted word counts in 2 x 2 cells.

    With `pyramid='papers'` by the unweighted counts of `PapersPyramid`. Learnt arrays: `basis`
    (d, c) float32, if any, onto which local descriptors (d,) are projected; `vocabulary` (words,
    c) or (words, d); `word_weights` (words,) float32, the weight of a patch by its word. Features
    of a network are also weighted by their reliability. See `spatial_pyramid` for the kernel.
    Raises VisionError for damaged arrays.
    """

    dtype: np.dtype[Any] = np.dtype(np.uint8)
    learnt_entries = ('vocabulary', 'branches', 'branch_sizes', 'basis', 'word_weights', NETWORK)

    def __init__(self, config: VisionConfig, preparation: Preparation, learnt: State) -> None:
        super().__init__(config, preparation, learnt)
        self._local = local_descriptor(config, preparation, learnt)
        size, self._basis = self._local.size, None
        if 'basis' in learnt:
            components = min(config.patch_components or size, size)
            self._basis, size = checked_array(learnt, 'basis', (size, components)), components
        words = checked_array(learnt, 'vocabulary', (config.words, size))
        self.vocabulary = Vocabulary(words)
        if config.vocabulary_tree:
            sizes = np.asarray(learnt['branch_sizes']).astype(np.int64)
            if sizes.min(initial=1) < 1 or sizes.sum() != config.words:
                raise VisionError(
                    f'branch_sizes: expected positive numbers of sum {config.words}; '
                    'build the map again'
                )
            branches = checked_array(learnt, 'branches', (len(sizes), size))
            self.vocabulary = Vocabulary(words, branches, sizes)
        grid, self._papers = self._local.grid, None
        if config.pyramid == 'papers':
            self._papers = spatial_pyramid.PapersPyramid(grid.centres, grid.shape, config.words)
            self.size, self.dtype = self._papers.size, self._papers.dtype
            return
        self._word_weights = checked_array(learnt, 'word_weights', (config.words,))
        if self._word_weights.min() <= 0.0:
            raise VisionError('word_weights: expected positive numbers; build the map again')
        self.size = spatial_pyramid.CELLS * config.words
        self._cells = spatial_pyramid.cell_of(grid.centres, grid.shape)
        # store roots in steps of 1/8, or in larger steps so that all fit in a byte
        self._scale = min(8.0, 255.0 / np.sqrt(np.bincount(self._cells).max()))

    def describe(self, image: Image) -> NDArray[np.unsignedinteger]:
        patches, weights = _describe_patches(self._local, self.preparation, image)
        words = self.vocabulary.nearest(_project(patches, self._basis, self._local.step))
        if self._papers:
            return self._papers.counts(words)
        bins = self._cells * self.config.words + words
        sums = np.bincount(bins, weights * self._word_weights[words], minlength=self.size)
        return np.asarray(np.minimum(np.rint(self._scale * np.sqrt(sums)), 255), dtype=np.uint8)

    def cross_gram(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
        return (self._papers or spatial_pyramid).cross_gram(left, right)

    def comparer(self, descriptors: NDArray[Any]) -> Comparer:
        if self._papers:
            return super().comparer(descriptors)
        return spatial_pyramid.PyramidComparer(descriptors)


def checked_array(learnt: State, name: str, shape: tuple[int, ...]) -> Float32Array:
    """Return a learnt array as float32; raises VisionError unless finite and of that shape."""
    array = np.ascontiguousarray(learnt[name], dtype=np.float32)
    if array.shape != shape or not np.isfinite(array).all():
        raise VisionError(
            f'{name} of shape {array.shape}: expected {shape} finite numbers; build the map again'
        )
    return array


def learn_pyramid(
    config: VisionConfig,
    preparation: Preparation,
    network: State,
    images: Sequence[LoadableImage],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Return the learnt arrays of a `PyramidDescriber` by name; see `fit_describer`."""
    per_image = max(1, config.vocabulary_samples // len(images))
    work = functools.partial(_sample_patches, config, preparation, network, per_image)
    # one seed per image, so that the result does not depend on which worker samples it
    seeded = list(zip(images, rng.integers(2**63, size=len(images)), strict=True))
    samples = run_batches('sampling patches for the vocabulary', work, seeded, 8)
    report('learning the vocabulary', 0, 1)
    step = local_descriptor(config, preparation, network).step
    with one_thread():
        patches = np.concatenate(samples)
        basis = _learn_basis(config, patches)
        patches = _project(patches, basis, step)
        if config.vocabulary_tree:
            vocabulary = learn_tree(patches, config.words, rng, step)
        else:
            vocabulary = Vocabulary(learn_vocabulary(patches, config.words, rng, step))
        learnt = {**network, 'vocabulary': vocabulary.words, 'basis': basis}
        if config.pyramid == 'roots':
            # inverse frequency of each word, add-one smoothed for words without patches
            frequencies = np.bincount(vocabulary.nearest(patches), minlength=config.words) + 1.0
            learnt['word_weights'] = np.asarray(frequencies.mean() / frequencies, np.float32)
    report('learning the vocabulary', 1, 1)
    if config.vocabulary_tree:
        learnt |= {'branches': vocabulary.branches, 'branch_sizes': vocabulary.sizes}
    return {name: value for name, value in learnt.items() if value is not None}


def _describe_patches(
    local: LocalDescriptor, preparation: Preparation, image: Image
) -> tuple[Float32Array, Any]:
    """Return the local descriptors (k, size) of an image, and their weights (k,) or 1.0."""
    if isinstance(local, LearnedFeatures):
        return local.describe_colour(preparation.colour(image))
    return local.describe(preparation.grey(image)), 1.0


def _sample_patches(
    config: VisionConfig,
    preparation: Preparation,
    network: State,
    per_image: int,
    images: Sequence[tuple[LoadableImage, int]],
) -> list[Float32Array]:
    """Sample up to `per_image` local descriptors (k, size) of each image, 0 of a bad image."""
    local, samples = local_descriptor(config, preparation, network), []
    for source, seed in images:
        try:
            descriptors, _ = _describe_patches(local, preparation, load(source))
        except (DatasetError, VisionError):  # reported later, when the map describes the image
            descriptors = np.empty((0, local.size), dtype=np.float32)
        count = min(per_image, len(descriptors))
        chosen = np.random.default_rng(seed).choice(len(descriptors), count, replace=False)
        samples.append(descriptors[chosen])
    return samples


def _learn_basis(config: VisionConfig, patches: Float32Array) -> Float32Array | None:
    """Return the matrix (d, c) that projects local descriptors (k, d), None if none is needed."""
    size, step = patches.shape[1], 2**-11
    signed = config.descriptor == 'sift_pyramid' and config.pyramid == 'roots'
    weighting = sign_weighting() if signed else None
    # features of a network have few dimensions, and all of them are informative
    if config.descriptor == LEARNED or not 0 < config.patch_components < size:
        return None if weighting is None else rounded(weighting, step)
    # sums of rounded numbers are exact in float64
    total, products = np.zeros(size), np.zeros((size, size))
    for part in batches(patches, 4096):
        block = part.astype(np.float64)
        total += block.sum(axis=0)
        products += block.T @ block
    covariance = products - np.outer(total, total) / len(patches)
    mixing = np.eye(size) if weighting is None else weighting.astype(np.float64)
    # a fifth of the principal components rank words as well as all of them
    directions = np.linalg.eigh(mixing.T @ covariance @ mixing)[1][:, ::-1]
    components = directions[:, : config.patch_components]
    largest = components[np.abs(components).argmax(axis=0), np.arange(components.shape[1])]
    return rounded(mixing @ components * np.sign(largest), step)


def _project(patches: Float32Array, basis: Float32Array | None, step: float) -> Float32Array:
    return patches if basis is None else rounded(patches @ basis, step)
