"""
Benefit of a second camera: `python -m benchmarks.cameras_bench`.

A robot drives through a rendered building with similar corridors, with a front camera, a rear
camera, or both. The map is built by day; the test runs are at night, each with a global start. All
three use the same images.
"""

from collections.abc import Sequence
from dataclasses import replace
import math

from benchmarks import results
from benchmarks.acceptance_places import LoadedRun
from kbr_localization.datasets import Dataset
from kbr_localization.datasets.multi_camera import join_cameras
from kbr_localization.evaluation import reference_trajectory, run_errors
from kbr_localization.evaluation.comparison import describe_run
from kbr_localization.evaluation.metrics import below_1m_from, LOST_M
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.pipeline import localize
from kbr_localization.simulation.run import RunConfig, SyntheticBuilding, SyntheticRun
import numpy as np
from threadpoolctl import threadpool_limits

TRAIN = RunConfig('train', route='tour', seed=1)
TESTS = tuple(
    RunConfig(f'night{seed}', seconds=60.0, light='night', people=8, seed=seed)
    for seed in range(3, 9)
)
MAP_IMAGES = 50
SEEDS = (0, 1)


def render(building: SyntheticBuilding, config: RunConfig) -> dict[str, Dataset]:
    """Render a run for each camera and for both together."""
    rear_config = replace(config, camera_heading=math.pi)
    front, rear = (LoadedRun(SyntheticRun(building, one)) for one in (config, rear_config))
    both = join_cameras(('front', 'rear'), [front, rear])
    return {'front': front, 'rear': rear, 'front and rear': both}


def localization(train: Dataset, tests: Sequence[Dataset]) -> list[float]:
    """Return fraction of lost frames, mean and largest distance to localize, median error."""
    kernel_map, positions, afters = build_map([train], max_images=MAP_IMAGES), [], []
    for test in tests:
        run = describe_run(kernel_map.describer, test)
        for seed in SEEDS:
            estimates = localize(kernel_map, run, seed=seed)
            errors = run_errors(reference_trajectory(run), estimates)
            after = below_1m_from(errors)
            positions.append(errors.position_m)
            # a run that never localizes counts with its whole length
            afters.append(float(errors.travel_m[-1 if after is None else after]))
    error = np.concatenate(positions)
    found = (np.mean(error > LOST_M), np.mean(afters), np.max(afters), np.median(error))
    return [float(value) for value in found]


def main() -> None:
    threadpool_limits(1, 'blas')  # as in the node and in the commands
    building = SyntheticBuilding()
    train, tests = render(building, TRAIN), [render(building, test) for test in TESTS]
    rows = {name: localization(train[name], [test[name] for test in tests]) for name in train}
    header = ('cameras', 'lost (> 1 m)', 'localized after m, mean', 'at most', 'median m')
    text = results.table(header, [[name, *values] for name, values in rows.items()])
    results.publish(
        f'## Two cameras against one\n\nA map of {MAP_IMAGES} moments by day, {len(TESTS)} runs '
        f'of {TESTS[0].seconds:.0f} s at night through a rendered building, each from a global '
        f'start with {len(SEEDS)} seeds.\n\n{text}',
        'cameras',
    )


if __name__ == '__main__':
    results.parser_of(__doc__).parse_args()
    main()
