"""What a map says of itself when the neighbourhood of its images is left out."""

from __future__ import annotations

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.localization.calibration import reported
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.belief import OTHER_WAY
from kbr_localization.localization.kbr.confirmation import Evidence
from kbr_localization.localization.kbr.estimate import mode_of
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.kbr.informative import apart, margin, other_places
from kbr_localization.localization.map.describing import GramDescriber
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.map_statistics import MapStatistics
from kbr_localization.localization.map.similarity import FullSimilarity
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
_LARGEST = 600  # images that are looked at; of more, so many that follow each other
_SAMPLES = 100
_MOST_BETWEEN = 20  # images that are interpolated between two
_SAME = 1e-3  # metres
_DENSER = 0.7
"""
Of the way between two frames of the runs: that between images which are interpolated.

Other buildings are called localized in 4% of the frames with 1 and in 1% with 0.7, on rendered
maps of 100 images: they resemble a map more than its halves do. Right places are called so in 1 to
4% less of the frames with 0.7, on sparse maps of photographs (docs/choices.md).
"""
_FEWEST = 4  # images that tell a mean, of margins or of what is seen at wrong places
_USUAL = MapStatistics()
_LEAST_EVIDENCE = 0.17  # nats, of images that say next to nothing
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
    # on all maps of `benchmarks.cases` the first is 1.9 times the other, or more
    beyond = np.finfo(np.float64).max  # more than any image is likely: none speaks for a place
    margins = MapStatistics(
        max(here, elsewhere), elsewhere, evidence_limit=0.0, reference_log_likelihood=beyond
    )
    seen = _seen_elsewhere(part, margins, config)
    return replace(margins, **_evidence(seen))


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


def _seen_elsewhere(
    kernel_map: KernelMap, margins: MapStatistics, config: KbrConfig
) -> list[FloatArray]:
    """
    Drive each half of the map on the other half, where every place is wrong.

    Returns log E and weight (k, 2) of the images of each stay, which is a row of images during
    which the belief remains at one place.
    """
    centred = kernel_map.poses[:, :2] - kernel_map.poses[:, :2].mean(axis=0)
    found: list[FloatArray] = []
    for axis in np.linalg.svd(centred, full_matrices=False)[2]:
        position = centred @ axis
        for side in (position > np.median(position), position <= np.median(position)):
            drive, rest = np.flatnonzero(side), np.flatnonzero(~side)
            if min(drive.size, rest.size) >= _FEWEST:
                half = replace(kernel_map.subset(rest), statistics=margins)
                localizer = KernelBayesFilter(half, config, np.random.default_rng(0))
                for leg in _legs(kernel_map, side):
                    found += _drive(kernel_map, leg, localizer)
    return found


def _legs(kernel_map: KernelMap, side: NDArray[np.bool_]) -> list[Indices]:
    """Split images of a map, of which `side` (n,) tells, where a run ends or goes elsewhere."""
    order = np.lexsort((kernel_map.stamps_ns, kernel_map.run_index))
    ends = np.flatnonzero(np.diff(kernel_map.run_index[order]) | np.diff(side[order])) + 1
    return [leg for leg in np.split(order, ends) if side[leg[0]]]


def _evidence(stays: list[FloatArray]) -> dict[str, float]:
    """
    Return the most evidence of wrong stays, and the means of their log E.

    The reference is the mean of the likeliest stays that together weigh `_FEWEST`: at no place
    where so much is seen does evidence grow, and a short stay, whose mean is of chance, does not
    decide by itself. Where all of them weigh less, the rest counts as 0.
    """
    logs, weights = np.concatenate([np.zeros((0, 2)), *stays]).T
    typical = max(0.0, float(logs @ weights) / max(float(weights.sum()), 1e-9))
    of_stays = np.array([[stay[:, 1].sum(), stay[:, 0] @ stay[:, 1]] for stay in stays])
    reference = _mean_of_likeliest(of_stays.reshape(-1, 2))
    largest = 0.0
    for stay in stays:
        evidence = Evidence(reference)
        for image in stay:
            evidence.see(*image)
            largest = max(largest, evidence.total)
    return {
        'evidence_limit': max(_LEAST_EVIDENCE, largest),
        'typical_log_likelihood': typical,
        'reference_log_likelihood': reference,
    }


def _mean_of_likeliest(stays: FloatArray) -> float:
    """Mean log E of the likeliest of stays (k, 2), weights and sums, that weigh `_FEWEST`."""
    weights, sums = stays[stays[:, 0] > 0.0].T
    order = np.argsort(-sums / weights)
    reached = np.minimum(np.cumsum(weights[order]), _FEWEST)
    taken = np.diff(reached, prepend=0.0)
    return max(0.0, float(taken @ (sums / weights)[order]) / _FEWEST)


def _drive(kernel_map: KernelMap, leg: Indices, localizer: KernelBayesFilter) -> list[FloatArray]:
    """
    Run a filter over images that follow each other, on a part of their map without their places.

    By its statistics (`measure`) no image speaks for a place, and none against it, as twice a
    limit of 0 is the most that counts: nothing is confirmed, and the belief looks elsewhere at
    every image, no more where one contradicts it.
    A belief that has left that part sees nothing more, so the robot starts anew. What it saw while
    it was right, at the edge of that part, is no evidence of a wrong place.
    """
    stays: list[list[tuple[float, float]]] = [[]]
    uncovered, recovered = _UNCOVERED, localizer.diagnostics['recoveries']
    part = localizer.kernel_map
    views = part.describer.cross_gram(kernel_map.descriptors[leg], part.descriptors[:])
    poses, views = _filled(kernel_map, leg, views, localizer.config)
    for before, pose, view in zip([poses[0], *poses[:-1]], poses, views, strict=True):
        if uncovered >= _UNCOVERED:
            localizer.initialize_globally()
            uncovered = 0
            stays.append([])
        localizer.predict(reported(se2.between(before, pose), localizer.odometry.expected))
        if localizer.wants_image():
            localizer.update_similarities(view)
            hypotheses = localizer.hypotheses
            uncovered = uncovered + 1 if hypotheses.coverage < _COVERED else 0
            before_it, recovered = recovered, localizer.diagnostics['recoveries']
            if not _is_wrong(localizer, pose) or recovered > before_it:
                stays.append([])
            else:
                stays[-1].append((float(np.log(hypotheses.here)), hypotheses.weight))
    return [np.array(stay) for stay in stays if stay]


def _filled(
    kernel_map: KernelMap, leg: Indices, views: FloatArray, config: KbrConfig
) -> tuple[FloatArray, FloatArray]:
    """
    Poses (n, 3) and kernel vectors (n, k) of images that follow each other, and more in between.

    Where the map left frames of a run out, a robot takes them all the same. They show much the
    same as their neighbours and so agree in what they say, even where that is wrong: a drive by
    the images of the map alone would understate how likely a wrong place can become. They are
    interpolated, `_DENSER` times as far apart as the frames of the runs, or by `update_min_d`
    where that is more; where frames are not left out there is nothing to add.
    """
    poses, following = kernel_map.poses[leg], kernel_map.next_poses[leg[:-1]]
    step = max(config.update_min_d, _DENSER * _frame_step(kernel_map))
    if len(poses) < 2 or step <= 0.0:
        return poses, views
    gaps = np.hypot(*np.diff(poses[:, :2], axis=0).T)
    complete = np.hypot(*(poses[1:] - following)[:, :2].T) < _SAME
    steps = np.clip(np.ceil(np.where(complete, 1.0, gaps / step)), 1, _MOST_BETWEEN).astype(int)
    parts = np.concatenate([np.arange(1, count + 1) / count for count in steps])[:, np.newaxis]
    before = np.repeat(np.arange(len(gaps)), steps)
    offsets = se2.between(poses[before], poses[before + 1])
    between = se2.compose(poses[before], parts * offsets)
    blended = (1.0 - parts) * views[before] + parts * views[before + 1]
    return np.concatenate([poses[:1], between]), np.concatenate([views[:1], blended])


def _frame_step(kernel_map: KernelMap) -> float:
    """Metres between frames of the runs of a map, where they moved; 0 where no run tells."""
    steps = np.hypot(*(kernel_map.next_poses - kernel_map.poses)[:, :2].T)
    moved = steps[steps > _SAME]
    return float(np.median(moved)) if moved.size else 0.0


def _is_wrong(localizer: KernelBayesFilter, pose: FloatArray) -> bool:
    """Whether the belief lies about another place than the pose (3,), or faces another way."""
    assert localizer.belief is not None
    config = localizer.config
    offset = se2.between(pose, mode_of(localizer.belief, config))
    distance = float(np.hypot(offset[0], offset[1]))
    return distance > config.localized_radius or abs(float(offset[2])) > OTHER_WAY
