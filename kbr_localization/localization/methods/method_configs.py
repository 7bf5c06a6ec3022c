"""
The parameters with which a method runs on a map.

The filter's own are the map's `filter_config`. Every other method has a configuration class with
defaults of its own; what tuning found for it is kept in the map's `baselines` by method, so that
every method can be compared at its best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from kbr_localization.configuration import from_mapping
from kbr_localization.errors import LocalizationError
from kbr_localization.localization.config import image_spacing, KbrConfig, length_scale
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.configs import (
    AdaptedConfig,
    DeadReckoningConfig,
    GaussianProcessConfig,
    KernelKalmanConfig,
    KmcfConfig,
    NearestConfig,
    NearestNeighbourConfig,
    OnMapConfig,
    PrintedConfig,
)

CONFIGS: Mapping[str, type[Any]] = {
    'kbr': KbrConfig,
    'algorithm1': PrintedConfig,
    'algorithm1-adapted': AdaptedConfig,
    'fkbf': OnMapConfig,
    'kmcf': KmcfConfig,
    'kernel-kalman': KernelKalmanConfig,
    'knn-particle': NearestNeighbourConfig,
    'gp-particle': GaussianProcessConfig,
    'nearest': NearestConfig,
    'dead-reckoning': DeadReckoningConfig,
}
"""Configuration class of every method."""

_OF_THE_ROBOT = ('localized_radius', 'localized_mass')  # the same for all methods on a map
_LENGTHS = ('position_bandwidth', 'update_min_d')
# A belief that is herded on the map poses has to reach from one to the next, and no wider.
_KMCF_SPACINGS, _KMCF_WIDEST = 6.0, 2.9


def config_class(method: str) -> type[Any]:
    """Return the configuration class of a method; LocalizationError for an unknown one."""
    if method not in CONFIGS:
        raise LocalizationError(f'unknown method {method!r}: expected one of {", ".join(CONFIGS)}')
    return CONFIGS[method]


def method_config(method: str, kernel_map: KernelMap) -> Any:
    """
    Return the configuration of a method on a map.

    What the map keeps and this version does not know is left out, as a map may be of another one;
    `with_values` refuses it. Raises ConfigurationError when the map keeps a value out of range,
    LocalizationError for an unknown method.
    """
    if config_class(method) is KbrConfig:
        return kernel_map.filter_config
    defaults = default_values(method, kernel_map)
    return from_mapping(config_class(method), defaults | dict(_kept(method, kernel_map)))


def default_values(method: str, kernel_map: KernelMap) -> dict[str, Any]:
    """
    Values with which a method runs on a map without tuning, where they are not the class's.

    Lengths shrink on a map that is small itself, like a table top, the bandwidth of `kmcf` grows
    with the distance between images, and what the map says of a sure pose holds for all methods.
    Raises LocalizationError for an unknown method, as the other functions that take one do.
    """
    base, scale = asdict(kernel_map.filter_config), length_scale(kernel_map.poses)
    known: dict[str, Any] = {f.name: f.default for f in fields(config_class(method))}
    shrunk = {name: scale * known[name] for name in _LENGTHS if name in known}
    if method == 'kmcf':
        wide = min(_KMCF_SPACINGS * image_spacing(kernel_map.poses), _KMCF_WIDEST)
        shrunk['position_bandwidth'] = max(shrunk['position_bandwidth'], wide)
    shared = {n: base[n] for n in _OF_THE_ROBOT if n in known and n in base}
    return shrunk | shared


def with_values(method: str, kernel_map: KernelMap, values: Mapping[str, Any]) -> KernelMap:
    """
    Return the map with parameters of a method replaced, to be used by `method_config`.

    Raises ConfigurationError for one that the method does not have.
    """
    from_mapping(config_class(method), {**asdict(config_class(method)()), **values})
    if config_class(method) is KbrConfig:
        return replace(kernel_map, filter_config=replace(kernel_map.filter_config, **values))
    kept = {**_kept(method, kernel_map), **values}
    return replace(kernel_map, baselines={**kernel_map.baselines, method: kept})


def known_values(method: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what another version of the package knew."""
    if method not in CONFIGS:
        return {}
    own = {field.name for field in fields(CONFIGS[method])}
    return {name: value for name, value in values.items() if name in own}


def parameter_value(method: str, kernel_map: KernelMap, name: str) -> Any:
    """Value with which a method runs on a map."""
    return getattr(method_config(method, kernel_map), name)


def _kept(method: str, kernel_map: KernelMap) -> Mapping[str, Any]:
    return known_values(method, kernel_map.baselines.get(method, {}))
