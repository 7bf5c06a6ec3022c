"""
Kernel means: elements of the RKHS that represent probability laws.

`KernelMean` is points with signed weights; `ModelKernelMean` adds a noise to its points, in closed
form, and is what the model-based sum rule returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel, ScaledKernel
from kbr_localization.kernels.checks import (
    as_count,
    as_floats,
    as_points,
    as_sample,
    as_weights,
    FloatArray,
    IndexArray,
    NoMassError,
)
from kbr_localization.kernels.kernels import RadialKernel
from kbr_localization.kernels.manifold import nearest_rotation, TraceKernel
from kbr_localization.kernels.noise import MixtureNoise, Noise
from kbr_localization.kernels.rules import normalise
import numpy as np
from numpy.typing import ArrayLike

Term = tuple[FloatArray, FloatArray, Noise | None]
"""Points (n, d), weights (n,) and the noise about the points."""


class Embedding(ABC):
    """
    An element m of the RKHS of `kernel`.

    `m1 + m2`, `sum([m1, m2])`, `m1 - m2`, `-m`, `c * m` and `m / c` are embeddings for any real c.
    """

    kernel: Kernel

    @abstractmethod
    def terms(self) -> list[Term]:
        """Points (n, d), weights (n,) and the noise about the points, one triple per noise."""

    def __call__(self, z: ArrayLike) -> FloatArray:
        """Evaluate m(z_i). Shapes: (q, d) -> (q,)."""
        terms = self.terms()
        queries = as_sample('z', z, terms[0][0].shape[1:])
        return np.asarray(
            sum(_smoothed(self.kernel, e).cross_gram(queries, x) @ w for x, w, e in terms)
        )

    def __add__(self, other: Embedding) -> Embedding:
        require_same_space('other', other, self.kernel, self.terms()[0][0])
        return EmbeddingSum(self.kernel, (*self.terms(), *other.terms()))

    def __radd__(self, other: Any) -> Embedding:
        # sum() begins with 0
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: Embedding) -> Embedding:
        return self + -1.0 * other

    def __mul__(self, factor: float) -> Embedding:
        c = float(factor)
        return EmbeddingSum(self.kernel, tuple((x, c * w, e) for x, w, e in self.terms()))

    def __rmul__(self, factor: float) -> Embedding:
        return self * factor

    def __truediv__(self, divisor: float) -> Embedding:
        return self * (1.0 / divisor)

    def __neg__(self) -> Embedding:
        return self * -1.0

    def inner(self, other: Embedding) -> float:
        """Inner product <m, m'> in the RKHS; exact, also between noisy points."""
        require_same_space('other', other, self.kernel, self.terms()[0][0])
        return sum(_inner(self.kernel, a, b) for a in self.terms() for b in other.terms())

    def norm(self) -> float:
        """RKHS norm of m."""
        return float(np.sqrt(max(self.inner(self), 0.0)))

    def mmd(self, other: Embedding) -> float:
        """Maximum mean discrepancy |m - m'| in the RKHS."""
        squared = self.inner(self) - 2.0 * self.inner(other) + other.inner(other)
        return float(np.sqrt(max(squared, 0.0)))

    def sample(
        self, draws: int = 100, rng: np.random.Generator | int = 0
    ) -> tuple[FloatArray, FloatArray]:
        """Points (N, d) and weights (N,) of m, with draws in place of each point with a noise."""
        generator, parts = np.random.default_rng(rng), []
        for points, weights, noise in self.terms():
            if noise is None:
                parts.append((points, weights))
                continue
            copies = np.repeat(points, draws, axis=0)
            copies = copies + noise.sample(len(copies), copies.shape[1], generator)
            parts.append((copies, np.repeat(weights / draws, draws)))
        return np.concatenate([x for x, _ in parts]), np.concatenate([w for _, w in parts])


@dataclass(frozen=True, eq=False)
class EmbeddingSum(Embedding):
    """Sum of embeddings, such as a mixture whose components have noises of their own."""

    kernel: Kernel
    parts: tuple[Term, ...]

    def terms(self) -> list[Term]:
        """All terms of all parts."""
        return list(self.parts)


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
        points = as_sample('points', self.points)
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
        array = as_sample('points', points)
        return cls(kernel, array, np.full(len(array), 1.0 / len(array)))

    def __add__(self, other: Embedding) -> Embedding:
        total = super().__add__(other)
        if not isinstance(other, KernelMean):
            return total
        points = np.concatenate([self.points, other.points])
        return replace(self, points=points, weights=np.append(self.weights, other.weights))

    def __mul__(self, factor: float) -> KernelMean:
        return replace(self, weights=float(factor) * self.weights)

    def terms(self) -> list[Term]:
        """Points with weight and their weights, without noise."""
        active = np.flatnonzero(self.weights)
        if active.size in (0, self.weights.size):
            return [(self.points, self.weights, None)]
        return [(self.points[active], self.weights[active], None)]

    def normalised(self) -> KernelMean:
        """Return the kernel mean with weights that sum to one; NoMassError if they cannot."""
        return replace(self, weights=normalise(self.weights))

    def expectation(self, function: Callable[[FloatArray], Any]) -> FloatArray:
        """
        Return the expectation sum_i w_i h(x_i) of a function; consistent for h in the RKHS.

        Shapes: h: (n, d) -> (n, ...); returns (...). Source: [MbKSR] eq. 5, [KBR] eq. 14.
        """
        values = as_floats('function(points)', function(self.points))
        if values.shape[:1] != self.weights.shape:
            raise KernelError(
                f'function: expected one value per point ({self.weights.size}, ...), got '
                f'{values.shape}'
            )
        return np.asarray(np.tensordot(self.weights, values, axes=1))

    def mean(self) -> FloatArray:
        """Mean (d,) under normalised weights; of an angle, use its cosine and sine."""
        return self.normalised().expectation(lambda x: x)

    def covariance(self) -> FloatArray:
        """Covariance (d, d) under normalised weights; negative eigenvalues are set to zero."""
        weights, offsets = normalise(self.weights), self.points.reshape(len(self.points), -1)
        offsets = offsets - weights @ offsets
        eigenvalues, vectors = np.linalg.eigh((offsets.T * weights) @ offsets)
        clipped = (vectors * np.maximum(eigenvalues, 0.0)) @ vectors.T
        return np.asarray(0.5 * (clipped + clipped.T))

    def heaviest(self) -> FloatArray:
        """Point of the largest weight, as [MbKSR] section 6.3 estimates poses. Shapes: -> (d,)."""
        return np.asarray(self.points[int(np.argmax(self.weights))])

    def mode(self, starts: int = 8) -> FloatArray:
        """Pseudo-MAP estimate (d,): x whose k(., x) is nearest to m ([MbKSR] eq. 33)."""
        return np.asarray(self.modes(starts)[0][0])

    def modes(self, starts: int = 8) -> tuple[FloatArray, FloatArray]:
        """Return distinct local maxima (q, d), nearest to m first, and their m(x) > 0 (q,)."""
        points, weights, _ = self.terms()[0]
        return find_modes(self.kernel, points, weights, as_count('starts', starts))

    def herd(self, count: int, candidates: ArrayLike | None = None) -> FloatArray:
        """
        Kernel herding: `count` points (count, d) whose empirical kernel mean approaches m.

        `candidates` (c, d) to choose from, with repetition; the own points when None.
        Source: Chen, Welling, Smola, *Super-samples from kernel herding* (2010).
        """
        pool = self.points
        if candidates is not None:
            pool = as_sample('candidates', candidates, self.points.shape[1:])
        target, repulsion = self.normalised()(pool), np.zeros(len(pool))
        chosen = np.empty(as_count('count', count), dtype=np.int64)
        for t in range(count):
            chosen[t] = np.argmax(target - repulsion / (t + 1))
            repulsion += self.kernel.cross_gram(pool, pool[[chosen[t]]])[:, 0]
        return pool[chosen]


@dataclass(frozen=True, eq=False)
class ModelKernelMean(Embedding):
    """
    Kernel mean sum_j w_j E[k(., f_j + e)] of noisy points, in closed form.

    `images` f: (n, d) noise-free points; `weights` w: (n,), signed; `noise`: law of e, conjugate
    to the kernel. With a Gaussian noise and positive weights it is the exact embedding of a
    Gaussian mixture.
    """

    kernel: Kernel
    images: FloatArray
    weights: FloatArray
    noise: Noise

    def __post_init__(self) -> None:
        images = as_points('images', self.images)
        object.__setattr__(self, 'images', images)
        object.__setattr__(self, 'weights', as_weights('weights', self.weights, len(images)))
        self.noise.conditional_kernel_mean(self.kernel)  # refuses a pair that is not conjugate

    def terms(self) -> list[Term]:
        """Points, weights and noise, one triple per component of a mixture; noises symmetric."""
        return _split(self.images, self.weights, self.noise)


def _split(points: FloatArray, weights: FloatArray, noise: Noise) -> list[Term]:
    """Split mixtures into components, since an inner product smooths with symmetric noises."""
    if isinstance(noise, MixtureNoise):
        shifts = np.zeros((len(noise.weights), points.shape[1]))
        if noise.locations is not None:
            shifts = as_points('locations', noise.locations, points.shape[1])
        components = zip(shifts, noise.weights, noise.components, strict=True)
        return [term for c, pi, e in components for term in _split(points + c, pi * weights, e)]
    return [(points, weights, noise)]


def _smoothed(kernel: Kernel, noise: Noise | None) -> Kernel:
    return kernel if noise is None else noise.conditional_kernel_mean(kernel)


def _inner(kernel: Kernel, left: Term, right: Term) -> float:
    # E k(f + e, f' + e') smooths the kernel once with each noise
    mean = _smoothed(_smoothed(kernel, left[2]), right[2])
    points, weights = left[:2]
    rows = max(2**22 // len(right[0]), 1)  # 32 MB of kernel values at a time
    blocks = (slice(begin, begin + rows) for begin in range(0, len(points), rows))
    return sum(float(weights[b] @ mean.cross_gram(points[b], right[0]) @ right[1]) for b in blocks)


def is_same_kernel(kernel: Kernel, other: Kernel) -> bool:
    """Whether two kernels have one RKHS: they are one object or have one repr."""
    return kernel is other or repr(kernel) == repr(other)


def require_same_space(
    name: str, embedding: Embedding, kernel: Kernel, sample: FloatArray
) -> None:
    """Refuse an embedding of another kernel, or of points shaped unlike a sample (n, ...)."""
    if not is_same_kernel(kernel, embedding.kernel):
        raise KernelError(
            f'{name}: expected a kernel mean of {kernel!r}, got one of {embedding.kernel!r}'
        )
    shape = embedding.terms()[0][0].shape
    if shape[1:] != sample.shape[1:]:
        raise KernelError(
            f'{name}: expected a kernel mean of points {sample.shape[1:]}, got {shape[1:]}'
        )


def find_modes(
    kernel: Kernel, points: FloatArray, weights: FloatArray, starts: int
) -> tuple[FloatArray, FloatArray]:
    """Local maxima (q, d) of m(x) - k(x, x) / 2, the largest first, and m > 0 there (q,)."""
    inner = kernel
    while isinstance(inner, ScaledKernel):
        inner = inner.kernel
    if isinstance(inner, TraceKernel):
        # one global maximum: the rotation nearest to the mean matrix
        modes = nearest_rotation(np.tensordot(weights, points, axes=1))[np.newaxis]
    elif isinstance(inner, RadialKernel):
        modes = _radial_modes(inner, points, weights, starts)
    else:
        modes = _general_modes(kernel, points, weights, starts)
    heights = weights @ kernel.cross_gram(points, modes)
    sizes = np.abs(weights) @ np.abs(kernel.cross_gram(points, modes))
    positive = heights > weights.size * np.finfo(np.float64).eps * sizes
    if not positive.any():
        raise NoMassError(
            f'weights: expected a kernel mean that is positive somewhere, got a largest value of '
            f'{heights.max():.3g} and weights of sum {weights.sum():.3g}: it has no mode; start '
            'again from the conditional mean'
        )
    return modes[positive], heights[positive]


def _radial_modes(
    kernel: RadialKernel, points: FloatArray, weights: FloatArray, starts: int
) -> FloatArray:
    """Ascend in whitened coordinates, where bandwidths are one; m over its peak."""
    centres, dimension = kernel.scale.whiten(points), points.shape[1]
    chosen = _spread_starts(kernel, points, weights, starts)
    # the first step, a quarter of a bandwidth, stays on the hill of the start
    step = 0.25

    def loss(v: FloatArray) -> tuple[float, FloatArray]:
        offsets = centres - step * v
        s = (offsets**2).sum(axis=1)
        gradient = 2.0 * step * (weights * kernel.slope(s, dimension)) @ offsets
        return -float(weights @ kernel.profile(s, dimension)), -gradient

    ends = [_minimize(loss, centres[index] / step, jac=True) for index in chosen]
    heights = -np.array([loss(v)[0] for v in ends])
    return kernel.scale.colour(_distinct(step * np.array(ends), heights))


def _general_modes(
    kernel: Kernel, points: FloatArray, weights: FloatArray, starts: int
) -> FloatArray:
    """Ascend by differences, for any kernel on vectors."""
    begin = points[_spread_starts(kernel, points, weights, starts)]
    spread = np.maximum(points.std(axis=0), 1e-12)
    # lengths that do not depend on the units of the points; the first step is 0.1 deviations
    length = np.where(spread > 1e-12, 0.1 * spread, 1.0)

    def loss(u: FloatArray) -> float:
        row = (length * u)[np.newaxis]
        value = weights @ kernel.cross_gram(points, row)[:, 0]
        return float(0.5 * kernel.diagonal(row)[0] - value)

    ends = [_minimize(loss, x / length) for x in begin]
    return _distinct(length * np.array(ends), -np.array([loss(u) for u in ends]), spread)


def _spread_starts(
    kernel: Kernel, points: FloatArray, weights: FloatArray, starts: int
) -> IndexArray:
    """Greedy choice among the heaviest points: high ones, unlike the ones chosen before."""
    pool = np.argsort(-weights)[:256]
    height = weights @ kernel.cross_gram(points, points[pool])
    gram = kernel.gram(points[pool])
    scale = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    # points within about one bandwidth of a chosen one lead to the same mode
    close = gram / scale[:, np.newaxis] / scale > np.exp(-0.5)
    chosen: list[int] = []
    free = np.ones(pool.size, dtype=bool)
    while free.any() and len(chosen) < starts:
        chosen.append(int(np.argmax(np.where(free, height, -np.inf))))
        free &= ~close[chosen[-1]]
        free[chosen[-1]] = False
    return pool[chosen]


def _distinct(u: FloatArray, heights: FloatArray, unit: FloatArray | float = 1.0) -> FloatArray:
    """Points by falling height, without copies of a higher one."""
    kept: list[FloatArray] = []
    for point in u[np.argsort(-heights)]:
        if all(np.sum(((point - other) / unit) ** 2) > 1e-4 for other in kept):
            kept.append(point)
    return np.array(kept)


def _minimize(loss: Any, start: FloatArray, jac: bool = False) -> FloatArray:
    """Minimise a loss that is scaled by its value at the start, however small that is."""
    # the optimiser is slow to import, and a robot's node finds no modes
    from scipy.optimize import minimize  # noqa: PLC0415

    first = loss(start)[0] if jac else loss(start)
    unit = max(abs(first), 1e-100)

    def scaled(u: FloatArray) -> Any:
        value = loss(u)
        return (value[0] / unit, value[1] / unit) if jac else value / unit

    options = {'ftol': 1e-15, 'gtol': 1e-9} if jac else {}
    found = minimize(scaled, start, jac=jac or None, method='L-BFGS-B', options=options)
    return np.asarray(found.x)
