"""
Kernel Bayesian inference with NumPy and SciPy only; it knows nothing of robots or images.

Three layers, each usable alone: rules on Gram matrices and weights, kernel means and models that
push and condition them, and filters. The three regressors of `estimators` need scikit-learn and
are imported when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import Any, TYPE_CHECKING

from kbr_localization.kernels.algebra import Kernel as Kernel
from kbr_localization.kernels.algebra import LinearKernel as LinearKernel
from kbr_localization.kernels.algebra import PolynomialKernel as PolynomialKernel
from kbr_localization.kernels.algebra import PrecomputedKernel as PrecomputedKernel
from kbr_localization.kernels.algebra import ProductKernel as ProductKernel
from kbr_localization.kernels.algebra import ScaledKernel as ScaledKernel
from kbr_localization.kernels.algebra import SumKernel as SumKernel
from kbr_localization.kernels.bandwidths import BandwidthCriterion as BandwidthCriterion
from kbr_localization.kernels.bandwidths import TunedRule as TunedRule
from kbr_localization.kernels.checks import NoMassError as NoMassError
from kbr_localization.kernels.covariance import median_distance as median_distance
from kbr_localization.kernels.filters import KernelBayesFilter as KernelBayesFilter
from kbr_localization.kernels.filters import KernelBayesSmoother as KernelBayesSmoother
from kbr_localization.kernels.filters import KernelMonteCarloFilter as KernelMonteCarloFilter
from kbr_localization.kernels.filters import LearntTransition as LearntTransition
from kbr_localization.kernels.filters import ModelTransition as ModelTransition
from kbr_localization.kernels.filters import MonteCarloTransition as MonteCarloTransition
from kbr_localization.kernels.hypothesis_tests import hsic as hsic
from kbr_localization.kernels.hypothesis_tests import independence_test as independence_test
from kbr_localization.kernels.hypothesis_tests import PermutationTest as PermutationTest
from kbr_localization.kernels.hypothesis_tests import squared_mmd as squared_mmd
from kbr_localization.kernels.hypothesis_tests import two_sample_test as two_sample_test
from kbr_localization.kernels.inference import KernelABC as KernelABC
from kbr_localization.kernels.inference import KernelBayesRule as KernelBayesRule
from kbr_localization.kernels.inference import NonparametricModel as NonparametricModel
from kbr_localization.kernels.inference import Supervision as Supervision
from kbr_localization.kernels.kernel_kalman import KernelGaussian as KernelGaussian
from kbr_localization.kernels.kernel_kalman import KernelKalmanFilter as KernelKalmanFilter
from kbr_localization.kernels.kernel_mean import KernelMean as KernelMean
from kbr_localization.kernels.kernel_mean import ModelKernelMean as ModelKernelMean
from kbr_localization.kernels.kernels import GaussianKernel as GaussianKernel
from kbr_localization.kernels.kernels import LaplaceKernel as LaplaceKernel
from kbr_localization.kernels.kernels import MaternKernel as MaternKernel
from kbr_localization.kernels.kernels import RationalQuadraticKernel as RationalQuadraticKernel
from kbr_localization.kernels.low_rank import incomplete_cholesky as incomplete_cholesky
from kbr_localization.kernels.low_rank import LowRankGram as LowRankGram
from kbr_localization.kernels.manifold import TraceKernel as TraceKernel
from kbr_localization.kernels.manifold import WrappedNormalKernel as WrappedNormalKernel
from kbr_localization.kernels.models import AdditiveNoiseModel as AdditiveNoiseModel
from kbr_localization.kernels.models import MonteCarloModel as MonteCarloModel
from kbr_localization.kernels.noise import CauchyNoise as CauchyNoise
from kbr_localization.kernels.noise import GaussianNoise as GaussianNoise
from kbr_localization.kernels.noise import MixtureNoise as MixtureNoise
from kbr_localization.kernels.noise import Noise as Noise
from kbr_localization.kernels.noise import VarianceGammaNoise as VarianceGammaNoise
from kbr_localization.kernels.noise import VonMisesNoise as VonMisesNoise
from kbr_localization.kernels.noise import WrappedNormalNoise as WrappedNormalNoise
from kbr_localization.kernels.rules import BAYES_RULES as BAYES_RULES
from kbr_localization.kernels.rules import conditional_mean as conditional_mean
from kbr_localization.kernels.rules import (
    importance_weighted_bayes_rule as importance_weighted_bayes_rule,
)
from kbr_localization.kernels.rules import model_based_sum_rule as model_based_sum_rule
from kbr_localization.kernels.rules import nonparametric_sum_rule as nonparametric_sum_rule
from kbr_localization.kernels.rules import normalise as normalise
from kbr_localization.kernels.rules import PAPER_NAMES as PAPER_NAMES
from kbr_localization.kernels.rules import regularise as regularise
from kbr_localization.kernels.rules import regularised_bayes_rule as regularised_bayes_rule
from kbr_localization.kernels.rules import squared_bayes_rule as squared_bayes_rule
from kbr_localization.kernels.rules import thresholded_bayes_rule as thresholded_bayes_rule
from kbr_localization.kernels.selection import grid_search as grid_search
from kbr_localization.kernels.selection import k_fold as k_fold

if TYPE_CHECKING:
    from kbr_localization.kernels.estimators import (
        ConditionalMeanRegressor as ConditionalMeanRegressor,
    )
    from kbr_localization.kernels.estimators import KernelBayesRegressor as KernelBayesRegressor
    from kbr_localization.kernels.estimators import KernelFilterRegressor as KernelFilterRegressor


def __getattr__(name: str) -> Any:
    if name in ('ConditionalMeanRegressor', 'KernelBayesRegressor', 'KernelFilterRegressor'):
        return getattr(importlib.import_module('kbr_localization.kernels.estimators'), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
