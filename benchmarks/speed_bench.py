"""
Speed of a frame and of a map's build: python -m benchmarks.speed_bench.

Everything runs on a rendered building of look-alike corridors, 640x480, map of 1000 images, while
the filter tracks a drive.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import resource
import sys
import tempfile
from typing import Any

from benchmarks import map_building, peers, results
from benchmarks.publishing import publisher
from benchmarks.scene import make_scene, Scene
from benchmarks.size_plot import cost_against_size, save_plot
from benchmarks.stages import (
    DESCRIPTION,
    EXTRACTION,
    filter_times,
    frame_times,
    PER_FRAME,
    stage_times,
    STAGES,
)
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.localizer import Localizer
from kbr_localization.localization.methods.adapted import AdaptedAlgorithm1
from kbr_localization.localization.methods.configs import NearestNeighbourConfig
from kbr_localization.localization.methods.particles import NearestNeighbourParticleFilter
from kbr_localization.progress import terminal_progress
import numpy as np
from threadpoolctl import threadpool_limits

ROUNDS = 3
DENSE_FRAMES = 8
YARDSTICK = 'cv2.SIFT, 16-pixel patches every 8 of 640x480'


def measure_stages(scene: Scene) -> dict[str, float]:
    """Median milliseconds of every stage that could be run."""
    with publisher() as publish:
        runs = [stage_times(scene, publish) for _ in range(ROUNDS)]
    if publish is None:
        print('rclpy is not installed: the stage publish is left out', file=sys.stderr)
    return {
        stage: results.median_ms([value for run in runs for value in run[stage]])
        for stage in STAGES
        if stage in runs[0]
    }


def measure_frames(scene: Scene) -> dict[str, float]:
    """Median milliseconds of whole frames, with and without an update; fraction of the former."""
    runs = [frame_times(scene, KernelBayesFilter(scene.kernel_map)) for _ in range(ROUNDS)]
    updated = [value for run in runs for value in run[0]]
    others = [value for run in runs for value in run[1]]
    return {
        'updated': results.median_ms(updated),
        'others': results.median_ms(others),
        'moved': len(updated) / (len(updated) + len(others)),
    }


def measure_filters(scene: Scene) -> dict[str, list[float]]:
    """Seconds of a step with an update: ours, 2000 particles, the dense Algorithm 1."""
    describer = scene.kernel_map.describer
    descriptors = [describer.describe(image) for image in scene.images[: 3 * DENSE_FRAMES]]
    neighbours = NearestNeighbourConfig(points=2000)
    make: dict[str, Callable[[], Localizer]] = {
        'ours': lambda: KernelBayesFilter(scene.kernel_map),
        'particle filter (NN), 2000 particles': lambda: NearestNeighbourParticleFilter(
            scene.kernel_map, neighbours
        ),
        'Algorithm 1, dense': lambda: AdaptedAlgorithm1(scene.kernel_map),
    }
    filters = {name: maker() for name, maker in make.items()}
    times: dict[str, list[float]] = {name: [] for name in make}
    for _ in range(ROUNDS):
        for name, localizer in filters.items():
            count = DENSE_FRAMES if 'dense' in name else len(descriptors)
            times[name] += filter_times(scene, localizer, descriptors[:count])
    return times


def measure_groups(scene: Scene, note: Callable[[str], None]) -> dict[str, dict[str, list[float]]]:
    """Seconds of what a frame consists of, ours and that of others, by title and name."""
    return {
        'Dense descriptors of an image': results.interleaved(peers.extraction(scene), 31),
        'From an image to its histogram': results.interleaved(peers.description(scene), 31),
        'Comparing with 1000 images': results.interleaved(peers.search(scene, note), 31),
        'A filter step with an update (kernel vector included)': measure_filters(scene),
    }


def figures(stages: dict[str, float], frames: dict[str, float], yard: float) -> dict[str, float]:
    """Collect the figures of `latest.json`; see the section's text for their meaning."""
    rest = sum(ms for stage, ms in stages.items() if stage not in DESCRIPTION)
    own = sum(stages[stage] for stage in DESCRIPTION)
    return {
        'frame_ms': frames['updated'],
        'rest_over_extraction_1k': (rest + own - sum(stages[s] for s in EXTRACTION)) / yard,
        'rest_over_description_1k': rest / own,
    }


def section(
    stages: dict[str, float],
    frames: dict[str, float],
    groups: dict[str, dict[str, list[float]]],
    found: dict[str, float],
) -> str:
    """Lay everything out as a section of the page."""
    every = sum(stages.get(stage, 0.0) for stage in PER_FRAME)
    rows = [
        [stage, ms, 'every' if stage in PER_FRAME else 'update'] for stage, ms in stages.items()
    ]
    rows += [
        ['**all stages**', sum(stages.values()), 'update'],
        ['**all stages of a frame without update**', every, 'every'],
        ['**whole frame, image array to estimate**', frames['updated'], 'update'],
        ['**whole frame without update**', frames['others'], 'other'],
    ]
    text = [
        '## A frame while tracking',
        f'{results.machine()}. Map of 1000 images, 640x480; {100 * frames["moved"]:.0f}% of the '
        'frames update the belief. Linear algebra has one thread, as in the node. Peak memory '
        f'{peak_mb():.0f} MB.',
        results.table(['stage', 'median ms', 'frames'], rows),
        f'Everything beside feature extraction (quantisation and pyramid included) takes '
        f'{found["rest_over_extraction_1k"]:.2f} of dense SIFT by OpenCV on the same image '
        f'(`rest_over_extraction_1k`; {YARDSTICK}); kernel vector, filter and publishing '
        f'take {found["rest_over_description_1k"]:.2f} of our own image description '
        '(`rest_over_description_1k`), which is many times faster than that.',
    ]
    for title, times in groups.items():
        first = next(iter(times))
        rows = [
            [name, results.median_ms(t), ratio_to(times, name, first)] for name, t in times.items()
        ]
        text += [f'### {title}', results.table(['', 'median ms', 'over ours'], rows)]
    return '\n\n'.join([*text, '![cost against map size](cost_against_size.png)'])


def ratio_to(times: dict[str, list[float]], name: str, first: str) -> float:
    """Compare medians where the rounds differ in number, rounds where they do not."""
    if len(times[name]) == len(times[first]):
        return results.ratio(times, name, first)
    return float(np.median(times[name]) / np.median(times[first]))


def peak_mb() -> float:
    """Peak memory of this process in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def main() -> dict[str, Any]:
    """Measure, print and write the page, the plot and the figures."""
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as name, terminal_progress() as progress:
        folder = Path(name)
        scene = make_scene(folder, progress)
        with threadpool_limits(1, 'blas'):  # as in the node and in the commands
            stages, frames = measure_stages(scene), measure_frames(scene)
            groups = measure_groups(scene, notes.append)
            costs = cost_against_size(folder, progress)
        save_plot(costs, results.FOLDER / 'cost_against_size.png')
        built = map_building.measure(scene, folder)
    yard = results.median_ms(groups['Dense descriptors of an image'][YARDSTICK])
    found = figures(stages, frames, yard) | {'build_speedup_2p': built['speedup']}
    text = section(stages, frames, groups, found) + '\n\n' + '\n'.join(notes)
    results.write_section('frame', text)
    results.write_section('map_build', map_building.section(built))
    print(text, map_building.section(built), sep='\n\n')
    return results.merge_figures(found)


if __name__ == '__main__':
    results.take_no_options(__doc__)
    main()
