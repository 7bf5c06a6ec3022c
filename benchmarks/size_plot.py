"""Cost of a filter step against the size of the map: ours, dense Algorithm 1, the whole kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
import time
from typing import Any

from benchmarks.scene import START
from benchmarks.synthetic_map import Corridors, drive, synthetic_map
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.localizer import Localizer
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.adapted import AdaptedAlgorithm1
from kbr_localization.progress import Progress
from matplotlib.figure import Figure
import numpy as np

SIZES = (250, 500, 1000, 2000, 4000, 16000, 64000)
DENSE_LIMIT = 2000
METRES, DENSE_METRES = 24.0, 3.2
OURS, DENSE, WHOLE = 'kbr, a step', 'Algorithm 1 as printed, a step', 'kernel vector of all images'

Costs = dict[str, list[tuple[int, float]]]


def cost_against_size(folder: Path, progress: Progress) -> Costs:
    """Median milliseconds by name and map size."""
    costs: Costs = {OURS: [], DENSE: [], WHOLE: []}
    for done, size in enumerate(SIZES, start=1):
        kernel_map, building = synthetic_map(size, folder)
        for name, seconds in _measure(kernel_map, building):
            costs[name].append((size, 1e3 * float(np.median(seconds))))
        progress('cost against map size', done, len(SIZES))
    return costs


def save_plot(costs: Costs, path: Path) -> None:
    """Draw the costs, both axes logarithmic."""
    figure = Figure(figsize=(6.4, 4.0), layout='constrained')
    axes = figure.subplots()
    for (name, points), marker in zip(costs.items(), 'o^s', strict=True):
        axes.loglog(*zip(*points, strict=True), marker=marker, label=name)
    axes.set_xlabel('images of the map')
    axes.set_ylabel('milliseconds (median)')
    axes.grid(which='both', alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def _measure(kernel_map: KernelMap, building: Corridors) -> Iterator[tuple[str, list[float]]]:
    yield OURS, _steps(KernelBayesFilter(kernel_map), building, METRES)
    if len(kernel_map) <= DENSE_LIMIT:
        yield DENSE, _steps(AdaptedAlgorithm1(kernel_map), building, DENSE_METRES)
    query = np.array(kernel_map.descriptors[len(kernel_map) // 3])
    yield WHOLE, [_seconds(kernel_map, query) for _ in range(5)]


def _steps(localizer: Localizer, building: Corridors, metres: float) -> list[float]:
    """Seconds of predict, update and estimate along a drive that starts from its true pose."""
    seconds: list[float] = []
    length, rng = building.length, np.random.default_rng(3)
    path: Any = drive(building, 0.2 * length, min(metres, 0.6 * length), rng)
    for index, (pose, increment, image) in enumerate(path):
        if index == 0:
            localizer.initialize(pose, START)
        start = time.perf_counter()
        localizer.predict(increment)
        localizer.update(image)
        localizer.estimate()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def _seconds(kernel_map: KernelMap, query: np.ndarray) -> float:
    start = time.perf_counter()
    kernel_map.similarities(query)
    return time.perf_counter() - start
