"""Models p(x' | x, u) that push kernel means: additive noise in closed form, samplers by draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import as_count, as_points, as_sample, FloatArray
from kbr_localization.kernels.kernel_mean import (
    Embedding,
    KernelMean,
    ModelKernelMean,
)
from kbr_localization.kernels.noise import Noise
import numpy as np
from numpy.typing import ArrayLike

Sampler = Callable[..., Any]


@dataclass
class AdditiveNoiseModel:
    """
    Model x' = f(x, *control) + e.

    `function` f: maps points (n, d) and anything that may change from step to step (a control,
    the time) to noise-free images (n, d'). `noise`: the law of e, or a function of the same
    control that returns it.
    """

    function: Callable[..., Any]
    noise: Noise | Callable[..., Noise]

    def images(self, x: ArrayLike, *control: Any) -> FloatArray:
        """Noise-free images f(x, *control). Shapes: (n, d) -> (n, d')."""
        points = as_points('x', x)
        images = as_points('function(x)', self.function(points, *control))
        if len(images) != len(points):
            raise KernelError(
                f'function: expected images of shape ({len(points)}, d), got {images.shape}'
            )
        return images

    def noise_at(self, *control: Any) -> Noise:
        """Law of the noise under this control."""
        return self.noise if isinstance(self.noise, Noise) else self.noise(*control)

    def kernel_matrix(
        self, kernel: Kernel, z: ArrayLike, x: ArrayLike, *control: Any
    ) -> FloatArray:
        """Conditional kernel means m(z_i | x_j). (m, d'), (n, d) -> (m, n). [MbKSR] eq. 15."""
        mean = self.noise_at(*control).conditional_kernel_mean(kernel)
        return mean.cross_gram(z, self.images(x, *control))

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
        other priors, which f would distort, are sampled (`Embedding.sample`).
        Source: [MbKSR] eq. 21.
        """
        points, weights = prior.sample(draws, rng)
        noise = self.noise_at(*control)
        return ModelKernelMean(
            kernel or prior.kernel, self.images(points, *control), weights, noise
        )

    def sample(self, x: ArrayLike, rng: np.random.Generator, *control: Any) -> FloatArray:
        """Draw x' for every x. Shapes: (n, d) -> (n, d')."""
        images = self.images(x, *control)
        noise = self.noise_at(*control).sample(len(images), images.shape[1], rng)
        return np.asarray(images + noise)


class MonteCarloModel:
    """
    Model p(x' | x) known by draws, for the model-based sum rule without a closed form.

    `sampler`: maps points (n, d), a generator and controls to draws (n, d'), one for each point,
    such as `AdditiveNoiseModel.sample`; `draws` L for every point. The conditional kernel mean is
    estimated by the mean of k(., x'_l), l = 1..L, whose error in the RKHS norm is O(L^-1/2).
    """

    def __init__(
        self, sampler: Sampler, draws: int = 100, rng: np.random.Generator | int = 0
    ) -> None:
        self.sampler, self.draws = sampler, as_count('draws', draws)
        self.rng = np.random.default_rng(rng)

    def sample(self, x: ArrayLike, *control: Any) -> FloatArray:
        """Draw one x' for every x. Shapes: (n, d) -> (n, d')."""
        points = as_points('x', x)
        draws = self.sampler(points, self.rng, *control)
        return as_sample('sampler(x, rng)', draws, size=len(points))

    def push(self, prior: Embedding, *control: Any, kernel: Kernel | None = None) -> KernelMean:
        """
        Monte Carlo sum rule: the kernel mean of x' when x has the kernel mean `prior`.

        L draws for each point of the prior, whose noises are sampled as well. `kernel`: of the
        space of x', the prior's when None. Source: [MbKSR] eq. 15 with draws for the integral.
        """
        parts = []
        for points, weights, noise in prior.terms():
            copies = np.repeat(points, self.draws, axis=0)
            if noise is not None:
                copies = copies + noise.sample(len(copies), copies.shape[1], self.rng)
            parts.append((self.sample(copies, *control), np.repeat(weights, self.draws)))
        images, weights = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return KernelMean(kernel or prior.kernel, images, weights / self.draws)
