"""
Kernel Bayesian inference with NumPy and SciPy, independent of robots and images.

Three layers, each usable alone: rules on Gram matrices and weights (module `rules`), kernel means
with models that push and condition them (`inference`), and filters (`filters`). The regressors of
`estimators` need scikit-learn and are not imported here.
"""

# flake8: noqa: F401
from kbr_localization.kernels.algebra import Kernel as Kernel
from kbr_localization.kernels.algebra import LinearKernel as LinearKernel
from kbr_localization.kernels.algebra import PrecomputedKernel as PrecomputedKernel
from kbr_localization.kernels.checks import NoMassError as NoMassError
from kbr_localization.kernels.filters import KernelBayesFilter as KernelBayesFilter
from kbr_localization.kernels.filters import KernelBayesSmoother as KernelBayesSmoother
from kbr_localization.kernels.filters import KernelKalmanFilter as KernelKalmanFilter
from kbr_localization.kernels.filters import means as means
from kbr_localization.kernels.filters import modes as modes
from kbr_localization.kernels.filters import MonteCarloTransition as MonteCarloTransition
from kbr_localization.kernels.hypothesis_tests import hsic as hsic
from kbr_localization.kernels.hypothesis_tests import independence_test as independence_test
from kbr_localization.kernels.hypothesis_tests import squared_mmd as squared_mmd
from kbr_localization.kernels.hypothesis_tests import two_sample_test as two_sample_test
from kbr_localization.kernels.inference import AdditiveNoiseModel as AdditiveNoiseModel
from kbr_localization.kernels.inference import KernelABC as KernelABC
from kbr_localization.kernels.inference import KernelBayesRule as KernelBayesRule
from kbr_localization.kernels.inference import MonteCarloModel as MonteCarloModel
from kbr_localization.kernels.inference import NonparametricModel as NonparametricModel
from kbr_localization.kernels.inference import Supervision as Supervision
from kbr_localization.kernels.kernel_mean import Embedding as Embedding
from kbr_localization.kernels.kernel_mean import KernelMean as KernelMean
from kbr_localization.kernels.kernel_mean import ModelKernelMean as ModelKernelMean
from kbr_localization.kernels.kernels import GaussianKernel as GaussianKernel
from kbr_localization.kernels.kernels import MaternKernel as MaternKernel
from kbr_localization.kernels.kernels import median_distance as median_distance
from kbr_localization.kernels.kernels import RationalQuadraticKernel as RationalQuadraticKernel
from kbr_localization.kernels.linalg import incomplete_cholesky as incomplete_cholesky
from kbr_localization.kernels.linalg import LowRankGram as LowRankGram
from kbr_localization.kernels.manifold import nearest_rotation as nearest_rotation
from kbr_localization.kernels.manifold import TraceKernel as TraceKernel
from kbr_localization.kernels.manifold import WrappedNormalKernel as WrappedNormalKernel
from kbr_localization.kernels.noise import CauchyNoise as CauchyNoise
from kbr_localization.kernels.noise import GaussianNoise as GaussianNoise
from kbr_localization.kernels.noise import MixtureNoise as MixtureNoise
from kbr_localization.kernels.noise import VarianceGammaNoise as VarianceGammaNoise
from kbr_localization.kernels.noise import VonMisesNoise as VonMisesNoise
from kbr_localization.kernels.noise import WrappedNormalNoise as WrappedNormalNoise
from kbr_localization.kernels.selection import grid_search as grid_search
from kbr_localization.kernels.selection import k_fold as k_fold
