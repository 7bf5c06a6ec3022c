"""Describers that count visual words of local descriptors in a spatial pyramid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any, Protocol

from kbr_localization.configuration import to_mapping
from kbr_localization.errors import DatasetError, VisionError
from kbr_localization.progress import Progress
from kbr_localization.vision import spatial_pyramid
from kbr_localization.vision.config import LEARNED, VisionConfig
from kbr_localization.vision.dense_sift import DenseSift, sign_weighting
from kbr_localization.vision.describer import SelectableDescriber
from kbr_localization.vision.learned_features import LearnedFeatures
from kbr_localization.vision.library_descriptors import DenseDaisy, OpenCvSift
from kbr_localization.vision.loading import load, LoadableImage
from kbr_localization.vision.network_file import network_of, network_state, read_network
from kbr_localization.vision.patch_grid import PatchGrid
from kbr_localization.vision.preparation import Preparation
from kbr_localization.vision.stored_counts import StoredCounts
from kbr_localization.vision.vocabulary import FlatVocabulary, Vocabulary
from kbr_localization.vision.vocabulary_tree import VocabularyTree
from kbr_localization.workers import one_thread, shrinking_batches, Workers
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]


class LocalDescriptor(Protocol):
    """Descriptors of the patches of a grid; `size` is the length of one."""

    size: int
    grid: PatchGrid

    def describe(self, grey: Image) -> NDArray[np.float32]:
        """Describe the patches of an image (height, width): (k, size)."""
        ...


ON_GRID: dict[str, Callable[[VisionConfig, PatchGrid], LocalDescriptor]] = {
    'sift_pyramid': lambda config, grid: DenseSift(grid, config.blur),
    'opencv_sift_pyramid': lambda config, grid: OpenCvSift(grid),
    'daisy': lambda config, grid: DenseDaisy(grid),
}
"""What makes the local descriptor of the patches of a grid, by the name of the descriptor."""


class PyramidDescriber(SelectableDescriber):
    """
    Describer whose descriptors are the word counts of the pyramid's finest level.

    With `root_counts` they are square roots of counts, in eighths, as bytes. `basis`: (size of a
    local descriptor, c) float32, onto which patches are projected, or None. `vocabulary`: of words
    of size c, or of the size of a local descriptor. `network`: the bytes of the ONNX file that
    `learned_pyramid` has its local descriptors of, which count by their reliability; it is kept in
    the map, so that a map cannot meet another one. `word_weights`: (words,) float32, what a patch
    counts by its word, or None for one each. See `spatial_pyramid` for the kernel.
    """

    def __init__(
        self,
        config: VisionConfig,
        preparation: Preparation,
        vocabulary: Vocabulary,
        basis: NDArray[np.float32] | None = None,
        network: NDArray[np.uint8] | None = None,
        word_weights: NDArray[np.float32] | None = None,
    ) -> None:
        self.network, self.word_weights = network, word_weights
        self.kind = config.descriptor
        self.config, self.preparation = config, preparation
        self.vocabulary, self.basis = vocabulary, basis
        words, rooted = len(vocabulary.words), config.root_counts
        self.layout = spatial_pyramid.Layout(words, config.levels, config.strips, rooted)
        self.size = self.layout.size
        self._local = local_descriptor(config, preparation, network)
        grid = self._local.grid
        self._cells = spatial_pyramid.cell_of(grid.centres, grid.shape, config.levels)
        most = int(np.bincount(self._cells).max())
        weighted = word_weights is not None or isinstance(self._local, LearnedFeatures)
        self._stored = StoredCounts(most, rooted, weighted)
        self.dtype = self._stored.dtype

    def describe(self, image: Image) -> NDArray[np.unsignedinteger]:
        """Describe a grey (h, w) or BGR (h, w, 3) image by (size,); raises VisionError."""
        prepared = _prepared(self._local, self.preparation, image)
        patches, weights = _patches(self._local, prepared)
        return self.counts(self.words(patches), weights)

    def words(self, patches: NDArray[np.float32]) -> NDArray[np.intp]:
        """Find the word of each local descriptor: (k, size) -> (k,)."""
        projected = patches if self.basis is None else patches @ self.basis
        return self.vocabulary.nearest(projected)

    def counts(
        self, words: NDArray[np.intp], weights: NDArray[np.float32] | None = None
    ) -> NDArray[np.unsignedinteger]:
        """Sum the words of all patches of an image up in each cell: (k,), (k,) -> (size,)."""
        if self.word_weights is not None:
            of_words = self.word_weights[words]
            weights = of_words if weights is None else weights * of_words
        found = spatial_pyramid.count_words(words, self._cells, self.layout, weights)
        return self._stored(found)

    def cross_gram(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
        """Spatial pyramid kernel (n, m) in [0, 1] of descriptors (n, size) and (m, size)."""
        return spatial_pyramid.cross_gram(left, right, self.layout)

    def prepared(self, descriptors: NDArray[Any]) -> spatial_pyramid.PreparedImages:
        """Prepare descriptors (n, size), which must not change, for repeated comparison."""
        return spatial_pyramid.PreparedImages(descriptors, self.layout)

    def state(self) -> Mapping[str, Any]:
        """Return configuration, camera and vocabulary by name: what `from_state` needs."""
        state = {**to_mapping(self.config), **self.preparation.state(), **self.vocabulary.state()}
        state['vocabulary'] = self.vocabulary.words
        if self.network is not None:
            state |= network_state(self.network)
        if self.word_weights is not None:
            state['word_weights'] = self.word_weights
        return state if self.basis is None else state | {'basis': self.basis}

    @classmethod
    def from_state(
        cls, config: VisionConfig, preparation: Preparation, state: Mapping[str, Any]
    ) -> PyramidDescriber:
        """Build again from `state()`; raises VisionError for a damaged vocabulary."""
        network = network_of(state) if config.descriptor == LEARNED else None
        size = local_descriptor(config, preparation, network).size
        basis = None
        if 'basis' in state:
            kept = min(config.patch_components or size, size)
            basis = _checked('basis', state['basis'], (size, kept))
            size = basis.shape[1]
        words = _checked('vocabulary', state['vocabulary'], (config.words, size))
        vocabulary = _vocabulary(config).from_state(words, state)
        weights = None
        if config.relative_counts:
            weights = _checked('word_weights', state['word_weights'], (config.words,))
            if weights.min() <= 0.0:
                raise VisionError(
                    f'word_weights: expected positive numbers, got {weights.min():.3g}; build the '
                    'map again'
                )
        return cls(config, preparation, vocabulary, basis, network, weights)

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
        # whatever is wrong with it is said here, where it is read
        local_descriptor(config, preparation, network)
        work = functools.partial(sample_patches, config, preparation.state(), network, per_image)
        # each image has its own seed, so that it does not matter who samples it
        seeded = list(zip(images, rng.integers(2**63, size=len(images)), strict=True))
        tasks = shrinking_batches(seeded, 8, workers.jobs)
        samples: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(tasks)
        for done, (number, found) in enumerate(workers.run(work, tasks), start=1):
            samples[number] = found
            progress('sampling patches for the vocabulary', done, len(tasks))
        progress('learning the vocabulary', 0, 1)
        with one_thread():
            patches = np.concatenate(samples)
            basis = _basis(config, patches)
            patches = patches if basis is None else patches @ basis
            vocabulary = _vocabulary(config).learn(patches, config.words, rng)
            weights = None
            if config.relative_counts:
                weights = _relative_weights(vocabulary.nearest(patches), config.words)
        progress('learning the vocabulary', 1, 1)
        return cls(config, preparation, vocabulary, basis, network, weights)


def _vocabulary(config: VisionConfig) -> type[FlatVocabulary] | type[VocabularyTree]:
    return VocabularyTree if config.vocabulary_tree else FlatVocabulary


def _relative_weights(words: NDArray[np.intp], size: int) -> NDArray[np.float32]:
    """
    Weigh words by those that patches (k,) of the map have: (size,), 1 for one of mean frequency.

    A weighted count is a count over the word's mean count, so that on average all words count
    alike. Frequencies by Laplace's rule of succession, for a word that no patch has.
    """
    frequencies = np.bincount(words, minlength=size) + 1.0
    return np.asarray(frequencies.mean() / frequencies, dtype=np.float32)


def sample_patches(
    config: VisionConfig,
    camera: Mapping[str, Any],
    network: NDArray[np.uint8] | None,
    per_image: int,
    images: Sequence[tuple[LoadableImage, int]],
) -> NDArray[np.float32]:
    """
    Describe some patches of images, at most `per_image` of each: (k, size).

    `camera`: the state of the preparation. `network`: of `learned_pyramid`. `images`: with their
    seeds; one that cannot be read, or has another size, gives no patches.
    """
    preparation = Preparation.from_state(config, camera)
    local = local_descriptor(config, preparation, network)
    samples = [np.empty((0, local.size), dtype=np.float32)]
    for source, seed in images:
        try:
            prepared = _prepared(local, preparation, load(source))
        except (DatasetError, VisionError):
            continue  # whoever describes the image tells
        descriptors, _ = _patches(local, prepared)
        count = min(per_image, len(descriptors))
        chosen = np.random.default_rng(seed).choice(len(descriptors), count, replace=False)
        samples.append(descriptors[chosen])
    return np.concatenate(samples)


def _basis(config: VisionConfig, patches: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Matrix (d, c) that local descriptors (k, d) are told apart by, None for their numbers."""
    basis = None
    if config.descriptor == 'sift_pyramid' and config.gradient_sign < 1.0:
        basis = sign_weighting(config.gradient_sign)
    # the features of a network are few and differ in all of their numbers
    if config.descriptor == LEARNED or not 0 < config.patch_components < patches.shape[1]:
        return basis
    if basis is None:
        return principal_components(patches, config.patch_components)
    return basis @ principal_components(patches @ basis, config.patch_components)


def _prepared(
    local: LocalDescriptor | LearnedFeatures, preparation: Preparation, image: Image
) -> Image:
    """Prepare an image as a local descriptor wants it, grey or BGR."""
    colour = isinstance(local, LearnedFeatures)
    return preparation.colour(image) if colour else preparation.grey(image)


def _patches(
    local: LocalDescriptor | LearnedFeatures, prepared: Image
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Local descriptors (k, size) of a prepared image, and what they count if not one each."""
    if isinstance(local, LearnedFeatures):
        return local.describe_colour(prepared)
    return local.describe(prepared), None


def principal_components(patches: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """
    Find the directions (d, count) in which local descriptors (k, d) differ most.

    Distances in them rank words as well as all of the numbers do, at a fifth of the arithmetic.
    """
    centred = patches - patches.mean(axis=0)
    directions = np.linalg.eigh(centred.T @ centred)[1][:, ::-1]
    return np.ascontiguousarray(directions[:, :count], dtype=np.float32)


def _checked(name: str, value: Any, shape: tuple[int, ...]) -> NDArray[np.float32]:
    array = np.ascontiguousarray(value, dtype=np.float32)
    if array.shape != shape or not np.isfinite(array).all():
        raise VisionError(
            f'{name} of shape {array.shape}: expected {shape} finite numbers; build the map again'
        )
    return array


def local_descriptor(
    config: VisionConfig, preparation: Preparation, network: NDArray[np.uint8] | None = None
) -> LocalDescriptor | LearnedFeatures:
    """
    Make the local descriptor that a configuration names, of a network if it needs one.

    Raises VisionError for a descriptor that has none.
    """
    if network is not None:
        return LearnedFeatures(config, preparation, network)
    if config.descriptor not in ON_GRID:
        raise VisionError(
            f'descriptor {config.descriptor!r} has no local descriptor: expected one of '
            f'{", ".join(ON_GRID)}'
        )
    grid = PatchGrid(preparation.shape, config.patch_size, config.spacing, preparation.wraps)
    return ON_GRID[config.descriptor](config, grid)
