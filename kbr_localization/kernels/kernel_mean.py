"""
Kernel means: elements of the RKHS that represent probability distributions.

A `KernelMean` has points with signed weights. A `ModelKernelMean`, which the model-based sum rule
returns, adds noise to the points in closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel, ScaledKernel
from kbr_localization.kernels.checks import (
    as_count,
    as_floats,
    FloatArray,
    IndexArray,
    NoMassError,
)
from kbr_localization.kernels.kernels import Covariance, RadialKernel
from kbr_localization.kernels.manifold import nearest_rotation, TraceKernel
from kbr_localization.kernels.noise import MixtureNoise, Noise
from kbr_localization.kernels.rules import normalise
import numpy as np
from numpy.typing import ArrayLike

Term = tuple[FloatArray, FloatArray, Noise | None]


class Embedding:
    """
    An element m of the RKHS of `kernel`: a sum over `terms` of sum_i w_i E[k(., x_i + e)].

    A term is points x (n, d), weights w (n,) and the noise e about the points, if any.
    """

    def __init__(self, kernel: Kernel, terms: Sequence[Term]) -> None:
        self.kernel, self.terms = kernel, terms

    def __call__(self, z: ArrayLike) -> FloatArray:
        """Evaluate m(z_i). Shapes: (q, d) -> (q,)."""
        queries = as_floats('z', z, 'q', *self.terms[0][0].shape[1:])
        return np.asarray(
            sum(_smoothed(self.kernel, e).cross_gram(queries, x) @ w for x, w, e in self.terms)
        )

    def inner(self, other: Embedding) -> float:
        """Return the inner product <m, m'> in the RKHS; exact, also between noisy points."""
        require_same_space('other', other, self.kernel, self.terms[0][0])
        total = 0.0
        for x, w, e in self.terms:
            for z, v, r in other.terms:
                # E k(x + e, z + r) is the kernel smoothed by both noises
                mean = _smoothed(_smoothed(self.kernel, e), r)
                total += float(w @ mean.cross_gram(x, z) @ v)
        return total

    def mmd(self, other: Embedding) -> float:
        """Return the maximum mean discrepancy |m - m'| in the RKHS."""
        squared = self.inner(self) - 2.0 * self.inner(other) + other.inner(other)
        return float(np.sqrt(max(squared, 0.0)))


class KernelMean(Embedding):
    """
    Kernel mean m = sum_i w_i k(., x_i).

    `points` x: (n, d), or (n, 3, 3) for rotations; `weights` w: (n,), signed, not probabilities.
    """

    def __init__(self, kernel: Kernel, points: ArrayLike, weights: ArrayLike) -> None:
        self.points = as_floats('points', points, 'n', 'd', ...)
        self.weights = as_floats('weights', weights, len(self.points))
        kernel.diagonal(self.points[:1])  # raises KernelError for points of a wrong shape
        nonzero = np.flatnonzero(self.weights)
        used = slice(None) if nonzero.size in (0, self.weights.size) else nonzero
        super().__init__(kernel, [(self.points[used], self.weights[used], None)])

    @classmethod
    def of_sample(cls, kernel: Kernel, points: ArrayLike) -> KernelMean:
        """Return the empirical kernel mean: weight 1 / n on each point. Shapes: (n, d)."""
        array = as_floats('points', points, 'n', 'd', ...)
        return cls(kernel, array, np.full(len(array), 1.0 / len(array)))

    def normalised(self) -> KernelMean:
        """Scale the weights to sum one; raises NoMassError if their sum is not positive."""
        return KernelMean(self.kernel, self.points, normalise(self.weights))

    def expectation(self, function: Callable[[FloatArray], Any]) -> FloatArray:
        """
        Return the expectation sum_i w_i h(x_i) of a function; consistent for h in the RKHS.

        Shapes: h: (n, d) -> (n, ...); returns (...). Source: [MbKSR] eq. 5, [KBR] eq. 14.
        """
        values = as_floats('function', function(self.points), len(self.weights), ...)
        return np.asarray(np.tensordot(self.weights, values, axes=1))

    def mean(self) -> FloatArray:
        """Return the mean, (d,), with normalised weights; encode angles as cosine and sine."""
        return self.normalised().expectation(lambda x: x)

    def covariance(self) -> FloatArray:
        """Return the covariance for normalised weights, (d, d) and positive semi-definite."""
        weights, offsets = normalise(self.weights), self.points.reshape(len(self.points), -1)
        offsets = offsets - weights @ offsets
        eigenvalues, vectors = np.linalg.eigh((offsets.T * weights) @ offsets)
        clipped = (vectors * np.maximum(eigenvalues, 0.0)) @ vectors.T
        return np.asarray(0.5 * (clipped + clipped.T))

    def mode(self, starts: int = 8) -> FloatArray:
        """
        Return the pseudo-MAP estimate (d,): x whose k(., x) is nearest to m ([MbKSR] eq. 32).

        The best of local searches from `starts` points; NoMassError if m is not positive there.
        """
        points, weights, _ = self.terms[0]
        kernel = self.kernel
        while isinstance(kernel, ScaledKernel):
            kernel = kernel.kernel
        if isinstance(kernel, TraceKernel):
            # one global maximum: the rotation nearest to the mean matrix
            mode = nearest_rotation(np.tensordot(weights, points, axes=1))
        else:
            begin = points[_spread_starts(kernel, points, weights, as_count('starts', starts))]
            mode = _ascend(kernel, points, weights, begin)
        parts = weights * kernel.cross_gram(points, mode[np.newaxis])[:, 0]
        if not parts.sum() > parts.size * np.finfo(np.float64).eps * np.abs(parts).sum():
            raise NoMassError(
                'weights: expected a kernel mean that is positive somewhere, got a largest value '
                f'of {parts.sum():.3g} and weights of sum {weights.sum():.3g}: it has no mode; '
                'restart from the conditional mean'
            )
        return mode

    def herd(self, count: int) -> FloatArray:
        """
        Return `count` of the points, with repetition, whose empirical kernel mean approximates m.

        Source: Chen, Welling, Smola, *Super-samples from kernel herding* (2010).
        """
        pool = self.points
        target, repulsion = self.normalised()(pool), np.zeros(len(pool))
        chosen = np.empty(as_count('count', count), dtype=np.int64)
        for t in range(count):
            chosen[t] = np.argmax(target - repulsion / (t + 1))
            repulsion += self.kernel.cross_gram(pool, pool[[chosen[t]]])[:, 0]
        return pool[chosen]


class ModelKernelMean(Embedding):
    """
    Kernel mean sum_j w_j E[k(., f_j + e)] of noisy points, in closed form.

    `images` f: (n, d) noise-free points; `weights` w: (n,), signed; `noise`: law of e, conjugate
    to the kernel. With Gaussian noise and positive weights it is the exact embedding of a
    Gaussian mixture.
    """

    def __init__(
        self, kernel: Kernel, images: ArrayLike, weights: ArrayLike, noise: Noise
    ) -> None:
        points = as_floats('images', images, 'n', 'd')
        noise.conditional_kernel_mean(kernel)  # raises KernelError unless the two are conjugate
        terms = _split(points, as_floats('weights', weights, len(points)), noise)
        super().__init__(kernel, terms)


def _split(points: FloatArray, weights: FloatArray, noise: Noise) -> list[Term]:
    """Split mixtures into components: `inner` needs noises that are symmetric about zero."""
    if not isinstance(noise, MixtureNoise):
        return [(points, weights, noise)]
    shifts = np.zeros((len(noise.weights), points.shape[1]))
    if noise.locations is not None:
        shifts = as_floats('locations', noise.locations, 'K', points.shape[1])
    components = zip(shifts, noise.weights, noise.components, strict=True)
    return [term for c, pi, e in components for term in _split(points + c, pi * weights, e)]


def _smoothed(kernel: Kernel, noise: Noise | None) -> Kernel:
    return kernel if noise is None else noise.conditional_kernel_mean(kernel)


def require_same_space(
    name: str, embedding: Embedding, kernel: Kernel, sample: FloatArray
) -> None:
    """Raise KernelError unless the kernels are equal and the points have the sample's shape."""
    if kernel is not embedding.kernel and repr(kernel) != repr(embedding.kernel):
        raise KernelError(
            f'{name}: expected a kernel mean of {kernel!r}, got one of {embedding.kernel!r}'
        )
    shape = embedding.terms[0][0].shape
    if shape[1:] != sample.shape[1:]:
        raise KernelError(
            f'{name}: expected a kernel mean of points {sample.shape[1:]}, got {shape[1:]}'
        )


def _ascend(
    kernel: Kernel, points: FloatArray, weights: FloatArray, begin: FloatArray
) -> FloatArray:
    """Return the largest (d,) of the local maxima of m(x) - k(x, x) / 2 found by L-BFGS."""
    # import here: the optimiser is slow to import, and the ROS node does not need it
    from scipy.optimize import minimize  # noqa: PLC0415

    # the unit step is a quarter of a bandwidth, so that a search stays in its local maximum
    if isinstance(kernel, RadialKernel):
        unit = Covariance(0.25**2 * kernel.scale.value)
    else:  # or a tenth of the standard deviation of the points
        spread = points.std(axis=0)
        unit = Covariance(0.1**2 * np.where(spread > 1e-12, spread, 1.0) ** 2)

    def height(u: FloatArray) -> FloatArray:
        x = unit.colour(u)
        return np.asarray(weights @ kernel.cross_gram(points, x) - 0.5 * kernel.diagonal(x))

    ends = []
    for start in unit.whiten(begin):
        # normalise the objective, since the tolerances of the optimiser are absolute
        scale = max(abs(float(height(start[np.newaxis])[0])), 1e-100)

        def loss(u: FloatArray, scale: float = scale) -> tuple[float, FloatArray]:
            steps = 1e-5 * np.eye(len(u))
            value, below, above = np.split(
                height(np.concatenate([[u], u - steps, u + steps])), [1, len(u) + 1]
            )
            return -float(value[0]) / scale, (below - above) / 2e-5 / scale

        options = {'ftol': 1e-15, 'gtol': 1e-9}
        ends.append(minimize(loss, start, jac=True, method='L-BFGS-B', options=options).x)
    found = np.array(ends)
    return np.asarray(unit.colour(found[[np.argmax(height(found))]])[0])


def _spread_starts(
    kernel: Kernel, points: FloatArray, weights: FloatArray, starts: int
) -> IndexArray:
    """Choose starts greedily among the heaviest points: large m, far from earlier choices."""
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
