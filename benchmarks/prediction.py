"""
Noise of the motion drawn, or integrated into the kernel: `python -m benchmarks.prediction`.

The filter draws the noise since the last update for every point before the image weighs it
(sampling prediction). The other way is [MbKSR]'s: the image is compared with the expectation of
the kernel over the noise, in closed form for the Gaussian kernel; the noise is drawn afterwards,
so that the points do not run out. Both run with the Gaussian kernel and the map's calibration of
the odometry, on the same random maps.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import sys
from unittest.mock import patch

from benchmarks import results, workload
from benchmarks.ablation import COLUMNS, means
from kbr_localization import se2
from kbr_localization.evaluation.protocol import run_tasks, Task
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr import likelihood
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.kbr.state_kernel import StateKernel
from kbr_localization.localization.map.similarity import Similarity
from kbr_localization.localization.methods import registry
from kbr_localization.localization.methods.method_configs import with_values
from kbr_localization.se2 import FloatArray
from kbr_localization.workers import open_workers
import numpy as np
from numpy.typing import NDArray


class IntegratingKernel(StateKernel):
    """The Gaussian k_X, and its expectation over a noise of the poses on the right."""

    def __init__(self, config: KbrConfig, short_ranged: bool = True) -> None:
        super().__init__(config, short_ranged=True)
        self.noise: FloatArray | None = None

    def quick_cross_gram(self, left: FloatArray, right: FloatArray) -> NDArray[np.float32]:
        """E k_X(x_i, z_j + xi), xi of covariance `noise` (3, 3) in the frame of z_j."""
        if self.noise is None or len(left) == 0 or len(right) == 0:
            return super().quick_cross_gram(left, right)
        cosine, sine = np.cos(right[:, 2]), np.sin(right[:, 2])
        turns = np.stack([np.stack([cosine, -sine], -1), np.stack([sine, cosine], -1)], 1)
        width, narrow = self._widths[0] ** 2, self._widths[2] ** 2
        spread = turns @ self.noise[:2, :2] @ turns.transpose(0, 2, 1) + width * np.eye(2)
        apart = left[:, np.newaxis, :2] - right[:, :2]
        places = np.einsum('nmi,mij,nmj->nm', apart, np.linalg.inv(spread), apart)
        # to first order the noise of the heading moves (cos, sin) along the circle
        turned = se2.wrap_angle(left[:, np.newaxis, 2] - right[:, 2])
        radial = np.cos(turned) - np.exp(-0.5 * self.noise[2, 2])
        tangent = np.sin(turned) ** 2 / (narrow + self.noise[2, 2])
        scale = width / np.sqrt(np.linalg.det(spread))
        scale = scale * np.sqrt(narrow / (narrow + self.noise[2, 2]))
        squared = places + radial**2 / narrow + tangent
        return np.asarray(scale * np.exp(-0.5 * squared), dtype=np.float32)


class IntegratingFilter(KernelBayesFilter):
    """The filter with the noise integrated into the kernel, and drawn after the image."""

    def _weigh(self, belief: Belief, seen: Similarity, way: float) -> None:
        kernel = self.likelihood.kernel
        assert isinstance(kernel, IntegratingKernel)
        kernel.noise = self.odometry.noise.copy()
        deferred = functools.partial(self.odometry.disperse, rng=self.rng, learn=False)
        with patch.object(self.odometry, 'disperse'):
            super()._weigh(belief, seen, way)
        kernel.noise = None
        assert self.belief is not None
        deferred(self._beliefs(self.belief))


WAYS = {'drawn before the image': KernelBayesFilter, 'integrated': IntegratingFilter}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both ways; print the table, and put it into the page when a section is named."""
    parser = workload.parser(__doc__ or '')
    parser.add_argument('--sizes', default='100,400', help='images of the random maps')
    parser.add_argument('--trials', type=int, default=3, help='random maps of every size')
    options = parser.parse_args(arguments)
    sizes = [int(size) for size in options.sizes.split(',')]
    kernel_map, runs, name = workload.measured_on(options)
    tried = with_values('kbr', kernel_map, {'odometry_calibration': 'mapped'})
    tasks = [Task('kbr', size, trial) for size in sizes for trial in range(options.trials)]
    rows = []
    for way, kind in WAYS.items():
        with (
            patch.object(registry, 'KernelBayesFilter', kind),
            patch.object(likelihood, 'StateKernel', IntegratingKernel),
            open_workers(1) as workers,
        ):
            found = run_tasks(tried, runs, tasks, options.seed, workers)
            done = [one.outcome for one in found]
        rows.append([way, *means(done, sizes)])
        print(*rows[-1], file=sys.stderr, flush=True)
    header = ['noise', *(f'{what}, n = {size}' for size in sizes for what in COLUMNS)]
    text = (
        f'### Noise drawn or integrated ({name})\n\n'
        f'Mean over {options.trials} random maps, columns as in the ablation; Gaussian kernel.\n\n'
        f'{results.table(header, rows)}'
    )
    results.publish(text, options.section)


if __name__ == '__main__':
    main()
