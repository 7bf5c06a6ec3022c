"""
Kernel means: elements of the RKHS that represent probability laws.

`KernelMean` is points with signed weights; `ModelKernelMean` adds a noise to its points, in closed
form, and is what the model-based sum rule returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel, require_kernel
from kbr_localization.kernels.checks import (
    as_count,
    as_floats,
    as_points,
    as_points_like,
    as_weights,
    FloatArray,
    renamed,
    require_callable,
    select_columns,
)
from kbr_localization.kernels.conditional_means import moved
from kbr_localization.kernels.conjugacy import require_noise
from kbr_localization.kernels.embedding import (
    as_factor,
    Embedding,
    EmbeddingSum,
    require_same_kernel,
    ScaledEmbedding,
    Term,
)
from kbr_localization.kernels.modes import find_modes
from kbr_localization.kernels.noise import IndependentNoise, MixtureNoise, Noise
from kbr_localization.kernels.rules import normalise
import numpy as np
from numpy.typing import ArrayLike

__all__ = ['Embedding', 'EmbeddingSum', 'KernelMean', 'ModelKernelMean', 'ScaledEmbedding']


@dataclass(frozen=True, eq=False, repr=False)
class KernelMean(Embedding):
    """
    Kernel mean m = sum_i w_i k(., x_i).

    `points` x: (n, d), or (n, 3, 3) for rotations; `weights` w: (n,), signed, not probabilities.
    """

    kernel: Kernel
    points: FloatArray
    weights: FloatArray

    def __post_init__(self) -> None:
        require_kernel('kernel', self.kernel)
        points = self.kernel.encode('points', self.points)
        if points.ndim < 2 or points.shape[0] == 0:
            raise KernelError(
                f'points: expected shape (n, d) with n > 0, got {points.shape}: reshape scalars '
                'with x.reshape(-1, 1)'
            )
        with renamed(x='points'):
            self.kernel.diagonal(points[:1])  # refuses points that the kernel cannot take
        object.__setattr__(self, 'points', points)
        object.__setattr__(self, 'weights', as_weights('weights', self.weights, len(points)))

    def __repr__(self) -> str:
        return (
            f'KernelMean({self.kernel!r}, points of shape {self.points.shape}, weights of sum '
            f'{self.weights.sum():.3g})'
        )

    @classmethod
    def of_sample(cls, kernel: Kernel, points: ArrayLike) -> KernelMean:
        """Empirical kernel mean: weight 1 / n on each point. Shapes: (n, d)."""
        require_kernel('kernel', kernel)
        array = kernel.encode('points', points)
        count = max(array.shape[0], 1) if array.ndim else 1
        return cls(kernel, array, np.full(count, 1.0 / count))

    def __add__(self, other: Embedding) -> Embedding:
        require_same_kernel(self, other)
        if not isinstance(other, KernelMean):
            return super().__add__(other)
        points = np.concatenate([self.points, other.points])
        weights = np.concatenate([self.weights, other.weights])
        return replace(self, points=points, weights=weights)

    def __mul__(self, factor: float) -> KernelMean:
        return replace(self, weights=as_factor(factor) * self.weights)

    def terms(self) -> list[Term]:
        """Points with weight and their weights, without noise."""
        active = np.flatnonzero(self.weights)
        if active.size in (0, self.weights.size):
            return [(self.points, self.weights, None)]
        return [(self.points[active], self.weights[active], None)]

    def normalised(self) -> KernelMean:
        """Return the kernel mean with weights that sum to one; KernelError if they cannot."""
        return replace(self, weights=normalise(self.weights))

    def expectation(self, function: Callable[[FloatArray], Any]) -> FloatArray:
        """
        Return the expectation sum_i w_i h(x_i) of a function; consistent for h in the RKHS.

        Shapes: h: (n, d) -> (n, ...); returns (...). Source: [MbKSR] eq. 5, [KBR] eq. 14.
        """
        require_callable('function', function, 'of points (n, d) -> (n, ...)')
        values = as_floats('function(points)', function(self.points))
        if values.shape[:1] != self.weights.shape:
            raise KernelError(
                f'function: expected one value per point, shape ({self.weights.size}, ...), got '
                f'{values.shape}: let the function map all points at once'
            )
        return np.asarray(np.tensordot(self.weights, values, axes=1), dtype=np.float64)

    def mean(self) -> FloatArray:
        """
        Mean of the points under normalised weights.

        Of numbers: of an angle take the `expectation` of its cosine and sine. Shapes: -> (d,).
        """
        return self.normalised().expectation(lambda x: x)

    def covariance(self) -> FloatArray:
        """
        Return the covariance of the points under normalised weights, positive semi-definite.

        Signed weights can make it indefinite: its negative eigenvalues are set to zero.
        Shapes: -> (d, d).
        """
        offsets = self.points.reshape(len(self.points), -1)
        offsets = offsets - normalise(self.weights) @ offsets
        scatter = (offsets.T * normalise(self.weights)) @ offsets
        eigenvalues, vectors = np.linalg.eigh(0.5 * (scatter + scatter.T))
        clipped = (vectors * np.maximum(eigenvalues, 0.0)) @ vectors.T
        return np.asarray(0.5 * (clipped + clipped.T), dtype=np.float64)

    def heaviest(self) -> FloatArray:
        """Point of the largest weight, as [MbKSR] section 6.3 estimates poses. Shapes: -> (d,)."""
        return np.asarray(self.points[int(np.argmax(self.weights))], dtype=np.float64)

    def mode(self, starts: int = 8) -> FloatArray:
        """
        Point x whose k(., x) is nearest to m in the RKHS: the pseudo-MAP estimate.

        Fixed-point iteration from several starts; shapes: -> (d,). Raises NoMassError when m is
        positive nowhere, as with negative weights only. Source: [MbKSR] eq. 33.
        """
        modes, _ = self.modes(starts)
        return np.asarray(modes[0], dtype=np.float64)

    def modes(self, starts: int = 8) -> tuple[FloatArray, FloatArray]:
        """
        Return distinct local maxima (q, d), as `mode` first, with their heights m(x) > 0 (q,).

        By falling height where k(x, x) is constant, else by the distance of k(., x) from m.
        """
        points, weights, _ = self.terms()[0]
        return find_modes(self.kernel, points, weights, as_count('starts', starts))

    def herd(self, count: int, candidates: ArrayLike | None = None) -> FloatArray:
        """
        Kernel herding: `count` points whose empirical kernel mean approaches m greedily.

        `candidates` (c, d) to choose from, with repetition; the own points when None. Shapes: ->
        (count, d). Source: Chen, Welling, Smola, *Super-samples from kernel herding* (2010).
        """
        chosen = np.empty(as_count('count', count), dtype=np.int64)
        pool = self.points
        if candidates is not None:
            encoded = self.kernel.encode('candidates', candidates)
            pool = as_points_like('candidates', encoded, self.points)
        target = self.normalised()(pool)
        repulsion = np.zeros(len(pool))
        for t in range(chosen.size):
            chosen[t] = np.argmax(target - repulsion / (t + 1))
            repulsion += self.kernel.cross_gram(pool, pool[[chosen[t]]])[:, 0]
        return np.asarray(pool[chosen], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class ModelKernelMean(Embedding):
    """
    Kernel mean sum_j w_j E[k(., f_j + e)] of noisy points, in closed form.

    `images` f: (n, d) noise-free points; `weights` w: (n,), signed; `noise`: law of e, conjugate
    to the kernel. It is what the model-based sum rule returns; with a Gaussian noise and positive
    weights it is the exact embedding of a Gaussian mixture.
    """

    kernel: Kernel
    images: FloatArray
    weights: FloatArray
    noise: Noise

    def __post_init__(self) -> None:
        require_kernel('kernel', self.kernel)
        require_noise('noise', self.noise)
        images = as_points('images', self.images)
        object.__setattr__(self, 'images', images)
        object.__setattr__(self, 'weights', as_weights('weights', self.weights, len(images)))
        self.noise.conditional_kernel_mean(self.kernel)  # refuses a pair that is not conjugate

    def __mul__(self, factor: float) -> ModelKernelMean:
        return replace(self, weights=as_factor(factor) * self.weights)

    def terms(self) -> list[Term]:
        """Points, weights and noise, one triple per component of a mixture; noises symmetric."""
        return _split(self.images, self.weights, self.noise)


def _split(points: FloatArray, weights: FloatArray, noise: Noise) -> list[Term]:
    if isinstance(noise, IndependentNoise):
        return _split_parts(points, weights, noise)
    if not isinstance(noise, MixtureNoise):
        return [(points, weights, noise)]
    terms = []
    for k, component in enumerate(noise.components):
        offset = None if noise.locations is None else noise.locations[k]
        terms += _split(moved(points, offset), weights * noise.weights[k], component)
    return terms


def _split_parts(points: FloatArray, weights: FloatArray, noise: IndependentNoise) -> list[Term]:
    """Split the mixtures among independent noises: each component with each of the others."""
    terms: list[tuple[FloatArray, FloatArray, dict[tuple[int, ...], Any]]]
    terms = [(points, weights, {})]
    for columns, part in noise.parts.items():
        terms = [
            (_with_columns(whole, columns, moved), masses, {**chosen, columns: component})
            for whole, rest, chosen in terms
            for moved, masses, component in _split(
                select_columns('images', whole, columns), rest, part
            )
        ]
    return [(x, w, IndependentNoise([(n, c) for c, n in parts.items()])) for x, w, parts in terms]


def _with_columns(points: FloatArray, columns: tuple[int, ...], values: FloatArray) -> FloatArray:
    changed = points.copy()
    changed[:, columns] = values
    return changed
