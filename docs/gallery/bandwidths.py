"""One bandwidth for every coordinate, by an optimiser that finds out which sensors matter."""

from kbr_localization.kernels import (
    GaussianKernel,
    k_fold,
    KernelBayesRule,
    median_distance,
)
from kbr_localization.kernels.estimators import KernelBayesRegressor
from kbr_localization.kernels.selection import posterior_score
import numpy as np
from scipy.optimize import minimize

rng = np.random.default_rng(0)
noise = np.array([0.1, 0.5, 2.0, 2.0, 2.0, 2.0])


def measure(size):
    """Read six sensors of a state: two of them see it, four see nothing."""
    x = rng.uniform(-2.0, 2.0, size=(size, 1))
    seen = np.hstack([np.sin(x), x + np.sin(x), np.zeros((size, 4))])
    return x, seen + noise * rng.normal(size=(size, 6))


def make_rule(x, y, logs):
    """Learn a rule; `logs`: logarithms of six bandwidths and of delta."""
    kernel_y = GaussianKernel(np.exp(2.0 * logs[:6]), normalised=False)
    return KernelBayesRule(kernel_x, kernel_y, x, y, 1e-3, np.exp(logs[6]), 'pKBR')


def loss(logs):
    """Mean score of the folds."""
    return np.mean([posterior_score(x, y, make_rule, *fold, logs=logs) for fold in folds])


(x, y), (states, readings) = measure(300), measure(200)
kernel_x = GaussianKernel(median_distance(x) ** 2, normalised=False)
folds = k_fold(300, 2, rng)
start = np.log(np.append(np.full(6, median_distance(y)), 1e-2))
reach = np.add.outer(start, [-3.5, 3.5])  # a factor of 33
tuned = minimize(loss, start, method='L-BFGS-B', bounds=reach).x

for name, logs in (('median', start), ('tuned', tuned)):
    width, delta = np.exp(logs[:6]), np.exp(logs[6])
    kernel_y = GaussianKernel(width**2, normalised=False)
    regressor = KernelBayesRegressor(kernel_y, kernel_x, delta=delta, method='pKBR').fit(y, x)
    error = np.sqrt(np.mean((regressor.predict(readings) - states) ** 2))
    print(f'{name:<7} bandwidths {" ".join(f"{w:.1f}" for w in width)}  RMSE {error:.2f}')
