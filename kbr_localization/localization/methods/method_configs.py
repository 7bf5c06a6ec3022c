"""
The parameters with which a method runs on a map.

The filter's own are the map's `filter_config`. What tuning found for a baseline is kept in the
map's `baselines` by method, so that every method can be compared at its best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from kbr_localization.configuration import from_mapping
from kbr_localization.localization.config import (
    as_printed,
    FilterConfig,
    NearestNeighbourConfig,
)
from kbr_localization.localization.map.kernel_map import KernelMap

PRINTED = ('algorithm1', 'fkbf')
"""Methods with every step beyond the paper switched off."""
NEIGHBOURS = 'knn-particle'


def method_configs(
    method: str, kernel_map: KernelMap
) -> tuple[FilterConfig, NearestNeighbourConfig]:
    """
    Filter configuration and that of the nearest-neighbour model for a method on a map.

    Raises ConfigurationError when the map keeps a parameter that is unknown or out of range.
    """
    base = kernel_map.filter_config
    base = as_printed(base) if method in PRINTED else base
    return _configure(method, base, kernel_map.baselines.get(method, {}))


def with_values(method: str, kernel_map: KernelMap, values: Mapping[str, Any]) -> KernelMap:
    """Return the map with parameters of a method replaced, to be used by `method_configs`."""
    if method == 'kbr':
        return replace(kernel_map, filter_config=replace(kernel_map.filter_config, **values))
    kept = {**kernel_map.baselines.get(method, {}), **values}
    return replace(kernel_map, baselines={**kernel_map.baselines, method: kept})


def known_values(method: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what another version of the package knew."""
    own = {field.name for field in fields(FilterConfig)}
    return {n: value for n, value in values.items() if n in own or _of_neighbours(method, n)}


def parameter_value(method: str, kernel_map: KernelMap, name: str) -> Any:
    """Value with which a method runs on a map."""
    config, neighbours = method_configs(method, kernel_map)
    return getattr(neighbours if _of_neighbours(method, name) else config, name)


def _configure(
    method: str, base: FilterConfig, values: Mapping[str, Any]
) -> tuple[FilterConfig, NearestNeighbourConfig]:
    near = {name: value for name, value in values.items() if _of_neighbours(method, name)}
    rest = {name: value for name, value in values.items() if name not in near}
    known = {field.name: getattr(base, field.name) for field in fields(FilterConfig)}
    return from_mapping(FilterConfig, known | rest), from_mapping(NearestNeighbourConfig, near)


def _of_neighbours(method: str, name: str) -> bool:
    own = {field.name for field in fields(NearestNeighbourConfig)}
    return method == NEIGHBOURS and name in own
