"""Conditional kernel means m(z | x) of a noise model: what `noise.py` returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Protocol

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import FloatArray
import numpy as np
from numpy.typing import ArrayLike


class ConditionalKernelMean(Protocol):
    """The function m(z | x) = E[k(z, f(x) + e)], given the noise-free image f(x)."""

    def cross_gram(self, z: ArrayLike, f_x: ArrayLike, /) -> FloatArray:
        """Matrix of m(z_i | x_j). Shapes: z (m, d), f(x) (n, d) -> (m, n)."""
        ...


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
        images = np.asarray(f_x, dtype=np.float64)
        offsets = [0.0] * len(self.means) if self.locations is None else list(self.locations)
        terms = (
            weight * mean.cross_gram(z, images + offset)
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
    peak: Callable[[int], float]

    def cross_gram(self, z: ArrayLike, f_x: ArrayLike, /) -> FloatArray:
        """Matrix of m(z_i | x_j). Shapes: z (m, d), f(x) (n, d) -> (m, n)."""
        values = self.mean.cross_gram(z, f_x)
        return np.asarray(values / self.peak(np.shape(f_x)[1]), dtype=np.float64)

    def smoothed(self, smooth: Smoothing) -> PlainMean:
        """Smooth the density."""
        return replace(self, mean=smooth(self.mean))


@dataclass(frozen=True)
class ProductMean:
    """Product of conditional kernel means on separate coordinates."""

    factors: Sequence[tuple[tuple[int, ...], ConditionalKernelMean]]

    def cross_gram(self, z: ArrayLike, f_x: ArrayLike, /) -> FloatArray:
        """Matrix of m(z_i | x_j). Shapes: z (m, d), f(x) (n, d) -> (m, n)."""
        points, images = np.asarray(z, dtype=np.float64), np.asarray(f_x, dtype=np.float64)
        values = (mean.cross_gram(points[:, c], images[:, c]) for c, mean in self.factors)
        return reduce(np.multiply, values)
