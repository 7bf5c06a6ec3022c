"""Which parameters of a method are searched, and in what range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from kbr_localization.localization.methods.method_configs import config_class
import numpy as np

Values = dict[str, float | int]

_CHANGED = 0.5  # fraction of the parameters that a candidate changes
_WIDTHS = 6.0  # a range is this many standard deviations of the first steps wide
_UNIFORM = 0.4  # fraction of the first candidates' parameters that are drawn from the whole range


@dataclass(frozen=True)
class Dimension:
    """A positive parameter, searched on a logarithmic scale within [low, high]."""

    name: str
    low: float
    high: float
    whole: bool = False

    def clip(self, logarithm: float) -> float | int:
        """Value of a logarithm, kept in the range; a whole number where the parameter is one."""
        value = float(np.clip(np.exp(logarithm), self.low, self.high))
        # six digits: the same value before and after a file
        return round(value) if self.whole else float(f'{value:.6g}')


# Not searched: what costs time (points), and what the runs cannot tell (recovery after being
# carried away, when a pose counts as sure).
_GATE = (Dimension('update_min_d', 0.05, 1.0), Dimension('update_min_a', 0.05, 0.5))
_NOISE = Dimension('noise_scale', 0.2, 50.0)
_SHARPENING = Dimension('sharpening', 0.004, 0.2)
_ON_MAP = (
    Dimension('position_bandwidth', 0.1, 3.0),
    Dimension('heading_bandwidth', 0.1, 1.5),
    Dimension('state_ridge', 1e-4, 30.0),
    Dimension('delta', 1e-8, 1.0),
)
_SPACES: Mapping[str, tuple[Dimension, ...]] = {
    'kbr': (
        Dimension('position_bandwidth', 0.1, 2.0),
        Dimension('heading_bandwidth', 0.08, 1.2),
        Dimension('state_ridge', 1e-3, 30.0),
        Dimension('image_bandwidth', 0.08, 0.6),
        Dimension('outlier_rate', 1e-4, 0.3),
        Dimension('delta', 1e-3, 1e3),
        _NOISE,
        *_GATE,
    ),
    'algorithm1': _ON_MAP,
    'algorithm1-adapted': (*_ON_MAP, _SHARPENING, Dimension('noise_scale', 0.2, 100.0), *_GATE),
    'fkbf': _ON_MAP,
    'kmcf': (*_ON_MAP, _SHARPENING, _NOISE, *_GATE),
    'kernel-kalman': (
        *_ON_MAP[:-1],
        Dimension('delta', 1e-4, 30.0),
        Dimension('sharpening', 0.01, 0.5),
        _NOISE,
        *_GATE,
    ),
    'knn-particle': (
        Dimension('neighbours', 1, 40, whole=True),
        Dimension('power', 0.5, 80.0),
        Dimension('position_bandwidth', 0.1, 2.0),
        Dimension('heading_bandwidth', 0.08, 1.2),
        Dimension('outlier_rate', 1e-5, 0.3),
        _NOISE,
        *_GATE,
    ),
    'gp-particle': (
        Dimension('components', 3, 120, whole=True),
        Dimension('position_bandwidth', 0.2, 5.0),
        Dimension('heading_bandwidth', 0.1, 2.0),
        Dimension('noise', 0.02, 5.0),
        Dimension('power', 0.02, 2.0),
        Dimension('outlier_rate', 1e-6, 0.1),
        _NOISE,
        *_GATE,
    ),
}
TUNED = tuple(_SPACES)
"""Methods that have something to tune."""


def search_space(method: str) -> tuple[Dimension, ...]:
    """Dimensions of a method, within the ranges that its configuration allows."""
    allowed = {field.name: field.metadata for field in fields(config_class(method))}
    return tuple(
        Dimension(
            d.name,
            max(d.low, allowed[d.name]['low'] or 0.0),
            min(d.high, allowed[d.name]['high'] or np.inf),
            d.whole,
        )
        for d in _SPACES[method]
        if d.name in allowed
    )


def propose(
    space: Sequence[Dimension], parent: Values, generation: int, rng: np.random.Generator
) -> Values:
    """
    Draw a candidate near another one.

    About half of the parameters change, by log-normal steps that shrink with the generation; in
    generation 0 some are drawn from the whole range instead.
    """
    values = dict(parent)
    changed = rng.random(len(space)) < _CHANGED
    changed[rng.integers(len(space))] = True
    for dimension, change in zip(space, changed, strict=True):
        low, high = np.log(dimension.low), np.log(dimension.high)
        uniform, step = rng.uniform(low, high), rng.standard_normal() * (high - low) / _WIDTHS
        if not change:
            continue
        near = np.log(max(parent[dimension.name], dimension.low)) + step / (1 + generation)
        jump = generation == 0 and rng.random() < _UNIFORM
        values[dimension.name] = dimension.clip(uniform if jump else near)
    return values
