"""Whether reference poses of runs can be compared with what a map tells."""

from __future__ import annotations

from collections.abc import Sequence

from kbr_localization.datasets import Dataset
from kbr_localization.localization.map.kernel_map import KernelMap


def frame_note(kernel_map: KernelMap, datasets: Sequence[Dataset]) -> str:
    """Say that reference poses of runs are in another frame than the map's; else nothing."""
    if kernel_map.aligned is not False:
        return ''
    known = [d.name for d in datasets if any(frame.reference is not None for frame in d)]
    if not known:
        return ''
    return (
        f'the frame of the map is that of its first image, not that of the reference poses of '
        f'{", ".join(known)}: errors against them, and a start from them, mean nothing before '
        '`kbr map align`'
    )
