"""Which parameters of a method are searched, and in what range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from kbr_localization.localization.config import FilterConfig, NearestNeighbourConfig
from kbr_localization.localization.methods.method_configs import NEIGHBOURS
import numpy as np

Values = dict[str, float | int]

_CHANGED = 0.5  # share of the parameters that a candidate changes
_WIDTHS = 6.0  # a range is this many standard deviations of the first steps wide
_UNIFORM = 0.4  # share of the first candidates' parameters that are drawn from the whole range


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
_ON_MAP = (
    Dimension('position_bandwidth', 0.1, 3.0),
    Dimension('heading_bandwidth', 0.1, 1.5),
    Dimension('state_ridge', 1e-4, 30.0),
    Dimension('delta', 1e-8, 1.0),
)
_KBR_ON_MAP = 'kbr on the map poses'
_SPACES: Mapping[str, tuple[Dimension, ...]] = {
    'kbr': (
        Dimension('position_bandwidth', 0.1, 2.0),
        Dimension('heading_bandwidth', 0.08, 1.2),
        Dimension('state_ridge', 1e-3, 30.0),
        Dimension('sharpening', 0.004, 0.2),
        Dimension('outlier_rate', 1e-4, 0.3),
        Dimension('initial_outlier_rate', 1e-6, 0.1),
        Dimension('noise_scale', 0.2, 50.0),
        *_GATE,
    ),
    _KBR_ON_MAP: (
        *_ON_MAP,
        Dimension('sharpening', 0.004, 0.2),
        Dimension('noise_scale', 0.2, 100.0),
        *_GATE,
    ),
    'algorithm1': (*_ON_MAP, Dimension('noise_scale', 0.2, 100.0)),
    'fkbf': _ON_MAP,
    NEIGHBOURS: (
        Dimension('neighbours', 1, 40, whole=True),
        Dimension('power', 0.5, 80.0),
        Dimension('position_bandwidth', 0.1, 2.0),
        Dimension('heading_bandwidth', 0.08, 1.2),
        Dimension('outlier_rate', 1e-5, 0.3),
        Dimension('noise_scale', 0.2, 50.0),
        *_GATE,
    ),
}
TUNED = tuple(name for name in _SPACES if name != _KBR_ON_MAP)
"""Methods that have something to tune."""


def search_space(method: str, off_map: bool = True) -> tuple[Dimension, ...]:
    """
    Dimensions of a method, within the ranges that the configurations allow.

    `off_map`: whether `kbr` is to carry its belief off the map poses.
    """
    classes = (FilterConfig, NearestNeighbourConfig) if method == NEIGHBOURS else (FilterConfig,)
    allowed = {field.name: field.metadata for c in classes for field in fields(c)}
    return tuple(
        Dimension(
            d.name,
            max(d.low, allowed[d.name]['low'] or 0.0),
            min(d.high, allowed[d.name]['high'] or np.inf),
            d.whole,
        )
        for d in _SPACES[_KBR_ON_MAP if method == 'kbr' and not off_map else method]
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
        anywhere, step = rng.uniform(low, high), rng.standard_normal() * (high - low) / _WIDTHS
        if not change:
            continue
        near = np.log(max(parent[dimension.name], dimension.low)) + step / (1 + generation)
        jump = generation == 0 and rng.random() < _UNIFORM
        values[dimension.name] = dimension.clip(anywhere if jump else near)
    return values
