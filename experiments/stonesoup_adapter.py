"""Stone Soup objects for `classical.py`; importing this module needs Stone Soup."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TYPE_CHECKING

from kbr_localization.kernels.checks import FloatArray
import numpy as np
from stonesoup.base import Property
from stonesoup.models.base import TimeInvariantModel
from stonesoup.models.measurement.linear import LinearGaussian
from stonesoup.models.measurement.nonlinear import NonLinearGaussianMeasurement
from stonesoup.models.transition.linear import LinearGaussianTimeInvariantTransitionModel
from stonesoup.models.transition.nonlinear import GaussianTransitionModel
from stonesoup.predictor.kalman import (
    ExtendedKalmanPredictor,
    KalmanPredictor,
    UnscentedKalmanPredictor,
)
from stonesoup.predictor.particle import ParticlePredictor
from stonesoup.types.array import StateVector, StateVectors
from stonesoup.types.detection import Detection
from stonesoup.types.hypothesis import SingleHypothesis
from stonesoup.types.prediction import GaussianStatePrediction, ParticleStatePrediction
from stonesoup.types.state import ParticleState
from stonesoup.updater.kalman import ExtendedKalmanUpdater, KalmanUpdater, UnscentedKalmanUpdater
from stonesoup.updater.particle import ParticleUpdater

if TYPE_CHECKING:
    from experiments.classical import GaussianStateSpaceModel

_EPOCH = datetime(2000, 1, 1)
_PREDICTORS = {
    'kalman': KalmanPredictor,
    'extended': ExtendedKalmanPredictor,
    'unscented': UnscentedKalmanPredictor,
    'particle': ParticlePredictor,
}
_UPDATERS = {
    'kalman': KalmanUpdater,
    'extended': ExtendedKalmanUpdater,
    'unscented': UnscentedKalmanUpdater,
    'particle': ParticleUpdater,
}


class FunctionTransition(GaussianTransitionModel, TimeInvariantModel):  # type: ignore[misc]
    """Transition model x' = f(x) + e from a function of points (n, d)."""

    step: Any = Property(doc='f: (n, d) -> (n, d)')
    noise_covariance: Any = Property(doc='covariance of e (d, d)')

    @property
    def ndim_state(self) -> int:
        """Return the dimension of the state."""
        return int(self.noise_covariance.shape[0])

    def covar(self, **_: Any) -> Any:
        """Return the covariance of the noise."""
        return self.noise_covariance

    def function(self, state: Any, noise: Any = False, **_: Any) -> Any:
        """Return f(x) plus noise, for one state vector or many."""
        return _images(self, self.step, state, noise)


class FunctionMeasurement(NonLinearGaussianMeasurement):  # type: ignore[misc]
    """Observation model y = h(x) + r from a function of points (n, d)."""

    observe: Any = Property(doc='h: (n, d) -> (n, d_y)')

    @property
    def ndim_meas(self) -> int:
        """Return the dimension of the observation."""
        return int(self.noise_covar.shape[0])

    def function(self, state: Any, noise: Any = False, **_: Any) -> Any:
        """Return h(x) plus noise, for one state vector or many."""
        return _images(self, self.observe, state, noise)


class MatrixMeasurement(LinearGaussian):  # type: ignore[misc]
    """Observation model y = H x + r."""

    observation_matrix: Any = Property(doc='H (d_y, d)')

    def matrix(self, **_: Any) -> Any:
        """Return H."""
        return self.observation_matrix


def run(
    method: str,
    model: GaussianStateSpaceModel,
    observations: FloatArray,
    particles: int,
    seed: int,
    spread: float,
) -> tuple[FloatArray, FloatArray]:
    """Filter with Stone Soup; arguments and result as in `classical.classical_filter`."""
    rng = np.random.default_rng(seed)
    transition = _transition(model, int(rng.integers(2**31)))
    measurement = _measurement(model)
    options = {'alpha': spread} if method == 'unscented' else {}
    predictor = _PREDICTORS[method](transition, **options)
    updater = _UPDATERS[method](measurement, **options)
    prediction = _start(method, model, particles, rng)
    means, covariances = [], []
    for t, observation in enumerate(observations):
        detection = Detection(observation[:, np.newaxis], timestamp=_stamp(t))
        posterior = updater.update(SingleHypothesis(prediction, detection))
        means.append(np.ravel(posterior.mean).astype(np.float64))
        covariances.append(np.asarray(posterior.covar, dtype=np.float64))
        if method == 'particle':
            posterior = _resampled(posterior, rng)
        prediction = predictor.predict(posterior, timestamp=_stamp(t + 1))
    return np.array(means), np.array(covariances)


def _stamp(step: int) -> datetime:
    return _EPOCH + timedelta(seconds=step)


def _transition(model: GaussianStateSpaceModel, seed: int) -> Any:
    covariance = np.asarray(model.transition_covariance, dtype=np.float64)
    if callable(model.transition):
        return FunctionTransition(step=model.transition, noise_covariance=covariance, seed=seed)
    return LinearGaussianTimeInvariantTransitionModel(
        transition_matrix=np.asarray(model.transition), covariance_matrix=covariance, seed=seed
    )


def _measurement(model: GaussianStateSpaceModel) -> Any:
    dimension = len(model.mean)
    mapping = list(range(dimension))
    covariance = np.asarray(model.observation_covariance, dtype=np.float64)
    if callable(model.observation):
        return FunctionMeasurement(
            ndim_state=dimension,
            mapping=mapping,
            noise_covar=covariance,
            observe=model.observation,
        )
    matrix = np.asarray(model.observation, dtype=np.float64)
    return MatrixMeasurement(
        ndim_state=dimension,
        mapping=[None] * matrix.shape[0],  # its length is the dimension of the observation
        noise_covar=covariance,
        observation_matrix=matrix,
    )


def _start(
    method: str, model: GaussianStateSpaceModel, particles: int, rng: np.random.Generator
) -> Any:
    mean = np.asarray(model.mean, dtype=np.float64)
    covariance = np.asarray(model.covariance, dtype=np.float64)
    if method != 'particle':
        return GaussianStatePrediction(mean[:, np.newaxis], covariance, timestamp=_EPOCH)
    cloud = StateVectors(rng.multivariate_normal(mean, covariance, size=particles).T)
    weights = np.full(particles, -np.log(particles))
    return ParticleStatePrediction(cloud, log_weight=weights, timestamp=_EPOCH)


def _resampled(posterior: Any, rng: np.random.Generator) -> Any:
    """Systematic resampling with an own generator; Stone Soup's resampler uses the global one."""
    weights = np.exp(np.asarray(posterior.log_weight, dtype=np.float64))
    count = weights.size
    positions = (rng.uniform() + np.arange(count)) / count
    chosen = np.minimum(np.searchsorted(np.cumsum(weights / weights.sum()), positions), count - 1)
    return ParticleState(
        posterior.state_vector[:, chosen],
        log_weight=np.full(count, -np.log(count)),
        timestamp=posterior.timestamp,
    )


def _images(model: Any, function: Any, state: Any, noise: Any) -> Any:
    points = np.asarray(state.state_vector, dtype=np.float64).T
    images = np.asarray(function(points), dtype=np.float64).T
    # Stone Soup passes True for a draw, an array for given noise, False or None for none
    if isinstance(noise, np.ndarray):
        images = images + noise
    elif noise:
        images = images + np.asarray(model.rvs(num_samples=images.shape[1]), dtype=np.float64)
    return images.view(StateVector if images.shape[1] == 1 else StateVectors)
