"""
[MbKSR] Fig. 6: robot localization from images and odometry, over the number of training images.

The four methods of the paper on the same random maps of two training runs: the nearest image
(NAI), a particle filter with nearest-neighbour observations (NN), the fully nonparametric filter
(fKBF) and Algorithm 1 as printed (proposed). The reduced size renders a building; the full size
needs three runs in COLD format in the folder of the environment variable KBR_COLD_RUNS.
"""

from collections.abc import Sequence
import functools
import os
from pathlib import Path
from typing import Any

from experiments import common
from experiments.claims import below
from experiments.records import Records, Size
from kbr_localization.datasets import Dataset, open_dataset
from kbr_localization.evaluation.comparison import describe_run, DescribedRun, run_task, Task
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.simulation.run import (
    BuildingConfig,
    RunConfig,
    SyntheticBuilding,
    SyntheticRun,
)
import numpy as np

FOLDER = 'KBR_COLD_RUNS'
COLD = ('seq1_cloudy1', 'seq1_cloudy2', 'seq1_cloudy3')
"""Saarbruecken, Part A, standard path: two runs for the map, the third for the test."""
METHODS = {'NAI': 'nearest', 'NN': 'knn-particle', 'fKBF': 'fkbf', 'proposed': 'algorithm1'}
"""From worst to best in the paper."""
OURS = {'kbr': 'kbr'}
"""The filter of this package, which is not in the paper."""
AFTER = ', after localizing'


def rendered_runs(seconds: float) -> list[Dataset]:
    """Render two tours of a building and a walk through it, in the same weather."""
    building = SyntheticBuilding(BuildingConfig(seed=21))
    tours = [RunConfig(f'tour{seed}', route='tour', seed=seed) for seed in (1, 2)]
    walk = RunConfig('walk', seconds=seconds, seed=3)
    return [SyntheticRun(building, config) for config in (*tours, walk)]


def cold_runs() -> list[Dataset]:
    return [open_dataset(Path(os.environ[FOLDER]) / name) for name in COLD]


def missing(size: Size) -> str:
    """Return why the runs of a size are unavailable, or an empty string."""
    if size.fixed['source'] == 'rendered':
        return ''
    folder = os.environ.get(FOLDER)
    if folder is None:
        return f'{FOLDER} names no folder with the runs {", ".join(COLD)} in COLD format'
    absent = [name for name in COLD if not (Path(folder) / name).is_dir()]
    return f'{folder} has no {", ".join(absent)}' if absent else ''


@functools.lru_cache(maxsize=1)
def described(
    source: str, seconds: float, max_images: int | None
) -> tuple[KernelMap, DescribedRun]:
    """Return the map of both training runs and the described test run, once per process."""
    *training, test = rendered_runs(seconds) if source == 'rendered' else cold_runs()
    kernel_map = build_map(training, max_images=max_images, seed=0)
    return kernel_map, describe_run(kernel_map.describer, test)


def trial(
    rng: np.random.Generator, n: int, source: str, seconds: float, max_images: int | None
) -> dict[str, Any]:
    """Return the position RMSE in metres of each method on one random map of n images."""
    kernel_map, run = described(source, seconds, max_images)
    seed = int(rng.integers(2**31))
    found = {}
    for name, method in {**METHODS, **OURS}.items():
        metrics = run_task(kernel_map, [run], seed, Task(method, n, 0))
        whole = found[name] = metrics['position_rmse_m']
        # a run that never localizes counts as a whole
        after = metrics['rmse_once_below_1m_m']
        found[f'{name}{AFTER}'] = whole if after is None else after
    return found


def judge(records: Records, size: Size) -> common.Outcome:
    """Compare errors over the number of training images."""
    errors = {
        name: {n: records.column(name, n=n) for n in size.axes['n'] if records.at(n=n)}
        for name in (*METHODS, *OURS, *(f'{name}{AFTER}' for name in (*METHODS, *OURS)))
    }
    rows, named = common.rows_by('n', errors), common.labelled('n', errors)
    sizes = list(errors['NAI'])
    ours = f'position RMSE in m (after localizing) at n = {", ".join(map(str, sizes))}: '
    ours += '; '.join(
        f'{name} '
        + ', '.join(
            f'{errors[name][n].mean():.2f} ({errors[name + AFTER][n].mean():.2f})' for n in sizes
        )
        for name in (*METHODS, *OURS)
    )
    order = list(METHODS)
    pairs = [*zip(order[1:], order, strict=False), ('proposed', 'NN'), ('proposed', 'NAI')]
    claims = [
        below(f'{lower} below {upper} at every n', named[lower], named[upper])
        for lower, upper in pairs
    ]
    last = [f'n = {n}' for n in sizes[-1:]]
    claims += [
        below(
            f'{lower} below {upper} at the largest n',
            *({n: named[name][n] for n in last} for name in (lower, upper)),
        )
        for lower, upper in pairs
    ]
    return common.Outcome(rows, ours, claims, lambda: _draw(rows))


def _draw(rows: Sequence[common.Row]) -> Any:
    shown = [row for row in rows if AFTER not in row['method']]
    text = 'RMSE of the position [m]'
    return common.figure_of(
        shown, 'n', xlabel='training images', ylabel=text, xscale='log', yscale='log'
    )


RENDERED = {'source': 'rendered', 'seconds': 120.0, 'max_images': None}
EXPERIMENT = common.Experiment(
    name='mbksr_fig6',
    source='[MbKSR] Fig. 6',
    paper='RMSE of the position: NAI > NN > fKBF > proposed, the proposed filter ahead most for '
    'small training sets (figure without numbers)',
    settings='reduced: an office rendered by this package, two tours for the map and a walk for '
    'the test; full: three runs in COLD format (KBR_COLD_RUNS). As the photographs of COLD were '
    'not at hand, the runs here are rendered corridors on the true path of Saarbruecken '
    'seq1_cloudy1, so that values are not comparable. Default parameters of `kbr compare`, not '
    'tuned to the runs; global start; the claims are about all frames, including those before '
    'localizing. Algorithm 1 and fKBF return the map pose of the largest weight. kbr is the '
    'filter of this package, not a method of the paper.',
    sizes={
        'tiny': Size(1, {'n': (10, 20)}, {**RENDERED, 'seconds': 6.0, 'max_images': 20}),
        'reduced': Size(1, {'n': (50, 100, 200)}, RENDERED),
        'full': Size(2, {'n': (50, 100, 200, 400, 800)}, {**RENDERED, 'source': 'COLD format'}),
    },
    trial=trial,
    judge=judge,
    unavailable=missing,
)
