"""The steps of the tour, from nothing to a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from kbr_localization.datasets import open_dataset
from kbr_localization.demo.over_ros import localize_over_ros
from kbr_localization.errors import KbrError
from kbr_localization.evaluation import reference_trajectory, run_errors, run_metrics, write_tum
from kbr_localization.evaluation.figures import run_figure, save_figure
from kbr_localization.evaluation.metrics import Metrics
from kbr_localization.evaluation.report import best_match
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.pipeline import localize
from kbr_localization.progress import Progress
from kbr_localization.simulation import write_building
import numpy as np

NODE = 'kbr (node over DDS)'
BASELINES = {'nearest': 'nearest image', 'dead-reckoning': 'odometry from the true start'}


@dataclass(frozen=True)
class DemoResult:
    """Where the demo's files are, and the metrics of every method by its name."""

    folder: Path
    metrics: dict[str, Metrics]


def run_demo(parent: Path, rate: float, seed: int, progress: Progress) -> DemoResult:
    """
    Render a building, then take the tour through it.

    Everything goes to a new folder inside of `parent`. `rate` is the speed of the replay.
    """
    folder = parent / datetime.now().strftime('%Y-%m-%d_%H-%M-%S')
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise KbrError(f'cannot make the new folder {folder}: {error.strerror}') from error
    *training, test = write_building(folder / 'building', seed=seed, progress=progress)
    return take_tour(folder, training, test, rate, seed, progress)


def take_tour(
    folder: Path,
    training: Sequence[Path],
    test: Path,
    rate: float,
    seed: int,
    progress: Progress,
) -> DemoResult:
    """
    Build a map of the training runs, localize the test run with the node, compare with baselines.

    The map, the node's trajectory as a TUM file, the programs' logs and a picture go to `folder`.
    """
    kernel_map = build_map([open_dataset(run) for run in training], seed=seed, progress=progress)
    with_statistics(kernel_map).save(folder / 'map.h5')
    dataset = open_dataset(test)
    answers = {
        NODE: localize_over_ros(folder / 'map.h5', test, len(dataset), folder, rate, progress)
    }
    write_tum(folder / 'trajectory.tum', answers[NODE])
    for method, name in BASELINES.items():
        init = 'reference' if method == 'dead-reckoning' else 'global'
        answers[name] = localize(kernel_map, dataset, method=method, init=init, progress=progress)
    reference = reference_trajectory(dataset)
    errors = {name: run_errors(reference, answer) for name, answer in answers.items()}
    title = f'{dataset.name}: {len(kernel_map)} map images, {len(dataset)} frames'
    # four moments, spread over the run
    moments = (np.linspace(0.1, 0.9, 4) * len(dataset)).astype(int)
    pairs = [best_match(kernel_map, dataset[moment]) for moment in moments.tolist()]
    picture = run_figure(title, kernel_map.poses, reference, answers, errors, pairs)
    save_figure(picture, folder / 'trajectory.png')
    return DemoResult(folder, {name: run_metrics(run) for name, run in errors.items()})
