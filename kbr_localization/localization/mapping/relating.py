"""What the images of runs say of each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kbr_localization.localization.mapping.closures import Closures, propose
from kbr_localization.localization.mapping.consistency import agree, Agreement
from kbr_localization.localization.mapping.pieces import believed
from kbr_localization.localization.mapping.sequences import kernel_rows, sequence_scores
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.localization.mapping.wheels import Prior
from kbr_localization.progress import Progress
from kbr_localization.vision import Describer
import numpy as np


@dataclass(frozen=True)
class Related:
    """
    What images say of each other.

    `anchors`: (a,) images that were compared with all. `proposed`: all closures, `agreement`: the
    largest set of chains that can be true together, `believed`: the closures of it that are more
    than look-alikes. `group`: (p,) of each piece; those of one group are joined by closures.
    """

    anchors: Indices
    proposed: Closures
    agreement: Agreement
    believed: Closures
    group: Indices


def relate(
    describer: Describer,
    descriptors: np.ndarray,
    trajectories: Trajectories,
    progress: Progress,
    prior: Prior | None = None,
) -> Related:
    """
    Find the closures of images along trajectories; those among fixed pieces are not sought.

    `descriptors`: (n, d) of the images of the trajectories, by the describer. `prior`: of the
    odometry, else that of any robot.
    """
    anchors = trajectories.anchors()
    anchors = anchors[~trajectories.fixed[trajectories.piece[anchors]]]
    report = partial(progress, 'comparing images')
    rows = kernel_rows(describer, descriptors, anchors, report)
    scores = sequence_scores(trajectories, anchors, rows)
    proposed = propose(trajectories, anchors, rows, scores)
    none = Agreement(np.zeros(0, dtype=np.intp), 0.0, np.zeros(6))
    agreement = agree(trajectories, proposed, prior or Prior.unknown()) if len(proposed) else none
    closures, group = believed(trajectories, proposed, agreement)
    return Related(anchors, proposed, agreement, closures, group)
