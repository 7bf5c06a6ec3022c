"""What a map says of itself when the neighbourhood of its images is left out."""

from __future__ import annotations

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.localization.calibration import reported
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.estimate import OTHER_WAY
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.kbr.hypotheses import margin, NEARBY, other_places
from kbr_localization.localization.map.gram_describer import GramDescriber
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.map_statistics import (
    MapStatistics,
    MEMORIES,
    SAFETY_FACTOR,
)
from kbr_localization.localization.map.similarity import FullSimilarity
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
_LARGEST = 600  # images that are looked at; of more, so many that follow each other
_SAMPLES = 100
_MOST_BETWEEN = 20  # images that are interpolated between two
_FEWEST = 5  # margins that tell a mean
_USUAL = MapStatistics()
_LEAST_LOG_LIKELIHOOD = 0.15  # log E of images that say next to nothing
_CARRIED_OFTEN = 1e-3  # per metre: a belief of a drive that is nowhere finds what there is


def measure(kernel_map: KernelMap, config: KbrConfig | None = None) -> MapStatistics:
    """
    Learn the statistics of a map from its own images.

    It takes a few hundred kernel vectors and runs of the filter over half of the map: seconds for
    a thousand images.
    """
    config = config or kernel_map.filter_config
    part = _tabulated(_consecutive(kernel_map))
    here, elsewhere = _margins(part)
    margins = MapStatistics(max(here, 1.5 * elsewhere), elsewhere, np.inf, np.inf, np.inf)
    found = _log_likelihoods_elsewhere(part, margins, config)
    ten, twenty, forty = _limits(found)
    typical = max(0.0, float(np.median(found[:, 0]))) if len(found) else 0.0
    return MapStatistics(margins.margin_here, elsewhere, ten, twenty, forty, typical)


def with_statistics(kernel_map: KernelMap) -> KernelMap:
    """Return the map with its statistics, measured once where it has none."""
    if kernel_map.statistics is None:
        # of a value as if it had been there: the map itself stays as it is
        object.__setattr__(kernel_map, 'statistics', measure(kernel_map))
    return kernel_map


def _consecutive(kernel_map: KernelMap) -> KernelMap:
    order = np.lexsort((kernel_map.stamps_ns, kernel_map.run_index))
    first = max(0, (len(order) - _LARGEST) // 2)
    last = first + _LARGEST
    return kernel_map.subset(np.sort(order[first:last]))


def _tabulated(kernel_map: KernelMap) -> KernelMap:
    """Compute the kernel values of all images with each other once."""
    rows = kernel_map.descriptors[:]
    gram = np.asarray(kernel_map.describer.cross_gram(rows, rows), dtype=np.float64)
    numbers = np.arange(len(kernel_map), dtype=np.int64)[:, np.newaxis]
    return replace(kernel_map, describer=GramDescriber(gram), descriptors=numbers, thumbnails=())


def _margins(kernel_map: KernelMap) -> tuple[float, float]:
    """Mean margin of images whose place the map shows, and of those whose place is left out."""
    here, elsewhere = [], []
    several = len(np.unique(kernel_map.run_index)) > 1
    for index in range(0, len(kernel_map), max(1, len(kernel_map) // _SAMPLES)):
        values = kernel_map.similarities(kernel_map.descriptors[index])
        distance = np.hypot(*(kernel_map.poses - kernel_map.poses[index])[:, :2].T)
        others = np.arange(len(kernel_map)) != index
        # another run has another light
        others &= (kernel_map.run_index != kernel_map.run_index[index]) | (not several)
        away = other_places(kernel_map.poses, kernel_map.poses[index])
        found, at = _margin_among(kernel_map, values, others)
        if at >= 0 and distance[at] < NEARBY:
            here.append(found)
        elsewhere.append(_margin_among(kernel_map, values, away)[0])
    return _mean(here, _USUAL.margin_here), _mean(elsewhere, _USUAL.margin_elsewhere)


def _margin_among(
    kernel_map: KernelMap, values: FloatArray, among: NDArray[np.bool_]
) -> tuple[float, int]:
    """Margin of an image on some of the map's images, and which of these is the best match."""
    kept = np.flatnonzero(among)
    if kept.size < 2:
        return float('nan'), -1
    found = margin(kernel_map.poses[kept], FullSimilarity(values[kept]))
    return found, int(kept[int(np.argmax(values[kept]))])


def _mean(margins: list[float], usual: float) -> float:
    known = [value for value in margins if np.isfinite(value)]
    return max(float(np.mean(known)), 1e-6) if len(known) >= _FEWEST else usual


def _log_likelihoods_elsewhere(
    kernel_map: KernelMap, margins: MapStatistics, config: KbrConfig
) -> FloatArray:
    """Mean log likelihoods (w, 3) at wrong places of drives through one half on the other."""
    centred = kernel_map.poses[:, :2] - kernel_map.poses[:, :2].mean(axis=0)
    found: list[FloatArray] = []
    for axis in np.linalg.svd(centred, full_matrices=False)[2]:
        position = centred @ axis
        for side in (position > np.median(position), position <= np.median(position)):
            drive, rest = np.flatnonzero(side), np.flatnonzero(~side)
            if min(drive.size, rest.size) >= _FEWEST:
                half = replace(kernel_map.subset(rest), statistics=margins)
                found += _drive(kernel_map, drive, half, config)
    return np.array(found).reshape(-1, len(MEMORIES))


def _limits(found: FloatArray) -> list[float]:
    """
    Return the largest means of those (w, 3) at wrong places, with a margin.

    Drives that have been wrong for less than a memory do not tell what is possible over one: the
    limit of the shorter memory is kept.
    """
    limits = [_LEAST_LOG_LIKELIHOOD]
    for column, memory in zip(found.T, MEMORIES, strict=True):
        known = column[np.isfinite(column)]
        told = known.size >= (memory if len(limits) > 1 else 1)
        largest = SAFETY_FACTOR * float(known.max(initial=0.0))
        limits.append(max(_LEAST_LOG_LIKELIHOOD, largest) if told else limits[-1])
    return limits[1:]


def _drive(
    kernel_map: KernelMap, drive: Indices, half: KernelMap, config: KbrConfig
) -> list[FloatArray]:
    """Run the filter over images of a map on a part of it that does not show them."""
    order = drive[np.lexsort((kernel_map.stamps_ns[drive], kernel_map.run_index[drive]))]
    often = replace(config, carried_rate=max(config.carried_rate, _CARRIED_OFTEN))
    localizer = KernelBayesFilter(half, often, np.random.default_rng(0))
    localizer.initialize_globally()
    confirmation = localizer.hypotheses.confirmation
    found: list[FloatArray] = []
    views = half.describer.cross_gram(kernel_map.descriptors[order], half.descriptors[:])
    poses, views = _filled(kernel_map.poses[order], views, config.update_min_d)
    for before, pose, view in zip([poses[0], *poses[:-1]], poses, views, strict=True):
        localizer.predict(reported(se2.between(before, pose), localizer.odometry.mapped))
        if localizer.wants_image():
            localizer.update_similarities(view)
            if np.isfinite(confirmation.means[0]) and _is_wrong(localizer, pose):
                found.append(confirmation.means)
    return found


def _filled(poses: FloatArray, views: FloatArray, step: float) -> tuple[FloatArray, FloatArray]:
    """
    Poses (n, 3) and kernel vectors (n, k) of a drive as a robot has them, an image every `step`.

    The images of a sparse map are of different places, and those that a robot takes in between
    are not: they agree in what they say. These are interpolated.
    """
    gaps = np.hypot(*np.diff(poses[:, :2], axis=0).T)
    if gaps.size == 0 or np.median(gaps) < NEARBY or step <= 0.0:
        return poses, views
    steps = np.clip(np.ceil(gaps / step), 1, _MOST_BETWEEN).astype(int)
    parts = np.concatenate([np.arange(1, count + 1) / count for count in steps])[:, np.newaxis]
    before = np.repeat(np.arange(len(gaps)), steps)
    offsets = se2.between(poses[before], poses[before + 1])
    between = se2.compose(poses[before], parts * offsets)
    blended = (1.0 - parts) * views[before] + parts * views[before + 1]
    return np.concatenate([poses[:1], between]), np.concatenate([views[:1], blended])


def _is_wrong(localizer: KernelBayesFilter, pose: FloatArray) -> bool:
    """Whether the belief lies about another place than the pose (3,), or faces another way."""
    assert localizer.belief is not None
    config = localizer.config
    apart = se2.between(pose, localizer.belief.mode(config.mode_bandwidth))
    distant = np.hypot(apart[0], apart[1]) > config.localized_radius
    return bool(distant or abs(apart[2]) > OTHER_WAY)
