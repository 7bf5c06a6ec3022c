"""Dependence without correlation, and two samples that differ in shape only."""

from kbr_localization.kernels import (
    GaussianKernel,
    independence_test,
    median_distance,
    two_sample_test,
)
import numpy as np

rng = np.random.default_rng(0)
angle = rng.uniform(0.0, 2.0 * np.pi, size=(200, 1))
x, y = np.cos(angle) + 0.1 * rng.normal(size=(200, 1)), np.sin(angle)
kernel_x, kernel_y = (GaussianKernel(median_distance(p) ** 2, normalised=False) for p in (x, y))
circle = independence_test(kernel_x, kernel_y, x, y, rng=1)
shuffled = independence_test(kernel_x, kernel_y, x, rng.permutation(y), rng=1)
print(f'points on a circle: correlation {np.corrcoef(x[:, 0], y[:, 0])[0, 1]:.2f}, ', end='')
print(f'HSIC p = {circle.p_value:.3f}; shuffled p = {shuffled.p_value:.2f}')

normal, uniform = rng.normal(size=(300, 1)), rng.uniform(-(3**0.5), 3**0.5, size=(300, 1))
kernel = GaussianKernel(0.3, normalised=False)
differ = two_sample_test(kernel, normal, uniform, rng=1)
same = two_sample_test(kernel, normal, rng.normal(size=(300, 1)), rng=1)
print(f'normal and uniform of one mean and variance: MMD p = {differ.p_value:.3f}; ', end='')
print(f'two normal samples p = {same.p_value:.2f}')
