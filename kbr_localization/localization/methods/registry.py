"""The localization methods by name."""

from __future__ import annotations

from collections.abc import Callable

from kbr_localization.localization.filter.filter import KernelBayesLocalizer
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.localizer import Localizer
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.adapted import AdaptedAlgorithm1
from kbr_localization.localization.methods.algorithm1 import Algorithm1
from kbr_localization.localization.methods.baselines import DeadReckoning, NearestImage
from kbr_localization.localization.methods.gp_particle import GaussianProcessParticleFilter
from kbr_localization.localization.methods.kernel_kalman import KernelKalmanFilter
from kbr_localization.localization.methods.kmcf import KernelMonteCarloFilter
from kbr_localization.localization.methods.method_configs import method_config
from kbr_localization.localization.methods.nonparametric import FullyNonparametricFilter
from kbr_localization.localization.methods.particles import NearestNeighbourParticleFilter
import numpy as np

METHODS = {
    'kbr': 'kernel Bayes filter on moving points: Mb-KSR, conditional kernel mean at the image',
    'algorithm1': 'Algorithm 1 of the paper as printed, on the map poses',
    'algorithm1-adapted': 'Algorithm 1 with gated updates, sharper kernel, composed predictions',
    'fkbf': 'fully-nonparametric kernel Bayes filter',
    'kmcf': 'kernel Monte Carlo filter: sampling, KBR on the map poses, herding',
    'kernel-kalman': 'subspace kernel Kalman filter',
    'knn-particle': 'particle filter with k-nearest-neighbour observations (NN)',
    'gp-particle': 'particle filter with Gaussian-process observations',
    'nearest': 'pose of the most similar map image (NAI)',
    'dead-reckoning': 'odometry alone',
}


def make_localizer(method: str, kernel_map: KernelMap, seed: int = 0) -> Localizer:
    """Make the localizer called `method` on a map; raises LocalizationError for another name."""
    rng = np.random.default_rng(seed)
    config = method_config(method, kernel_map)
    makers: dict[str, Callable[[], Localizer]] = {
        'kbr': lambda: KernelBayesLocalizer(with_statistics(kernel_map), config, rng),
        'algorithm1': lambda: Algorithm1(kernel_map, config),
        'algorithm1-adapted': lambda: AdaptedAlgorithm1(kernel_map, config),
        'fkbf': lambda: FullyNonparametricFilter(kernel_map, config),
        'kmcf': lambda: KernelMonteCarloFilter(kernel_map, config, rng),
        'kernel-kalman': lambda: KernelKalmanFilter(kernel_map, config, rng),
        'knn-particle': lambda: NearestNeighbourParticleFilter(kernel_map, config, rng),
        'gp-particle': lambda: GaussianProcessParticleFilter(kernel_map, config, rng),
        'nearest': lambda: NearestImage(kernel_map),
        'dead-reckoning': lambda: DeadReckoning(kernel_map, config),
    }
    return makers[method]()
