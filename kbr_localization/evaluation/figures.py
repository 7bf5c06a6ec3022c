"""The figure of a run, drawn without pyplot's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kbr_localization.evaluation.metrics import RunErrors
from kbr_localization.evaluation.report import ImagePair
from kbr_localization.files import new_file
from kbr_localization.localization.localizer import LOST_M
from kbr_localization.se2 import FloatArray
from kbr_localization.trajectory import Trajectory
import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

_STYLE: Any = {
    'axes.spines.right': False,
    'axes.spines.top': False,
    'font.size': 9,
    'legend.frameon': False,
}
_LEAST_M = 1e-3
"""A smaller error is drawn as this one: a logarithmic axis has no room for 0."""
_BADGE = {'boxstyle': 'circle,pad=0.25', 'fc': 'white'}


@mpl.rc_context(_STYLE)
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
    plan, over_travel = (figure.add_subplot(grid[row, :2]) for row in (0, 1))
    _draw_plan(plan, map_poses, reference, estimates)
    figure.suptitle(title, x=0.01, ha='left', fontweight='bold')
    for order, run in enumerate(errors.values()):
        visible = np.maximum(run.position_m, _LEAST_M)
        over_travel.plot(run.travel_m, visible, color=f'C{order}', lw=0.8 if order else 1.4)
    over_travel.axhline(LOST_M, color='red', lw=0.8, ls=':')
    over_travel.set(yscale='log', xlabel='travel [m]', ylabel='position error [m]')
    over_travel.set_ylim(0.01, None)
    images = grid[:, -1].subgridspec(max(len(pairs), 1), 2, wspace=0.03, hspace=0.12)
    for row, pair in enumerate(pairs):
        for column, (name, image) in enumerate((('camera', pair.frame), ('map', pair.match))):
            axes = figure.add_subplot(images[row, column])
            axes.set_axis_off()
            if row == 0:
                axes.set_title(name)
            if image is not None:
                rgb = image if image.ndim == 2 else image[..., ::-1]
                axes.imshow(rgb, cmap='gray', vmin=0, vmax=255, aspect='auto')
            if column == 0:
                axes.text(0.06, 0.1, str(row + 1), transform=axes.transAxes, bbox=_BADGE)
        if pair.pose is not None:
            plan.annotate(str(row + 1), tuple(pair.pose[:2]), bbox=_BADGE)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure in the format that the name says."""
    with new_file(path) as part:
        figure.savefig(part, dpi=110)


def _draw_plan(
    axes: Axes, map_poses: FloatArray, reference: Trajectory, estimates: Mapping[str, Trajectory]
) -> None:
    """Draw the map's poses, the truth and estimates from above, the first of them in focus."""
    x, y, heading = map_poses.T
    arrows: dict[str, Any] = {'angles': 'xy', 'scale_units': 'xy', 'scale': 2.2, 'width': 0.0016}
    axes.quiver(x, y, np.cos(heading), np.sin(heading), color='0.8', **arrows)
    axes.plot([], [], color='0.8', marker='>', ms=4, lw=1, label='map images')
    axes.plot(*reference.poses[:, :2].T, color='0.4', lw=5, alpha=0.35, label='ground truth')
    for order, (name, trajectory) in enumerate(estimates.items()):
        track = trajectory.poses[:, :2]
        # no robot drove where an estimate jumps
        jumps = np.flatnonzero(np.linalg.norm(np.diff(track, axis=0), axis=1) > 1.5)
        track = np.insert(track, jumps + 1, np.nan, axis=0)
        style = {'lw': 0.7, 'marker': '.', 'ms': 3} if order else {'lw': 1.8, 'zorder': 4}
        axes.plot(*track.T, color=f'C{order}', label=name, **style)
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
    axes.set(aspect='equal', xlabel='x [m]', ylabel='y [m]')
    axes.legend(loc='lower left', bbox_to_anchor=(0.0, 1.0), ncols=3)
