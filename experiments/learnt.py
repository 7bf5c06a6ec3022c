"""Functions of several experiments: a filter learnt from one run, and an oscillating circle."""

from typing import Any

from kbr_localization.kernels import Kernel, KernelBayesFilter, KernelBayesRule, NonparametricModel
import numpy as np


def learnt_filter(
    kernels: tuple[Kernel, Kernel],
    x: Any,
    y: Any,
    epsilon: float,
    delta: float,
    method: str,
    supervise: Any = None,
) -> KernelBayesFilter:
    """Return a fully nonparametric filter learnt from consecutive states x and observations y."""
    rule = KernelBayesRule(*kernels, x, y, epsilon, delta, method)
    transition = NonparametricModel(kernels[0], kernels[0], x[:-1], x[1:], epsilon)
    return KernelBayesFilter(transition, rule, supervise)


def ring(angle: Any, b: float, frequency: float = 8.0) -> Any:
    """Return (1 + b sin(M a)) (cos a, sin a) for angles a. Shapes: (n,) -> (n, 2)."""
    radius = 1.0 + b * np.sin(frequency * angle)
    return radius[:, np.newaxis] * np.column_stack([np.cos(angle), np.sin(angle)])


def squared_error(estimates: Any, truth: Any) -> float:
    """Return the mean squared distance of points (n, ...)."""
    return float(np.mean(((estimates - truth) ** 2).reshape(len(truth), -1).sum(axis=1)))
