"""The interface between images and mathematics: descriptors that have a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Descriptors = NDArray[Any]


class Describer(Protocol):
    """
    Turn images into vectors and compare them with a kernel `k_Y` in [0, 1], 1 for equal images.

    `kind`: the name under which `VisionConfig.descriptor` selects it. `size`: the length of a
    descriptor. `dtype`: of a descriptor (small integers for visual-word counts).
    """

    kind: str
    size: int
    dtype: np.dtype[Any]

    def describe(self, image: NDArray[np.uint8]) -> Descriptors:
        """Descriptor (size,) of a grey (h, w) or BGR (h, w, 3) image; raises VisionError."""
        ...

    def cross_gram(self, left: Descriptors, right: Descriptors) -> NDArray[np.float64]:
        """Kernel matrix (n, m) of descriptors (n, size) and (m, size)."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Arrays and scalars from which the describer can be built again; kept in the map."""
        ...
