"""
Which images were not taken as they are, so that a command can say so at its end.

Images of 16 bits a channel are used with 8, transparency is ignored. Nobody is told unless
somebody collects: a node that runs for weeks must not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from numpy.typing import NDArray

DEPTH, ALPHA = 'image of 16 bits to 8', 'image with transparency to one without'
FAINT = 'image of 16 bits to fewer than 32 grey levels, to be scaled by the camera or its driver'
_FAINT = 32  # grey levels; a raw thermal image in hundredths of a kelvin has some ten
_noticed: ContextVar[dict[tuple[str, str], None] | None] = ContextVar('noticed', default=None)


def of_sixteen_bits(upper: NDArray[np.uint8]) -> str:
    """Return the kind of conversion of an image of 16 bits by the upper 8, which are left."""
    return FAINT if np.ptp(upper) < _FAINT else DEPTH


def begin() -> None:
    """Collect from now on, with nothing so far."""
    _noticed.set({})


def notice(name: str, kind: str) -> None:
    """Take in that the image of a name was converted; the same one may be read several times."""
    found = _noticed.get()
    if found is not None:
        found[name, kind] = None


def take() -> Mapping[str, int]:
    """Count the images by kind of conversion, and start counting again."""
    counts = Counter(kind for _, kind in _noticed.get() or {})
    begin()
    return counts


@contextmanager
def noticed() -> Iterator[dict[tuple[str, str], None]]:
    """Collect inside of the block alone: name and kind of each conversion."""
    found: dict[tuple[str, str], None] = {}
    token = _noticed.set(found)
    try:
        yield found
    finally:
        _noticed.reset(token)
