"""Read all of a map file and compare it with its checksums: `kbr map check`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
from kbr_localization.localization.map.file import opened, read_map
from kbr_localization.localization.map.storage import is_mapped, read_array
import numpy as np


@dataclass(frozen=True)
class CheckedMap:
    """
    What was found in a map file without a wrong byte.

    `images`, `arrays`: their numbers. `size`: of the file in bytes. `unverified`: arrays of a map
    that was made before large ones had checksums, by name.
    """

    images: int
    arrays: int
    size: int
    unverified: tuple[str, ...]


def check_map(path: Path) -> CheckedMap:
    """Read everything in a map file; raises MapError naming the first thing that is wrong."""
    names: list[str] = []
    unverified: list[str] = []

    def look(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            names.append(name)
            if not _verify(item):
                unverified.append(name)

    with opened(path) as file:
        file.visititems(look)
    kernel_map = read_map(path)
    np.asarray(kernel_map.descriptors)  # numbers that are not finite have right checksums, too
    size = path.stat().st_size
    return CheckedMap(len(kernel_map), len(names), size, tuple(unverified))


def _verify(dataset: h5py.Dataset) -> bool:
    """Read all of an array; False where nothing says whether it is what was written."""
    array = read_array(dataset)
    np.asarray(array)
    if is_mapped(dataset):
        return bool(array.has_checksums)
    return bool(dataset.fletcher32) or dataset.size == 0
