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
from kbr_localization.kernels.kernel_mean import KernelMean, ModelKernelMean
from kbr_localization.kernels.noise import Noise
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
        return self.noise if isinstance(self.noise, Noise) else self.noise(*control)

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
        self, prior: KernelMean, *control: Any, kernel: Kernel | None = None
    ) -> ModelKernelMean:
        """
        Model-based kernel sum rule: the kernel mean of x' when x has the kernel mean `prior`.

        `kernel`: of the images' space, the prior's when None. Source: [MbKSR] eq. 21.
        """
        require('prior', prior, KernelMean, 'a KernelMean, points with weights')
        images = self.images(prior.points, *control)
        noise = self.noise_at(*control)
        return ModelKernelMean(kernel or prior.kernel, images, prior.weights, noise)

    def sample(self, x: ArrayLike, rng: np.random.Generator, *control: Any) -> FloatArray:
        """Draw x' for every x. Shapes: (n, d) -> (n, d')."""
        images = self.images(x, *control)
        noise = self.noise_at(*control).sample(images.shape[0], images.shape[1], rng)
        return np.asarray(images + noise, dtype=np.float64)
