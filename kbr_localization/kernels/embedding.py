"""
Embeddings: elements of an RKHS that can be evaluated, compared, added, subtracted and scaled.

What they are made of is in `kernel_mean`; here is what they have in common.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import (
    as_count,
    as_generator,
    as_points_like,
    FloatArray,
    require,
)
from kbr_localization.kernels.conjugacy import Noise
import numpy as np
from numpy.typing import ArrayLike

Term = tuple[FloatArray, FloatArray, Noise | None]
"""Points (n, d), weights (n,) and the noise about the points."""
_VALUES = 2**22  # of a kernel that are held at a time: 32 MB


class Embedding(ABC):
    """
    An element m of the RKHS of `kernel` that can be evaluated and compared with others.

    `m1 + m2`, `sum([m1, m2])`, `m1 - m2`, `-m`, `c * m` and `m / c` are embeddings for any real c.
    """

    kernel: Kernel

    @abstractmethod
    def terms(self) -> list[Term]:
        """Points (n, d), weights (n,) and the noise about the points, one triple per noise."""

    def __call__(self, z: ArrayLike) -> FloatArray:
        """Evaluate m(z_i). Shapes: (q, d) -> (q,)."""
        terms = self.terms()
        queries = as_points_like('z', self.kernel.encode('z', z), terms[0][0])
        values = (
            smoothed(self.kernel, noise).cross_gram(queries, points) @ weights
            for points, weights, noise in terms
        )
        return np.asarray(sum(values), dtype=np.float64)

    def __add__(self, other: Embedding) -> Embedding:
        require_same_kernel(self, other)
        return EmbeddingSum(self.kernel, (self, other))

    def __radd__(self, other: Any) -> Embedding:
        # sum() begins with 0
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: Embedding) -> Embedding:
        require_same_kernel(self, other)
        return self + (-1.0) * other

    def __mul__(self, factor: float) -> Embedding:
        return ScaledEmbedding(self.kernel, self, as_factor(factor))

    def __rmul__(self, factor: float) -> Embedding:
        return self * factor

    def __truediv__(self, divisor: float) -> Embedding:
        return self * (1.0 / as_factor(divisor))

    def __neg__(self) -> Embedding:
        return self * -1.0

    def drawn(
        self, draws: int = 100, rng: np.random.Generator | int = 0
    ) -> tuple[FloatArray, FloatArray]:
        """
        Points (N, d) and weights (N,) of m; `draws` draws stand for each point that has a noise.

        The error of a drawn part is O(draws^-1/2) in the RKHS norm; without noise it is none.
        """
        return draw_terms(self.terms(), as_count('draws', draws), as_generator('rng', rng))

    def inner(self, other: Embedding) -> float:
        """Inner product <m, m'> in the RKHS; exact, also between noisy points."""
        require_same_kernel(self, other)
        return sum(_inner(self.kernel, a, b) for a in self.terms() for b in other.terms())

    def norm(self) -> float:
        """RKHS norm of m."""
        return float(np.sqrt(max(self.inner(self), 0.0)))

    def mmd(self, other: Embedding) -> float:
        """Maximum mean discrepancy |m - m'| in the RKHS."""
        cross = self.inner(other)
        squared = self.inner(self) - 2.0 * cross + other.inner(other)
        return float(np.sqrt(max(squared, 0.0)))


@dataclass(frozen=True, eq=False)
class EmbeddingSum(Embedding):
    """Sum of embeddings, such as a mixture whose components have noises of their own."""

    kernel: Kernel
    parts: tuple[Embedding, ...]

    def terms(self) -> list[Term]:
        """All terms of all parts."""
        return [term for part in self.parts for term in part.terms()]


@dataclass(frozen=True, eq=False)
class ScaledEmbedding(Embedding):
    """Embedding c m for a real constant c."""

    kernel: Kernel
    part: Embedding
    factor: float

    def terms(self) -> list[Term]:
        """All terms with their weights times the factor."""
        return [(points, self.factor * weights, n) for points, weights, n in self.part.terms()]


def as_factor(value: Any) -> float:
    """Return a finite real number to scale an embedding with."""
    scalar = np.asarray(value)
    if scalar.ndim != 0 or scalar.dtype.kind not in 'iuf' or not np.isfinite(scalar):
        raise KernelError(
            f'factor: expected a finite number, got {type(value).__name__} of shape '
            f'{scalar.shape}: only numbers scale a kernel mean'
        )
    return float(scalar)


def draw_terms(
    terms: list[Term], draws: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Points and weights of terms, with draws in place of noises."""
    points, weights = [], []
    for centres, masses, noise in terms:
        count = 1 if noise is None else draws
        copies = np.repeat(centres, count, axis=0)
        if noise is not None:
            copies = copies + noise.sample(len(copies), copies.shape[1], rng)
        points.append(copies)
        weights.append(np.repeat(masses / count, count))
    return np.concatenate(points), np.concatenate(weights)


def smoothed(kernel: Any, noise: Noise | None) -> Any:
    """Return the kernel, or its conditional kernel mean when there is a noise."""
    return kernel if noise is None else noise.conditional_kernel_mean(kernel)


def _inner(
    kernel: Kernel,
    left: Term,
    right: Term,
) -> float:
    # E k(f + e, f' + e') smooths the kernel once with each noise, all of which are symmetric
    mean = smoothed(smoothed(kernel, left[2]), right[2])
    points, weights = left[:2]
    rows = max(_VALUES // len(right[0]), 1)
    blocks = (slice(begin, begin + rows) for begin in range(0, len(points), rows))
    return sum(float(weights[b] @ mean.cross_gram(points[b], right[0]) @ right[1]) for b in blocks)


def require_same_kernel(left: Embedding, right: Embedding) -> None:
    """Refuse embeddings of different RKHSs, also of one kernel on points of other dimensions."""
    require('other', right, Embedding, 'a kernel mean to compare with')
    if not is_same_kernel(left.kernel, right.kernel):
        raise KernelError(
            f'other: expected a kernel mean of {left.kernel!r}, got one of {right.kernel!r}: '
            'embeddings are comparable in one RKHS only'
        )
    mine, its = left.terms()[0][0].shape, right.terms()[0][0].shape
    if its[1:] != mine[1:]:
        raise KernelError(
            f"other: expected a kernel mean of points shaped like the first one's, {mine[1:]}, "
            f'got points of shape {its}: embeddings are comparable on one space only'
        )


def values_at(name: str, embedding: Embedding, kernel: Kernel, sample: FloatArray) -> FloatArray:
    """
    Values (n,) of an embedding at a sample (n, ...) on which there is this kernel.

    In another RKHS they would be values of another function: KernelError.
    """
    require(name, embedding, Embedding, f'a kernel mean of {kernel!r}')
    if not is_same_kernel(kernel, embedding.kernel):
        raise KernelError(
            f'{name}: expected a kernel mean of {kernel!r}, that of the training sample, got one '
            f'of {embedding.kernel!r}: use one kernel for both'
        )
    shape = embedding.terms()[0][0].shape
    if shape[1:] != sample.shape[1:]:
        raise KernelError(
            f'{name}: expected a kernel mean of points shaped like those of the training sample, '
            f'{sample.shape[1:]}, got points of shape {shape}'
        )
    return embedding(sample)


def is_same_kernel(kernel: Kernel, other: Kernel) -> bool:
    """Whether two kernels have one RKHS: they are one object, or print alike."""
    return kernel is other or repr(kernel) == repr(other)
