"""
Additive noises e of models x' = f(x) + e, with closed-form conditional kernel means.

If a noise is conjugate to a kernel k, m(z | x) = E[k(z, f(x) + e)] is a wider kernel evaluated at
z and f(x) ([MbKSR] Example 1 and Appendix A). Sums and multiples of conjugate kernels work too.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
import math

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel, ScaledKernel, SumKernel
from kbr_localization.kernels.checks import as_floats, as_positive, FloatArray
from kbr_localization.kernels.kernels import (
    Covariance,
    GaussianKernel,
    MaternKernel,
    RadialKernel,
    RationalQuadraticKernel,
)
from kbr_localization.kernels.manifold import CircularKernel, WrappedNormalKernel
import numpy as np
from numpy.typing import ArrayLike
import scipy.special


class Noise(ABC):
    """The law of an additive noise e."""

    def conditional_kernel_mean(self, kernel: Kernel) -> Kernel:
        """Return K with K(z, f(x)) = E[k(z, f(x) + e)]; KernelError if not conjugate."""
        if isinstance(kernel, ScaledKernel):
            return kernel.factor * self.conditional_kernel_mean(kernel.kernel)
        if isinstance(kernel, SumKernel):
            return SumKernel([self.conditional_kernel_mean(part) for part in kernel.kernels])
        wide = self._smoothed(kernel)
        if wide is None:
            raise KernelError(
                f'kernel: expected one that is conjugate to {type(self).__name__}, got '
                f'{kernel!r}: others have no closed form; change the kernel, or use a '
                'MonteCarloModel'
            )
        if isinstance(wide, RadialKernel) and isinstance(kernel, RadialKernel):
            # give the wide kernel, a density so far, the normalisation of the original one
            wide.normalised = kernel.normalised
            wide.unit = None if kernel.normalised else kernel.unit or kernel
        return wide

    @abstractmethod
    def _smoothed(self, kernel: Kernel) -> Kernel | None:
        """Return E[k(z, f(x) + e)] of a kernel that is not a sum or multiple, None if unknown."""

    @abstractmethod
    def sample(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        """Draw e; angles are not wrapped. Shapes: -> (size, dimension)."""


class GaussianNoise(Noise):
    """
    Gaussian noise N(0, Sigma), conjugate to the Gaussian kernel: g(z; f(x), R + Sigma).

    `covariance` Sigma: scalar, diagonal (d,) or full matrix (d, d). Source: [MbKSR] eq. 19.
    """

    def __init__(self, covariance: ArrayLike | Covariance) -> None:
        self.covariance = Covariance(covariance)

    def _smoothed(self, kernel: Kernel) -> Kernel | None:
        if not isinstance(kernel, GaussianKernel):
            return None
        return GaussianKernel(kernel.scale + self.covariance)

    def sample(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        return self.covariance.colour(rng.standard_normal((size, dimension)))


class CauchyNoise(Noise):
    """
    Multivariate Cauchy noise, conjugate to the rational quadratic kernel of scale R.

    `scale` c^2 R must be proportional to R. The law is 1-stable: K has scale (1 + c)^2 R.
    """

    def __init__(self, scale: ArrayLike | Covariance) -> None:
        self.scale = Covariance(scale, 'scale')

    def _smoothed(self, kernel: Kernel) -> Kernel | None:
        if not isinstance(kernel, RationalQuadraticKernel):
            return None
        ratio = self.scale.ratio_to(kernel.scale)
        if ratio is None:
            return None
        return RationalQuadraticKernel((1.0 + math.sqrt(ratio)) ** 2 * kernel.scale.value)

    def sample(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        """Draw e, a normal vector divided by |normal variable|. -> (size, dimension)."""
        chi = np.abs(rng.standard_normal((size, 1)))
        return self.scale.colour(rng.standard_normal((size, dimension)) / chi)


class VarianceGammaNoise(Noise):
    """
    Variance-gamma noise VG(shape; alpha, S), conjugate to the Matern kernel of the same alpha, S.

    Characteristic function (1 + t^T S t / alpha^2)^-shape; shape 1 in one dimension is Laplace
    noise of scale sqrt(S) / alpha. K is the Matern kernel of smoothness v + shape.
    """

    def __init__(
        self, scale: ArrayLike | Covariance, shape: float = 1.0, alpha: float = 1.0
    ) -> None:
        self.scale = Covariance(scale, 'scale')
        self.shape = as_positive('shape', shape)
        self.alpha = as_positive('alpha', alpha)

    def _smoothed(self, kernel: Kernel) -> Kernel | None:
        if not isinstance(kernel, MaternKernel):
            return None
        # the law depends on S / alpha^2 only
        ratio = self.scale.ratio_to(kernel.scale)
        if ratio is None or not math.isclose(ratio, (self.alpha / kernel.rate) ** 2):
            return None
        return MaternKernel(kernel.scale, kernel.smoothness + self.shape, kernel.rate)

    def sample(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        """Draw e, normal with a gamma distributed variance. -> (size, dimension)."""
        variance = rng.gamma(self.shape, 2.0 / self.alpha**2, size=(size, 1))
        return self.scale.colour(np.sqrt(variance) * rng.standard_normal((size, dimension)))


class WrappedNormalNoise(Noise):
    """
    Normal noise on an angle, `variance` in rad^2; conjugate to the kernels on the circle.

    K of a wrapped normal kernel has the sum of the variances.
    """

    def __init__(self, variance: float) -> None:
        self.variance = as_positive('variance', variance)

    def _smoothed(self, kernel: Kernel) -> Kernel | None:
        if isinstance(kernel, CircularKernel):
            law = WrappedNormalKernel(self.variance).fourier(kernel.coefficients.size - 1)
            return CircularKernel(law * kernel.coefficients)
        if not isinstance(kernel, WrappedNormalKernel):
            return None
        wide = WrappedNormalKernel(kernel.variance + self.variance)
        return wide if kernel.normalised else (1.0 / kernel.density_peak()) * wide

    def sample(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        return math.sqrt(self.variance) * rng.standard_normal((size, dimension))


class VonMisesNoise(Noise):
    """
    Von Mises noise on an angle, conjugate to the kernels on the circle.

    `concentration` kappa > 0. K is a Fourier series: the kernel's coefficients times
    I_k(kappa) / I_0(kappa).
    """

    def __init__(self, concentration: float) -> None:
        self.concentration = as_positive('concentration', concentration)

    def _smoothed(self, kernel: Kernel) -> Kernel | None:
        kappa = self.concentration
        if kappa > 1e9:  # I_k overflows, and the law is normal to nine digits
            return WrappedNormalNoise(1.0 / kappa).conditional_kernel_mean(kernel)
        if isinstance(kernel, WrappedNormalKernel):
            # beyond either order the coefficients vanish in double precision
            orders = 9.0 / math.sqrt(kernel.variance), 9.0 * math.sqrt(kappa) + 45.0
            series = CircularKernel(kernel.fourier(math.ceil(min(orders)) + 1))
            unit = 1.0 if kernel.normalised else kernel.density_peak()
            return (1.0 / unit) * self.conditional_kernel_mean(series)
        if not isinstance(kernel, CircularKernel):
            return None
        bessel = scipy.special.ive(np.arange(kernel.coefficients.size), kappa)
        return CircularKernel(bessel / bessel[0] * kernel.coefficients)

    def sample(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        return rng.vonmises(0.0, self.concentration, size=(size, dimension))


class MixtureNoise(Noise):
    """
    Mixture sum_k pi_k p_k of noises, each with its own location.

    `weights` pi (K,): positive, will be normalised; `locations` (K, d): zero when None. Conjugate
    to the kernels that all components are conjugate to.
    """

    def __init__(
        self,
        weights: ArrayLike,
        components: Sequence[Noise],
        locations: ArrayLike | None = None,
    ) -> None:
        array = as_floats('weights', weights, len(components))
        if not np.all(array > 0):
            raise KernelError(f'weights: expected positive numbers, got {array}')
        self.weights, self.components = array / array.sum(), tuple(components)
        given = None if locations is None else as_floats('locations', locations, len(array), 'd')
        self.locations = given

    def _smoothed(self, kernel: Kernel) -> Kernel:
        means = [part.conditional_kernel_mean(kernel) for part in self.components]
        if self.locations is not None:
            means = [_Shifted(m, at) for m, at in zip(means, self.locations, strict=True)]
        return SumKernel([float(w) * m for w, m in zip(self.weights, means, strict=True)])

    def sample(self, size: int, dimension: int, rng: np.random.Generator) -> FloatArray:
        """Draw a component and its noise. Shapes: -> (size, dimension)."""
        chosen = rng.choice(len(self.components), size=size, p=self.weights)
        noise = np.stack([part.sample(size, dimension, rng) for part in self.components])
        found = np.asarray(noise[chosen, np.arange(size)])
        if self.locations is None:
            return found
        return found + as_floats('locations', self.locations, 'K', dimension)[chosen]


class _Shifted(Kernel):
    """Kernel K(z, f + c): a conditional kernel mean with an offset c; it is not symmetric."""

    def __init__(self, kernel: Kernel, offset: FloatArray) -> None:
        self.kernel, self.offset, self.point = kernel, offset, offset.shape

    def _matrix(self, x: FloatArray, z: FloatArray) -> FloatArray:
        return self.kernel.cross_gram(x, z + self.offset)
