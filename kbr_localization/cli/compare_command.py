"""`kbr compare`: methods over map sizes, by the paper's protocol."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Optional

from kbr_localization.cli import console
from kbr_localization.cli.options import (
    Cameras,
    Jobs,
    Json,
    MOST_TRIALS,
    OdometryTopic,
    ReferenceTopic,
    Scheduler,
    Seed,
    Settings,
    Spacing,
)
from kbr_localization.cli.reading import note_repeated, Reading
from kbr_localization.cli.saving import note_frame
from kbr_localization.cli.settings import configurations
from kbr_localization.errors import KbrError
from kbr_localization.progress import terminal_progress
from kbr_localization.workers import open_workers
import typer

SEVERAL = ('--train', '--test')
"""Options that take all the values that follow them."""
USUAL_SIZES = (50, 100, 200, 400, 800)
SHOWN = (
    'size',
    'localized_after_s',
    'localized_after_m',
    'rmse_after_localized_m_mean',
    'position_median_m',
    'lost_fraction',
    'wrong_called_localized',
    'coverage_2sigma',
    'sharpness',
    'ms_per_frame',
    'position_rmse_m_mean',
    'position_rmse_m_sd',
)


Training = Annotated[
    Optional[list[Path]], typer.Option(metavar='RUN...', help='For the map.', show_default=False)
]
Tests = Annotated[
    list[Path], typer.Option(metavar='RUN...', help='To localize.', show_default=False)
]
Out = Annotated[
    Path, typer.Option(help='A folder; a stopped comparison goes on.', show_default=False)
]
Ready = Annotated[
    Optional[Path], typer.Option('--map', help='Take this map instead of building one.')
]
Sizes = Annotated[
    Optional[str],
    typer.Option(
        metavar='N,N',
        help='Map sizes in images; by default those of 50,100,200,400,800 that the map has.',
        show_default=False,
    ),
]
Tune = Annotated[
    int,
    typer.Option(
        min=0,
        max=MOST_TRIALS,
        help='Candidates to tune each method with, on maps of up to 500 images; 0 tunes nothing.',
    ),
]


def compare(
    *,
    train: Training = None,
    test: Tests,
    out: Out,
    sizes: Sizes = None,
    trials: Annotated[
        int, typer.Option(min=1, max=MOST_TRIALS, help='Random maps of each size.')
    ] = 10,
    methods: Annotated[str, typer.Option(help='all, or some of `kbr methods`.')] = 'all',
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    map_file: Ready = None,
    tune: Tune = 0,
    cameras: Cameras = None,
    odometry_topic: OdometryTopic = None,
    reference_topic: ReferenceTopic = None,
    spacing: Spacing = None,
    settings: Settings = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """
    Compare localization methods over map sizes.

    Every trial keeps a random subset of the training images as the map; every method localizes
    the test runs on it from a global start. OUT gets a table, a figure and all numbers.
    lost_fraction is the fraction of frames more than 1 m off after localizing, that is once 5 m
    (half of a run of less than 10 m) went by without one; a trial that never localizes counts as
    lost. wrong_called_localized is the fraction of the wrong answers, more than 1 m off, that were
    called localized. The RMSE of the last columns is over all frames, the global start included.
    """
    from kbr_localization.evaluation import comparison, comparison_figure
    from kbr_localization.evaluation.protocol import ComparisonPlan
    from kbr_localization.localization.methods.registry import METHODS

    chosen = parse_methods(methods, METHODS)
    plan = ComparisonPlan(
        USUAL_SIZES if sizes is None else parse_sizes(sizes), trials, chosen, seed
    )
    source = _map_source(train, map_file, tune, settings)
    reading = Reading(cameras, odometry_topic, reference_topic, spacing)
    for run in (*(train or ()), *test):
        console.refuse_file_of(run, out / comparison_figure.FIGURE)
    training, tests = _opened(reading, map_file, train or [], test)
    if sizes is None:
        images = comparison.images_of(training, source)
        plan = replace(plan, sizes=tuple(n for n in USUAL_SIZES if n <= images) or USUAL_SIZES[:1])
    with open_workers(jobs, scheduler) as workers, terminal_progress() as progress:
        rows = comparison.compare(training, tests, plan, out, source, workers, progress)
    comparison_figure.save_comparison(out, rows, plan, tests)
    if json:
        console.print_json(rows)
    else:
        console.print_rows('method', SHOWN, rows)
    for dataset in (*training, *tests):
        console.note_skipped(dataset.skipped)
    console.note(f'{out}: {comparison_figure.FIGURE}, {comparison_figure.TABLE}')


def _opened(reading: Reading, map_file: Path | None, *groups: list[Path]) -> list[list[Any]]:
    """Open the runs of every group, for the map if there is one."""
    for runs in groups:
        note_repeated(runs)
    if map_file is None:
        return [[reading.dataset(run) for run in runs] for runs in groups]
    from kbr_localization.localization.map.kernel_map import KernelMap

    kernel_map = KernelMap.load(map_file)
    opened = [[reading.dataset_for(kernel_map, map_file, run) for run in runs] for runs in groups]
    note_frame(kernel_map, map_file, [dataset for runs in opened for dataset in runs])
    return opened


def _map_source(
    train: list[Path] | None, map_file: Path | None, tune: int, settings: list[str] | None
) -> Any:
    """Where the map comes from; raises KbrError for options that do not go together."""
    from kbr_localization.evaluation.comparison import MapSource

    if not train and map_file is None:
        raise KbrError('compare: expected --train RUN... or --map MAP, got neither')
    if map_file is not None and (train or tune or settings):
        raise KbrError(
            'compare: --map takes the map as it is, expected no --train, --tune or --set beside it'
        )
    return MapSource(map_file, tune, *configurations(settings or ()))


def parse_methods(text: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the methods of `kbr,nearest`, or all that are known."""
    return tuple(known if text == 'all' else (name.strip() for name in text.split(',')))


def parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes from `50,100`; raises KbrError for what is no list of whole numbers."""
    try:
        return tuple(sorted({int(part) for part in text.split(',')}))
    except ValueError as error:
        raise KbrError(f'--sizes {text!r:.80}: expected whole numbers like 50,100,200') from error
