"""The table and the picture of a comparison, after Fig. 6 of [MbKSR]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kbr_localization.datasets import Dataset
from kbr_localization.evaluation.comparison import ComparisonFolder, MAP
from kbr_localization.evaluation.pictures import (
    method_colours,
    plain_axes,
    plan_axes,
    save_figure,
    STYLE,
)
from kbr_localization.evaluation.reference import reference_trajectory
from kbr_localization.evaluation.tum import read_tum
from kbr_localization.localization.kernel_map import KernelMap
from kbr_localization.trajectory import Trajectory
from matplotlib.axes import Axes
from matplotlib.figure import Figure

FIGURE, TABLE = 'comparison.png', 'comparison.md'
COLUMNS = {
    'position_rmse_m_mean': 'RMSE m',
    'position_rmse_m_sd': '± sd',
    'rmse_after_localized_m_mean': 'after localizing m',
    'position_median_m': 'median m',
    'lost_fraction': 'lost',
    'coverage_2sigma': '2σ',
    'localized_after_m': 'localized after m',
    'ms_per_frame': 'ms/frame',
}
Row = Mapping[str, Any]


def save_comparison(out: Path, rows: Sequence[Row], tests: Sequence[Dataset]) -> None:
    """Write the table (Markdown) and the figure of a comparison to its folder."""
    (out / TABLE).write_text(markdown_table(rows), encoding='utf-8')
    trajectories = _trajectories(out, rows)
    reference = reference_trajectory(tests[0])
    kernel_map = KernelMap.load(out / MAP)
    save_figure(comparison_figure(rows, kernel_map, reference, trajectories), out / FIGURE)


def markdown_table(rows: Sequence[Row]) -> str:
    """Write rows as a Markdown table, the methods of a size together."""
    lines = [f'| images | method | {" | ".join(COLUMNS.values())} |']
    lines.append('|' + '---|' * (2 + len(COLUMNS)))
    for row in sorted(rows, key=lambda row: int(row['size'])):
        cells = ['–' if row[key] is None else _digits(key, row[key]) for key in COLUMNS]
        lines.append(f'| {row["size"]} | {row["method"]} | {" | ".join(cells)} |')
    return '\n'.join([*lines, ''])


def comparison_figure(
    rows: Sequence[Row],
    kernel_map: KernelMap,
    reference: Trajectory,
    trajectories: Mapping[str, Trajectory],
) -> Figure:
    """Draw the trajectories of the first trial, and the error over the size of the map."""
    figure = Figure(figsize=(11, 4.6), layout='constrained')
    plan, errors = figure.subplots(1, 2)
    plan_axes(plan, kernel_map.poses, reference, trajectories)
    _draw_errors(errors, rows)
    return figure


def _draw_errors(axes: Axes, rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(row['method'] for row in rows))
    colours = method_colours(names)
    for name in names:
        mine = [row for row in rows if row['method'] == name]
        axes.errorbar(
            [row['size'] for row in mine],
            [row['position_rmse_m_mean'] for row in mine],
            [row['position_rmse_m_sd'] for row in mine],
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
    axes.legend(fontsize=STYLE['fontsize'], frameon=False)


def _trajectories(out: Path, rows: Sequence[Row]) -> dict[str, Trajectory]:
    """Return the first trial's trajectories of kbr and NAI on the largest map, where they are."""
    folder, largest = ComparisonFolder(out), max(row['size'] for row in rows)
    paths = {
        f'{method}, {largest} images': folder.trajectory_path(method, largest, 0)
        for method in ('kbr', 'nearest')
    }
    return {name: read_tum(path) for name, path in paths.items() if path.exists()}


def _digits(key: str, value: float) -> str:
    return f'{value:.1f}' if key in ('ms_per_frame', 'localized_after_m') else f'{value:.3f}'
