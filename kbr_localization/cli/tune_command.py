"""`kbr tune`: a map whose parameters were chosen on its own runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

from kbr_localization.cli import console
from kbr_localization.cli.compare_command import parse_methods, parse_sizes
from kbr_localization.cli.options import (
    Cameras,
    Jobs,
    Json,
    MOST_TRIALS,
    OdometryTopic,
    ReferenceTopic,
    Runs,
    Scheduler,
    Seed,
    Settings,
    Spacing,
)
from kbr_localization.cli.reading import note_repeated, Reading
from kbr_localization.cli.saving import note_map, save_measured
from kbr_localization.cli.settings import configurations
from kbr_localization.progress import terminal_progress
from kbr_localization.workers import open_workers, Workers
import typer

SHOWN = ('default_score', 'score', 'rmse_m', 'lost_fraction')

Trials = Annotated[int, typer.Option(min=1, max=MOST_TRIALS, help='Candidates for each method.')]
Sizes = Annotated[
    Optional[str],
    typer.Option(
        metavar='N,N',
        help='Sizes of the maps that the parameters are to suit, tried with up to 500 images.',
    ),
]
Methods = Annotated[
    str,
    typer.Option(
        help='all, or some, with commas between: kbr, algorithm1, algorithm1-adapted, fkbf, '
        'kmcf, kernel-kalman, knn-particle, gp-particle.'
    ),
]
Resume = Annotated[
    bool, typer.Option('--resume/--fresh', help='Go on with a stopped tuner, or start anew.')
]


def tune(
    runs: Runs,
    *,
    out: Annotated[Path, typer.Option(help='The map file to write.', show_default=False)],
    max_images: Annotated[
        Optional[int],
        typer.Option(min=1, help='Keep so many images, chosen to cover the runs.'),
    ] = None,
    methods: Methods = 'all',
    sizes: Sizes = None,
    trials: Trials = 60,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    cameras: Cameras = None,
    odometry_topic: OdometryTopic = None,
    reference_topic: ReferenceTopic = None,
    spacing: Spacing = None,
    resume: Resume = True,
    settings: Settings = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """
    Build a map with parameters chosen by cross-validation over its runs.

    Each run is localized on a map of the others, from its start and from random frames; a single
    run is split in two halves. Finished trials are kept beside OUT in OUT.trials.jsonl. Scores
    are capped errors plus the fraction of lost frames, in metres: lower is better.
    """
    from kbr_localization.localization.tuning.space import TUNED

    options = {
        'methods': parse_methods(methods, TUNED),
        'trials': trials,
        'max_images': max_images,
        'seed': seed,
    }
    options |= {} if sizes is None else {'sizes': parse_sizes(sizes)}
    reading = Reading(cameras, odometry_topic, reference_topic, spacing)
    with open_workers(jobs, scheduler) as workers:
        rows = tune_runs(runs, out, options, workers, settings or (), not resume, reading)
    if json:
        console.print_json(rows)
    else:
        console.print_rows('method', SHOWN, rows)


def tune_runs(
    runs: Sequence[Path],
    out: Path,
    options: dict[str, Any],
    workers: Workers,
    settings: Sequence[str] = (),
    fresh: bool = False,
    reading: Reading | None = None,
) -> list[dict[str, Any]]:
    """Tune with the options of a TuningPlan, write the map, return one row per method."""
    from dataclasses import asdict

    from kbr_localization.localization.tuning.tuning import tune as tune_map
    from kbr_localization.localization.tuning.tuning import TuningPlan

    plan = TuningPlan(**options)
    vision, filter_config = configurations(settings)
    console.prepare_map(out, *runs)
    journal = console.prepare_output(out.with_name(f'{out.name}.trials.jsonl'))
    note_repeated(runs)
    datasets = [(reading or Reading()).dataset(run) for run in runs]
    with terminal_progress() as progress:
        kernel_map, tuned = tune_map(
            datasets, plan, vision, filter_config, journal, fresh, progress, workers
        )
        save_measured(kernel_map, out)
    note_map(kernel_map, out, datasets)
    return [asdict(row) for row in tuned]
