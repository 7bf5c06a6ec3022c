"""
The law by which the similarity of images decays with the motion between them.

For two images of a run, d metres and a radians apart,

    k~ ~ N(top exp(-u), spread^2),   u = d / length + a / angle.

k~ is the centred kernel, 0 for images far apart. `length` is about 1 m between walls and several
metres on open ground. It is the unit of the filter's distances (`config.sensible_config`), and the
law shows whether the odometry agrees with the images (`filter.consecutive`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TYPE_CHECKING

from kbr_localization import se2
from kbr_localization.localization.config import sensible_config
from kbr_localization.se2 import FloatArray
import numpy as np

if TYPE_CHECKING:
    from kbr_localization.localization.map.kernel_map import KernelMap


@dataclass(frozen=True)
class SimilarityDecay:
    """Parameters of the law; `length` in metres, `angle` in radians."""

    top: float
    length: float
    angle: float
    spread: float

    @classmethod
    def of_map(cls, kernel_map: KernelMap) -> SimilarityDecay | None:
        """Fit the law to pairs of images of each run; return None if there are too few."""
        pairs, runs = [], np.unique(kernel_map.run_index)
        for run in runs:
            # sections of up to 100 images, evenly spread over the run
            members, most = np.flatnonzero(kernel_map.run_index == run), max(600 // len(runs), 2)
            size = min(100, most, len(members))
            first = np.linspace(0, len(members) - size, max(most // size, 1)).astype(int)
            members = members[np.unique(first[:, np.newaxis] + np.arange(size))]
            pairs.append(members[np.stack(np.triu_indices(len(members), 1))])
        i, j = np.concatenate(pairs, axis=1)
        d, a = se2.magnitude(se2.between(kernel_map.poses[i], kernel_map.poses[j]))
        near = (d < 4.0) & (a < 1.5)  # metres, radians
        if near.sum() < 30:
            return None
        used, place = np.unique(np.concatenate([i[near], j[near]]), return_inverse=True)
        first, second = np.split(place, 2)
        return cls.fit(d[near], a[near], kernel_map.centring.gram(used, used)[first, second])

    @classmethod
    def fit(cls, d: FloatArray, a: FloatArray, values: FloatArray) -> SimilarityDecay:
        """Fit the law to k~ (m,) at d, a (m,), all cells of (d, a) weighed equally; weak prior."""
        # a node does not fit, and starts half a second sooner without this import
        from scipy.optimize import least_squares  # noqa: PLC0415

        cells = np.minimum(d / 0.1, 40).astype(int) * 100 + np.minimum(a / 0.1, 15).astype(int)
        _, cell, counts = np.unique(cells, return_inverse=True, return_counts=True)
        weight = 1.0 / np.sqrt(np.maximum(counts[cell], 5))
        scale = 0.1 * float(weight.mean())
        length = np.log(max(float(np.median(d)) / 2.0, 0.05))
        expected, deviations = np.array([0.55, length, np.log(0.45)]), [0.08, 2.0, 0.4]

        def residual(q: FloatArray) -> FloatArray:
            return np.asarray(q[0] * np.exp(-d / np.exp(q[1]) - a / np.exp(q[2])) - values)

        def weighted(q: FloatArray) -> FloatArray:
            return np.append(weight * residual(q), 4.0 * scale * (q - expected) / deviations)

        q = least_squares(weighted, expected, loss='soft_l1', f_scale=scale).x
        length, angle = np.exp(q[1:])
        close = d / length + a / angle < 2.0
        errors = np.abs(residual(q))[close if close.any() else slice(None)]
        spread = max(1.48 * float(np.median(errors)), 0.03)
        return cls(float(q[0]), float(length), float(angle), spread)


def with_sensible_config(
    kernel_map: KernelMap, given: Mapping[str, Any] | None = None
) -> KernelMap:
    """Fit the law of a map and set its filter configuration; `given` values have priority."""
    learnt = replace(kernel_map, decay=SimilarityDecay.of_map(kernel_map))
    suited = sensible_config(learnt.poses, learnt.cameras, learnt.decay_length)
    return replace(learnt, filter_config=replace(suited, **(given or {})))
