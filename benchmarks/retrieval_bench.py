"""
Recall of the image retrieval by descriptor and light: python -m benchmarks.retrieval_bench.

The map is made of a drive under clouds through rendered buildings of look-alike corridors, the
queries of drives under clouds, in the sun and at night. A place counts as found within 1 m and 30
degrees. `../shared/data/cold_like` is added where it is present: map run 1, query run 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
import functools
from pathlib import Path
import tempfile
from typing import Any

from benchmarks import results
from kbr_localization.datasets import Frame, open_dataset
from kbr_localization.evaluation.retrieval import recall_at
from kbr_localization.localization.map.describing import describe_images
from kbr_localization.progress import silent, terminal_progress
from kbr_localization.simulation import BuildingConfig, RunConfig, write_building
from kbr_localization.vision import fit_describer, PAPER, VisionConfig
from kbr_localization.workers import open_workers, Workers
import numpy as np

SEEDS = (21, 22)
LIGHTS = ('cloudy', 'sunny', 'night')
COLD = Path(__file__).parents[1] / '..' / 'shared' / 'data' / 'cold_like'
RANKS = ('recall_at_1', 'recall_at_5', 'recall_at_10')
MAP_STEP, QUERY_STEP = 1, 2
"""Of the images of a run, one in so many."""
DEFAULT = VisionConfig()
VARIANTS: Mapping[str, VisionConfig] = {
    'dense SIFT pyramid (default)': DEFAULT,
    'words of a flat vocabulary': replace(DEFAULT, vocabulary_tree=False),
    '200 words': replace(DEFAULT, words=200),
    '200 words in 4 x 4 cells': replace(DEFAULT, words=200, levels=2),
    'the whole image as the coarse level': replace(DEFAULT, strips=1),
    'patches of 16 pixels, blurred by 0.8': replace(DEFAULT, patch_size=16, blur=0.8),
    'light as it is': replace(DEFAULT, illumination='none'),
    'all 128 numbers of a patch': replace(DEFAULT, patch_components=0),
    'plain counts': replace(DEFAULT, root_counts=False, relative_counts=False),
    'counts that are not relative': replace(DEFAULT, relative_counts=False),
    'OpenCV SIFT, else the same': replace(DEFAULT, descriptor='opencv_sift_pyramid'),
    'as [MbKSR] 6.3: OpenCV SIFT, 640 columns': PAPER,
    'DAISY pyramid': replace(DEFAULT, descriptor='daisy', spacing=8),
    'HOG': replace(DEFAULT, descriptor='hog'),
    'HOG, light as it is': replace(DEFAULT, descriptor='hog', illumination='none'),
}


class Views:
    """Frames of the map, and query frames by condition."""

    def __init__(self, mapped: list[Frame], queries: dict[str, list[Frame]]) -> None:
        self.mapped, self.queries = mapped, queries


def rendered(folder: Path, seed: int, progress: Any) -> Views:
    """Render a building: a tour for the map, a walk in every light."""
    walks = [
        RunConfig(f'walk_{light}', seconds=80.0, light=light, people=6, seed=10 + number)
        for number, light in enumerate(LIGHTS)
    ]
    runs = (RunConfig('tour', route='tour', seed=1), *walks)
    paths = write_building(folder / f'{seed}', seed, runs, BuildingConfig(), progress)
    tour, *lit = (list(open_dataset(path)) for path in paths)
    queries = {light: walk[::QUERY_STEP] for light, walk in zip(LIGHTS, lit, strict=True)}
    return Views(tour[::MAP_STEP], queries)


def places(folder: Path, progress: Any) -> Iterator[tuple[str, Views]]:
    """Name and views of everything that is searched."""
    for seed in SEEDS:
        yield f'building {seed}', rendered(folder, seed, progress)
    if COLD.is_dir():
        first, second = (list(open_dataset(COLD / f'seq1_cloudy{run}')) for run in (1, 2))
        yield 'cold_like', Views(first[::MAP_STEP], {'1 to 2': second[::QUERY_STEP]})


def recalls(views: Views, config: VisionConfig, workers: Workers) -> dict[str, list[float]]:
    """Recall at 1, 5 and 10 by condition."""
    images = [frame.image for frame in views.mapped]
    describer = fit_describer(config, images[::3], np.random.default_rng(0), workers)
    report = functools.partial(silent, '')

    def described(frames: list[Frame]) -> np.ndarray:
        sources = [frame.image for frame in frames]
        found = describe_images(describer, sources, workers, report)
        return np.array([image.descriptor for image in found])

    mapped, poses = described(views.mapped), np.array([f.reference for f in views.mapped])
    result = {}
    for condition, frames in views.queries.items():
        kernel = describer.cross_gram(described(frames), mapped)
        recall = recall_at(kernel, poses, np.array([frame.reference for frame in frames]))
        result[condition] = [float(recall[rank]) for rank in RANKS]
    return result


def measure(
    variants: Mapping[str, VisionConfig], progress: Any
) -> tuple[list[str], dict[str, dict[str, list[float]]]]:
    """Conditions, and the recalls by variant and condition."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in variants}
    with tempfile.TemporaryDirectory() as folder, open_workers(None) as workers:
        for place, views in places(Path(folder), progress):
            for done, (name, config) in enumerate(variants.items(), start=1):
                for condition, values in recalls(views, config, workers).items():
                    found[name][f'{place} {condition}'] = values
                progress(f'searching {place}', done, len(variants))
    return list(next(iter(found.values()))), found


def section(conditions: list[str], found: dict[str, dict[str, list[float]]]) -> str:
    """Lay the recalls out as a section of the page."""
    rows = [
        [name, *(' / '.join(f'{value:.2f}' for value in row[c]) for c in conditions)]
        for name, row in found.items()
    ]
    return (
        '## Retrieval by descriptor and light\n\n'
        'Recall at 1 / 5 / 10: one of the k most similar map images lies within 1 m and 30 '
        'degrees. The map was made of one drive under clouds.\n\n'
        + results.table(['descriptor', *conditions], rows)
    )


def main() -> None:
    """Measure, print and write the table."""
    with terminal_progress() as progress:
        text = section(*measure(VARIANTS, progress))
    results.write_section('retrieval', text)
    print(text)


if __name__ == '__main__':
    results.take_no_options(__doc__)
    main()
