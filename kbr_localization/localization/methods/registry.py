"""
The localization methods by name, and the parameters with which a method runs on a map.

The parameters of the filter `kbr` are the map's `filter_config`. Parameters of other methods that
were set or tuned are in the map's `baselines`; the others have their defaults. An installed
package adds a method by an entry point of the group `kbr_localization.methods`: a `Method`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
import importlib.metadata
import logging
from typing import Any

from kbr_localization.configuration import Config, from_mapping
from kbr_localization.errors import LocalizationError
from kbr_localization.localization.config import image_spacing, KbrConfig, length_scale
from kbr_localization.localization.filter.filter import KernelBayesLocalizer
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.localizer import Localizer
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.baselines import (
    DeadReckoning,
    NearestImage,
    NearestNeighbourParticleFilter,
)
from kbr_localization.localization.methods.on_map import (
    Algorithm1,
    FullyNonparametricFilter,
    KernelMonteCarloFilter,
)
import numpy as np

GROUP = 'kbr_localization.methods'
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Method:
    """
    A method: its line in `kbr methods`, its configuration class, and the maker of its localizer.

    `kbr tune` tunes the parameters of `config` that have `search` in their metadata.
    """

    description: str
    config: type[Config]
    make: Callable[[KernelMap, Any, np.random.Generator], Localizer]


def plug_ins() -> dict[str, Method]:
    """Load the methods of other packages; skip one that cannot be loaded, with a warning."""
    found = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            found[entry.name] = entry.load()
        except Exception as error:
            logger.warning('method %s of %s is left out: %s', entry.name, entry.value, error)
    return found


_RIVALS = {
    'algorithm1': (Algorithm1, 'Algorithm 1 of the paper as printed, on the map poses'),
    'fkbf': (FullyNonparametricFilter, 'fully-nonparametric kernel Bayes filter'),
    'kmcf': (
        KernelMonteCarloFilter,
        'kernel Monte Carlo filter: sampling, KBR on the map poses, herding',
    ),
    'knn-particle': (
        NearestNeighbourParticleFilter,
        'particle filter with k-nearest-neighbour observations (NN)',
    ),
    'nearest': (NearestImage, 'pose of the most similar map image (NAI)'),
    'dead-reckoning': (DeadReckoning, 'odometry alone'),
}
METHODS = {
    'kbr': Method(
        'kernel Bayes filter on moving points: Mb-KSR, conditional kernel mean at the image',
        KbrConfig,
        lambda *given: KernelBayesLocalizer(with_statistics(given[0]), *given[1:]),
    ),
    **{name: Method(what, rival.parameters, rival) for name, (rival, what) in _RIVALS.items()},
}


def method_named(name: str) -> Method:
    """Return a method by its name; raises LocalizationError for an unknown one."""
    if name not in METHODS:
        raise LocalizationError(
            f'unknown method {name!r}: expected one of {", ".join(METHODS)}, or one that an '
            f'installed package gives as entry point of {GROUP}'
        )
    return METHODS[name]


def make_localizer(name: str, kernel_map: KernelMap, seed: int = 0) -> Localizer:
    """Make the localizer of a method on a map; raises LocalizationError for an unknown name."""
    config = method_config(name, kernel_map)
    return METHODS[name].make(kernel_map, config, np.random.default_rng(seed))


def method_config(name: str, kernel_map: KernelMap) -> Any:
    """
    Return the configuration of a method on a map.

    Parameters in the map that this version does not know, of another version, are ignored. Lengths
    shrink on a small map, the bandwidth of `kmcf` grows with the distance between images, and the
    map's definition of localized holds for all methods. Raises ConfigurationError for a value out
    of range in the map, LocalizationError for an unknown method.
    """
    config = method_named(name).config
    if config is KbrConfig:
        return kernel_map.filter_config
    values: dict[str, Any] = {field.name: field.default for field in fields(config)}
    for length in {'position_bandwidth', 'update_min_d'} & values.keys():
        values[length] *= length_scale(kernel_map.poses)
    if name == 'kmcf':  # a belief that is herded on the map poses must reach the next ones
        wide = min(6.0 * image_spacing(kernel_map.poses), 2.9)
        values['position_bandwidth'] = max(values['position_bandwidth'], wide)
    for shared in ('localized_radius', 'localized_mass'):
        values[shared] = getattr(kernel_map.filter_config, shared)
    values |= kernel_map.baselines.get(name, {})
    return config(**{field.name: values[field.name] for field in fields(config)})


def with_values(name: str, kernel_map: KernelMap, values: Mapping[str, Any]) -> KernelMap:
    """Return the map with other parameters of a method; raises ConfigurationError."""
    config = method_named(name).config
    from_mapping(config, values)
    if config is KbrConfig:
        return replace(kernel_map, filter_config=replace(kernel_map.filter_config, **values))
    kept = {**kernel_map.baselines.get(name, {}), **values}
    return replace(kernel_map, baselines={**kernel_map.baselines, name: kept})


METHODS |= plug_ins()  # at the end: a plug-in may import all of the above
