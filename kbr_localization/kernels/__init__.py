"""
Kernel Bayesian inference with NumPy and SciPy only; it knows nothing of robots or images.

Three layers, each usable alone: rules on Gram matrices and weights, kernel means and models that
push and condition them, and filters. The three regressors of `estimators` need scikit-learn and
are imported when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import Any, TYPE_CHECKING

from kbr_localization.kernels.algebra import (
    Kernel,
    LinearKernel,
    PolynomialKernel,
    PrecomputedKernel,
    ProductKernel,
    ScaledKernel,
    SumKernel,
)
from kbr_localization.kernels.checks import NoMassError
from kbr_localization.kernels.filters import (
    KernelBayesFilter,
    KernelBayesSmoother,
    KernelMonteCarloFilter,
    LearntTransition,
    ModelTransition,
    MonteCarloTransition,
)
from kbr_localization.kernels.hypothesis_tests import (
    hsic,
    independence_test,
    PermutationTest,
    squared_mmd,
    two_sample_test,
)
from kbr_localization.kernels.inference import (
    KernelABC,
    KernelBayesRule,
    NonparametricModel,
    Supervision,
)
from kbr_localization.kernels.kernel_kalman import KernelGaussian, KernelKalmanFilter
from kbr_localization.kernels.kernel_mean import KernelMean, ModelKernelMean
from kbr_localization.kernels.kernels import (
    GaussianKernel,
    LaplaceKernel,
    MaternKernel,
    median_distance,
    RationalQuadraticKernel,
)
from kbr_localization.kernels.low_rank import incomplete_cholesky, LowRankGram
from kbr_localization.kernels.manifold import TraceKernel, WrappedNormalKernel
from kbr_localization.kernels.models import AdditiveNoiseModel, MonteCarloModel
from kbr_localization.kernels.noise import (
    CauchyNoise,
    GaussianNoise,
    MixtureNoise,
    Noise,
    VarianceGammaNoise,
    VonMisesNoise,
    WrappedNormalNoise,
)
from kbr_localization.kernels.rules import (
    BAYES_RULES,
    conditional_mean,
    model_based_sum_rule,
    nonparametric_sum_rule,
    normalise,
    PAPER_NAMES,
    regularise,
    regularised_bayes_rule,
    squared_bayes_rule,
    thresholded_bayes_rule,
)
from kbr_localization.kernels.rules import (
    importance_weighted_bayes_rule as importance_weighted_bayes_rule,
)
from kbr_localization.kernels.selection import BandwidthCriterion, grid_search, k_fold, TunedRule

if TYPE_CHECKING:
    from kbr_localization.kernels.estimators import (
        ConditionalMeanRegressor,
        KernelBayesRegressor,
        KernelFilterRegressor,
    )


def __getattr__(name: str) -> Any:
    if name in ('ConditionalMeanRegressor', 'KernelBayesRegressor', 'KernelFilterRegressor'):
        return getattr(importlib.import_module('kbr_localization.kernels.estimators'), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


__all__ = [
    'BAYES_RULES',
    'PAPER_NAMES',
    'AdditiveNoiseModel',
    'BandwidthCriterion',
    'CauchyNoise',
    'ConditionalMeanRegressor',
    'GaussianKernel',
    'GaussianNoise',
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
    'squared_bayes_rule',
    'squared_mmd',
    'thresholded_bayes_rule',
    'two_sample_test',
]
