"""What the images of runs say of each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kbr_localization.localization.mapping.closures import Closures, propose
from kbr_localization.localization.mapping.consistency import agree, Agreement
from kbr_localization.localization.mapping.pieces import believed
from kbr_localization.localization.mapping.sequences import kernel_rows, sequence_scores
from kbr_localization.localization.mapping.trails import Indices, Trails
from kbr_localization.localization.mapping.wheels import Prior
from kbr_localization.progress import Progress
from kbr_localization.vision import Describer
import numpy as np


@dataclass(frozen=True)
class Related:
    """What images say of each other: all proposals, what agrees, and what is believed of it."""

    anchors: Indices
    proposed: Closures
    agreement: Agreement
    believed: Closures
    group: Indices


def relate(
    describer: Describer,
    descriptors: np.ndarray,
    trails: Trails,
    progress: Progress,
    prior: Prior | None = None,
) -> Related:
    """
    Find the closures of images along trails; those among trusted pieces are not sought.

    `prior`: of the odometry, else that of any robot.
    """
    anchors = trails.anchors()
    anchors = anchors[~trails.trusted[trails.piece[anchors]]]
    report = partial(progress, 'comparing images')
    rows = kernel_rows(describer, descriptors, anchors, report)
    scores = sequence_scores(trails, anchors, rows)
    proposed = propose(trails, anchors, rows, scores)
    none = Agreement(np.zeros(0, dtype=np.intp), 0.0, np.zeros(6))
    agreement = agree(trails, proposed, prior or Prior.unknown()) if len(proposed) else none
    closures, group = believed(trails, proposed, agreement)
    return Related(anchors, proposed, agreement, closures, group)
