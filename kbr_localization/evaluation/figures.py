"""Figures of runs and comparisons (after Fig. 6 of [MbKSR]), drawn without pyplot's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbr_localization.datasets import Dataset
from kbr_localization.evaluation.comparison import (
    belief_path,
    ComparisonPlan,
    MAP,
    random_map,
    Task,
    trajectory_path,
)
from kbr_localization.evaluation.metrics import reference_trajectory, RunErrors
from kbr_localization.evaluation.record import ImagePair
from kbr_localization.evaluation.tum import read_tum
from kbr_localization.files import new_file, write_text
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
from kbr_localization.trajectory import Trajectory
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, LogLocator
import numpy as np

FIGURE, TABLE = 'comparison.png', 'comparison.md'
COLUMNS = {
    'localized_after_s': 'localized after s',
    'localized_after_m': 'localized after m',
    'below_1m_after_m': 'below 1 m after m',
    'rmse_once_below_1m_m_mean': 'RMSE from then on m',
    'position_median_m': 'median m',
    'lost_fraction': 'lost after',
    'wrong_called_localized': 'wrong called localized',
    'coverage_2sigma': '2σ',
    'sharpness': 'stated / error',
    'ms_per_frame': 'ms/frame',
    'position_rmse_m_mean': 'RMSE m',
    'position_rmse_m_sd': '± sd',
}
"""Columns of a table of a comparison: keys of its rows, and headings."""
_LEAST_M = 1e-3
"""A smaller error is drawn as this one: a logarithmic axis has no room for 0."""
_INK, _MUTED, _FAINT, _TRUTH, _ALARM = '#1f2933', '#9aa5b1', '#cbd2d9', '#52606d', '#c92a2a'
_BELIEF = '#6741d9'
_PALETTE = ['#0b7285', '#e8590c', '#6741d9', '#2b8a3e', '#c2255c', '#868e96', '#f08c00']
_PALETTE += ['#1c7ed6', '#5c3d2e', '#66a80f']  # as many as there are methods
_TEXT: Mapping[str, Any] = {'color': _INK, 'fontsize': 9}
_LEGEND: Mapping[str, Any] = {
    'loc': 'lower left',
    'bbox_to_anchor': (0.0, 1.0),
    'ncols': 3,
    'fontsize': 8,
    'frameon': False,
}
"""Above the axes, where nothing is hidden."""

Row = Mapping[str, Any]


def run_figure(
    title: str,
    map_poses: FloatArray,
    reference: Trajectory,
    estimates: Mapping[str, Trajectory],
    errors: Mapping[str, RunErrors],
    pairs: Sequence[ImagePair] = (),
) -> Figure:
    """
    Draw a run: the map's poses, the truth, the estimates, the errors over travel, image pairs.

    The first of the estimates is the one in focus, the others stand behind it.
    """
    figure = Figure(figsize=(11, 6.2 if pairs else 5.2), layout='constrained')
    grid = figure.add_gridspec(2, 2 + bool(pairs), height_ratios=[2.6, 1])
    plan = figure.add_subplot(grid[0, :2])
    _draw_plan(plan, map_poses, reference, estimates)
    for number, pair in enumerate(pairs, start=1):
        if pair.pose is not None:
            plan.annotate(str(number), tuple(pair.pose[:2]), **_badge())
    figure.suptitle(title, x=0.01, ha='left', color=_INK, fontsize=11, fontweight='bold')
    axes = figure.add_subplot(grid[1, :2])
    for order, (name, run) in enumerate(errors.items()):
        style: dict[str, Any] = {'lw': 0.8, 'alpha': 0.7} if order else {'lw': 1.4, 'zorder': 4}
        visible = np.maximum(run.position_m, _LEAST_M)
        axes.plot(run.travel_m, visible, color=method_colours(list(errors))[name], **style)
    axes.axhline(1.0, color=_ALARM, lw=0.8, ls=':')
    axes.set_yscale('log')
    axes.set_ylim(0.01, None)
    _plain_axes(axes, 'travel [m]', 'position error [m]')
    if pairs:
        _draw_pairs(figure, grid[:, 2], pairs)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure in the format that the name says."""
    with new_file(path) as part:
        figure.savefig(part, dpi=110)


def method_colours(names: Sequence[str]) -> dict[str, str]:
    """One colour per method: the first in focus, the others apart from it and each other."""
    return {name: _PALETTE[index % len(_PALETTE)] for index, name in enumerate(names)}


def _plain_axes(axes: Axes, x_label: str, y_label: str) -> None:
    axes.spines[['top', 'right']].set_visible(False)
    axes.spines[['left', 'bottom']].set_color(_MUTED)
    axes.tick_params(labelsize=8, color=_MUTED)
    axes.set_xlabel(x_label, **_TEXT)
    axes.set_ylabel(y_label, **_TEXT)


def _draw_plan(
    axes: Axes, map_poses: FloatArray, reference: Trajectory, estimates: Mapping[str, Trajectory]
) -> None:
    """Draw the map's poses, the truth and estimates from above, the first of them in focus."""
    x, y, heading = map_poses.T
    arrows: dict[str, Any] = {'angles': 'xy', 'scale_units': 'xy', 'scale': 2.2, 'width': 0.0016}
    axes.quiver(x, y, np.cos(heading), np.sin(heading), color=_FAINT, **arrows)
    axes.plot([], [], color=_FAINT, marker='>', ms=4, lw=1, label='map images')
    axes.plot(*reference.poses[:, :2].T, color=_TRUTH, lw=5, alpha=0.35, label='ground truth')
    colours = method_colours(list(estimates))
    for order, (name, trajectory) in enumerate(estimates.items()):
        track = trajectory.poses[:, :2]
        # no robot drove where an estimate jumps
        jumps = np.flatnonzero(np.linalg.norm(np.diff(track, axis=0), axis=1) > 1.5)
        track = np.insert(track, jumps + 1, np.nan, axis=0)
        style = {'lw': 0.7, 'marker': '.', 'ms': 3} if order else {'lw': 1.8, 'zorder': 4}
        axes.plot(*track.T, color=colours[name], label=name, **style)
    focus = next((trajectory.poses for trajectory in estimates.values()), reference.poses)
    # the building, and as much around it as it takes to follow an estimate that strays
    building = np.concatenate([map_poses, reference.poses])[:, :2]
    low, high = building.min(axis=0), building.max(axis=0)
    reach = 0.3 * float(np.max(high - low))
    points = np.clip(np.vstack([building, focus[:, :2]]), low - reach, high + reach)
    low, high = points.min(axis=0), points.max(axis=0)
    margin = 0.06 * float(np.max(high - low)) + 0.5
    axes.set_xlim(low[0] - margin, high[0] + margin)
    axes.set_ylim(low[1] - margin, high[1] + margin)
    axes.set_aspect('equal')
    _plain_axes(axes, 'x [m]', 'y [m]')
    axes.legend(**_LEGEND)


def _draw_pairs(figure: Figure, where: Any, pairs: Sequence[ImagePair]) -> None:
    grid = where.subgridspec(len(pairs), 2, wspace=0.03, hspace=0.12)
    for row, pair in enumerate(pairs):
        left, right = (figure.add_subplot(grid[row, column]) for column in (0, 1))
        for axes, image in ((left, pair.frame), (right, pair.match)):
            axes.set_axis_off()
            if image is not None:
                rgb = image if image.ndim == 2 else image[..., ::-1]
                axes.imshow(rgb, cmap='gray', vmin=0, vmax=255, aspect='auto')
        left.text(0.06, 0.1, str(row + 1), transform=left.transAxes, **_badge())
        if row == 0:
            left.set_title('camera', **_TEXT)
            right.set_title('most similar map image', **_TEXT)


def _badge() -> dict[str, Any]:
    box = {'boxstyle': 'circle,pad=0.25', 'fc': 'white', 'ec': _INK, 'lw': 0.8}
    return {'fontsize': 8, 'color': _INK, 'bbox': box, 'zorder': 6}


@dataclass(frozen=True)
class Scene:
    """A localized run on the map of one trial, poses (n, 3); `belief`: points (k, 3) of it."""

    task: Task
    map_poses: FloatArray
    trajectory: Trajectory
    belief: FloatArray


def save_comparison(
    out: Path, rows: Sequence[Row], plan: ComparisonPlan, tests: Sequence[Dataset]
) -> None:
    """
    Write the table (Markdown) and the figure of a comparison to its folder.

    The figure shows the first trial of the smallest and of the largest map on the first test run,
    with the belief at some moments.
    """
    notes = ''.join(f'\n{test.name}: {note}\n' for test in tests for note in test.notes)
    write_text(out / TABLE, markdown_table(rows) + notes)
    kernel_map, method = KernelMap.load(out / MAP), plan.methods[0]
    tasks = [Task(method, size, 0) for size in sorted({min(plan.sizes), max(plan.sizes)})]
    scenes = [scene(out, kernel_map, task, plan.seed) for task in tasks]
    save_figure(comparison_figure(rows, reference_trajectory(tests[0]), scenes), out / FIGURE)


def scene(out: Path, kernel_map: KernelMap, task: Task, seed: int) -> Scene:
    """Read what the comparison in a folder kept of a first trial on the first test run."""
    belief = belief_path(out, task)
    return Scene(
        task,
        random_map(kernel_map, task, seed).poses,
        read_tum(trajectory_path(out, task, 0)),
        np.loadtxt(belief, ndmin=2) if belief.exists() else np.zeros((0, 3)),
    )


def markdown_table(rows: Sequence[Row]) -> str:
    """Write rows as a Markdown table, the methods of a size together."""
    lines = [f'| images | method | {" | ".join(COLUMNS.values())} |']
    lines.append('|' + '---|' * (2 + len(COLUMNS)))
    for row in sorted(rows, key=lambda row: int(row['size'])):
        cells = ['–' if row[key] is None else f'{row[key]:.3g}' for key in COLUMNS]
        lines.append(f'| {row["size"]} | {row["method"]} | {" | ".join(cells)} |')
    return '\n'.join([*lines, ''])


def comparison_figure(
    rows: Sequence[Row], reference: Trajectory, scenes: Sequence[Scene]
) -> Figure:
    """Draw the scenes, and the error of every method over the size of the map."""
    figure = Figure(figsize=(4.6 * (1 + len(scenes)), 4.8), layout='constrained')
    *plans, errors = figure.subplots(1, 1 + len(scenes))
    for axes, shown in zip(plans, scenes, strict=True):
        name = f'{shown.task.method}, {shown.task.size} images'
        _draw_plan(axes, shown.map_poses, reference, {name: shown.trajectory})
        belief = shown.belief[:, :2].T
        axes.plot(*belief, '.', color=_BELIEF, ms=3, alpha=0.3, zorder=3, label='belief')
        axes.legend(**_LEGEND)
    _draw_comparison(errors, rows)
    return figure


def _draw_comparison(axes: Axes, rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(row['method'] for row in rows))
    for name, colour in method_colours(names).items():
        mine = [row for row in rows if row['method'] == name]
        means = np.maximum([row['position_rmse_m_mean'] for row in mine], _LEAST_M)
        deviation = np.array([row['position_rmse_m_sd'] or 0.0 for row in mine])
        axes.errorbar(
            [row['size'] for row in mine],
            means,
            # a logarithmic axis has no room for 0
            np.stack([np.minimum(deviation, 0.6 * means), deviation]),
            color=colour,
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
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(LogFormatter(labelOnlyBase=False))
    axes.minorticks_off()
    _plain_axes(axes, 'images in the map', 'position RMSE [m], mean ± sd of the trials')
    axes.legend(**_LEGEND)
