"""Which parameters of the files on a command line are meant for all nodes. No rclpy here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

PARAMETERS = 'ros__parameters'
WILDCARDS = ('*', '**')


def shared_names(arguments: Sequence[str]) -> set[str]:
    """
    Names that only stand in sections for all nodes, as in `/**`, of the files of `--params-file`.

    Such a section may name parameters that one of the nodes does not have. A file that cannot be
    read is left out: rcl has its own words for it.
    """
    shared: set[str] = set()
    own: set[str] = set()
    for path in _files(arguments):
        for section, names in _sections(_read(path)):
            last = section.rstrip('/').rsplit('/', 1)[-1]
            (shared if last in WILDCARDS else own).update(names)
    return shared - own


def _files(arguments: Sequence[str]) -> Iterator[Path]:
    for option, value in pairwise(arguments):
        if option == '--params-file':
            yield Path(value)


def _read(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding='utf-8'))
    except (OSError, ValueError, yaml.YAMLError):
        return None


def _sections(tree: Any, path: str = '') -> Iterator[tuple[str, set[str]]]:
    """Give each section of a file with the names of its parameters."""
    if not isinstance(tree, Mapping):
        return
    for key, value in tree.items():
        if key == PARAMETERS:
            yield path, set(_names(value))
        else:
            yield from _sections(value, f'{path}/{key}')


def _names(values: Any, prefix: str = '') -> Iterator[str]:
    for key, value in values.items() if isinstance(values, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _names(value, f'{prefix}{key}.')
        else:
            yield f'{prefix}{key}'
