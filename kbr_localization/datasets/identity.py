"""What tells a run from any other one."""

from __future__ import annotations

import hashlib
from typing import Any

from kbr_localization.datasets.frame import Dataset
import numpy as np


def identity(dataset: Dataset) -> list[Any]:
    """Tell a run from others of the same name, as COLD's of two buildings; no image is read."""
    sums = hashlib.sha256()
    for frame in dataset:
        nowhere = np.zeros(0)
        known = nowhere if frame.reference is None else frame.reference
        for array in (np.array([frame.stamp_ns, len(known)]), frame.odometry, known):
            sums.update(array.tobytes())
    return [dataset.name, len(dataset), sums.hexdigest()]
