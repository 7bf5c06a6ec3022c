"""The table and the picture of a comparison, after Fig. 6 of [MbKSR]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbr_localization.datasets import Dataset
from kbr_localization.evaluation.comparison import MAP
from kbr_localization.evaluation.described import describe_run, DescribedRun, on_described_run
from kbr_localization.evaluation.pictures import (
    LEGEND,
    method_colours,
    plain_axes,
    plan_axes,
    save_figure,
)
from kbr_localization.evaluation.protocol import ComparisonPlan, random_map, Task, task_seed
from kbr_localization.evaluation.reference import reference_trajectory
from kbr_localization.files import write_text
from kbr_localization.localization.kernel_map import KernelMap
from kbr_localization.localization.localizer import Localizer, PoseEstimate
from kbr_localization.localization.pipeline import localize
from kbr_localization.se2 import FloatArray
from kbr_localization.trajectory import Trajectory
from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

MOMENTS, BELIEF_POINTS, BELIEF = 9, 150, '#6741d9'
FIGURE, TABLE = 'comparison.png', 'comparison.md'
COLUMNS = {
    'position_rmse_m_mean': 'RMSE m',
    'position_rmse_m_sd': '± sd',
    'rmse_after_localized_m_mean': 'after localizing m',
    'position_median_m': 'median m',
    'lost_fraction': 'lost after',
    'coverage_2sigma': '2σ',
    'localized_after_m': 'localized after m',
    'ms_per_frame': 'ms/frame',
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
    write_text(out / TABLE, markdown_table(rows))
    kernel_map, method = KernelMap.load(out / MAP), plan.methods[0]
    run = describe_run(kernel_map.describer, tests[0])
    scenes = [
        scene(kernel_map, run, Task(method, size, 0), plan.seed)
        for size in sorted({min(plan.sizes), max(plan.sizes)})
    ]
    save_figure(comparison_figure(rows, reference_trajectory(run), scenes), out / FIGURE)


@dataclass(frozen=True)
class Scene:
    """A localized run on the map of one trial; `beliefs`: points (k, 3) at some moments."""

    task: Task
    kernel_map: KernelMap
    trajectory: Trajectory
    beliefs: tuple[FloatArray, ...]


def scene(kernel_map: KernelMap, run: DescribedRun, task: Task, seed: int) -> Scene:
    """Localize a described run as the comparison did, and look at the belief now and then."""
    small = on_described_run(random_map(kernel_map, task, seed), run)
    beliefs: list[FloatArray] = []

    def observe(localizer: Localizer, estimate: PoseEstimate) -> None:
        particles = getattr(localizer, 'particles', None)
        beliefs.append(particles(BELIEF_POINTS) if particles else np.zeros((0, 3)))

    localizer_seed = task_seed(task, seed, 0)
    trajectory = localize(small, run, task.method, seed=localizer_seed, observe=observe)
    moments = np.linspace(0, len(beliefs) - 1, MOMENTS).round().astype(int)
    return Scene(task, small, trajectory, tuple(beliefs[moment] for moment in moments))


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
    plan_axes(axes, shown.kernel_map.poses, reference, {name: shown.trajectory})
    points = np.concatenate(shown.beliefs)[:, :2]
    axes.plot(*points.T, '.', color=BELIEF, ms=3, alpha=0.3, zorder=3, label='belief')
    axes.legend(**LEGEND)


def _draw_errors(axes: Axes, rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(row['method'] for row in rows))
    colours = method_colours(names)
    for name in names:
        mine = [row for row in rows if row['method'] == name]
        axes.errorbar(
            [row['size'] for row in mine],
            [row['position_rmse_m_mean'] for row in mine],
            _bars(mine),
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
    plain_axes(axes, 'images in the map', 'position RMSE [m], mean ± sd of the trials')
    axes.legend(**LEGEND)


def _bars(rows: Sequence[Row]) -> FloatArray:
    """Lengths (2, m) below and above the means; a logarithmic axis has no room for 0."""
    deviation = np.array([row['position_rmse_m_sd'] for row in rows])
    mean = np.array([row['position_rmse_m_mean'] for row in rows])
    return np.stack([np.minimum(deviation, 0.6 * mean), deviation])


def _digits(key: str, value: float) -> str:
    return f'{value:.1f}' if key in ('ms_per_frame', 'localized_after_m') else f'{value:.3f}'
