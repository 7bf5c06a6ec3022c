"""Conditional kernel means m(z | x) of a noise model: what `noise.py` returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
import math
from typing import Any, Protocol

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import FloatArray, select_columns
import numpy as np
from numpy.typing import ArrayLike


class ConditionalKernelMean(Protocol):
    """The function m(z | x) = E[k(z, f(x) + e)], given the noise-free image f(x)."""

    def cross_gram(self, z: ArrayLike, f_x: ArrayLike, /) -> FloatArray:
        """Matrix of m(z_i | x_j). Shapes: z (m, d), f(x) (n, d) -> (m, n)."""
        ...


def relative_cross_gram(
    mean: ConditionalKernelMean, z: ArrayLike, f_x: ArrayLike, log_unit: float
) -> FloatArray:
    """
    Matrix of m(z_i | x_j) / exp(log_unit), in logarithms where the mean knows its own.

    In high dimension both are beyond floating point while their quotient is not.
    """
    if hasattr(mean, 'relative_cross_gram'):
        return np.asarray(mean.relative_cross_gram(z, f_x, log_unit), dtype=np.float64)
    return np.asarray(mean.cross_gram(z, f_x) / math.exp(log_unit), dtype=np.float64)


def moved(points: FloatArray, locations: FloatArray | None) -> FloatArray:
    """Add locations (d,) or (n, d) of a mixture to points (n, d), which have to have that d."""
    if locations is None:
        return points
    if points.shape[1:] != locations.shape[-1:]:
        raise KernelError(
            f'locations: expected rows of {points.shape[1]}, the dimension of the images, got '
            f'{locations.shape[-1]}: give a location in every coordinate'
        )
    return np.asarray(points + locations, dtype=np.float64)


Smoothing = Callable[[Any], ConditionalKernelMean]


class Smoothable(ABC):
    """A conditional kernel mean made of others, which a further noise can smooth again."""

    @abstractmethod
    def smoothed(self, smooth: Smoothing) -> ConditionalKernelMean:
        """Apply the smoothing of a noise to every part."""

    @abstractmethod
    def cross_gram(self, z: ArrayLike, f_x: ArrayLike, /) -> FloatArray:
        """Matrix of m(z_i | x_j). Shapes: z (m, d), f(x) (n, d) -> (m, n)."""


@dataclass(frozen=True)
class WeightedMeans(Smoothable):
    """Weighted sum of conditional kernel means, each about its own location (K, d)."""

    means: Sequence[ConditionalKernelMean]
    weights: Sequence[float]
    locations: FloatArray | None = None

    def cross_gram(self, z: ArrayLike, f_x: ArrayLike, /) -> FloatArray:
        """Matrix of m(z_i | x_j). Shapes: z (m, d), f(x) (n, d) -> (m, n)."""
        return self.relative_cross_gram(z, f_x, 0.0)

    def relative_cross_gram(self, z: ArrayLike, f_x: ArrayLike, log_unit: float) -> FloatArray:
        """Matrix of m(z_i | x_j) / exp(log_unit)."""
        images = np.asarray(f_x, dtype=np.float64)
        offsets = [None] * len(self.means) if self.locations is None else list(self.locations)
        terms = (
            weight * relative_cross_gram(mean, z, moved(images, offset), log_unit)
            for weight, mean, offset in zip(self.weights, self.means, offsets, strict=True)
        )
        return reduce(np.add, terms)

    def smoothed(self, smooth: Smoothing) -> WeightedMeans:
        """Smooth every term."""
        if self.locations is not None:
            raise KernelError(
                'kernel: a mixture with locations is not symmetric and cannot be smoothed again: '
                'split the mixture into its components'
            )
        return replace(self, means=[smooth(mean) for mean in self.means])


@dataclass(frozen=True)
class PlainMean(Smoothable):
    """Conditional kernel mean of a plain kernel: that of its density divided by the peak."""

    mean: ConditionalKernelMean
    log_peak: Callable[[int], float]

    def cross_gram(self, z: ArrayLike, f_x: ArrayLike, /) -> FloatArray:
        """Matrix of m(z_i | x_j). Shapes: z (m, d), f(x) (n, d) -> (m, n)."""
        return relative_cross_gram(self.mean, z, f_x, self.log_peak(np.shape(f_x)[1]))

    def smoothed(self, smooth: Smoothing) -> PlainMean:
        """Smooth the density."""
        return replace(self, mean=smooth(self.mean))


@dataclass(frozen=True)
class ProductMean:
    """Product of conditional kernel means on separate coordinates."""

    factors: Sequence[tuple[tuple[int, ...], ConditionalKernelMean]]

    def cross_gram(self, z: ArrayLike, f_x: ArrayLike, /) -> FloatArray:
        """Matrix of m(z_i | x_j). Shapes: z (m, d), f(x) (n, d) -> (m, n)."""
        values = (
            mean.cross_gram(select_columns('z', z, c), select_columns('f_x', f_x, c))
            for c, mean in self.factors
        )
        return reduce(np.multiply, values)
