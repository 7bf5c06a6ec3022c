"""A good call of every public class and function of kernels/, to be spoilt by tests."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbr_localization import kernels as k
from kbr_localization.kernels import selection
from kbr_localization.kernels.low_rank import pivoted_cholesky
from kbr_localization.kernels.manifold import CircularKernel, nearest_rotation
import numpy as np

RNG = np.random.default_rng(0)
X, Y, Z = RNG.normal(size=(3, 6, 2))
W = np.full(6, 1 / 6)
KERNEL = k.GaussianKernel(0.5)
GRAM = KERNEL.gram(X)
K_Y = KERNEL.cross_gram(X, X[:1])[:, 0]
LOW = k.incomplete_cholesky(KERNEL, X)
MEAN = k.KernelMean.of_sample(KERNEL, X)
MODEL = k.AdditiveNoiseModel(lambda x, u=0.0: x + u, k.GaussianNoise(0.1))
LEARNT = k.NonparametricModel(KERNEL, KERNEL, X, Y, 0.01)
RULE = k.KernelBayesRule(KERNEL, KERNEL, X, Y, 0.01, 0.01)
FILTER = k.KernelBayesFilter(k.ModelTransition(MODEL, KERNEL), RULE)
ROTATIONS = nearest_rotation(RNG.normal(size=(4, 3, 3)))
KALMAN = k.KernelKalmanFilter(KERNEL, KERNEL, X, Z, Y, 0.1, 0.1)
ANGLES = np.linspace(0.0, 3.0, 5)[:, np.newaxis]


@dataclass(frozen=True)
class Call:
    """A call with good arguments, and the kinds of those that are spoilt one after the other."""

    target: Callable[..., Any]
    good: dict[str, Any]
    kinds: dict[str, str]


def call(target, spoilt, /, **good):
    """Make a Call from 'argument:kind argument:kind'."""
    return Call(target, good, dict(pair.split(':') for pair in spoilt.split()))


CALLS = {
    'GaussianKernel': call(k.GaussianKernel, 'covariance:scale', covariance=1.0),
    'LaplaceKernel': call(k.LaplaceKernel, 'scale:scale', scale=1.0),
    'RationalQuadraticKernel': call(k.RationalQuadraticKernel, 'scale:scale', scale=1.0),
    'RationalQuadraticKernel exponent': call(
        lambda exponent: k.RationalQuadraticKernel(1.0, exponent), 'exponent:number', exponent=2.0
    ),
    'MaternKernel': call(
        k.MaternKernel, 'scale:scale smoothness:positive', scale=1.0, smoothness=1.5
    ),
    'WrappedNormalKernel': call(k.WrappedNormalKernel, 'variance:positive', variance=1.0),
    'CircularKernel': call(CircularKernel, 'coefficients:object', coefficients=[1.0, 0.5]),
    'ScaledKernel': call(
        k.ScaledKernel, 'kernel:kernel factor:positive', kernel=KERNEL, factor=2.0
    ),
    'SumKernel': call(k.SumKernel, 'kernels:kernel', kernels=[KERNEL]),
    'ProductKernel': call(k.ProductKernel, 'kernels:kernel', kernels=[KERNEL]),
    'Kernel.__add__': call(lambda kernels: KERNEL + kernels, 'kernels:kernel', kernels=KERNEL),
    'Kernel.__mul__': call(lambda factor: KERNEL * factor, 'factor:positive', factor=KERNEL),
    'Kernel.on': call(lambda columns: KERNEL.on(*columns), 'columns:column', columns=[1]),
    'TraceKernel.gram': call(k.TraceKernel().gram, 'x:points', x=ROTATIONS),
    'WrappedNormalKernel.gram': call(k.WrappedNormalKernel(1.0).gram, 'x:points', x=ANGLES),
    'GaussianNoise': call(k.GaussianNoise, 'covariance:scale', covariance=1.0),
    'CauchyNoise': call(k.CauchyNoise, 'scale:scale', scale=1.0),
    'VarianceGammaNoise': call(
        k.VarianceGammaNoise,
        'scale:scale shape:positive alpha:positive',
        scale=1.0,
        shape=1.0,
        alpha=1.0,
    ),
    'WrappedNormalNoise': call(k.WrappedNormalNoise, 'variance:positive', variance=1.0),
    'VonMisesNoise': call(k.VonMisesNoise, 'concentration:positive', concentration=1.0),
    'MixtureNoise': call(
        k.MixtureNoise,
        'weights:object components:object locations:given',
        weights=[1.0],
        components=[k.GaussianNoise(1.0)],
        locations=[[0.0]],
    ),
    'IndependentNoise': call(
        k.IndependentNoise, 'parts:object', parts=[(k.GaussianNoise(1.0), (0,))]
    ),
    'Noise.conditional_kernel_mean': call(
        k.GaussianNoise(1.0).conditional_kernel_mean, 'kernel:kernel', kernel=KERNEL
    ),
    'Noise.sample': call(
        k.GaussianNoise(1.0).sample, 'size:count dimension:count', size=3, dimension=2, rng=RNG
    ),
    'IndependentNoise.conditional_kernel_mean': call(
        k.IndependentNoise([(k.GaussianNoise(1.0), (0, 1))]).conditional_kernel_mean,
        'kernel:kernel',
        kernel=KERNEL.on(0, 1),
    ),
    'KernelMean': call(
        k.KernelMean,
        'kernel:kernel points:points weights:weights',
        kernel=KERNEL,
        points=X,
        weights=W,
    ),
    'KernelMean.of_sample': call(
        k.KernelMean.of_sample, 'kernel:kernel points:points', kernel=KERNEL, points=X
    ),
    'KernelMean()': call(MEAN, 'z:points', z=Z),
    'KernelMean.inner': call(MEAN.inner, 'other:object', other=MEAN),
    'KernelMean.mmd': call(MEAN.mmd, 'other:object', other=MEAN),
    'KernelMean +': call(lambda other: MEAN + other, 'other:object', other=MEAN),
    'KernelMean.expectation': call(MEAN.expectation, 'function:object', function=np.sin),
    'KernelMean.mode': call(MEAN.mode, 'starts:count', starts=2),
    'KernelMean.modes': call(MEAN.modes, 'starts:count', starts=2),
    'KernelMean.herd': call(MEAN.herd, 'count:count candidates:optional', count=2, candidates=X),
    'ModelKernelMean': call(
        k.ModelKernelMean,
        'kernel:kernel images:points weights:weights noise:object',
        kernel=KERNEL,
        images=X,
        weights=W,
        noise=k.GaussianNoise(1.0),
    ),
    'AdditiveNoiseModel': call(
        k.AdditiveNoiseModel,
        'function:object noise:object',
        function=np.sin,
        noise=k.GaussianNoise(1.0),
    ),
    'AdditiveNoiseModel.noise_at': call(
        lambda noise: k.AdditiveNoiseModel(np.sin, lambda: noise).noise_at(),
        'noise:object',
        noise=k.GaussianNoise(1.0),
    ),
    'AdditiveNoiseModel.images': call(MODEL.images, 'x:points', x=X),
    'AdditiveNoiseModel.kernel_matrix': call(
        MODEL.kernel_matrix, 'kernel:kernel z:points x:points', kernel=KERNEL, z=Z, x=X
    ),
    'AdditiveNoiseModel.push': call(MODEL.push, 'prior:object', prior=MEAN),
    'AdditiveNoiseModel.sample': call(MODEL.sample, 'x:points', x=X, rng=RNG),
    'NonparametricModel': call(
        k.NonparametricModel,
        'kernel_x:kernel kernel_y:kernel x:points y:points epsilon:positive',
        kernel_x=KERNEL,
        kernel_y=KERNEL,
        x=X,
        y=Y,
        epsilon=0.1,
    ),
    'NonparametricModel.at': call(LEARNT.at, 'x:point', x=X[0]),
    'NonparametricModel.push': call(LEARNT.push, 'prior:object', prior=MEAN),
    'NonparametricModel.joint': call(LEARNT.joint, 'prior:object', prior=MEAN),
    'KernelBayesRule': call(
        k.KernelBayesRule,
        'kernel_x:kernel kernel_y:kernel x:points y:points epsilon:positive delta:positive '
        'method:object',
        kernel_x=KERNEL,
        kernel_y=KERNEL,
        x=X,
        y=Y,
        epsilon=0.1,
        delta=0.1,
        method='squared',
    ),
    'KernelBayesRule.posterior': call(
        RULE.posterior,
        'observation:point prior:weights supervision:given',
        prior=MEAN,
        observation=Y[0],
        supervision=k.Supervision(Y[:1], X[:1], 0.1),
    ),
    'KernelBayesRule.posterior_weights': call(
        RULE.posterior_weights, 'observations:points', prior=MEAN, observations=Y
    ),
    'KernelBayesRule.condition': call(RULE.condition, 'observation:point', observation=Y[0]),
    'Supervision': call(
        k.Supervision,
        'observations:points states:points weight:positive',
        observations=Y,
        states=X,
        weight=0.1,
    ),
    'regularise': call(k.regularise, 'gram:gram epsilon:positive', gram=GRAM, epsilon=0.1),
    'regularise low rank': call(k.regularise, 'epsilon:positive', gram=LOW, epsilon=0.1),
    'conditional_mean': call(
        k.conditional_mean,
        'regularised_gram_x:object k_x:columns',
        regularised_gram_x=k.regularise(GRAM, 0.1),
        k_x=K_Y,
    ),
    'nonparametric_sum_rule': call(
        k.nonparametric_sum_rule,
        'regularised_gram_x:object prior_at_sample:columns',
        regularised_gram_x=k.regularise(GRAM, 0.1),
        prior_at_sample=K_Y,
    ),
    'model_based_sum_rule': call(
        k.model_based_sum_rule,
        'conditional_kernel_mean:object weights:weights z:points f_x:points',
        conditional_kernel_mean=KERNEL,
        z=Z,
        f_x=X,
        weights=W,
    ),
    'normalise': call(k.normalise, 'weights:object', weights=W),
    'median_distance': call(k.median_distance, 'points:points', points=X),
    'k_fold': call(k.k_fold, 'size:count folds:count rng:seed', size=6, folds=2, rng=0),
    'leave_one_group_out': call(selection.leave_one_group_out, 'groups:object', groups=[0, 1]),
    'grid_search': call(
        k.grid_search,
        'score:object grid:object folds:object n_jobs:object',
        score=lambda a, b, c: 0.0,
        grid={'c': [1]},
        folds=k.k_fold(6, 2),
        n_jobs=1,
    ),
    'incomplete_cholesky': call(
        k.incomplete_cholesky,
        'kernel:kernel points:points tolerance:tolerance max_rank:count',
        kernel=KERNEL,
        points=X,
        tolerance=0.1,
        max_rank=2,
    ),
    'pivoted_cholesky': call(
        pivoted_cholesky,
        'diagonal:object column:object',
        diagonal=np.diag(GRAM),
        column=lambda i: GRAM[i],
    ),
    'ModelTransition': call(
        k.ModelTransition, 'model:object kernel:kernel', model=MODEL, kernel=KERNEL
    ),
    'LearntTransition': call(
        k.LearntTransition,
        'kernel:kernel x:points x_next:points epsilon:positive',
        kernel=KERNEL,
        x=X,
        x_next=Y,
        epsilon=0.1,
    ),
    'LearntTransition controls': call(
        k.LearntTransition,
        'controls:optional',
        kernel=KERNEL,
        x=X,
        x_next=Y,
        epsilon=0.1,
        controls=X,
        kernel_u=KERNEL,
    ),
    'KernelBayesFilter': call(
        k.KernelBayesFilter,
        'transition:object bayes_rule:object supervise:given',
        transition=FILTER.transition,
        bayes_rule=RULE,
        supervise=None,
    ),
    'KernelBayesFilter.start': call(
        FILTER.start, 'observation:point prior:given', observation=Y[0], prior=MEAN
    ),
    'KernelBayesFilter.step': call(
        FILTER.step, 'belief:object observation:given', belief=MEAN, observation=Y[0]
    ),
    'KernelBayesFilter.run': call(
        FILTER.run,
        'observations:points controls:number prior:given',
        observations=Y,
        controls=None,
        prior=MEAN,
    ),
    'LinearKernel': call(k.LinearKernel, 'offset:negative', offset=0.0),
    'PolynomialKernel': call(
        k.PolynomialKernel, 'degree:count offset:negative', degree=2, offset=1.0
    ),
    'KernelMean *': call(lambda factor: MEAN * factor, 'factor:factor', factor=-2.0),
    'KernelMean -': call(lambda other: MEAN - other, 'other:object', other=MEAN),
    'LinearModel': call(
        k.LinearModel,
        'matrix:points noise:object offset:given',
        matrix=np.eye(2),
        noise=k.GaussianNoise(0.1),
        offset=None,
    ),
    'LinearModel.push_exactly': call(
        k.LinearModel(np.eye(2), k.GaussianNoise(0.1)).push_exactly, 'prior:object', prior=MEAN
    ),
    'MonteCarloModel': call(
        k.MonteCarloModel,
        'sampler:object draws:count rng:seed',
        sampler=MODEL.sample,
        draws=3,
        rng=0,
    ),
    'MonteCarloModel.push': call(
        k.MonteCarloModel(MODEL.sample, 3).push, 'prior:object', prior=MEAN
    ),
    'MonteCarloTransition': call(
        k.MonteCarloTransition,
        'sampler:object kernel:kernel draws:number rng:seed',
        sampler=MODEL.sample,
        kernel=KERNEL,
        draws=3,
        rng=0,
    ),
    'KernelMonteCarloFilter': call(
        k.KernelMonteCarloFilter,
        'sampler:object bayes_rule:object',
        sampler=MODEL.sample,
        bayes_rule=RULE,
    ),
    'KernelBayesSmoother.from_model': call(
        lambda rng: k.KernelBayesSmoother.from_model(FILTER, MODEL, 0.1, 0.1, rng=rng),
        'rng:seed',
        rng=0,
    ),
    'KernelBayesSmoother': call(
        k.KernelBayesSmoother, 'forward:object backward:object', forward=FILTER, backward=RULE
    ),
    'KernelBayesSmoother.smooth': call(
        k.KernelBayesSmoother(FILTER, RULE).smooth, 'beliefs:object', beliefs=[MEAN, MEAN]
    ),
    'KernelKalmanFilter': call(
        k.KernelKalmanFilter,
        'kernel_x:kernel kernel_y:kernel x:points x_next:points y_next:points epsilon:positive '
        'kappa:positive',
        kernel_x=KERNEL,
        kernel_y=KERNEL,
        x=X,
        x_next=Z,
        y_next=Y,
        epsilon=0.1,
        kappa=0.1,
    ),
    'KernelKalmanFilter.start': call(KALMAN.start, 'states:optional', states=X),
    'KernelKalmanFilter.predict': call(KALMAN.predict, 'belief:object', belief=KALMAN.start()),
    'KernelKalmanFilter.update': call(
        KALMAN.update, 'belief:object observation:point', belief=KALMAN.start(), observation=Y[0]
    ),
    'KernelKalmanFilter.run': call(KALMAN.run, 'observations:points', observations=Y),
    'two_sample_test': call(
        k.two_sample_test,
        'kernel:kernel x:points y:points permutations:count rng:seed',
        kernel=KERNEL,
        x=X,
        y=Y,
        permutations=9,
        rng=0,
    ),
    'squared_mmd': call(k.squared_mmd, 'kernel:kernel x:points y:points', kernel=KERNEL, x=X, y=Y),
    'independence_test': call(
        k.independence_test,
        'kernel_x:kernel kernel_y:kernel x:points y:points permutations:count rng:seed',
        kernel_x=KERNEL,
        kernel_y=KERNEL,
        x=X,
        y=Y,
        permutations=9,
        rng=0,
    ),
    'hsic': call(
        k.hsic,
        'kernel_x:kernel kernel_y:kernel x:points y:points',
        kernel_x=KERNEL,
        kernel_y=KERNEL,
        x=X,
        y=Y,
    ),
    'KernelABC': call(
        k.KernelABC,
        'prior:object simulator:object size:count epsilon:positive rng:seed',
        prior=lambda n, rng: rng.normal(size=(n, 2)),
        simulator=lambda x, rng: x + rng.normal(size=x.shape),
        size=9,
        epsilon=0.1,
        rng=0,
    ),
    'DensityPosterior': call(
        k.DensityPosterior,
        'x:points y:points bandwidth_x:positive bandwidth_y:positive',
        x=X,
        y=Y,
        bandwidth_x=1.0,
        bandwidth_y=1.0,
    ),
    'DensityPosterior.weights': call(
        k.DensityPosterior(X, Y, 1.0, 1.0).weights,
        'prior:points observations:points',
        prior=Z,
        observations=Y,
    ),
    'DensityPosterior.posterior': call(
        k.DensityPosterior(X, Y, 1.0, 1.0).posterior,
        'prior:points observation:point kernel:kernel',
        prior=Z,
        observation=Y[0],
        kernel=KERNEL,
    ),
    'PrecomputedKernel': call(k.PrecomputedKernel, 'gram:gram', gram=GRAM),
    'ObjectKernel': call(k.ObjectKernel, 'function:object', function=k.spectrum),
    'spectrum': call(k.spectrum, 'length:count', first='banana', second='ananas', length=3),
    'BandwidthCriterion': call(
        k.BandwidthCriterion,
        'kernel_x:kernel kernel_y:kernel x:points y:points epsilon:positive method:object '
        'target:object',
        kernel_x=KERNEL,
        kernel_y=KERNEL,
        x=X,
        y=Y,
        folds=k.k_fold(6, 2),
        epsilon=0.1,
        method='COND',
        target='marginal',
    ),
    'BandwidthCriterion()': call(
        k.BandwidthCriterion(KERNEL, KERNEL, X, Y, k.k_fold(6, 2), 0.1),
        'factors:scale delta:positive',
        factors=1.0,
        delta=0.1,
    ),
    'BandwidthCriterion.minimise': call(
        k.BandwidthCriterion(KERNEL, KERNEL, X, Y, k.k_fold(6, 2), 0.1).minimise,
        'delta:positive',
        delta=0.1,
    ),
}
for _kind in (k.ConditionalMeanRegressor, k.KernelBayesRegressor, k.KernelFilterRegressor):
    CALLS[f'{_kind.__name__}.fit'] = call(_kind().fit, 'X:points y:target', X=X, y=Y)
    CALLS[f'{_kind.__name__}.predict'] = call(_kind().fit(X, Y).predict, 'X:points', X=Z)
    CALLS[f'{_kind.__name__} epsilon'] = call(
        lambda epsilon, kind=_kind: kind(epsilon=epsilon).fit(X, Y),
        'epsilon:positive',
        epsilon=0.1,
    )
for _name in ('squared_bayes_rule', 'thresholded_bayes_rule'):
    for _gram in (GRAM, LOW):
        CALLS[f'{_name} {type(_gram).__name__}'] = call(
            getattr(k, _name),
            'gram_y:gram mu:weights k_y:columns delta:positive'
            if _gram is GRAM
            else 'mu:weights k_y:columns delta:positive',
            gram_y=_gram,
            mu=W,
            k_y=K_Y,
            delta=0.1,
        )
CALLS['importance_weighted_bayes_rule'] = call(
    k.importance_weighted_bayes_rule,
    'gram_y:gram density_ratio:weights k_y:columns delta:positive',
    gram_y=GRAM,
    density_ratio=W,
    k_y=K_Y,
    delta=0.1,
)
CALLS['regularised_bayes_rule'] = call(
    k.regularised_bayes_rule,
    'gram_y:gram mu:object k_y:columns delta:positive supervision_weight:scale',
    gram_y=GRAM,
    mu=W[:5],
    k_y=K_Y,
    delta=0.1,
    supervision_weight=0.1,
)
for _kernel in (
    KERNEL,
    k.LaplaceKernel(1.0),
    k.MaternKernel(1.0),
    k.RationalQuadraticKernel(1.0),
    KERNEL + KERNEL,
    KERNEL * KERNEL,
    2.0 * KERNEL,
    KERNEL.on(0),
):
    CALLS[f'{_kernel}.gram'] = call(_kernel.gram, 'x:points', x=X)
    CALLS[f'{_kernel}.cross_gram'] = call(_kernel.cross_gram, 'x:points z:points', x=X, z=Z)
    CALLS[f'{_kernel}.diagonal'] = call(_kernel.diagonal, 'x:points', x=X)
