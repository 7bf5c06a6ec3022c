"""
What each step beyond the paper is worth: `python -m benchmarks.ablation`.

First the steps from Algorithm 1 as printed to the filter, one after the other; then the filter
with one step left out or exchanged. Every row runs on the same random maps from a global start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import sys
from typing import Any

from benchmarks import results, workload
from kbr_localization.evaluation.protocol import Outcome, run_tasks, Task
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.methods.configs import AdaptedConfig
from kbr_localization.localization.methods.method_configs import with_values
from kbr_localization.workers import open_workers
import numpy as np

_KBR = KbrConfig()
_SHARP = {'sharpening': AdaptedConfig().sharpening}
_GATED = _SHARP | {'update_min_d': _KBR.update_min_d, 'update_min_a': _KBR.update_min_a}
_ADAPTED = 'algorithm1-adapted'
# the best values of a search with every switch off
_PLAIN = {
    'bayes_rule': 'squared',
    'sharpening': 0.0,
    'multi_step': False,
    'update_min_d': 0.0,
    'update_min_a': 0.0,
    'position_bandwidth': 1.3,
    'heading_bandwidth': 0.45,
    'state_ridge': 0.12,
    'delta': 2e-3,
    'noise_scale': 30.0,
}
_COMPOSED = _GATED | {'multi_step': True}
STEPS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ('Algorithm 1 as printed', 'algorithm1', {}),
    ('+ wider kernel and variances, no negative weights', _ADAPTED, _PLAIN),
    ('+ sharpened image kernel', _ADAPTED, _PLAIN | _SHARP),
    ('+ updates gated by motion', _ADAPTED, _PLAIN | _GATED),
    ('+ predictions composed over several steps', _ADAPTED, _PLAIN | _COMPOSED),
    ('+ thresholded rule', _ADAPTED, _PLAIN | _COMPOSED | {'bayes_rule': 'thresholded'}),
    ('+ belief on moving points, three hypotheses: **kbr**', 'kbr', {}),
    ('kbr without gating', 'kbr', {'update_min_d': 0.0, 'update_min_a': 0.0}),
    ('kbr, delta = 0.01', 'kbr', {'delta': 0.01}),
    ('kbr, delta = 0.1', 'kbr', {'delta': 0.1}),
    ('kbr, conditional kernel mean at the image (delta = 1e9)', 'kbr', {'delta': 1e9}),
    (
        'kbr, drift of the odometry as the runs of the map have it',
        'kbr',
        {'odometry_calibration': 'mapped'},
    ),
    ('kbr, errors of the odometry ignored', 'kbr', {'odometry_calibration': 'off'}),
    ('kbr without recovery (carried rate 0)', 'kbr', {'carried_rate': 0.0}),
    ('kbr, outlier rate 0', 'kbr', {'outlier_rate': 0.0}),
)
"""Name, method and changed parameters."""
COLUMNS = {
    'RMSE': 'position_rmse_m',
    'after localizing': 'rmse_after_localized_m',
    'lost': 'lost_fraction_after_localized',
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all steps; print the table, and put it into the page when a section is named."""
    parser = workload.parser(__doc__ or '')
    parser.add_argument('--sizes', default='100,400', help='images of the random maps')
    parser.add_argument('--trials', type=int, default=5, help='random maps of every size')
    options = parser.parse_args(arguments)
    sizes = [int(size) for size in options.sizes.split(',')]
    kernel_map, runs, name = workload.measured_on(options)
    rows: list[list[Any]] = []
    with open_workers(None) as workers:
        for step, method, values in STEPS:
            tried = with_values(method, kernel_map, values)
            tasks = [
                Task(method, size, trial) for size in sizes for trial in range(options.trials)
            ]
            found = run_tasks(tried, runs, tasks, options.seed, workers)
            done = [one.outcome for one in found]
            rows.append([step, *means(done, sizes)])
            print(*rows[-1], file=sys.stderr, flush=True)
    header = ['step', *(f'{what}, n = {size}' for size in sizes for what in COLUMNS)]
    text = (
        f'### Steps of the filter ({name})\n\n'
        f'Mean over {options.trials} random maps of the position RMSE in metres from a global '
        'start, of that after localizing, and fraction of the frames off by more than 1 m after '
        'localizing.\n\n'
        f'{results.table(header, rows)}'
    )
    results.publish(text, options.section)


def means(done: Sequence[Outcome], sizes: Sequence[int]) -> list[float]:
    """Means over the trials of every size, of those that have the number."""
    found = []
    for size in sizes:
        trials = [outcome.metrics for outcome in done if outcome.task.size == size]
        for key in COLUMNS.values():
            known = [value for trial in trials if (value := trial[key]) is not None]
            found.append(float(np.mean(known)) if known else float('nan'))
    return found


if __name__ == '__main__':
    main()
