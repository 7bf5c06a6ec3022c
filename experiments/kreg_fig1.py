"""
[kReg] Fig. 1: filters on toy dynamics, error over time.

The hidden state is an angle that advances by 0.4; the observation oscillates about a circle.
EKF, UKF and kRegBayes know the dynamics, KBR and pKBR learn from pairs; all know the first angle.
"""

from collections.abc import Sequence
import functools
from typing import Any

from experiments import common
from experiments.claims import below, claim
from experiments.classical import classical_filter, GaussianStateSpaceModel
from experiments.learnt import learnt_filter, ring
from experiments.records import Records, Size
from kbr_localization.kernels import KernelBayesFilter, KernelMean, Supervision
from kbr_localization.kernels.kernels import median_kernel
import numpy as np

INCREMENT, VARIANCE = 0.4, 0.04
UNSCENTED = {f'UKF (α = {spread:g})': spread for spread in common.UKF_SPREADS}
KNOWN = ('EKF', *UNSCENTED)
KERNEL = ('KBR', 'pKBR', 'kRegBayes')
METHODS = (*KNOWN, *KERNEL)


SETTINGS = {'KBR': (1e-3, 1e-5, 'squared'), 'pKBR': (1e-3, 1e-2, 'thresholded')}
"""ε, δ and update of each kernel Bayes' rule."""


def observe(angle: Any) -> Any:
    """Return noise-free observations (n, 2) of angles (n, 1), [kReg] eq. 12."""
    return ring(angle[:, 0], 1.0)


def simulate(rng: np.random.Generator, steps: int) -> tuple[Any, Any]:
    """Return angles (steps, 1), not wrapped, and observations (steps, 2)."""
    increments = INCREMENT + np.sqrt(VARIANCE) * rng.standard_normal((steps, 1))
    angle = rng.uniform(0.0, 2.0 * np.pi) + np.cumsum(increments, axis=0)
    return angle, observe(angle) + np.sqrt(VARIANCE) * rng.standard_normal((steps, 2))


def make_filter(angle: Any, y: Any, method: str, supervise: Any = None) -> KernelBayesFilter:
    """Return a kernel filter on the unit circle, where distances respect the periodicity."""
    x = ring(angle[:, 0], 0.0)
    kernels = median_kernel(x, 0.3), median_kernel(y, 0.3)
    return learnt_filter(kernels, x, y, *SETTINGS[method], supervise)


def supervision(
    first: float, weight: float, step: int, belief: KernelMean, observation: Any
) -> Supervision:
    """Return the pair at this step of the noise-free dynamics from the true first angle."""
    angle = np.array([[first + INCREMENT * step]])
    return Supervision(observe(angle), ring(angle[:, 0], 0.0), weight)


def classical_angles(method: str, first: float, y: Any, spread: float = 1.0) -> Any:
    """Return angles (T,) of a filter that knows the dynamics, the noises and the first angle."""
    model = GaussianStateSpaceModel(
        transition=lambda x: x + INCREMENT,
        transition_covariance=np.array([[VARIANCE]]),
        observation=observe,
        observation_covariance=VARIANCE * np.eye(2),
        mean=np.array([first]),
        covariance=np.array([[1e-4]]),
    )
    return classical_filter(method, model, y, spread=spread)[0][:, 0]


def kernel_angles(kernel_filter: KernelBayesFilter, y: Any, first: float) -> Any:
    """Return angles (T,) of posterior means; the first state is known to all methods."""
    start = KernelMean.of_sample(kernel_filter.bayes_rule.kernel_x, ring(np.array([first]), 0.0))
    points = np.array([belief.mean() for belief in kernel_filter.run(y, prior=start)])
    return np.arctan2(points[:, 1], points[:, 0])


def trial(rng: np.random.Generator, size: int, steps: int, weight: float) -> dict[str, Any]:
    """Return squared errors of each method, averaged up to each step of the figure."""
    training, (angle, y) = simulate(rng, size), simulate(rng, steps)
    first = float(angle[0, 0])
    supervise = functools.partial(supervision, first, weight)
    methods: dict[str, Any] = {
        'EKF': lambda: classical_angles('extended', first, y),
        'KBR': lambda: kernel_angles(make_filter(*training, 'KBR'), y, first),
        'pKBR': lambda: kernel_angles(make_filter(*training, 'pKBR'), y, first),
        'kRegBayes': lambda: kernel_angles(make_filter(*training, 'pKBR', supervise), y, first),
    }
    for name, spread in UNSCENTED.items():
        methods[name] = functools.partial(classical_angles, 'unscented', first, y, spread)
    at = figure_steps(steps)
    errors = {}
    for method in METHODS:
        squared = np.angle(np.exp(1j * (methods[method]() - angle[:, 0]))) ** 2
        errors[method] = np.cumsum(squared)[at - 1] / at
    return {'running': errors}


def figure_steps(steps: int) -> Any:
    return np.unique(np.linspace(1, steps, 20).astype(int))


def judge(records: Records, size: Size) -> common.Outcome:
    """Compare errors averaged up to each step."""
    runs = [one['running'] for one in records.at()]
    running = {method: np.array([run[method] for run in runs]) for method in METHODS}
    rows = common.rows_over('step', figure_steps(size.fixed['steps']).tolist(), running)
    final = {method: values[:, -1] for method, values in running.items()}
    ours = 'MSE of the angle ' + ', '.join(f'{m} {v.mean():.4f}' for m, v in final.items())
    claims = [
        below('pKBR below KBR', final['pKBR'], final['KBR']),
        below('kRegBayes below pKBR', final['kRegBayes'], final['pKBR']),
        *(
            claim(
                f'kernel filters below {name}',
                {kernel: final[name] - final[kernel] for kernel in KERNEL},
            )
            for name in KNOWN
        ),
    ]
    return common.Outcome(rows, ours, claims, lambda: _draw(rows))


def _draw(rows: Sequence[common.Row]) -> Any:
    return common.figure_of(
        rows, 'step', xlabel='time step', ylabel='running MSE of the angle', yscale='log'
    )


EXPERIMENT = common.Experiment(
    name='kreg_fig1',
    source='[kReg] Fig. 1',
    paper='pKBR no worse than KBR, kRegBayes below pKBR; 3667 s KBR, 601 s pKBR, 678 s kRegBayes '
    'for 50 sets: ratios 6.1 and 1.13',
    settings='dynamics and sizes as printed; angles are embedded in the unit circle and errors '
    'wrapped; bandwidths are 0.3 times the median distances; ε, δ and the weight of the '
    'supervision were chosen on runs of other seeds. One exact pair among hundreds of noisy ones '
    'adds nothing to pKBR: with two bandwidths, two ε, four δ and weights of 1e-5…1e-1, '
    'kRegBayes was within 1 % of pKBR or above it wherever pKBR was well regularised. The paper '
    'does not give the α of UKF: a small one (1e-3) and α = 1 are shown, as in [KBR] Fig. 4.',
    sizes={
        'tiny': Size(1, {}, {'size': 100, 'steps': 30, 'weight': 1e-3}),
        'reduced': Size(2, {}, {'size': 500, 'steps': 100, 'weight': 1e-3}),
        'full': Size(10, {}, {'size': 1000, 'steps': 200, 'weight': 1e-3}),
    },
    trial=trial,
    judge=judge,
)
