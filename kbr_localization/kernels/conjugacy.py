"""What an additive noise is: its law is conjugate to some kernels, and it can be drawn from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel, require_kernel, ScaledKernel, SumKernel
from kbr_localization.kernels.checks import as_count, FloatArray, require
from kbr_localization.kernels.conditional_means import (
    ConditionalKernelMean,
    PlainMean,
    Smoothable,
    WeightedMeans,
)
from kbr_localization.kernels.kernels import RadialKernel
from kbr_localization.kernels.manifold import WrappedNormalKernel
import numpy as np


class Noise(ABC):
    """The law of an additive noise e."""

    def conditional_kernel_mean(self, kernel: Kernel | Smoothable) -> ConditionalKernelMean:
        """
        Return K with K(z, f(x)) = E[k(z, f(x) + e)].

        Raises KernelError with the reason when noise and kernel are not conjugate.
        """
        if isinstance(kernel, Smoothable):
            return kernel.smoothed(self.conditional_kernel_mean)
        if isinstance(kernel, ScaledKernel):
            mean = self.conditional_kernel_mean(kernel.kernel)
            return WeightedMeans([mean], [kernel.factor])
        if isinstance(kernel, SumKernel):
            means = [self.conditional_kernel_mean(part) for part in kernel.kernels]
            return WeightedMeans(means, [1.0] * len(means))
        if isinstance(kernel, RadialKernel) and not kernel.normalised:
            density = kernel.with_normalised(True)
            return PlainMean(self._conjugate(density), density.log_density_peak)
        if isinstance(kernel, WrappedNormalKernel) and not kernel.normalised:
            density_mean = self._conjugate(WrappedNormalKernel(kernel.variance))
            return WeightedMeans([density_mean], [1.0 / kernel.density_peak()])
        require_kernel('kernel', kernel)
        return self._conjugate(kernel)

    @abstractmethod
    def _conjugate(self, kernel: Kernel) -> ConditionalKernelMean:
        """Return the conditional kernel mean of a normalised kernel."""

    def sample(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        """Draw noise; an angle is not wrapped. Shapes: -> (size, dimension)."""
        require('rng', rng, np.random.Generator, 'a generator from numpy.random.default_rng(seed)')
        count, width = as_count('size', size), as_count('dimension', dimension)
        return self._draw(count, width, rng)

    @abstractmethod
    def _draw(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        """Draw noise (size, dimension) of a size and dimension that have been checked."""

    def refuse(self, kernel: Any, wanted: str) -> KernelError:
        """Return the error for a kernel that is not conjugate to this noise."""
        return KernelError(
            f'kernel: expected {wanted} for {type(self).__name__}, got {kernel!r}: only conjugate '
            'pairs have a conditional kernel mean in closed form; change the kernel, or learn the '
            'transition with the nonparametric sum rule'
        )


def require_noise(name: str, value: Any) -> None:
    """Refuse what is no noise."""
    require(name, value, Noise, 'a noise such as GaussianNoise(0.1)')


def require_noises(name: str, values: Any) -> None:
    """Refuse what is no list of noises."""
    if not isinstance(values, Sequence) or not values:
        raise KernelError(f'{name}: expected a list of noises, got {values!r}')
    for value in values:
        require_noise(name, value)
