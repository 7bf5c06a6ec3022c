"""
Kernel Bayesian inference with NumPy and SciPy only; it knows nothing of robots or images.

Three layers, each usable alone: rules on Gram matrices and weights (`rules`, `low_rank_rules`),
kernel means and models that push and condition them (`kernel_mean`, `models`, `inference`), and
filters (`filters`, `monte_carlo`, `kernel_kalman`, `smoother`). `kernels`, `manifold` and `noise`
hold the closed forms, `objects` kernels on what is no vector, `selection` and `bandwidths` the
choice of parameters, `hypothesis_tests` HSIC and MMD, `likelihood_free` simulators,
`estimators` fit and predict.
"""

from kbr_localization.kernels.algebra import (
    Kernel,
    LinearKernel,
    PolynomialKernel,
    ProductKernel,
    ScaledKernel,
    SumKernel,
)
from kbr_localization.kernels.bandwidths import BandwidthCriterion, TunedRule
from kbr_localization.kernels.checks import NoMassError
from kbr_localization.kernels.estimators import (
    ConditionalMeanRegressor,
    KernelBayesRegressor,
    KernelFilterRegressor,
)
from kbr_localization.kernels.filters import KernelBayesFilter, LearntTransition, ModelTransition
from kbr_localization.kernels.hypothesis_tests import (
    hsic,
    independence_test,
    PermutationTest,
    squared_mmd,
    two_sample_test,
)
from kbr_localization.kernels.inference import KernelBayesRule, NonparametricModel, Supervision
from kbr_localization.kernels.kernel_kalman import KernelGaussian, KernelKalmanFilter
from kbr_localization.kernels.kernel_mean import KernelMean, ModelKernelMean
from kbr_localization.kernels.kernels import (
    GaussianKernel,
    LaplaceKernel,
    MaternKernel,
    RationalQuadraticKernel,
)
from kbr_localization.kernels.likelihood_free import DensityPosterior, KernelABC
from kbr_localization.kernels.low_rank import incomplete_cholesky, LowRankGram
from kbr_localization.kernels.manifold import TraceKernel, WrappedNormalKernel
from kbr_localization.kernels.models import AdditiveNoiseModel, LinearModel
from kbr_localization.kernels.monte_carlo import (
    KernelMonteCarloFilter,
    MonteCarloModel,
    MonteCarloTransition,
)
from kbr_localization.kernels.noise import (
    CauchyNoise,
    GaussianNoise,
    IndependentNoise,
    MixtureNoise,
    Noise,
    VarianceGammaNoise,
    VonMisesNoise,
    WrappedNormalNoise,
)
from kbr_localization.kernels.objects import ObjectKernel, PrecomputedKernel, spectrum
from kbr_localization.kernels.rules import (
    BAYES_RULES,
    conditional_mean,
    importance_weighted_bayes_rule,
    model_based_sum_rule,
    nonparametric_sum_rule,
    normalise,
    PAPER_NAMES,
    regularise,
    regularised_bayes_rule,
    squared_bayes_rule,
    thresholded_bayes_rule,
)
from kbr_localization.kernels.selection import grid_search, k_fold, median_distance
from kbr_localization.kernels.smoother import KernelBayesSmoother

__all__ = [
    'BAYES_RULES',
    'PAPER_NAMES',
    'AdditiveNoiseModel',
    'BandwidthCriterion',
    'CauchyNoise',
    'ConditionalMeanRegressor',
    'DensityPosterior',
    'GaussianKernel',
    'GaussianNoise',
    'IndependentNoise',
    'Kernel',
    'KernelABC',
    'KernelBayesFilter',
    'KernelBayesRegressor',
    'KernelBayesRule',
    'KernelBayesSmoother',
    'KernelFilterRegressor',
    'KernelGaussian',
    'KernelKalmanFilter',
    'KernelMean',
    'KernelMonteCarloFilter',
    'LaplaceKernel',
    'LearntTransition',
    'LinearKernel',
    'LinearModel',
    'LowRankGram',
    'MaternKernel',
    'MixtureNoise',
    'ModelKernelMean',
    'ModelTransition',
    'MonteCarloModel',
    'MonteCarloTransition',
    'NoMassError',
    'Noise',
    'NonparametricModel',
    'ObjectKernel',
    'PermutationTest',
    'PolynomialKernel',
    'PrecomputedKernel',
    'ProductKernel',
    'RationalQuadraticKernel',
    'ScaledKernel',
    'SumKernel',
    'Supervision',
    'TraceKernel',
    'TunedRule',
    'VarianceGammaNoise',
    'VonMisesNoise',
    'WrappedNormalKernel',
    'WrappedNormalNoise',
    'conditional_mean',
    'grid_search',
    'hsic',
    'importance_weighted_bayes_rule',
    'incomplete_cholesky',
    'independence_test',
    'k_fold',
    'median_distance',
    'model_based_sum_rule',
    'nonparametric_sum_rule',
    'normalise',
    'regularise',
    'regularised_bayes_rule',
    'spectrum',
    'squared_bayes_rule',
    'squared_mmd',
    'thresholded_bayes_rule',
    'two_sample_test',
]
