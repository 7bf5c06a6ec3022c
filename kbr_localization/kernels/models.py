"""Probabilistic models with additive noise, x' = f(x, u) + e: what the model-based rule needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import (
    as_floats,
    as_points,
    FloatArray,
    require,
    require_callable,
)
from kbr_localization.kernels.conjugacy import require_noise
from kbr_localization.kernels.embedding import Embedding, EmbeddingSum, Term
from kbr_localization.kernels.kernel_mean import KernelMean, ModelKernelMean
from kbr_localization.kernels.noise import GaussianNoise, Noise
import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class AdditiveNoiseModel:
    """
    Model x' = f(x, *control) + e.

    `function` f: maps points (n, d) and anything that may change from step to step (a control,
    the time) to noise-free images (n, d'). `noise`: the law of e, or a function of the same
    control that returns it.
    """

    function: Callable[..., Any]
    noise: Noise | Callable[..., Noise]

    def __post_init__(self) -> None:
        require_callable('function', self.function, 'f of points (n, d) and controls')
        if not isinstance(self.noise, Noise):
            require_callable('noise', self.noise, 'of the control, or a noise')

    def images(self, x: ArrayLike, *control: Any) -> FloatArray:
        """Noise-free images f(x, *control). Shapes: (n, d) -> (n, d')."""
        points = as_points('x', x)
        images = as_floats('function(x)', self.function(points, *control))
        if images.ndim != 2 or images.shape[0] != points.shape[0]:
            raise KernelError(
                f'function: expected images of shape ({points.shape[0]}, d), got {images.shape}: '
                'let f map all points at once'
            )
        return images

    def noise_at(self, *control: Any) -> Noise:
        """Law of the noise under this control."""
        if isinstance(self.noise, Noise):
            return self.noise
        noise = self.noise(*control)
        require_noise('noise(control)', noise)
        return noise

    def kernel_matrix(
        self, kernel: Kernel, z: ArrayLike, x: ArrayLike, *control: Any
    ) -> FloatArray:
        """
        Conditional kernel means m(z_i | x_j) in closed form.

        Shapes: (m, d'), (n, d) -> (m, n). Source: [MbKSR] eq. 15.
        """
        mean = self.noise_at(*control).conditional_kernel_mean(kernel)
        images = self.images(x, *control)
        return mean.cross_gram(as_points('z', z, images.shape[1]), images)

    def push(
        self,
        prior: Embedding,
        *control: Any,
        kernel: Kernel | None = None,
        draws: int = 100,
        rng: np.random.Generator | int = 0,
    ) -> ModelKernelMean:
        """
        Model-based kernel sum rule: the kernel mean of x' when x has the kernel mean `prior`.

        `kernel`: of the images' space, the prior's when None. Exact for a KernelMean; noises of
        other priors, which f would distort, are drawn: `draws` points by `rng` for each of theirs,
        see `Embedding.drawn`, and `LinearModel` for the f that has a closed form.
        Source: [MbKSR] eq. 21.
        """
        require('prior', prior, Embedding, 'a kernel mean of x')
        points, weights = _points_of(prior, draws, rng)
        images = self.images(points, *control)
        noise = self.noise_at(*control)
        return ModelKernelMean(kernel or prior.kernel, images, weights, noise)

    def sample(self, x: ArrayLike, rng: np.random.Generator, *control: Any) -> FloatArray:
        """Draw x' for every x. Shapes: (n, d) -> (n, d')."""
        images = self.images(x, *control)
        noise = self.noise_at(*control).sample(images.shape[0], images.shape[1], rng)
        return np.asarray(images + noise, dtype=np.float64)


class LinearModel(AdditiveNoiseModel):
    """
    Model x' = A x + b + e with Gaussian noise e, which pushes Gaussian noise in closed form.

    `matrix` A: (d', d); `noise`: a GaussianNoise; `offset` b: (d',), zero when None. A mixture of
    Gaussians stays one: N(f, S) becomes N(A f + b, A S A^T + Sigma).
    """

    matrix: FloatArray
    offset: FloatArray
    gaussian: GaussianNoise

    def __init__(
        self, matrix: ArrayLike, noise: GaussianNoise, offset: ArrayLike | None = None
    ) -> None:
        a = as_floats('matrix', matrix)
        b = np.zeros(len(a) if a.ndim else 0) if offset is None else as_floats('offset', offset)
        if a.ndim != 2 or a.size == 0 or b.shape != a.shape[:1]:
            raise KernelError(
                f"matrix, offset: expected shapes (d', d) and (d',), got {a.shape} and {b.shape}: "
                'give A and b of the map x -> A x + b'
            )
        require('noise', noise, GaussianNoise, 'a GaussianNoise')
        object.__setattr__(self, 'matrix', a)
        object.__setattr__(self, 'offset', b)
        object.__setattr__(self, 'gaussian', noise)
        super().__init__(self._image, noise)

    def _image(self, x: FloatArray) -> FloatArray:
        if x.shape[1] != self.matrix.shape[1]:
            raise KernelError(
                f'x: expected points of shape (n, {self.matrix.shape[1]}) for a matrix of shape '
                f'{self.matrix.shape}, got {x.shape}: give points of the space that A maps from'
            )
        return np.asarray(x @ self.matrix.T + self.offset, dtype=np.float64)

    def push_exactly(self, prior: Embedding, kernel: Kernel | None = None) -> Embedding:
        """
        Kernel mean of x' in closed form, for points without noise and with Gaussian noise.

        `kernel`: as in `push`. Raises KernelError for another noise.
        """
        require('prior', prior, Embedding, 'a kernel mean of x')
        target = kernel or prior.kernel
        return EmbeddingSum(target, tuple(self._pushed(target, t) for t in prior.terms()))

    def _pushed(self, kernel: Kernel, term: Term) -> ModelKernelMean:
        points, weights, noise = term
        covariance = self.gaussian.covariance.matrix(self.matrix.shape[0])
        if noise is not None:
            if not isinstance(noise, GaussianNoise):
                raise KernelError(
                    f'prior: expected Gaussian noise about its points, got '
                    f'{type(noise).__name__}: use push(), which draws'
                )
            spread = noise.covariance.matrix(self.matrix.shape[1])
            covariance = covariance + self.matrix @ spread @ self.matrix.T
        symmetric = GaussianNoise(0.5 * (covariance + covariance.T))
        return ModelKernelMean(kernel, self.images(points), weights, symmetric)


def _points_of(
    prior: Embedding, draws: int, rng: np.random.Generator | int
) -> tuple[FloatArray, FloatArray]:
    if isinstance(prior, KernelMean):
        return prior.points, prior.weights
    return prior.drawn(draws, rng)
