"""Pictures of runs, drawn with matplotlib but without its global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kbr_localization.evaluation.matches import ImagePair
from kbr_localization.evaluation.metrics import RunErrors
from kbr_localization.files import new_file
from kbr_localization.se2 import FloatArray
from kbr_localization.trajectory import Trajectory
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
import numpy as np
from numpy.typing import NDArray

LEAP_M = 1.5
LEAST_M = 1e-3
"""A smaller error is drawn as this one: a logarithmic axis has no room for 0."""
FOLLOWED = 0.3
"""How far a plan follows an estimate out of the building, as a part of the longer side of it."""
FAINT = '#cbd2d9'
INK, MUTED, TRUTH, ACCENT, ALARM = '#1f2933', '#9aa5b1', '#52606d', '#0b7285', '#c92a2a'
LEGEND: Mapping[str, Any] = {
    'loc': 'lower left',
    'bbox_to_anchor': (0.0, 1.0),
    'ncols': 3,
    'fontsize': 8,
    'frameon': False,
    'labelcolor': INK,
    'borderaxespad': 0.2,
}
"""Above the axes, where nothing is hidden."""
STYLE: Mapping[str, Any] = {'color': INK, 'fontsize': 9}


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
    figure = Figure(
        figsize=(11, 6.2 if pairs else 5.2), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06)
    )
    grid = figure.add_gridspec(2, 2 + bool(pairs), height_ratios=[2.6, 1])
    plan = figure.add_subplot(grid[0, :2])
    plan_axes(plan, map_poses, reference, estimates)
    for number, pair in enumerate(pairs, start=1):
        if pair.pose is not None:
            plan.annotate(str(number), tuple(pair.pose[:2]), **_badge())
    figure.suptitle(title, x=0.01, ha='left', color=INK, fontsize=11, fontweight='bold')
    _draw_errors(figure.add_subplot(grid[1, :2]), errors)
    if pairs:
        _draw_pairs(figure, grid[:, 2], pairs)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure in the format that the name says."""
    with new_file(path) as part:
        figure.savefig(part, dpi=110)


def plain_axes(axes: Axes, x_label: str, y_label: str) -> None:
    """Take away from a plot what carries no information."""
    axes.spines[['top', 'right']].set_visible(False)
    axes.spines[['left', 'bottom']].set_color(MUTED)
    axes.tick_params(colors=INK, labelsize=8, color=MUTED)
    axes.set_xlabel(x_label, **STYLE)
    axes.set_ylabel(y_label, **STYLE)


def method_colours(names: Sequence[str]) -> dict[str, str]:
    """One colour per method: the first in focus, the others apart from it and each other."""
    palette = [ACCENT, '#e8590c', '#6741d9', '#2b8a3e', '#c2255c', '#868e96', '#f08c00']
    palette += ['#1c7ed6', '#5c3d2e', '#66a80f']  # as many as there are methods
    return {name: palette[index % len(palette)] for index, name in enumerate(names)}


def plan_axes(
    axes: Axes, map_poses: FloatArray, reference: Trajectory, estimates: Mapping[str, Trajectory]
) -> None:
    """Draw the map's poses, the truth and estimates from above, the first of them in focus."""
    x, y, heading = map_poses.T
    arrows: dict[str, Any] = {'angles': 'xy', 'scale_units': 'xy', 'scale': 2.2, 'width': 0.0016}
    axes.quiver(x, y, np.cos(heading), np.sin(heading), color=FAINT, **arrows)
    axes.plot([], [], color=FAINT, marker='>', ms=4, lw=1, label='map images')
    axes.plot(*reference.poses[:, :2].T, color=TRUTH, lw=5, alpha=0.35, label='ground truth')
    colours = method_colours(list(estimates))
    for order, (name, trajectory) in enumerate(estimates.items()):
        track = _without_jumps(trajectory.poses[:, :2])
        style = {'lw': 1.8, 'zorder': 4} if order == 0 else {'lw': 0.7, 'marker': '.', 'ms': 3}
        axes.plot(*track.T, color=colours[name], label=name, **style)
    focus = next((trajectory.poses for trajectory in estimates.values()), reference.poses)
    _frame_plan(axes, np.concatenate([map_poses, reference.poses]), focus)
    axes.legend(**LEGEND)


def _without_jumps(track: FloatArray) -> FloatArray:
    """Break a path (n, 2) where it leaps: no robot drove along the line between."""
    leaps = np.flatnonzero(np.linalg.norm(np.diff(track, axis=0), axis=1) > LEAP_M)
    return np.insert(track, leaps + 1, np.nan, axis=0)


def _frame_plan(axes: Axes, building: FloatArray, estimate: FloatArray) -> None:
    """Show the building, and as much around as it takes to follow an estimate that strays."""
    low, high = building[:, :2].min(axis=0), building[:, :2].max(axis=0)
    reach = FOLLOWED * float(np.max(high - low))
    points = np.clip(np.vstack([building, estimate])[:, :2], low - reach, high + reach)
    low, high = points.min(axis=0), points.max(axis=0)
    margin = 0.06 * float(np.max(high - low)) + 0.5
    axes.set_xlim(low[0] - margin, high[0] + margin)
    axes.set_ylim(low[1] - margin, high[1] + margin)
    axes.set_aspect('equal')
    plain_axes(axes, 'x [m]', 'y [m]')


def _draw_errors(axes: Axes, errors: Mapping[str, RunErrors]) -> None:
    colours = method_colours(list(errors))
    for order, (name, run) in enumerate(errors.items()):
        visible = np.maximum(run.position_m, LEAST_M)
        axes.plot(
            run.travel_m,
            visible,
            color=colours[name],
            lw=1.4 if order == 0 else 0.8,
            alpha=1.0 if order == 0 else 0.7,
            zorder=4 if order == 0 else 2,
        )
    axes.axhline(1.0, color=ALARM, lw=0.8, ls=':')
    axes.set_yscale('log')
    axes.set_ylim(0.01, None)
    plain_axes(axes, 'travel [m]', 'position error [m]')


def _draw_pairs(figure: Figure, where: Any, pairs: Sequence[ImagePair]) -> None:
    grid = where.subgridspec(len(pairs), 2, wspace=0.03, hspace=0.12)
    for row, pair in enumerate(pairs):
        left, right = (figure.add_subplot(grid[row, column]) for column in (0, 1))
        for axes, image in ((left, pair.frame), (right, pair.match)):
            axes.set_axis_off()
            if image is not None:
                axes.imshow(_to_rgb(image), cmap='gray', vmin=0, vmax=255, aspect='auto')
        left.text(0.06, 0.1, str(row + 1), transform=left.transAxes, **_badge())
        if row == 0:
            left.set_title('camera', **STYLE)
            right.set_title('most similar map image', **STYLE)


def _to_rgb(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return image if image.ndim == 2 else image[..., ::-1]


def _badge() -> dict[str, Any]:
    box = {'boxstyle': 'circle,pad=0.25', 'fc': 'white', 'ec': INK, 'lw': 0.8}
    return {'fontsize': 8, 'color': INK, 'bbox': box, 'zorder': 6}
