"""`kbr compare` and `kbr tune`: methods over map sizes, and their parameters chosen on runs."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Optional

from kbr_localization.cli import console
from kbr_localization.cli.map_commands import save_map
from kbr_localization.cli.options import (
    Jobs,
    Json,
    MapOut,
    MaxImages,
    Methods,
    Reading,
    reads_runs,
    Runs,
    Scheduler,
    Seed,
    Settings,
    Sizes,
    sizes_of,
    split_names,
    Trials,
)
from kbr_localization.cli.settings import configurations
from kbr_localization.errors import KbrError
from kbr_localization.progress import terminal_progress
from kbr_localization.workers import open_workers
import typer

SEVERAL = ('--train', '--test')
"""Options that take all the values that follow them."""


@reads_runs
def compare(
    *,
    train: Annotated[
        Optional[list[Path]],
        typer.Option(metavar='RUN...', help='For the map.', show_default=False),
    ] = None,
    test: Annotated[
        list[Path], typer.Option(metavar='RUN...', help='To localize.', show_default=False)
    ],
    out: Annotated[
        Path, typer.Option(help='A folder; a stopped comparison goes on.', show_default=False)
    ],
    map_file: Annotated[
        Optional[Path], typer.Option('--map', help='Take this map instead of building one.')
    ] = None,
    sizes: Sizes = None,
    trials: Trials = 10,
    methods: Methods = 'all',
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    settings: Settings = None,
    seed: Seed = 0,
    json: Json = False,
    reading: Reading,
) -> None:
    """
    Compare localization methods over map sizes, by default 50,100,...,800 as far as they fit.

    Every trial keeps a random subset of the training images as the map; every method localizes
    the test runs on it from a global start. OUT gets a table, a figure and all numbers.
    lost_fraction is the fraction of frames more than 1 m off after localizing, that is once 5 m
    (half of a run of less than 10 m) went by without one; a trial that never localizes counts as
    lost. wrong_called_localized is the fraction of the wrong answers, more than 1 m off, that were
    called localized. The RMSE of the last columns is over all frames, the global start included.
    """
    from kbr_localization.datasets.frame import identity
    from kbr_localization.evaluation import comparison, figures
    from kbr_localization.localization.map.build import build_map
    from kbr_localization.localization.map.kernel_map import KernelMap
    from kbr_localization.localization.methods.registry import METHODS

    if not train and map_file is None:
        raise KbrError('compare: expected --train RUN... or --map MAP, got neither')
    if map_file is not None and (train or settings):
        raise KbrError(
            'compare: --map takes the map as it is, expected no --train or --set beside it'
        )
    chosen = tuple(METHODS) if methods == 'all' else tuple(split_names('--methods', methods))
    for run in (*(train or ()), *test):
        console.refuse_file_of(run, out / figures.FIGURE)
    training = [reading.open(run) for run in train or ()]
    vision, given = configurations(settings)
    if map_file is None:
        tests = [reading.open(run) for run in test]
        images, whose = sum(map(len, training)), 'the training runs have'
        made_of: Any = [[identity(run) for run in training], asdict(vision), given]
    else:
        kernel_map, found = KernelMap.load(map_file), map_file.stat()
        tests = [reading.open_for(kernel_map, map_file, run) for run in test]
        images, whose = len(kernel_map), 'the map has'
        made_of = [str(map_file.resolve()), found.st_size, found.st_mtime_ns]
    usual = tuple(size for size in (50, 100, 200, 400, 800) if size <= images) or (50,)
    fixed = None if sizes is None else sizes_of(sizes)
    plan = comparison.ComparisonPlan(fixed or usual, trials, chosen, seed)
    comparison.refuse_large_sizes(plan, images, whose)
    with open_workers(jobs, scheduler) as workers, terminal_progress() as progress:

        def make_map() -> KernelMap:
            if map_file is not None:
                return kernel_map
            return build_map(training, vision, given, None, seed, progress, workers)

        rows = comparison.compare(make_map, made_of, tests, plan, out, workers, progress)
    figures.save_comparison(out, rows, plan, tests)
    console.show_rows(('method', 'size', *figures.COLUMNS), rows, json)
    for dataset in (*training, *tests):
        console.note_skipped(dataset.skipped)
    console.note(f'{out}: {figures.FIGURE}, {figures.TABLE}')


@reads_runs
def tune(
    runs: Runs,
    *,
    out: MapOut,
    max_images: MaxImages = None,
    methods: Methods = 'all',
    sizes: Sizes = None,
    trials: Trials = 60,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    resume: Annotated[
        bool, typer.Option('--resume/--fresh', help='Go on with a stopped tuner, or start anew.')
    ] = True,
    settings: Settings = None,
    seed: Seed = 0,
    json: Json = False,
    reading: Reading,
) -> None:
    """
    Build a map with parameters chosen by cross-validation over its runs.

    Each run is localized on a map of the others, from its start and from a random frame; a single
    run is split in two halves. The parameters are to suit maps of --sizes images, tried with up to
    500 images. Finished trials are kept beside OUT in OUT.trials.jsonl. Scores are capped errors
    plus the fraction of lost frames, in metres: lower is better.
    """
    from kbr_localization.localization.methods import tuning

    plan = tuning.TuningPlan(
        tuning.TUNED if methods == 'all' else tuple(split_names('--methods', methods)),
        trials,
        max_images=max_images,
        seed=seed,
    )
    if sizes is not None:
        plan = replace(plan, sizes=sizes_of(sizes))
    vision, given = configurations(settings)
    console.prepare_map(out, *runs)
    journal = console.prepare_output(out.with_name(f'{out.name}.trials.jsonl'))
    datasets = [reading.open(run) for run in runs]
    with open_workers(jobs, scheduler) as workers, terminal_progress() as progress:
        kernel_map, tuned = tuning.tune(
            datasets, plan, vision, given, journal, not resume, progress, workers
        )
    for dataset in datasets:
        console.note_skipped(dataset.skipped)
    save_map(kernel_map, out)
    rows = [asdict(row) for row in tuned]
    console.show_rows(('method', 'default_score', 'score', 'rmse_m', 'lost_fraction'), rows, json)
