"""One bandwidth for every coordinate, by gradients: which sensors matter is found on the way."""

from kbr_localization.kernels import (
    BandwidthCriterion,
    GaussianKernel,
    k_fold,
    KernelBayesRegressor,
    median_distance,
)
import numpy as np

rng = np.random.default_rng(0)
noise = np.array([0.1, 0.5, 2.0, 2.0, 2.0, 2.0])


def measure(size):
    """Read six sensors of a state: two of them see it, four see nothing."""
    x = rng.uniform(-2.0, 2.0, size=(size, 1))
    seen = np.hstack([np.sin(x), x + np.sin(x), np.zeros((size, 4))])
    return x, seen + noise * rng.normal(size=(size, 6))


(x, y), (states, readings) = measure(300), measure(200)
kernel_x = GaussianKernel(median_distance(x) ** 2, normalised=False)
start = GaussianKernel(np.full(6, median_distance(y) ** 2), normalised=False)
criterion = BandwidthCriterion(kernel_x, start, x, y, k_fold(300, 5, rng), epsilon=1e-3)
tuned = criterion.minimise(delta=1e-4, per_coordinate=True)

for name, kernel, delta in (('median', start, 1e-4), ('tuned', tuned.kernel_y, tuned.delta)):
    regressor = KernelBayesRegressor(kernel, kernel_x, delta=delta).fit(y, x)
    error = np.sqrt(np.mean((regressor.predict(readings) - states) ** 2))
    widths = ' '.join(f'{width:.1f}' for width in np.sqrt(kernel.scale.value))
    print(f'{name:<7} bandwidths {widths}  RMSE {error:.2f}')
