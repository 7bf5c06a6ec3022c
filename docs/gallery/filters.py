"""Four filters and a smoother on one run: a point on a ring that swings, seen with noise."""

from kbr_localization.kernels import (
    GaussianKernel,
    KernelBayesFilter,
    KernelBayesRule,
    KernelBayesSmoother,
    KernelKalmanFilter,
    means,
    MonteCarloTransition,
    NonparametricModel,
)
import numpy as np


def move(x, rng):
    """Turn by 0.4 rad, back to a radius that depends on the angle; x (n, 2)."""
    angle = np.arctan2(x[:, 1], x[:, 0]) + 0.4
    radius = 1.0 + 0.4 * np.sin(8.0 * angle)
    ring = radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    return ring + 0.1 * rng.normal(size=x.shape)


def simulate(steps, seed):
    """Return the states and observations (steps, 2) of one run."""
    rng = np.random.default_rng(seed)
    x = np.ones((steps, 2))
    for t in range(1, steps):
        x[t] = move(x[t - 1 : t], rng)[0]
    return x, x + 0.4 * rng.normal(size=x.shape)


x, y = simulate(251, 0)
states, observed = simulate(60, 1)
kernel_x = GaussianKernel(0.1, normalised=False)
kernel_y = GaussianKernel(0.4, normalised=False)
rule = KernelBayesRule(kernel_x, kernel_y, x, y, 1e-4, 2e-3, 'pKBR')
learnt = KernelBayesFilter(NonparametricModel(kernel_x, kernel_x, x[:-1], x[1:], 1e-4), rule)
smoother = KernelBayesSmoother(
    learnt, KernelBayesRule(kernel_x, kernel_x, x[:-1], x[1:], 1e-4, 1e-3, 'pKBR')
)
kalman = KernelKalmanFilter(kernel_x, kernel_y, x[:-1], x[1:], y[1:], 1e-4, 0.05)
drawn = KernelBayesFilter(MonteCarloTransition(move, draws=100), rule)
estimates = {
    'observations alone': observed,
    'fKBF, all learnt': means(learnt.run(observed)),
    'kernel Kalman filter, all learnt': means(kalman.run(observed)),
    'kernel Monte Carlo, motion given': means(drawn.run(observed)),
    'smoother of fKBF': means(smoother.run(observed)),
}
for name, found in estimates.items():
    print(f'{name:<34} RMSE {np.sqrt(np.mean((found - states) ** 2)):.2f}')
