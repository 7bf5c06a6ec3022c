"""
Kalman, extended and unscented Kalman filters, for comparison only.

Thin adapters of Stone Soup (https://stonesoup.rtfd.io), which is the extra `compare`: only the
experiments need it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from kbr_localization.se2 import FloatArray
import numpy as np

try:
    from stonesoup.base import Property
    from stonesoup.models.base import TimeInvariantModel
    from stonesoup.models.measurement.linear import LinearGaussian
    from stonesoup.models.measurement.nonlinear import NonLinearGaussianMeasurement
    from stonesoup.models.transition.linear import LinearGaussianTimeInvariantTransitionModel
    from stonesoup.models.transition.nonlinear import GaussianTransitionModel
    from stonesoup.predictor import kalman as predictors
    from stonesoup.types.array import StateVector, StateVectors
    from stonesoup.types.detection import Detection
    from stonesoup.types.hypothesis import SingleHypothesis
    from stonesoup.types.prediction import GaussianStatePrediction
    from stonesoup.updater import kalman as updaters
except ImportError as error:
    raise ImportError(
        f'the Kalman filters need Stone Soup: pip install stonesoup ({error})'
    ) from error

Function = Callable[[FloatArray], Any]
EPOCH = datetime(2000, 1, 1)
PREFIXES = {'kalman': '', 'extended': 'Extended', 'unscented': 'Unscented'}


@dataclass(frozen=True, eq=False)
class GaussianStateSpaceModel:
    """
    State-space model x' = f(x) + e, y = h(x) + r with Gaussian noises and a Gaussian start.

    `transition` f, `observation` h: functions of all points at once, (n, d) -> (n, d) and
    (n, d) -> (n, d_y), or matrices (d, d) and (d_y, d); `transition_covariance` (d, d),
    `observation_covariance` (d_y, d_y); `mean` (d,), `covariance` (d, d) of the first state before
    its observation.
    """

    transition: Function | FloatArray
    transition_covariance: FloatArray
    observation: Function | FloatArray
    observation_covariance: FloatArray
    mean: FloatArray
    covariance: FloatArray


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
        """Return f(x), for one state vector or many."""
        return _images(self.step, state, noise)


class FunctionMeasurement(NonLinearGaussianMeasurement):  # type: ignore[misc]
    """Observation model y = h(x) + r from a function of points (n, d)."""

    observe: Any = Property(doc='h: (n, d) -> (n, d_y)')

    @property
    def ndim_meas(self) -> int:
        """Return the dimension of the observation."""
        return int(self.noise_covar.shape[0])

    def function(self, state: Any, noise: Any = False, **_: Any) -> Any:
        """Return h(x), for one state vector or many."""
        return _images(self.observe, state, noise)


class MatrixMeasurement(LinearGaussian):  # type: ignore[misc]
    """Observation model y = H x + r."""

    observation_matrix: Any = Property(doc='H (d_y, d)')

    def matrix(self, **_: Any) -> Any:
        """Return H."""
        return self.observation_matrix


def _images(function: Function, state: Any, noise: Any) -> Any:
    images = np.asarray(function(np.asarray(state.state_vector, dtype=np.float64).T)).T
    # an array is given noise, False or None is none; the Kalman filters draw no noise
    images = images + noise if isinstance(noise, np.ndarray) else images.astype(np.float64)
    return images.view(StateVector if images.shape[1] == 1 else StateVectors)


def classical_filter(
    method: str, model: GaussianStateSpaceModel, observations: FloatArray, spread: float = 0.5
) -> tuple[FloatArray, FloatArray]:
    """
    Posterior means (T, d) and covariances (T, d, d) of the states given observations (T, d_y).

    `method`: 'kalman' (both functions given as matrices), 'extended' or 'unscented'. `spread`:
    alpha of the unscented transform, the distance of its sigma points from the mean.
    """
    options = {'alpha': spread} if method == 'unscented' else {}
    prefix = PREFIXES[method]
    predictor = getattr(predictors, f'{prefix}KalmanPredictor')(_transition(model), **options)
    updater = getattr(updaters, f'{prefix}KalmanUpdater')(_measurement(model), **options)
    mean = np.asarray(model.mean, dtype=np.float64)[:, np.newaxis]
    prediction = GaussianStatePrediction(mean, model.covariance, timestamp=EPOCH)
    means, covariances = [], []
    for t, observation in enumerate(observations):
        now, then = (EPOCH + timedelta(seconds=step) for step in (t, t + 1))
        detection = Detection(observation[:, np.newaxis], timestamp=now)
        posterior = updater.update(SingleHypothesis(prediction, detection))
        means.append(np.ravel(posterior.mean).astype(np.float64))
        covariances.append(np.asarray(posterior.covar, dtype=np.float64))
        prediction = predictor.predict(posterior, timestamp=then)
    return np.array(means), np.array(covariances)


def _transition(model: GaussianStateSpaceModel) -> Any:
    covariance = np.asarray(model.transition_covariance, dtype=np.float64)
    if callable(model.transition):
        return FunctionTransition(step=model.transition, noise_covariance=covariance)
    return LinearGaussianTimeInvariantTransitionModel(
        transition_matrix=np.asarray(model.transition), covariance_matrix=covariance
    )


def _measurement(model: GaussianStateSpaceModel) -> Any:
    dimension = len(model.mean)
    covariance = np.asarray(model.observation_covariance, dtype=np.float64)
    if callable(model.observation):
        return FunctionMeasurement(
            ndim_state=dimension,
            mapping=list(range(dimension)),
            noise_covar=covariance,
            observe=model.observation,
        )
    return MatrixMeasurement(
        ndim_state=dimension,
        mapping=[None] * len(covariance),  # its length is the dimension of the observation
        noise_covar=covariance,
        observation_matrix=np.asarray(model.observation, dtype=np.float64),
    )
