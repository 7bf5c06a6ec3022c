"""
Real photographs: `python -m benchmarks.photographs DATA`.

DATA holds the traverses `day_left`, `day_right` and `night_right` of Gardens Point (QUT), folders
of images of which image i shows place i. They have no poses and no odometry: place i lies at i
times a spacing, the odometry is made from that with errors as large as those of COLD. Other runs
are given by `--pair MAP TEST`: traverses too, or runs with poses of their own, of which a frame is
then 1/3 m.

First the images alone, as place recognition reports them, then the filters from a global start.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
import sys
from typing import Any

from benchmarks import results, seqslam
from benchmarks.place_recognition import (
    answers,
    area_under_precision_recall,
    mean_of,
    recalls,
)
from kbr_localization.cli.settings import configurations
from kbr_localization.datasets import Dataset, open_dataset
from kbr_localization.datasets.opening import needs_spacing
from kbr_localization.evaluation.described import describe_run, DescribedRun, on_described_run
from kbr_localization.evaluation.protocol import random_map, Task
from kbr_localization.localization.kbr.leave_out import with_statistics
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.similarity import FullSimilarity
from kbr_localization.localization.methods.registry import METHODS
from kbr_localization.localization.pipeline import localize
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

GARDENS_POINT = (
    ('day_left', 'day_right'), ('day_right', 'night_right'), ('day_left', 'night_right'),
)  # fmt: skip
TOLERANCES = (1, 3)
"""Frames."""
# half a frame of room, that a place at the edge counts
_ROOM = 0.5
RIGHT_FRAMES = TOLERANCES[-1] + _ROOM
"""Frames from the truth within which an answer of a filter is right."""
POSED_FRAME_M = 1.0 / 3.0
FILTERS = ('kbr', 'knn-particle', 'nearest')
SHOWN = {'right': 'right', 'said': 'localized said', 'wrong': 'wrong', 'covered': '2 sigma'}


@dataclass(frozen=True)
class Pair:
    """A map of one run and a test run, both described; `frame_m`: metres between two frames."""

    name: str
    spacing: float | None
    kernel_map: KernelMap
    test: DescribedRun
    mapped: Dataset
    images: Dataset
    test_path: Path

    @property
    def frame_m(self) -> float:
        """Metres that count as one frame."""
        return self.spacing or POSED_FRAME_M

    @property
    def distance(self) -> NDArray[np.float64]:
        """Frames (q, n) between the places of the test run and of the map; NaN if unknown."""
        unknown = np.full(3, np.nan)
        truth = np.array([f.reference if f.reference is not None else unknown for f in self.test])
        offset = truth[:, np.newaxis, :2] - self.kernel_map.poses[np.newaxis, :, :2]
        return np.asarray(np.hypot(*np.moveaxis(offset, -1, 0)) / self.frame_m)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all pairs; print the tables, into the page too when a section is named."""
    options = _parser().parse_args(arguments)
    methods = options.methods.split(',')
    if not set(methods) <= set(METHODS):
        raise SystemExit(f'photographs: expected --methods to be some of {", ".join(METHODS)}')
    threadpool_limits(1, 'blas')
    retrieval: list[list[Any]] = []
    filters: list[list[Any]] = []
    for paths in _paths(options):
        for number, pair in enumerate(pairs(*paths, options.spacing, options.set)):
            sequence = sequence_scores(pair)
            if number == 0:
                retrieval += retrieved(pair, sequence)
            filters += localized(pair, methods, options.seeds, sequence, options.images)
            print(f'{pair.name}, {pair.spacing} m: measured', file=sys.stderr, flush=True)
    text = section(retrieval, filters, options.seeds, options.set)
    results.publish(text, options.section)


def _parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument('data', nargs='?', type=Path, help='folder of the three traverses')
    parser.add_argument(
        '--pair',
        nargs=2,
        type=Path,
        action='append',
        default=[],
        metavar=('MAP', 'TEST'),
        help='other runs to measure; may be repeated',
    )
    parser.add_argument(
        '--spacing', nargs='+', type=float, default=[1.0, 0.3], help='metres between two places'
    )
    parser.add_argument('--seeds', type=int, default=5, help='of odometry and localizer')
    parser.add_argument(
        '--images', type=int, help='of a random map for each seed (default: the whole map)'
    )
    parser.add_argument(
        '--methods', default=','.join(FILTERS), help=f'some of {", ".join(METHODS)}'
    )
    parser.add_argument(
        '--set', action='append', default=[], metavar='NAME=VALUE', help='as of `kbr map build`'
    )
    parser.add_argument('--section', help='name of the section of benchmarks/README.md to replace')
    return parser


def _paths(options: argparse.Namespace) -> list[tuple[Path, Path]]:
    usual = GARDENS_POINT if options.data else ()
    found = [(options.data / mapped, options.data / test) for mapped, test in usual]
    found += [(mapped, test) for mapped, test in options.pair]
    if not found:
        raise SystemExit('photographs: expected DATA or --pair MAP TEST, got neither')
    return found


def pairs(
    mapped: Path, test: Path, spacings: Sequence[float], settings: Sequence[str] = ()
) -> Iterator[Pair]:
    """Make map and test run at every spacing, in metres; once for runs that have poses."""
    vision, filter_values = configurations(settings)
    bare = needs_spacing(mapped)
    for spacing in spacings if bare else (None,):
        training = open_dataset(mapped, spacing=spacing)
        images = open_dataset(test, spacing=spacing)
        kernel_map = build_map([training], vision, filter_values, seed=0)
        described = describe_run(kernel_map.describer, images)
        name = f'{mapped.name} → {test.name}'
        yield Pair(name, spacing, kernel_map, described, training, images, test)


def kernel_scores(pair: Pair) -> NDArray[np.float64]:
    """Image kernel (q, n) of the test run and the map."""
    return np.array([pair.kernel_map.similarities(d) for d in pair.test.descriptors])


def centred_scores(pair: Pair) -> NDArray[np.float64]:
    """Return the same, centred by the mean of the map as the filter `kbr` has it."""
    centring = pair.kernel_map.centring
    rows = (centring.of(FullSimilarity(values)) for values in kernel_scores(pair))
    return np.array([row.at(row.candidates) for row in rows])


def sequence_scores(pair: Pair) -> dict[str, NDArray[np.float64]]:
    """Scores (q, n) of sequences of images of the map, the more the better, by name."""
    posed = ((frame.reference, frame) for frame in pair.mapped)
    # the map has no images of unknown pose
    at = {tuple(np.round(pose, 6)): frame for pose, frame in posed if pose is not None}
    kept = [at[tuple(np.round(pose, 6))] for pose in pair.kernel_map.poses]
    images = [[frame.load_image() for frame in frames] for frames in (kept, pair.images)]
    thumbnails = seqslam.contrasted(seqslam.differences(*images))
    return {
        'SeqSLAM': -seqslam.sequence_scores(thumbnails),
        'its sequences of the centred kernel': -seqslam.sequence_scores(
            1.0 - centred_scores(pair)
        ),
    }


def retrieved(pair: Pair, sequences: Mapping[str, NDArray[np.float64]]) -> list[list[Any]]:
    """Rows of the table of the images alone."""
    rows = []
    kernels = {'image kernel, centred': centred_scores(pair), 'image kernel': kernel_scores(pair)}
    scored = {**kernels, **sequences}
    for name, scores in scored.items():
        sure = seqslam.distinctness(-scores) if name in sequences else None
        row: list[Any] = [pair.name, name]
        for tolerance in TOLERANCES:
            within = tolerance + _ROOM
            found = recalls(scores, pair.distance, within)
            area = area_under_precision_recall(scores, pair.distance, within, sure)
            row += [' / '.join(f'{value:.2f}' for value in found), area]
        rows.append(row)
    return rows


def localized(
    pair: Pair,
    methods: Sequence[str],
    seeds: int,
    sequences: Mapping[str, NDArray[np.float64]],
    images: int | None = None,
) -> list[list[Any]]:
    """
    Rows of the table of the filters, and of sequence matching beside them.

    `images`: so many of the map, others for every seed, are what the filters know.
    """
    whole = known = on_described_run(pair.kernel_map, pair.test)
    found: dict[str, list[dict[str, float]]] = {method: [] for method in methods}
    for seed in range(seeds):
        run = with_odometry_of_seed(pair, seed)
        if images is not None:
            known = with_statistics(random_map(whole, Task('kbr', images, seed), 0))
        for method in methods:
            trajectory = localize(known, run, method, seed=seed)
            found[method].append(answers(run, trajectory, RIGHT_FRAMES * pair.frame_m))
    spacing = '–' if pair.spacing is None else f'{pair.spacing:g}'
    rows: list[list[Any]] = [
        [pair.name, spacing, method, *_numbers(each)] for method, each in found.items()
    ]
    for name, scores in sequences.items():
        best = scores.argmax(axis=1)[:, np.newaxis]
        right = float(np.mean(np.take_along_axis(pair.distance, best, axis=1) <= RIGHT_FRAMES))
        rows.append([pair.name, spacing, name, right, right, *['–'] * 3])
    return rows


def with_odometry_of_seed(pair: Pair, seed: int) -> DescribedRun:
    """Return the test run with other made odometry; that of a run which has its own stays."""
    if pair.spacing is None:
        return pair.test
    other = open_dataset(pair.test_path, spacing=pair.spacing, odometry_seed=seed)
    frames = [
        replace(frame, odometry=made.odometry)
        for frame, made in zip(pair.test, other, strict=True)
    ]
    return replace(pair.test, odometry=other.odometry, frames=tuple(frames))


def _numbers(rows: list[dict[str, float]]) -> list[Any]:
    """Mean and least fraction of right frames, and the other means."""
    mean = mean_of(rows)
    least = min(row['right'] for row in rows)
    others = [mean[name] for name in SHOWN if name != 'right']
    return [mean['right'], least, *('–' if np.isnan(value) else value for value in others)]


def section(
    retrieval: list[list[Any]], filters: list[list[Any]], seeds: int, settings: Sequence[str] = ()
) -> str:
    """Lay the tables out."""
    # a network's folder is nobody's business
    given = [
        f'`{name}={Path(value).name}`' for name, _, value in (s.partition('=') for s in settings)
    ]
    told = f'Maps with {", ".join(given)}. ' if given else ''
    head = ['map → test', 'images by']
    for tolerance in TOLERANCES:
        frames = f'within {tolerance} frame{"s" if tolerance > 1 else ""}'
        head += [f'recall at 1 / 5 / 10 {frames}', 'area under PR']
    return (
        f'## Real photographs\n\n`python -m benchmarks.photographs DATA`. {told}'
        'Traverses without poses: image i of each shows place i, which is put at i times a '
        'spacing; **their odometry is made from that** with errors as large as those of COLD. '
        'SeqSLAM is that of Milford and Wyeth (2012): sequences of '
        f'{seqslam.LENGTH} images, by contrast-normalised thumbnails; below it the same search of '
        'sequences by the centred image kernel of the map. They use no odometry but expect 0.8 to '
        '1.2 images of the map for each image, and say of no answer that it is sure.\n\n'
        'The images alone. Recall of the k most similar map images; area under precision over '
        'recall of the best matches, the recall being over all images that have a place.\n\n'
        f'{results.table(head, retrieval)}\n\n'
        f'Filters from a global start, means over {seeds} seeds of odometry. *Right*: fraction of '
        f'the frames within {TOLERANCES[-1]} frames of the truth, and the least of the seeds; '
        '*localized said*: of the right ones; *wrong*: of those where localized was said, after '
        '5 m; *2 sigma*: truths inside where localized was said.\n\n'
        + results.table(
            ['map → test', 'spacing m', 'method', 'right', 'least', *list(SHOWN.values())[1:]],
            filters,
        )
    )


if __name__ == '__main__':
    main()
