"""The ground truth of a run as a trajectory."""

from __future__ import annotations

from kbr_localization.datasets import Dataset
from kbr_localization.trajectory import Trajectory
import numpy as np


def reference_trajectory(dataset: Dataset) -> Trajectory:
    """Collect the stamps and reference poses of the frames that have one; no image is read."""
    known = [(frame.stamp_ns, frame.reference) for frame in dataset if frame.reference is not None]
    stamps = np.array([stamp for stamp, _ in known], dtype=np.int64)
    return Trajectory(stamps, np.array([pose for _, pose in known]).reshape(-1, 3))
