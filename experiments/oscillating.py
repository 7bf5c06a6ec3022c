"""The state space of [MbKSR] section 6.2: an oscillating circle, three cases of noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kbr_localization.kernels import AdditiveNoiseModel, GaussianNoise, MixtureNoise, Noise
import numpy as np


@dataclass(frozen=True)
class System:
    """
    The state space: angle increment `eta`, oscillation `b`, `frequency` M, process `noise`.

    `observation_deviation`: standard deviation of the Laplace noise.
    """

    eta: float
    b: float
    frequency: float
    noise: Noise
    observation_deviation: float = 0.3

    @property
    def model(self) -> AdditiveNoiseModel:
        """Transition x' = f(x) + e."""
        return AdditiveNoiseModel(self.advance, self.noise)

    def advance(self, x: Any) -> Any:
        """Noise-free transition of points (n, 2)."""
        angle = np.arctan2(x[:, 1], x[:, 0]) + self.eta
        radius = 1.0 + self.b * np.sin(self.frequency * angle)
        return radius[:, np.newaxis] * np.column_stack([np.cos(angle), np.sin(angle)])

    def simulate(self, rng: np.random.Generator, steps: int) -> tuple[Any, Any]:
        """Return states and observations (steps, 2) of one run."""
        x = [np.array([1.0, 0.0])]
        while len(x) < steps:
            x.append(self.model.sample(x[-1][np.newaxis], rng)[0])
        states = np.array(x)
        noise = rng.laplace(scale=self.observation_deviation / np.sqrt(2.0), size=states.shape)
        return states, np.sign(states) * np.sqrt(np.abs(states)) + noise


MIXTURE = MixtureNoise(
    [0.5, 0.5],
    [GaussianNoise(0.01), GaussianNoise(0.01)],
    [[-0.2, -0.2], [0.2, 0.2]],
)
CASES = {
    'Gaussian noise': (System(0.3, 0.4, 8.0, GaussianNoise(0.04)), 0.3),
    'mixture noise': (System(0.3, 0.4, 8.0, MIXTURE), 0.3),
    'changed dynamics': (System(0.1, 0.4, 8.0, GaussianNoise(0.04)), 0.4),
}
"""The system in training, η in the test phase."""
