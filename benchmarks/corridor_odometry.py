"""
A real robot's odometry in a long corridor: `python -m benchmarks.corridor_odometry Corridor`.

The argument names the files Corridor_GT.txt and Corridor_Input.txt of the TUC SLAM dataset
(Neubert, Schubert and Protzel, RA-L 2019): the true poses of a robot that drives up and down a
corridor of 170 m, and the velocities that its wheels told, ten a second. It has no images, so a
corridor is rendered about the true path and seen from it once a second: by day up to `--until`,
two runs for the map, and at night from then on, from a global start.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import results, workload
from benchmarks.place_recognition import answers
from benchmarks.real_odometry import nanoseconds, Recorded
from kbr_localization import se2
from kbr_localization.datasets.odometry_noise import STEP_NS
from kbr_localization.evaluation import reference_trajectory, run_errors, summarize
from kbr_localization.evaluation.described import DescribedRun, on_described_run
from kbr_localization.evaluation.protocol import random_map, Task
from kbr_localization.localization.kbr.leave_out import with_statistics
from kbr_localization.localization.localizer import LOST_M
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.pipeline import localize
from kbr_localization.se2 import FloatArray
from kbr_localization.simulation import (
    BuildingConfig,
    CELL,
    FloorPlan,
    PlanBuilder,
    SyntheticBuilding,
)
import numpy as np
from scipy.spatial import cKDTree

_HALF_WIDTH, _MARGIN = 1.1, 2.0  # m of corridor beside the path, and of rock about it
_APART = 0.5  # m between the first two places that a way of the plan joins


def recorded(name: str, start_s: float, end_s: float) -> Recorded:
    """Read a part of a drive; `name`: of its files without `_GT.txt` and `_Input.txt`."""
    truth = _columns(Path(f'{name}_GT.txt'), 'point2', 3)
    heading = _columns(Path(f'{name}_GT.txt'), 'angle', 2)
    told = _columns(Path(f'{name}_Input.txt'), 'odom2', 4)
    steps = told[:-1, 1:] * np.diff(told[:, 0])[:, np.newaxis]
    odometry = se2.chain(np.zeros(3), steps)
    end = min(end_s, truth[-1, 0], told[-1, 0])
    moments = np.arange(round(start_s * 1e9), round(end * 1e9), STEP_NS)
    poses = np.column_stack([truth[:, 1:], heading[:, 1]])
    return Recorded(
        f'{Path(name).name} {start_s:g} s',
        se2.interpolate(nanoseconds(truth), poses, moments),
        se2.interpolate(nanoseconds(told), odometry, moments),
    )


def _columns(path: Path, kind: str, count: int) -> FloatArray:
    lines = [line.split() for line in path.read_text(encoding='utf-8').splitlines()]
    cells = slice(1, 1 + count)
    found = [[float(cell) for cell in line[cells]] for line in lines if line[:1] == [kind]]
    if not found:
        raise SystemExit(f'corridor_odometry: expected lines of {kind} in {path}, got none')
    return np.array(found)


def corridor_about(places: FloatArray) -> tuple[FloorPlan, FloatArray]:
    """Plan a corridor about places (n, 2), and say where in it the origin lies (2,)."""
    low = places.min(axis=0) - _MARGIN
    width, height = np.ceil(places.max(axis=0) + _MARGIN - low).tolist()
    plan = PlanBuilder(width, height)
    plan.room(0, 0, width, height, 'corridor')
    x, y = np.meshgrid(np.arange(0.0, width, CELL), np.arange(0.0, height, CELL))
    cells = np.column_stack([x.ravel(), y.ravel()])
    away, _ = cKDTree(places - low).query(cells + 0.5 * CELL)
    for left, lower in cells[away > _HALF_WIDTH].tolist():
        plan.block(left, lower, CELL, CELL)
    further = np.hypot(*(places - places[0]).T) > _APART
    ends = places[[0, int(np.argmax(further))]] - low
    plan.edge(*(plan.node(*end.tolist()) for end in ends))
    built = plan.build()
    return replace(built, lamps=built.lamps[built.is_free(built.lamps)]), CELL - low


def rows_of(kernel_map: KernelMap, run: DescribedRun, sizes: Sequence[int]) -> Iterator[list[Any]]:
    """One row for each size of the map."""
    for size in sizes:
        small = with_statistics(random_map(kernel_map, Task('kbr', size, 0), 0))
        trajectory = localize(small, run, 'kbr', seed=0)
        errors = summarize(run_errors(reference_trajectory(run), trajectory))
        scores = answers(run, trajectory, LOST_M)
        told = [scores[name] for name in ('right', 'said', 'wrong', 'covered')]
        yield [size, errors['rmse_after_localized_m'], *told]


COLUMNS = ['images', 'RMSE after localizing m', 'right', 'said', 'wrong', '2 sigma']
TITLE = """### A real robot's odometry in a long corridor

*Right*: within a metre; *said*: of these, called localized; *wrong*: of those called localized
after 5 m, not right; *2 sigma*: of those called localized, truths inside."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all sizes and print the table, into the page too when a section is named."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    add = parser.add_argument
    add('name', help='of the files, without _GT.txt and _Input.txt')
    add('--until', type=float, default=1100.0, help='seconds of the drive that are the map')
    add('--sizes', type=int, nargs='+', default=[100, 200, 400, 800], help='images of the maps')
    add('--building', type=int, default=1, help='seed of what is rendered')
    add('--section', help='name of the section of benchmarks/README.md to replace')
    options = parser.parse_args(arguments)
    half = 0.5 * options.until
    parts = [recorded(options.name, 0.0, half), recorded(options.name, half, options.until)]
    parts.append(recorded(options.name, options.until, np.inf))
    plan, origin = corridor_about(np.concatenate([part.truth[:, :2] for part in parts]))
    building = SyntheticBuilding(BuildingConfig(kind='office', seed=options.building), plan)
    lights = ('cloudy', 'sunny', 'night')
    runs = [
        part.run(building, origin, number, light)
        for number, (part, light) in enumerate(zip(parts, lights, strict=True))
    ]
    kernel_map, (night,) = workload.described(runs[:2], runs[2:], 0)
    rows = list(rows_of(on_described_run(kernel_map, night), night, options.sizes))
    results.publish(f'{TITLE}\n\n{results.table(COLUMNS, rows)}', options.section)


if __name__ == '__main__':
    main()
