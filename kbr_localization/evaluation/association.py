"""The ground truth of a run, and which estimate belongs to which frame, by stamp."""

from __future__ import annotations

from kbr_localization.datasets import Dataset
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import StampArray
from kbr_localization.trajectory import Trajectory
import numpy as np
from numpy.typing import NDArray

TOLERANCE_S = 0.01
"""Seconds by which the stamps of a frame and its estimate may differ, as evo_ape has it."""


def associate(
    frame_stamps_ns: StampArray, estimate_stamps_ns: StampArray, tolerance_s: float = TOLERANCE_S
) -> NDArray[np.int64]:
    """
    Find the estimate of every frame: the nearest one in time, at most `tolerance_s` away.

    Shapes: (n,) and increasing (m,) -> (n,) indices into the estimates, -1 where a frame has
    none. An estimate serves one frame only, the nearest; stamps are integer nanoseconds.
    """
    nearest = _nearest(frame_stamps_ns, estimate_stamps_ns)
    if not estimate_stamps_ns.size:
        return nearest
    distance = np.abs(estimate_stamps_ns[nearest] - frame_stamps_ns)
    nearest[distance > np.rint(tolerance_s * 1e9)] = -1
    return _keep_closest(nearest, distance)


def _nearest(query: StampArray, stamps: StampArray) -> NDArray[np.int64]:
    if not stamps.size:
        return np.full(query.size, -1, dtype=np.int64)
    after = np.clip(np.searchsorted(stamps, query), 0, stamps.size - 1)
    before = np.maximum(after - 1, 0)
    earlier_wins = np.abs(query - stamps[before]) <= np.abs(stamps[after] - query)
    return np.where(earlier_wins, before, after).astype(np.int64)


def _keep_closest(nearest: NDArray[np.int64], distance: StampArray) -> NDArray[np.int64]:
    """Where several frames name one estimate, only the closest of them keeps it."""
    closest_first = np.argsort(distance, kind='stable')
    _, first = np.unique(nearest[closest_first], return_index=True)
    kept = np.full_like(nearest, -1)
    winners = closest_first[first]
    kept[winners] = nearest[winners]
    return kept


def reference_trajectory(dataset: Dataset) -> Trajectory:
    """Collect the stamps and reference poses of the frames that have one; no image is read."""
    known = [(frame.stamp_ns, frame.reference) for frame in dataset if frame.reference is not None]
    stamps = np.array([stamp for stamp, _ in known], dtype=np.int64)
    return Trajectory(stamps, np.array([pose for _, pose in known]).reshape(-1, 3))


def frame_note(kernel_map: KernelMap, dataset: Dataset) -> str:
    """Say that reference poses of a run are in another frame than the map's; else nothing."""
    known = any(frame.reference is not None for frame in dataset)
    if kernel_map.aligned is not False or not known:
        return ''
    return (
        f'the frame of the map is that of its first image, not that of the reference poses of '
        f'{dataset.name}: errors against them, and a start from them, mean nothing before '
        '`kbr map align`'
    )
