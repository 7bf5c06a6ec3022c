"""The parameter that names several maps."""

from __future__ import annotations

from collections.abc import Sequence
import re

from kbr_localization.errors import ConfigurationError

# what may stand in the name of a ROS service
NAME = re.compile(r'[A-Za-z](_?[A-Za-z0-9])*')


def parse_map_files(entries: Sequence[str]) -> dict[str, str]:
    """Paths by name of entries `name=path`; raises ConfigurationError for a bad one."""
    paths: dict[str, str] = {}
    for entry in entries:
        name, separator, path = (part.strip() for part in entry.partition('='))
        if not separator or not path or not NAME.fullmatch(name):
            raise ConfigurationError(
                f"parameter 'map_files': expected name=path with a name of letters, digits and "
                f'single underscores, got {entry!r}'
            )
        if name in paths:
            raise ConfigurationError(
                f"parameter 'map_files': two maps are called {name!r}: expected different names"
            )
        paths[name] = path
    return paths
