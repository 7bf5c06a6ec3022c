"""
Additive noise models x' = f(x) + e with closed-form conditional kernel means.

For a noise that is conjugate to a kernel k, the conditional kernel mean
m(z | x) = E[k(z, f(x) + e)] is again a kernel, wider than k, evaluated at z and f(x)
([MbKSR] Example 1 and Appendix A).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import FloatArray
from kbr_localization.kernels.covariance import as_covariance, Covariance
from kbr_localization.kernels.kernels import GaussianKernel, Kernel
import numpy as np
from numpy.typing import ArrayLike


class Noise(ABC):
    """The law of an additive noise e."""

    @abstractmethod
    def conditional_kernel_mean(self, kernel: Kernel) -> Kernel:
        """
        Return the kernel K with K(z, f(x)) = E[k(z, f(x) + e)].

        Raises KernelError with the reason when noise and kernel are not conjugate.
        """

    @abstractmethod
    def sample(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        """Draw noise. Shapes: -> (size, dimension)."""


class GaussianNoise(Noise):
    """
    Gaussian noise N(0, Sigma); conjugate to the Gaussian kernel.

    `covariance` Sigma: scalar, diagonal (d,) or full matrix (d, d).
    """

    def __init__(self, covariance: ArrayLike | Covariance) -> None:
        self.covariance = as_covariance('covariance', covariance)

    def conditional_kernel_mean(self, kernel: Kernel) -> Kernel:
        """Return the normalised Gaussian kernel of covariance R + Sigma ([MbKSR] eq. 19)."""
        if not isinstance(kernel, GaussianKernel) or not kernel.normalised:
            raise KernelError(
                f'kernel: expected a normalised GaussianKernel for Gaussian noise, got {kernel!r}:'
                ' only that pair has a conditional kernel mean in closed form'
            )
        return GaussianKernel(kernel.covariance + self.covariance, normalised=True)

    def sample(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        """Draw noise. Shapes: -> (size, dimension)."""
        return self.covariance.colour(rng.standard_normal((size, dimension)))
