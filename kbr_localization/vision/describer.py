"""The interfaces between images and mathematics: descriptors that have a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kbr_localization.progress import Progress
from kbr_localization.vision.config import VisionConfig
from kbr_localization.vision.loading import LoadableImage
from kbr_localization.vision.preparation import Preparation
from kbr_localization.workers import Workers
import numpy as np
from numpy.typing import NDArray

Descriptors = NDArray[Any]


class Prepared(Protocol):
    """Descriptors that others are compared with again and again."""

    def compared_with(self, queries: Descriptors) -> NDArray[np.float64]:
        """Kernel values of the descriptors and others: (size,) -> (n,), (m, size) -> (n, m)."""
        ...


class Describer(Protocol):
    """
    Turn images into vectors and compare them with a kernel k in [0, 1], 1 for equal images.

    `kind`: the name under which `VisionConfig.descriptor` selects it. `size`: the length of a
    descriptor. `dtype`: of a descriptor (small integers for visual-word counts). `cameras`: their
    names where images are those of several. A class that inherits from this has one camera and no
    preparation unless it says otherwise.
    """

    kind: str
    size: int
    dtype: np.dtype[Any]
    cameras: tuple[str, ...] = ()

    def describe(self, image: NDArray[np.uint8]) -> Descriptors:
        """Descriptor (size,) of a grey (h, w) or BGR (h, w, 3) image; raises VisionError."""
        ...

    def cross_gram(self, left: Descriptors, right: Descriptors) -> NDArray[np.float64]:
        """Kernel matrix (n, m) of descriptors (n, size) and (m, size)."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Arrays and scalars from which the describer can be built again; kept in the map."""
        ...

    def prepared(self, descriptors: Descriptors) -> Prepared:
        """Prepare descriptors (n, size), which must not change, for repeated comparison."""
        return PlainDescriptors(self, descriptors)


class PlainDescriptors:
    """Descriptors (n, size) as they are: `Prepared` where nothing is gained by preparation."""

    def __init__(self, describer: Describer, descriptors: Descriptors) -> None:
        self._describer, self._descriptors = describer, descriptors

    def compared_with(self, queries: Descriptors) -> NDArray[np.float64]:
        """Kernel values of the descriptors and others: (size,) -> (n,), (m, size) -> (n, m)."""
        rows = self._describer.cross_gram(np.atleast_2d(queries), self._descriptors)
        values = np.asarray(rows, dtype=np.float64).T
        return values if queries.ndim > 1 else values[:, 0]


class SelectableDescriber(Describer, Protocol):
    """
    A describer of one camera that a configuration may name: a class of `config.DESCRIBERS`.

    A subclass defines all of the methods but `prepared`.
    """

    @classmethod
    def fit(
        cls,
        config: VisionConfig,
        preparation: Preparation,
        images: Sequence[LoadableImage],
        rng: np.random.Generator,
        workers: Workers,
        progress: Progress,
    ) -> SelectableDescriber:
        """
        Learn from training images what the descriptor needs; see `fit_describer`.

        `preparation`: made of the same images, brings each into the form that is described.
        """
        ...

    @classmethod
    def from_state(
        cls, config: VisionConfig, preparation: Preparation, state: Mapping[str, Any]
    ) -> SelectableDescriber:
        """
        Build again from `state()`, with its configuration and preparation made of it already.

        Raises KeyError for an entry that is missing, VisionError for a damaged one.
        """
        ...
