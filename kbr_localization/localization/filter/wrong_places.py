"""
Evidence for wrong places, measured by driving each half of a map on the other half.

No image shows its place there. Log odds are kept at most 0, so that the belief goes to any place
that resembles the last images. A stay is a sequence of images with the belief at one wrong place.
k is the reference with which the images of the likeliest stays are no evidence for their place
(`hypotheses.evidence`); the limit, the highest log odds that a stay reaches by chance.
"""

from dataclasses import replace
from functools import partial

from kbr_localization import se2
from kbr_localization.localization.calibration import reported
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.filter import KernelBayesLocalizer
from kbr_localization.localization.filter.hypotheses import evidence
from kbr_localization.localization.map.kernel_map import KernelMap, MapStatistics
from kbr_localization.localization.map.similarity import Indices
from kbr_localization.progress import report
from kbr_localization.se2 import FloatArray
from kbr_localization.workers import run_tasks
import numpy as np
from numpy.typing import NDArray

Stay = list[tuple[float, float, float]]
"""Weight, Lambda and c of each image."""
MEASURED_NOW = (
    'its statistics are missing or those of an earlier version and are measured now, as at every '
    'start; build the map again, or write it again by `kbr map prune`, to keep them'
)
MIN_LIMIT = 0.17
"""Nats of the limit on maps whose images are hardly informative."""
LIKELIEST = 0.125
"""Fraction of the images at wrong places that belongs to the likeliest stays."""
_UNCOVERED = 5  # images with hardly any coverage after which a belief has left its half


def with_statistics(kernel_map: KernelMap) -> KernelMap:
    """Return the map with its statistics; measure them if it has none."""
    if kernel_map.statistics is None:
        # set them on the frozen map itself, so that they are measured once
        object.__setattr__(kernel_map, 'statistics', measure_statistics(kernel_map))
    return kernel_map


def measure_statistics(kernel_map: KernelMap) -> MapStatistics:
    """Measure k, the limit and the mean log likelihood of wrong places on up to 600 images."""
    config = replace(kernel_map.filter_config, points=300)
    order = np.lexsort((kernel_map.stamps_ns, kernel_map.run_index))
    first = max(0, (len(order) - 600) // 2)
    part = kernel_map.subset(np.sort(order[first : first + 600]))  # noqa: E203
    centred = part.poses[:, :2] - part.poses[:, :2].mean(axis=0)
    along = [centred @ axis for axis in np.linalg.svd(centred, full_matrices=False)[2]]
    sides = [side for x in along for side in (x > np.median(x), x <= np.median(x))]
    stays: list[Stay] = []
    for done, found in enumerate(run_tasks(partial(_stays, part, config), sides), start=1):
        stays += found
        report('driving each half of the map on the other', done, len(sides))
    return statistics_of([np.array(stay) for stay in stays if stay])


def statistics_of(stays: list[FloatArray]) -> MapStatistics:
    """Return the statistics of stays (k, 3): weight, Lambda and c of each image."""
    weights = np.array([stay[:, 0] @ stay[:, 2] for stay in stays])
    if not weights.sum() > 0.0:
        return MapStatistics(MIN_LIMIT, 0.0, 0.0)
    means = np.array([_reference(stay) for stay in stays])
    likeliest = np.argsort(-means)
    most = LIKELIEST * weights.sum()
    share = np.diff(np.minimum(np.cumsum(weights[likeliest]), most), prepend=0.0)
    reference = float(share @ means[likeliest] / share.sum())
    limit = MIN_LIMIT
    for weight, likelihood, coverage in (stay.T for stay in stays):
        nats = np.append(0.0, np.cumsum(weight * evidence(likelihood, coverage, reference)))
        limit = max(limit, float((nats - np.minimum.accumulate(nats)).max()))
    total = sum(float(stay[:, 0] * stay[:, 2] @ np.log(stay[:, 1])) for stay in stays)
    return MapStatistics(limit, max(total / float(weights.sum()), 0.0), reference)


def _reference(stay: FloatArray) -> float:
    """Return the k, at least 0, with which the images of a stay are no evidence."""
    from scipy.optimize import brentq  # noqa: PLC0415  (takes a node half a second)

    weight, likelihood, coverage = stay.T

    def drift(reference: float) -> float:
        return float(weight @ evidence(likelihood, coverage, reference))

    highest = max(float(np.log(likelihood.max())), 0.0) + 1.0
    return float(brentq(drift, 0.0, highest)) if drift(0.0) > 0.0 > drift(highest) else 0.0


def _stays(part: KernelMap, config: KbrConfig, side: NDArray[np.bool_]) -> list[Stay]:
    """Drive the images of `side` (n,) on the other half of the map; return the stays there."""
    if min(side.sum(), (~side).sum()) < _UNCOVERED:
        return []
    half = part.subset(np.flatnonzero(~side))
    localizer = KernelBayesLocalizer(half, config, np.random.default_rng(0))
    localizer.statistics = MapStatistics(np.inf, 0.0, 0.0)
    localizer.max_log_odds = 0.0
    order = np.lexsort((part.stamps_ns, part.run_index))
    ends = np.flatnonzero(np.diff(part.run_index[order]) | np.diff(side[order])) + 1
    legs = np.split(order, ends)  # until a run ends or enters the other half
    return [stay for leg in legs if side[leg[0]] for stay in _drive(part, leg, localizer)]


def _drive(part: KernelMap, leg: Indices, localizer: KernelBayesLocalizer) -> list[Stay]:
    """
    Run a filter over images in sequence, on the half of their map without their places.

    Restart a belief that has left that half: no image weighs it any more. Images at the edge of
    the half, while the belief is right, do not belong to a stay at a wrong place.
    """
    stays: list[Stay] = []
    uncovered, half = _UNCOVERED, localizer.kernel_map
    views = half.describer.cross_gram(part.descriptors[leg], half.descriptors[:])
    poses, views = _interpolated(part, leg, views, localizer.config)
    for before, pose, view in zip([poses[0], *poses[:-1]], poses, views, strict=True):
        if uncovered >= _UNCOVERED:
            localizer.initialize_globally()
            uncovered, stays = 0, [*stays, []]
        localizer.predict(reported(se2.between(before, pose), localizer.odometry.expected))
        if localizer.gate.due:
            metres, starts = localizer.gate.metres, localizer.hypotheses is None
            changes = localizer.diagnostics['recoveries']
            localizer.update_similarities(view)
            hypotheses = localizer.hypotheses
            assert hypotheses is not None
            likelihood, coverage = float(hypotheses.likelihood[0]), float(hypotheses.coverage[0])
            changed = starts or localizer.diagnostics['recoveries'] > changes
            uncovered = uncovered + 1 if coverage < 0.1 else 0
            mode = hypotheses.belief.mode(localizer.model.kernel.widths)
            right = se2.within(mode, pose, localizer.config.localized_radius)
            if changed or right:
                stays.append([])
            else:
                # without the cap on metres: a robot takes more images on the way
                weight = localizer.decorrelation(metres, np.inf)
                stays[-1].append((weight, likelihood, coverage))
    return stays


def _interpolated(
    part: KernelMap, leg: Indices, views: FloatArray, config: KbrConfig
) -> tuple[FloatArray, FloatArray]:
    """
    Return poses (n, 3) and kernel vectors (n, k) of images in sequence, with more in between.

    A robot also takes the images that the map left out of its runs. They resemble their neighbours
    and so support the same place, even a wrong one. Interpolate them, 0.7 times as far apart as
    the frames of the runs, or `update_min_d` if that is more.
    """
    steps = np.hypot(*(part.next_poses - part.poses)[:, :2].T)
    moved = steps[steps > 1e-3]
    step = max(config.update_min_d, 0.7 * (float(np.median(moved)) if moved.size else 0.0))
    poses, following = part.poses[leg], part.next_poses[leg[:-1]]
    if len(poses) < 2 or step <= 0.0:
        return poses, views
    gaps = np.hypot(*np.diff(poses[:, :2], axis=0).T)
    complete = np.hypot(*(poses[1:] - following)[:, :2].T) < 1e-3
    counts = np.clip(np.ceil(np.where(complete, 1.0, gaps / step)), 1, 20).astype(int)
    parts = np.concatenate([np.arange(1, count + 1) / count for count in counts])[:, np.newaxis]
    before = np.repeat(np.arange(len(gaps)), counts)
    between = se2.compose(poses[before], parts * se2.between(poses[before], poses[before + 1]))
    blended = (1.0 - parts) * views[before] + parts * views[before + 1]
    return np.concatenate([poses[:1], between]), np.concatenate([views[:1], blended])
