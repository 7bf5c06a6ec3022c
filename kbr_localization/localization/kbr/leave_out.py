"""What a map says of itself when the neighbourhood of its images is left out."""

from __future__ import annotations

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.localization.calibration import reported
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.confirmation import CONFIRMED_AFTER
from kbr_localization.localization.kbr.estimate import mode_of, OTHER_WAY
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.kbr.informative import apart, margin, other_places
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
_COVERED, _UNCOVERED = 0.1, 5  # coverage of a belief on the map, images after which it has left

MEASURED_NOW = (
    'its statistics are missing or those of an earlier version and are measured now, as at every '
    'start; `kbr map measure` writes a map that keeps them'
)


def measure(kernel_map: KernelMap, config: KbrConfig | None = None) -> MapStatistics:
    """
    Learn the statistics of a map from its own images.

    It takes a few hundred kernel vectors and runs of the filter over half of the map: seconds for
    a thousand images.
    """
    config = config or kernel_map.filter_config
    part = _tabulated(_consecutive(kernel_map))
    here, elsewhere = _margins(part, config)
    margins = MapStatistics(max(here, 1.5 * elsewhere), elsewhere, np.inf, np.inf, np.inf)
    (ten, twenty, forty), typical = _limits(*_likelihoods_elsewhere(part, margins, config))
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


def _margins(kernel_map: KernelMap, config: KbrConfig) -> tuple[float, float]:
    """Mean margin of images whose place the map shows, and of those whose place is left out."""
    here, elsewhere = [], []
    several = len(np.unique(kernel_map.run_index)) > 1
    for index in range(0, len(kernel_map), max(1, len(kernel_map) // _SAMPLES)):
        compared = FullSimilarity(kernel_map.similarities(kernel_map.descriptors[index]))
        values = kernel_map.centring.of(compared).at(compared.candidates)
        distance = np.hypot(*(kernel_map.poses - kernel_map.poses[index])[:, :2].T)
        others = np.arange(len(kernel_map)) != index
        # another run has another light
        others &= (kernel_map.run_index != kernel_map.run_index[index]) | (not several)
        away = other_places(kernel_map.poses, kernel_map.poses[index], config)
        found, at = _margin_among(kernel_map, values, others, config)
        if at >= 0 and distance[at] < apart(config):
            here.append(found)
        elsewhere.append(_margin_among(kernel_map, values, away, config)[0])
    return _mean(here, _USUAL.margin_here), _mean(elsewhere, _USUAL.margin_elsewhere)


def _margin_among(
    kernel_map: KernelMap, values: FloatArray, among: NDArray[np.bool_], config: KbrConfig
) -> tuple[float, int]:
    """Margin of an image on some of the map's images, and which of these is the best match."""
    kept = np.flatnonzero(among)
    if kept.size < 2:
        return float('nan'), -1
    found = margin(kernel_map.poses[kept], FullSimilarity(values[kept]), config)
    return found, int(kept[int(np.argmax(values[kept]))])


def _mean(margins: list[float], usual: float) -> float:
    known = [value for value in margins if np.isfinite(value)]
    return max(float(np.mean(known)), 1e-6) if len(known) >= _FEWEST else usual


def _likelihoods_elsewhere(
    kernel_map: KernelMap, margins: MapStatistics, config: KbrConfig
) -> tuple[FloatArray, FloatArray]:
    """Drive each half on the other: what `Confirmation` has, (w, 3) each, where it is wrong."""
    centred = kernel_map.poses[:, :2] - kernel_map.poses[:, :2].mean(axis=0)
    found: list[tuple[FloatArray, FloatArray]] = []
    for axis in np.linalg.svd(centred, full_matrices=False)[2]:
        position = centred @ axis
        for side in (position > np.median(position), position <= np.median(position)):
            drive, rest = np.flatnonzero(side), np.flatnonzero(~side)
            if min(drive.size, rest.size) >= _FEWEST:
                half = replace(kernel_map.subset(rest), statistics=margins)
                found += _drive(kernel_map, drive, half, config)
    sums, weights = np.array(found).reshape(-1, 2, len(MEMORIES)).swapaxes(0, 1)
    return sums, weights


def _limits(sums: FloatArray, weights: FloatArray) -> tuple[list[float], float]:
    """
    Return the largest means (3,) at wrong places, with a margin, and what is typical of these.

    A belief is seldom wrong for so many covered images as a long memory asks for; those that are
    missing are taken to say what is typical.
    """
    enough = weights[:, 0] >= CONFIRMED_AFTER[0] - 1e-9
    known = sums[enough, 0] / weights[enough, 0]
    typical = max(0.0, float(np.median(known))) if known.size else 0.0
    missing = np.maximum(CONFIRMED_AFTER - weights, 0.0)
    means = (sums + missing * typical) / (weights + missing)
    largest = SAFETY_FACTOR * means.max(axis=0, initial=0.0)
    return np.maximum(_LEAST_LOG_LIKELIHOOD, largest).tolist(), typical


def _drive(
    kernel_map: KernelMap, drive: Indices, half: KernelMap, config: KbrConfig
) -> list[tuple[FloatArray, FloatArray]]:
    """
    Run the filter over images of a map on a part of it that does not show them.

    Without limits nothing is confirmed, and the belief looks elsewhere at every image.
    A belief that has left that part sees nothing more, so the robot starts anew. What it saw while
    it was right, at the edge of that part, is no likelihood of a wrong place.
    """
    order = drive[np.lexsort((kernel_map.stamps_ns[drive], kernel_map.run_index[drive]))]
    localizer = KernelBayesFilter(half, config, np.random.default_rng(0))
    confirmation = localizer.hypotheses.confirmation
    found: list[tuple[FloatArray, FloatArray]] = []
    images, uncovered, wrong = 0, _UNCOVERED, False
    views = half.describer.cross_gram(kernel_map.descriptors[order], half.descriptors[:])
    poses, views = _filled(kernel_map.poses[order], views, config)
    for before, pose, view in zip([poses[0], *poses[:-1]], poses, views, strict=True):
        if uncovered >= _UNCOVERED or images >= MEMORIES[-1]:
            localizer.initialize_globally()
            images, uncovered, wrong = 0, 0, False
        localizer.predict(reported(se2.between(before, pose), localizer.odometry.mapped))
        if localizer.wants_image():
            localizer.update_similarities(view)
            images += 1
            uncovered = uncovered + 1 if localizer.hypotheses.coverage < _COVERED else 0
            before_wrong, wrong = wrong, _is_wrong(localizer, pose)
            if wrong and not before_wrong:
                confirmation.forget()
            elif wrong:
                found.append((confirmation.sums.copy(), confirmation.weights.copy()))
    return found


def _filled(
    poses: FloatArray, views: FloatArray, config: KbrConfig
) -> tuple[FloatArray, FloatArray]:
    """
    Poses (n, 3) and kernel vectors (n, k) of a drive, an image every `update_min_d` metres.

    Between two images of a sparse map a robot takes several more, which show much the same and so
    agree in what they say, even where that is wrong. A drive by the images of the map alone would
    understate how likely a wrong place can become, so those in between are interpolated.
    """
    step = config.update_min_d
    gaps = np.hypot(*np.diff(poses[:, :2], axis=0).T)
    if gaps.size == 0 or np.median(gaps) < apart(config) or step <= 0.0:
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
    offset = se2.between(pose, mode_of(localizer.belief, config))
    distance = float(np.hypot(offset[0], offset[1]))
    return distance > config.localized_radius or abs(float(offset[2])) > OTHER_WAY
