"""
Additive noise models x' = f(x) + e with closed-form conditional kernel means.

For a noise that is conjugate to a kernel k, the conditional kernel mean
m(z | x) = E[k(z, f(x) + e)] is again a kernel, wider than k, evaluated at z and f(x)
([MbKSR] Example 1 and Appendix A). Sums and scaled versions of conjugate kernels work too, and
products of kernels on separate coordinates with `IndependentNoise`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
import math
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import ColumnsKernel, factors_of, Kernel
from kbr_localization.kernels.checks import as_floats, as_positive, FloatArray
from kbr_localization.kernels.conditional_means import (
    ConditionalKernelMean,
    moved,
    ProductMean,
    WeightedMeans,
)
from kbr_localization.kernels.conjugacy import Noise, require_noises
from kbr_localization.kernels.covariance import as_covariance, Covariance
from kbr_localization.kernels.kernels import (
    GaussianKernel,
    MaternKernel,
    RationalQuadraticKernel,
)
from kbr_localization.kernels.manifold import CircularKernel, WrappedNormalKernel
import numpy as np
from numpy.typing import ArrayLike
import scipy.special

__all__ = [
    'CauchyNoise',
    'GaussianNoise',
    'IndependentNoise',
    'MixtureNoise',
    'Noise',
    'VarianceGammaNoise',
    'VonMisesNoise',
    'WrappedNormalNoise',
]

# above it scipy.special.ive is NaN soon, and the law is the normal one to nine digits
_AS_NORMAL = 1e9


class GaussianNoise(Noise):
    """
    Gaussian noise N(0, Sigma); conjugate to the Gaussian kernel.

    `covariance` Sigma: scalar, diagonal (d,) or full matrix (d, d).
    """

    def __init__(self, covariance: ArrayLike | Covariance) -> None:
        self.covariance = as_covariance('covariance', covariance)

    def _conjugate(self, kernel: Kernel) -> ConditionalKernelMean:
        """Return the normalised Gaussian kernel of covariance R + Sigma ([MbKSR] eq. 19)."""
        if not isinstance(kernel, GaussianKernel):
            raise self.refuse(kernel, 'a GaussianKernel')
        return GaussianKernel(kernel.covariance + self.covariance)

    def _draw(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        return self.covariance.colour(rng.standard_normal((size, dimension)))


class CauchyNoise(Noise):
    """
    Multivariate Cauchy noise of a scale matrix; conjugate to the rational quadratic kernel.

    `scale`: scalar, diagonal or full matrix, proportional to the kernel's: c^2 R. The Cauchy law
    is 1-stable: the conditional kernel mean has scale (1 + c)^2 R.
    """

    def __init__(self, scale: ArrayLike | Covariance) -> None:
        self.scale = as_covariance('scale', scale)

    def _conjugate(self, kernel: Kernel) -> ConditionalKernelMean:
        if not isinstance(kernel, RationalQuadraticKernel) or kernel.exponent is not None:
            raise self.refuse(kernel, 'a RationalQuadraticKernel with exponent (1 + d) / 2')
        ratio = self.scale.ratio_to(kernel.scale)
        if ratio is None:
            raise self.refuse(kernel, f'a scale proportional to the noise scale {self.scale}')
        return RationalQuadraticKernel(kernel.scale.scaled((1.0 + math.sqrt(ratio)) ** 2))

    def _draw(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        chi = np.abs(rng.standard_normal((size, 1)))
        return self.scale.colour(rng.standard_normal((size, dimension)) / chi)


class VarianceGammaNoise(Noise):
    """
    Variance-gamma noise VG(shape; alpha, S); conjugate to the Matern kernel of the same alpha, S.

    Characteristic function (1 + t^T S t / alpha^2)^-shape; in one dimension and with shape 1 it
    is Laplace noise of scale sqrt(S) / alpha. The conditional kernel mean is the Matern kernel of
    smoothness v + shape.
    """

    def __init__(
        self, scale: ArrayLike | Covariance, shape: float = 1.0, alpha: float = 1.0
    ) -> None:
        self.scale = as_covariance('scale', scale)
        self.shape = as_positive('shape', shape)
        self.alpha = as_positive('alpha', alpha)

    def _conjugate(self, kernel: Kernel) -> ConditionalKernelMean:
        if not isinstance(kernel, MaternKernel):
            raise self.refuse(kernel, 'a MaternKernel')
        # only S / alpha^2 matters: VG(shape; alpha, S) = VG(shape; 1, S / alpha^2)
        ratio = self.scale.ratio_to(kernel.scale)
        same = ratio is not None and math.isclose(ratio, (self.alpha / kernel.alpha) ** 2)
        if not same:
            raise self.refuse(
                kernel, f'a MaternKernel of alpha {self.alpha} and scale {self.scale}'
            )
        return MaternKernel(kernel.scale, kernel.smoothness + self.shape, kernel.alpha)

    def _draw(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        # a normal law whose variance is gamma distributed with mean 2 shape / alpha^2
        variance = rng.gamma(self.shape, 2.0 / self.alpha**2, size=(size, 1))
        normal = rng.standard_normal((size, dimension))
        return self.scale.colour(np.sqrt(variance) * normal)


class WrappedNormalNoise(Noise):
    """
    Normal noise on an angle, variance in rad^2.

    Conjugate to the wrapped normal kernel and to a Fourier series, which a von Mises noise gives.
    """

    def __init__(self, variance: float) -> None:
        self.variance = as_positive('variance', variance)

    def _conjugate(self, kernel: Kernel) -> ConditionalKernelMean:
        if isinstance(kernel, CircularKernel):
            law = WrappedNormalKernel(self.variance).fourier(kernel.coefficients.size - 1)
            return CircularKernel(law * kernel.coefficients)
        if not isinstance(kernel, WrappedNormalKernel):
            raise self.refuse(kernel, 'a WrappedNormalKernel')
        return WrappedNormalKernel(kernel.variance + self.variance)

    def _draw(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        return math.sqrt(self.variance) * rng.standard_normal((size, dimension))


class VonMisesNoise(Noise):
    """
    Von Mises noise on an angle; conjugate to the wrapped normal kernel and to a Fourier series.

    `concentration` kappa > 0. The conditional kernel mean is a Fourier series: the kernel's
    coefficients, such as exp(-s^2 k^2 / 2), times I_k(kappa) / I_0(kappa).
    """

    def __init__(self, concentration: float) -> None:
        self.concentration = as_positive('concentration', concentration)

    def _conjugate(self, kernel: Kernel) -> ConditionalKernelMean:
        if not isinstance(kernel, CircularKernel | WrappedNormalKernel):
            raise self.refuse(kernel, 'a WrappedNormalKernel')
        if self.concentration > _AS_NORMAL:
            return WrappedNormalNoise(1.0 / self.concentration).conditional_kernel_mean(kernel)
        if isinstance(kernel, CircularKernel):
            coefficients = kernel.coefficients
        else:
            # beyond either order coefficients are below double precision
            orders = 9.0 / math.sqrt(kernel.variance), 9.0 * math.sqrt(self.concentration) + 45.0
            coefficients = kernel.fourier(math.ceil(min(orders)) + 1)
        bessel = scipy.special.ive(np.arange(coefficients.size), self.concentration)
        return CircularKernel(bessel / bessel[0] * coefficients)

    def _draw(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        return rng.vonmises(0.0, self.concentration, size=(size, dimension))


class MixtureNoise(Noise):
    """
    Mixture sum_k pi_k p_k of noises, each with a location of its own.

    `weights` pi (K,): positive, normalised here; `locations` (K, d): zero when None. Conjugate to
    whatever all components are conjugate to.
    """

    def __init__(
        self,
        weights: ArrayLike,
        components: Sequence[Noise],
        locations: ArrayLike | None = None,
    ) -> None:
        require_noises('components', components)
        array = as_floats('weights', weights)
        if array.shape != (len(components),) or array.size == 0 or np.any(array <= 0):
            raise KernelError(
                f'weights: expected {len(components)} positive numbers, one per component, got '
                f'shape {array.shape} with minimum {array.min(initial=np.inf):g}'
            )
        self.weights = array / array.sum()
        self.components = tuple(components)
        self.locations = None if locations is None else as_floats('locations', locations)
        shape = (len(components), 1) if self.locations is None else self.locations.shape
        if len(shape) != 2 or shape[0] != len(components):
            raise KernelError(
                f'locations: expected shape ({len(components)}, d), one row per component, '
                f'got {shape}'
            )

    def _conjugate(self, kernel: Kernel) -> ConditionalKernelMean:
        means = [component.conditional_kernel_mean(kernel) for component in self.components]
        return WeightedMeans(means, self.weights.tolist(), self.locations)

    def _draw(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        chosen = rng.choice(len(self.components), size=size, p=self.weights)
        draws = np.stack([part.sample(size, dimension, rng) for part in self.components])
        noise = draws[chosen, np.arange(size)]
        return moved(noise, None if self.locations is None else self.locations[chosen])


class IndependentNoise(Noise):
    """
    Independent noises on separate coordinates, for products of kernels made with `Kernel.on`.

    `parts`: pairs (noise, columns), each column in one of them; a coordinate that no part names
    has no noise. The kernel needs one factor on the columns of each part, and no other there.
    """

    def __init__(self, parts: Sequence[tuple[Noise, Sequence[int]]]) -> None:
        try:
            pairs = [(noise, tuple(columns)) for noise, columns in parts]
        except (TypeError, ValueError) as error:
            raise KernelError(
                f'parts: expected pairs (noise, columns), got {parts!r} ({error}): give e.g. '
                '[(GaussianNoise(0.1), (0, 1))]'
            ) from None
        require_noises('parts', [noise for noise, _ in pairs])
        _require_separate([columns for _, columns in pairs])
        self.parts = {columns: noise for noise, columns in pairs}

    def conditional_kernel_mean(self, kernel: Any) -> ConditionalKernelMean:
        """Return K with K(z, f(x)) = E[k(z, f(x) + e)]; see Noise."""
        if isinstance(kernel, ProductMean):
            return self._product(kernel, kernel.factors)
        return super().conditional_kernel_mean(kernel)

    def _conjugate(self, kernel: Kernel) -> ConditionalKernelMean:
        scale, factors = factors_of(kernel)
        named = [part for part in factors if isinstance(part, ColumnsKernel)]
        # a factor without columns sees all of them, also those that have a noise
        known = named if len(named) == len(factors) else []
        product = self._product(kernel, [(part.columns, part.kernel) for part in known])
        return product if scale == 1.0 else WeightedMeans([product], [scale])

    def _product(
        self, kernel: Any, factors: Sequence[tuple[tuple[int, ...], Any]]
    ) -> ConditionalKernelMean:
        seen = Counter(column for columns, _ in factors for column in columns)
        apart = all(seen[column] == 1 for columns in self.parts for column in columns)
        if not apart or not set(self.parts) <= {columns for columns, _ in factors}:
            wanted = ', '.join(map(str, self.parts))
            raise self.refuse(
                kernel,
                f'a product of kernels on the columns {wanted}, each seen by no other factor,',
            )
        return ProductMean([(c, self._smoothed(c, mean)) for c, mean in factors])

    def _smoothed(self, columns: tuple[int, ...], kernel: Any) -> ConditionalKernelMean:
        noise = self.parts.get(columns)
        smoothed: ConditionalKernelMean = (
            noise.conditional_kernel_mean(kernel) if noise else kernel
        )
        return smoothed

    def _draw(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        last = max(column for columns in self.parts for column in columns)
        if last >= dimension:
            raise KernelError(
                f'dimension: expected more than {last}, a column of the parts, got {dimension}: '
                'draw noise of the dimension of the images'
            )
        draws = np.zeros((size, dimension))
        for columns, noise in self.parts.items():
            draws[:, list(columns)] = noise.sample(size, len(columns), rng)
        return draws


def _require_separate(groups: Sequence[tuple[Any, ...]]) -> None:
    """Refuse columns that are no indices, or that are given twice."""
    named = [column for columns in groups for column in columns]
    indices = all(isinstance(column, int | np.integer) and column >= 0 for column in named)
    if not all(groups) or not indices or len(set(named)) < len(named):
        raise KernelError(
            'parts: expected one column or more for each noise, integers >= 0 that are given once '
            f'in all, got {", ".join(map(str, groups))}: two noises on one coordinate are one '
            'noise, their sum'
        )
