"""
What a grossly wrong odometry does to an answer: `python -m benchmarks.wrong_odometry`.

Every run is driven from a global start by its odometry as it is, by ones that count half as far
again, a quarter more or .6 of the way, that turn to the other side or .7 of every turn, and by one
that counts 1.6 times the way for a quarter of the drive and is right again. `--rates` tries
`localization/kbr/odometry_check.py` with other probabilities that it goes wrong.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from unittest.mock import patch

from benchmarks import cases, results
from benchmarks.cases import Case
from benchmarks.place_recognition import answers, mean_of, SETTLED_M
from joblib import delayed, Parallel
from kbr_localization import se2
from kbr_localization.evaluation.described import DescribedRun
from kbr_localization.localization.kbr import odometry_check
from kbr_localization.localization.kbr.odometry import CHANGE_RATE
from kbr_localization.localization.pipeline import localize
from kbr_localization.se2 import FloatArray
import numpy as np
from threadpoolctl import threadpool_limits

WHOLE = (0.0, 1.0)
WRONG: Mapping[str, tuple[tuple[float, float, float], tuple[float, float]]] = {
    'as it is': ((1.0, 1.0, 1.0), WHOLE),
    'way x 1.5': ((1.5, 1.5, 1.0), WHOLE),
    'way x 1.25': ((1.25, 1.25, 1.0), WHOLE),
    'way x 0.6': ((0.6, 0.6, 1.0), WHOLE),
    'mirrored': ((1.0, -1.0, -1.0), WHOLE),
    'turns x 0.7': ((1.0, 1.0, 0.7), WHOLE),
    'way x 1.6 for a while': ((1.6, 1.6, 1.0), (0.25, 0.5)),
}
"""Kinds: factors (3,) on the increments, and the part of the way where they hold."""
FIGURES = ('right', 'said', 'misled')


def driven_by(
    run: DescribedRun, factors: Sequence[float], part: tuple[float, float]
) -> DescribedRun:
    """Let a run have odometry increments multiplied by factors (3,) for a part of the way."""
    told = np.array([frame.odometry for frame in run.frames])
    steps: FloatArray = se2.between(told[:-1], told[1:])
    way = np.cumsum(np.hypot(steps[:, 0], steps[:, 1]))
    held = (way >= part[0] * way[-1]) & (way <= part[1] * way[-1])
    chained = se2.chain(told[0], np.where(held[:, np.newaxis], factors, 1.0) * steps)
    frames = zip(run.frames, chained, strict=True)
    return replace(run, frames=tuple(replace(frame, odometry=pose) for frame, pose in frames))


def measured(case: Case, kind: str, seed: int, rate: float) -> dict[str, float]:
    """Drive a case by an odometry of a kind: `FIGURES` of `place_recognition.answers`."""
    threadpool_limits(1, 'blas')
    run = driven_by(case.run, *WRONG[kind])
    with patch.object(odometry_check, 'CHANGE_RATE', rate):
        trajectory = localize(case.kernel_map, run, 'kbr', seed=seed)
    found = answers(run, trajectory, case.right_m)
    return {name: found[name] for name in FIGURES}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all kinds; print the table, and put it into the page when one is named."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    cases.add_options(parser)
    parser.add_argument('--seeds', type=int, default=1, help='drives of every run')
    parser.add_argument('--rates', type=float, nargs='+', default=[CHANGE_RATE])
    parser.add_argument('--jobs', type=int, default=1)
    parser.add_argument('--section', help='name of the section of benchmarks/README.md to replace')
    options = parser.parse_args(arguments)
    runs = cases.given(options)
    tasks = [
        (case, kind, seed, rate)
        for kind in WRONG
        for rate in options.rates
        for case in runs
        for seed in range(options.seeds)
    ]
    found = Parallel(n_jobs=options.jobs, verbose=5)(delayed(measured)(*task) for task in tasks)
    cells: dict[tuple[str, float], list[dict[str, float]]] = {}
    for (_, kind, _, rate), figures in zip(tasks, found, strict=True):
        cells.setdefault((kind, rate), []).append(figures)
    results.publish(described(cells, len(runs) * options.seeds), options.section)


def described(cells: Mapping[tuple[str, float], Sequence[dict[str, float]]], drives: int) -> str:
    """Lay the table out."""
    rows = [
        [kind, f'{rate:g}', *('–' if np.isnan(one) else one for one in mean_of(kept).values())]
        for (kind, rate), kept in cells.items()
    ]
    return (
        f'### An odometry that is grossly wrong\n\nMeans over {drives} drives from a global '
        'start. *rate*: probability per metre that the odometry goes wrong, as the filter has it; '
        '*said*: of the right frames, called localized; *misled*: of all frames after '
        f'{SETTLED_M:g} m, called localized and not right.\n\n'
        f'{results.table(["odometry", "rate", *FIGURES], rows)}'
    )


if __name__ == '__main__':
    main()
