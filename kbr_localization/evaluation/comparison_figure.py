"""The table and the picture of a comparison, after Fig. 6 of [MbKSR]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import math
from pathlib import Path
from typing import Any

from kbr_localization.datasets import Dataset
from kbr_localization.evaluation.association import reference_trajectory
from kbr_localization.evaluation.comparison import ComparisonFolder, MAP
from kbr_localization.evaluation.pictures import (
    LEAST_M,
    LEGEND,
    method_colours,
    plain_axes,
    plan_axes,
    save_figure,
)
from kbr_localization.evaluation.protocol import ComparisonPlan, random_map, Task
from kbr_localization.evaluation.tum import read_tum
from kbr_localization.files import write_text
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
from kbr_localization.trajectory import Trajectory
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
import numpy as np

BELIEF = '#6741d9'
FEWEST_TICKS = 3
"""With numbers, by which an axis can be read."""
FIGURE, TABLE = 'comparison.png', 'comparison.md'
COLUMNS = {
    'localized_after_s': 'localized after s',
    'localized_after_m': 'localized after m',
    'rmse_after_localized_m_mean': 'after localizing m',
    'position_median_m': 'median m',
    'lost_fraction': 'lost after',
    'wrong_called_localized': 'wrong called localized',
    'coverage_2sigma': '2σ',
    'sharpness': 'stated / error',
    'ms_per_frame': 'ms/frame',
    'position_rmse_m_mean': 'RMSE m',
    'position_rmse_m_sd': '± sd',
}
Row = Mapping[str, Any]


def save_comparison(
    out: Path, rows: Sequence[Row], plan: ComparisonPlan, tests: Sequence[Dataset]
) -> None:
    """
    Write the table (Markdown) and the figure of a comparison to its folder.

    The figure shows the first trial of the smallest and of the largest map on the first test run,
    with the belief at some moments.
    """
    write_text(out / TABLE, markdown_table(rows) + _notes(tests))
    kernel_map, method = KernelMap.load(out / MAP), plan.methods[0]
    tasks = [Task(method, size, 0) for size in sorted({min(plan.sizes), max(plan.sizes)})]
    scenes = [scene(out, kernel_map, task, plan.seed) for task in tasks]
    save_figure(comparison_figure(rows, reference_trajectory(tests[0]), scenes), out / FIGURE)


def _notes(tests: Sequence[Dataset]) -> str:
    """Return what to know about the test runs, a line each, below the table."""
    return ''.join(f'\n{test.name}: {note}\n' for test in tests for note in test.notes)


@dataclass(frozen=True)
class Scene:
    """A localized run on the map of one trial, poses (n, 3); `belief`: points (k, 3) of it."""

    task: Task
    map_poses: FloatArray
    trajectory: Trajectory
    belief: FloatArray


def scene(out: Path, kernel_map: KernelMap, task: Task, seed: int) -> Scene:
    """Read what the comparison in a folder kept of a first trial on the first test run."""
    folder = ComparisonFolder(out)
    belief = folder.belief_path(task.method, task.size)
    return Scene(
        task,
        random_map(kernel_map, task, seed).poses,
        read_tum(folder.trajectory_path(task.method, task.size, 0)),
        np.loadtxt(belief, ndmin=2) if belief.exists() else np.zeros((0, 3)),
    )


def markdown_table(rows: Sequence[Row]) -> str:
    """Write rows as a Markdown table, the methods of a size together."""
    lines = [f'| images | method | {" | ".join(COLUMNS.values())} |']
    lines.append('|' + '---|' * (2 + len(COLUMNS)))
    for row in sorted(rows, key=lambda row: int(row['size'])):
        cells = ['–' if row[key] is None else _digits(key, row[key]) for key in COLUMNS]
        lines.append(f'| {row["size"]} | {row["method"]} | {" | ".join(cells)} |')
    return '\n'.join([*lines, ''])


def comparison_figure(
    rows: Sequence[Row], reference: Trajectory, scenes: Sequence[Scene]
) -> Figure:
    """Draw the scenes, and the error of every method over the size of the map."""
    figure = Figure(figsize=(4.6 * (1 + len(scenes)), 4.8), layout='constrained')
    *plans, errors = figure.subplots(1, 1 + len(scenes))
    for plan, shown in zip(plans, scenes, strict=True):
        _draw_scene(plan, reference, shown)
    _draw_errors(errors, rows)
    return figure


def _draw_scene(axes: Axes, reference: Trajectory, shown: Scene) -> None:
    name = f'{shown.task.method}, {shown.task.size} images'
    plan_axes(axes, shown.map_poses, reference, {name: shown.trajectory})
    axes.plot(*shown.belief[:, :2].T, '.', color=BELIEF, ms=3, alpha=0.3, zorder=3, label='belief')
    axes.legend(**LEGEND)


def _draw_errors(axes: Axes, rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(row['method'] for row in rows))
    colours = method_colours(names)
    for name in names:
        mine = [row for row in rows if row['method'] == name]
        means = np.maximum([row['position_rmse_m_mean'] for row in mine], LEAST_M)
        axes.errorbar(
            [row['size'] for row in mine],
            means,
            _bars(mine, means),
            color=colours[name],
            marker='o',
            ms=4,
            capsize=2,
            lw=2.0 if name == 'kbr' else 1.0,
            zorder=4 if name == 'kbr' else 2,
            label=name,
        )
    sizes = sorted({row['size'] for row in rows})
    axes.set_xscale('log')
    axes.set_yscale('log')
    axes.set_xticks(sizes, labels=[str(size) for size in sizes])
    axes.minorticks_off()
    ticks = log_ticks(*axes.get_ylim())
    axes.set_yticks(ticks, labels=[f'{tick:g}' for tick in ticks])
    plain_axes(axes, 'images in the map', 'position RMSE [m], mean ± sd of the trials')
    axes.legend(**LEGEND)


def log_ticks(low: float, high: float) -> list[float]:
    """Choose round numbers between two, closer to each other where an axis is short."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    for digits in ((1,), (1, 2, 5), range(1, 10)):
        ticks = [float(f'{digit}e{decade}') for decade in decades for digit in digits]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= FEWEST_TICKS:
            return inside
    even = MaxNLocator(2 * FEWEST_TICKS).tick_values(low, high)
    return [float(tick) for tick in even if low <= tick <= high]


def _bars(rows: Sequence[Row], means: FloatArray) -> FloatArray:
    """Lengths (2, m) below and above the means; a logarithmic axis has no room for 0."""
    deviation = np.array([row['position_rmse_m_sd'] or 0.0 for row in rows])
    return np.stack([np.minimum(deviation, 0.6 * means), deviation])


def _digits(key: str, value: float) -> str:
    return (
        f'{value:.1f}'
        if key in ('ms_per_frame', 'localized_after_m', 'localized_after_s')
        else f'{value:.3f}'
    )
