"""Describers that count visual words of local descriptors in a spatial pyramid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
from typing import Any

from kbr_localization.configuration import to_mapping
from kbr_localization.errors import DatasetError, VisionError
from kbr_localization.progress import Progress
from kbr_localization.vision import spatial_pyramid
from kbr_localization.vision.config import LEARNED, VisionConfig
from kbr_localization.vision.describer import Describer
from kbr_localization.vision.local_descriptors import (
    DenseDaisy,
    DenseSift,
    OpenCvSift,
    PatchGrid,
    rounded,
    sign_weighting,
)
from kbr_localization.vision.network import (
    LearnedFeatures,
    network_of,
    network_state,
    read_network,
)
from kbr_localization.vision.preparation import Image, load, LoadableImage, Preparation
from kbr_localization.vision.vocabulary import checked, learn_vocabulary, Vocabulary
from kbr_localization.workers import one_thread, shrinking_batches, Workers
import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
Bytes = NDArray[np.uint8]
LocalDescriptor = DenseSift | OpenCvSift | DenseDaisy | LearnedFeatures


def local_descriptor(
    config: VisionConfig, preparation: Preparation, network: Bytes | None = None
) -> LocalDescriptor:
    """Make the local descriptor that a configuration names, of a network if it needs one."""
    if network is not None:
        return LearnedFeatures(config, preparation, network)
    grid = PatchGrid(preparation.shape, config.patch_size, config.spacing, preparation.wraps)
    if config.descriptor == 'opencv_sift_pyramid':
        return OpenCvSift(grid)
    return DenseDaisy(grid) if config.descriptor == 'daisy' else DenseSift(grid, config.blur)


class PyramidDescriber(Describer):
    """
    Describer whose descriptors are the word counts of the pyramid's finest level.

    `local`: describes the patches; `LearnedFeatures` count by their reliability. `basis`: (size of
    a local descriptor, c) float32, onto which patches are projected, or None. `vocabulary`: of
    words of size c, or of the size of a local descriptor. `word_weights`: (words,) float32, what a
    patch counts by its word, or None for one each. See `spatial_pyramid` for the kernel.
    """

    def __init__(
        self,
        config: VisionConfig,
        preparation: Preparation,
        local: LocalDescriptor,
        vocabulary: Vocabulary,
        basis: Float32Array | None = None,
        word_weights: Float32Array | None = None,
    ) -> None:
        self.kind, self.config, self.preparation = config.descriptor, config, preparation
        self.vocabulary, self.basis, self.word_weights = vocabulary, basis, word_weights
        self.layout = spatial_pyramid.Layout(
            len(vocabulary.words), config.levels, config.strips, config.root_counts
        )
        self.size = self.layout.size
        self._local, grid = local, local.grid
        self._cells = spatial_pyramid.cell_of(grid.centres, grid.shape, config.levels)
        # square roots and sums of weights are kept in eighths, or in larger units where the
        # counts would not fit; plain counts exactly
        most, self._units = max(int(np.bincount(self._cells).max()), 1), 1.0
        self.dtype = np.min_scalar_type(most)
        weighted = word_weights is not None or isinstance(local, LearnedFeatures)
        if config.root_counts or weighted:
            self.dtype = np.dtype(np.uint8 if config.root_counts else np.uint16)
            largest = np.sqrt(most) if config.root_counts else most
            self._units = float(min(8.0, np.iinfo(self.dtype).max / largest))

    def describe(self, image: Image) -> NDArray[np.unsignedinteger]:
        """Describe a grey (h, w) or BGR (h, w, 3) image by (size,); raises VisionError."""
        patches, weights = _describe_patches(self._local, self.preparation, image)
        words = self.vocabulary.nearest(_projected(patches, self.basis, self._local.step))
        if self.word_weights is not None:
            of_words = self.word_weights[words]
            weights = of_words if weights is None else weights * of_words
        bins = self._cells * self.layout.words + words
        sums = np.bincount(bins, weights, minlength=self.size)
        values = self._units * (np.sqrt(sums) if self.config.root_counts else sums)
        return np.minimum(np.rint(values), np.iinfo(self.dtype).max).astype(self.dtype)

    def cross_gram(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
        """Spatial pyramid kernel (n, m) in [0, 1] of descriptors (n, size) and (m, size)."""
        return spatial_pyramid.cross_gram(left, right, self.layout)

    def prepared(self, descriptors: NDArray[Any]) -> spatial_pyramid.PreparedImages:
        """Prepare descriptors (n, size), which must not change, for repeated comparison."""
        return spatial_pyramid.PreparedImages(descriptors, self.layout)

    def state(self) -> Mapping[str, Any]:
        """Return configuration, camera and vocabulary by name: what `from_state` needs."""
        state = {**to_mapping(self.config), **self.preparation.state(), **self.vocabulary.state()}
        if isinstance(self._local, LearnedFeatures):
            state |= network_state(self._local.content)
        arrays = {'basis': self.basis, 'word_weights': self.word_weights}
        return state | {name: value for name, value in arrays.items() if value is not None}

    @classmethod
    def from_state(
        cls, config: VisionConfig, preparation: Preparation, state: Mapping[str, Any]
    ) -> PyramidDescriber:
        """Build again from `state()`; raises VisionError for a damaged vocabulary."""
        network = network_of(state) if config.descriptor == LEARNED else None
        local = local_descriptor(config, preparation, network)
        size, basis, weights = local.size, None, None
        if 'basis' in state:
            kept = min(config.patch_components or size, size)
            basis, size = checked('basis', state['basis'], (size, kept)), kept
        vocabulary = Vocabulary.from_state(state, (config.words, size), config.vocabulary_tree)
        if config.relative_counts:
            weights = checked('word_weights', state['word_weights'], (config.words,))
            if weights.min() <= 0.0:
                raise VisionError(
                    f'word_weights: expected positive numbers, got {weights.min():.3g}; build the '
                    'map again'
                )
        return cls(config, preparation, local, vocabulary, basis, weights)

    @classmethod
    def fit(
        cls,
        config: VisionConfig,
        preparation: Preparation,
        images: Sequence[LoadableImage],
        rng: np.random.Generator,
        workers: Workers,
        progress: Progress,
    ) -> PyramidDescriber:
        """Learn the vocabulary from images; see `fit_describer`."""
        per_image = max(1, config.vocabulary_samples // len(images))
        network = read_network(config) if config.descriptor == LEARNED else None
        local = local_descriptor(config, preparation, network)
        work = functools.partial(_sample_patches, config, preparation, network, per_image)
        # each image has its own seed, so that it does not matter who samples it
        seeded = list(zip(images, rng.integers(2**63, size=len(images)), strict=True))
        tasks, samples = shrinking_batches(seeded, 8, workers.jobs), []
        for done, (_, found) in enumerate(workers.run(work, tasks), start=1):
            samples.append(found)
            progress('sampling patches for the vocabulary', done, len(tasks))
        progress('learning the vocabulary', 0, 1)
        with one_thread():
            patches, weights = np.concatenate(samples), None
            basis = _learn_basis(config, patches)
            patches = _projected(patches, basis, local.step)
            if config.vocabulary_tree:
                vocabulary = Vocabulary.learn_tree(patches, config.words, rng, local.step)
            else:
                vocabulary = Vocabulary(learn_vocabulary(patches, config.words, rng, local.step))
            if config.relative_counts:
                # weigh a word by its mean count, by Laplace's rule for one that no patch has
                words = vocabulary.nearest(patches)
                frequencies = np.bincount(words, minlength=config.words) + 1.0
                weights = np.asarray(frequencies.mean() / frequencies, dtype=np.float32)
        progress('learning the vocabulary', 1, 1)
        return cls(config, preparation, local, vocabulary, basis, weights)


def _describe_patches(
    local: LocalDescriptor, preparation: Preparation, image: Image
) -> tuple[Float32Array, Float32Array | None]:
    """Local descriptors (k, size) of an image, and their weights (k,) if they differ."""
    if isinstance(local, LearnedFeatures):
        return local.describe_colour(preparation.colour(image))
    return local.describe(preparation.grey(image)), None


def _sample_patches(
    config: VisionConfig,
    preparation: Preparation,
    network: Bytes | None,
    per_image: int,
    images: Sequence[tuple[LoadableImage, int]],
) -> Float32Array:
    """
    Describe some patches of images, at most `per_image` of each: (k, size).

    `images`: with their seeds; one that cannot be read, or has another size, gives no patches.
    """
    local = local_descriptor(config, preparation, network)
    samples = [np.empty((0, local.size), dtype=np.float32)]
    for source, seed in images:
        try:
            descriptors, _ = _describe_patches(local, preparation, load(source))
        except (DatasetError, VisionError):
            continue  # counted and named where the image is described
        count = min(per_image, len(descriptors))
        chosen = np.random.default_rng(seed).choice(len(descriptors), count, replace=False)
        samples.append(descriptors[chosen])
    return np.concatenate(samples)


def _learn_basis(config: VisionConfig, patches: Float32Array) -> Float32Array | None:
    """Matrix (d, c) that local descriptors (k, d) are multiplied by, None for their numbers."""
    size, step, signed = patches.shape[1], 2**-11, None
    if config.descriptor == 'sift_pyramid' and config.gradient_sign < 1.0:
        signed = sign_weighting(config.gradient_sign)
    # the features of a network are few and differ in all of their numbers
    if config.descriptor == LEARNED or not 0 < config.patch_components < size:
        return None if signed is None else rounded(signed, step)
    # of rounded numbers, of which sums are exact in float64
    total, products = np.zeros(size), np.zeros((size, size))
    for start in range(0, len(patches), 4096):
        block = patches[slice(start, start + 4096)].astype(np.float64)
        total += block.sum(axis=0)
        products += block.T @ block
    covariance = products - np.outer(total, total) / len(patches)
    weighting = np.eye(size) if signed is None else signed.astype(np.float64)
    # principal components: distances in a fifth of the numbers rank words as well as in all
    directions = np.linalg.eigh(weighting.T @ covariance @ weighting)[1][:, ::-1]
    components = directions[:, : config.patch_components]
    largest = components[np.abs(components).argmax(axis=0), np.arange(components.shape[1])]
    return rounded(weighting @ components * np.sign(largest), step)


def _projected(patches: Float32Array, basis: Float32Array | None, step: float) -> Float32Array:
    return patches if basis is None else rounded(patches @ basis, step)
