"""The interface between images and mathematics: descriptors that have a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

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

    `kind`: the name under which `VisionConfig.descriptor` selects it. `size`, `dtype`: length and
    type of a descriptor (small integers for visual-word counts). `cameras`: names of several
    cameras, empty for one.
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
    """Descriptors (n, size) as they are: `Prepared` where preparation gains nothing."""

    def __init__(self, describer: Describer, descriptors: Descriptors) -> None:
        self._describer, self._descriptors = describer, descriptors

    def compared_with(self, queries: Descriptors) -> NDArray[np.float64]:
        """Kernel values of the descriptors and others: (size,) -> (n,), (m, size) -> (n, m)."""
        rows = self._describer.cross_gram(np.atleast_2d(queries), self._descriptors)
        values = np.asarray(rows, dtype=np.float64).T
        return values if queries.ndim > 1 else values[:, 0]
