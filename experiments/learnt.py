"""What several experiments learn and simulate: filters from one run, and a circle that swings."""

from typing import Any

from kbr_localization.kernels import (
    Kernel,
    KernelBayesFilter,
    KernelBayesRule,
    NonparametricModel,
)
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
    """Fully-nonparametric filter learnt from one run of states x and observations y, in order."""
    rule = KernelBayesRule(*kernels, x, y, epsilon, delta, method)
    transition = NonparametricModel(kernels[0], kernels[0], x[:-1], x[1:], epsilon)
    return KernelBayesFilter(transition, rule, supervise)


def ring(angle: Any, b: float, frequency: float = 8.0) -> Any:
    """Points (1 + b sin(M a)) (cos a, sin a) of angles a. Shapes: (n,) -> (n, 2)."""
    radius = 1.0 + b * np.sin(frequency * angle)
    return radius[:, np.newaxis] * np.column_stack([np.cos(angle), np.sin(angle)])


def squared_error(estimates: Any, truth: Any) -> float:
    """Mean over points (n, ...) of the squared distance."""
    return float(np.mean(((estimates - truth) ** 2).reshape(len(truth), -1).sum(axis=1)))
