"""What the images of runs say of each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.mapping.closures import Closures, propose
from kbr_localization.localization.mapping.consistency import agree, Agreement
from kbr_localization.localization.mapping.pieces import believed
from kbr_localization.localization.mapping.sequences import kernel_rows, sequence_scores
from kbr_localization.localization.mapping.trails import Indices, Trails
from kbr_localization.localization.motion import MotionNoise
from kbr_localization.progress import Progress
import numpy as np


@dataclass(frozen=True)
class Related:
    """What images say of each other: all proposals, what agrees, and what is believed of it."""

    anchors: Indices
    proposed: Closures
    agreement: Agreement
    believed: Closures
    group: Indices


def relate(kernel_map: KernelMap, trails: Trails, progress: Progress) -> Related:
    """Find the closures of a map's images along trails."""
    anchors = trails.anchors()
    report = partial(progress, 'comparing images')
    rows = kernel_rows(kernel_map.describer, kernel_map.descriptors[:], anchors, report)
    scores = sequence_scores(trails, anchors, rows)
    proposed = propose(trails, anchors, rows, scores)
    none = Agreement(np.zeros(0, dtype=np.intp), 0.0, np.zeros(6))
    agreement = agree(trails, proposed, MotionNoise.default()) if len(proposed) else none
    closures, group = believed(trails, proposed, agreement)
    return Related(anchors, proposed, agreement, closures, group)
