"""
Kalman, extended and unscented Kalman and bootstrap particle filters, for comparison only.

Thin adapters of Stone Soup (https://stonesoup.rtfd.io), which is the extra `compare`: only the
experiments need it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import importlib
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import as_count, as_floats, as_positive, FloatArray, require
from numpy.typing import ArrayLike

Function = Callable[[FloatArray], Any]

METHODS = ('kalman', 'extended', 'unscented', 'particle')


@dataclass(frozen=True, eq=False)
class GaussianStateSpaceModel:
    """
    State-space model x' = f(x) + e, y = h(x) + r with Gaussian noises and a Gaussian start.

    `transition` f, `observation` h: functions of all points at once, (n, d) -> (n, d) and
    (n, d) -> (n, d_y), or matrices (d, d) and (d_y, d); `transition_covariance` (d, d),
    `observation_covariance` (d_y, d_y); `mean` (d,), `covariance` (d, d) of the first state before
    its observation.
    """

    transition: Function | FloatArray
    transition_covariance: FloatArray
    observation: Function | FloatArray
    observation_covariance: FloatArray
    mean: FloatArray
    covariance: FloatArray

    def __post_init__(self) -> None:
        size = _sized('mean', self.mean, (None,))[0]
        outputs = _sized('observation_covariance', self.observation_covariance, (None, None))[0]
        expected = {
            'covariance': (size, size),
            'transition_covariance': (size, size),
            'observation_covariance': (outputs, outputs),
            'transition': (size, size),
            'observation': (outputs, size),
        }
        for name, shape in expected.items():
            value = getattr(self, name)
            if not callable(value):
                _sized(name, value, shape)


def classical_filter(
    method: str,
    model: GaussianStateSpaceModel,
    observations: ArrayLike,
    particles: int = 1000,
    seed: int = 0,
    spread: float = 0.5,
) -> tuple[FloatArray, FloatArray]:
    """
    Posterior means (T, d) and covariances (T, d, d) of the states given observations (T, d_y).

    `method`: 'kalman' (both functions given as matrices), 'extended', 'unscented' or 'particle'.
    `spread`: alpha of the unscented transform, the distance of its sigma points from the mean.
    Raises KernelError when Stone Soup is not installed.
    """
    if method not in METHODS:
        raise KernelError(f'method: expected one of {", ".join(METHODS)}, got {method!r}')
    require('model', model, GaussianStateSpaceModel, 'a GaussianStateSpaceModel')
    is_linear = not callable(model.transition) and not callable(model.observation)
    if method == 'kalman' and not is_linear:
        raise KernelError(
            'method: kalman expects matrices for transition and observation, got a function: '
            'use extended or unscented'
        )
    as_count('particles', particles)
    as_positive('spread', spread)
    sequence = as_floats('observations', observations)
    if sequence.ndim != 2 or len(sequence) == 0:
        raise KernelError(
            f'observations: expected shape (T, d_y) with T > 0, got {sequence.shape}: reshape '
            'scalars with y.reshape(-1, 1)'
        )
    try:
        adapter = importlib.import_module('experiments.stonesoup_adapter')
    except ImportError as error:
        raise KernelError(
            f'method: {method} needs Stone Soup, which is not installed ({error}): '
            'pip install stonesoup'
        ) from error
    means, covariances = adapter.run(method, model, sequence, particles, seed, spread)
    return means, covariances


def _sized(name: str, value: ArrayLike, shape: tuple[int | None, ...]) -> tuple[int, ...]:
    """Return the shape of a finite array, which must be as expected; None is any size > 0."""
    found = as_floats(name, value).shape
    fits = len(found) == len(shape) and 0 not in found
    if not fits or any(want not in (None, got) for want, got in zip(shape, found, strict=True)):
        wanted = ', '.join('n' if size is None else str(size) for size in shape)
        raise KernelError(
            f'{name}: expected shape ({wanted}), got {found}: covariances and matrices have the '
            'dimensions of the mean and of an observation'
        )
    return found
