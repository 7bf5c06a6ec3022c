"""Parameter files: who a section is meant for, and what launch files make of them. No rclpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from kbr_localization.errors import ConfigurationError
from kbr_localization.files import expanded, read_text
import yaml

PARAMETERS = 'ros__parameters'
WILDCARDS = ('*', '**')
BESIDE = ('map_server',)
"""Nodes of other packages that a launch file starts with the same parameter file."""
_DEEPEST, _MOST = 32, 100_000
_ENDLESS = 1 << 30  # characters of a line
_LARGEST = 1 << 22
"""Bytes; that of Nav2 has 20 thousand."""


class Text(str):
    """A value that is written in quotes: without them 1e5, y and nan are none to rcl."""


yaml.SafeDumper.add_representer(
    Text,
    lambda dumper, text: dumper.represent_scalar('tag:yaml.org,2002:str', str(text), style="'"),
)


def shared_names(arguments: Sequence[str], node: str) -> set[str]:
    """
    Names that stand in sections for all nodes, as in `/**`, of the files of `--params-file`.

    Such a section may name parameters that a node does not have, but for those that a section of
    that very node has, too. A file that cannot be read is left out: rcl has its own words for it.
    """
    shared: set[str] = set()
    own: set[str] = set()
    for path in _files(arguments):
        for section, names in _sections(_read(path)):
            last = section.rstrip('/').rsplit('/', 1)[-1]
            if last in WILDCARDS:
                shared.update(names)
            elif last == node:
                own.update(names)
    return shared - own


def launch_file_parameters(path: str, namespace: str, node: str, given: Mapping[str, Any]) -> str:
    """
    Text of a parameter file for a node in a namespace, with values of launch arguments.

    Sections without a namespace are put into the node's, as nav2_bringup does. A given value takes
    the place of the file's in every section: which of two sections wins depends on their order.
    The text of all other values stays as it is. Sections of other nodes are left out: they may
    ask for packages that are not there. `path` empty: the given values alone. The text is one in
    which launch replaces substitutions such as $(env NAME); the given values stay as they are.

    Raises ConfigurationError when the file cannot be read.
    """
    root = _composed(path) if path else yaml.compose('{}')
    _check_keys(root, path)
    _drop_others(root, (node, *BESIDE, *WILDCARDS))
    for values in _parameter_nodes(root):
        values.value = [pair for pair in values.value if pair[0].value not in given]
    namespace = namespace.strip('/')
    if namespace:
        _move(root, namespace)
    if given:
        literal = {key: _escaped(value) for key, value in given.items()}
        section = {f'/{namespace}/{node}'.replace('//', '/'): {PARAMETERS: literal}}
        _merge(root, yaml.compose(yaml.safe_dump(section, allow_unicode=True)))
    # launch takes backslashes for its own: none to write a letter, none to break a line
    return str(yaml.serialize(root, allow_unicode=True, width=_ENDLESS))


def _escaped(value: Any) -> Any:
    """Return a value of which launch makes what it was."""
    if isinstance(value, list):
        return [_escaped(part) for part in value]
    if isinstance(value, str):
        return type(value)(value.replace('\\', '\\\\').replace('$(', '\\$('))
    return value


def unrenamed_section(path: str, node: str) -> str:
    """One line when a file has parameters for nav2_amcl, but none for a node, or nothing."""
    sections = _sections(_read(expanded(path)))
    names = {section.rsplit('/', 1)[-1] for section, _ in sections}
    if 'amcl' not in names or names & {node, *WILDCARDS}:
        return ''
    return f"params_file: {path} has no section for the node {node!r}: rename that of 'amcl'"


def _check_keys(root: yaml.Node, path: str) -> None:
    """Raise ConfigurationError where a key is no plain word, or sections lie in themselves."""
    waiting: list[tuple[yaml.Node, int]] = [(root, 0)]
    count = 0
    while waiting:
        node, depth = waiting.pop()
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            strange = [key for key, _ in node.value if not isinstance(key, yaml.ScalarNode)]
            if strange:
                raise ConfigurationError(
                    f'params_file: expected names as keys, got a list or a section as one in '
                    f'{path!r}, line {strange[0].start_mark.line + 1}'
                )
            children = [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            children = list(node.value)
        # a section that an alias puts into itself never ends
        count += len(children)
        if depth > _DEEPEST or count > _MOST:
            raise ConfigurationError(
                f'params_file: expected at most {_DEEPEST} sections in each other and {_MOST} '
                f'values, got more in {path!r}: is an alias used in what it stands for?'
            )
        waiting += [(child, depth + 1) for child in children]


def _composed(path: str) -> yaml.MappingNode:
    try:
        root = yaml.compose(read_text(expanded(path), most=_LARGEST))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = ' '.join(str(error).split())
        raise ConfigurationError(
            f'params_file: expected a YAML file of ROS parameters, got {path!r} ({reason}): '
            'give the path of one, or leave the argument out'
        ) from error
    if not isinstance(root, yaml.MappingNode):
        raise ConfigurationError(
            f'params_file: expected sections with {PARAMETERS}, got none in {path!r}: '
            'see config/localization.yaml'
        )
    return root


def _parameter_nodes(node: yaml.Node) -> Iterator[yaml.MappingNode]:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value == PARAMETERS and isinstance(value, yaml.MappingNode):
            yield value
        else:
            yield from _parameter_nodes(value)


def _drop_others(node: yaml.MappingNode, names: Sequence[str]) -> None:
    """Leave the sections out that are for none of some nodes, in all namespaces."""
    kept = []
    for key, value in node.value:
        if isinstance(value, yaml.MappingNode) and key.value != PARAMETERS:
            is_section = any(inner.value == PARAMETERS for inner, _ in value.value)
            if is_section and key.value.rsplit('/', 1)[-1] not in names:
                continue
            _drop_others(value, names)
            if not value.value:
                continue
        kept.append((key, value))
    node.value = kept


def _move(root: yaml.MappingNode, namespace: str) -> None:
    """Put the plain sections of a file, those that name a node alone, into a namespace."""
    plain = [pair for pair in root.value if _is_plain(*pair)]
    if plain:
        root.value = [pair for pair in root.value if not _is_plain(*pair)]
        inner = yaml.MappingNode('tag:yaml.org,2002:map', plain)
        key = yaml.ScalarNode('tag:yaml.org,2002:str', namespace)
        _merge(root, yaml.MappingNode('tag:yaml.org,2002:map', [(key, inner)]))


def _is_plain(key: yaml.Node, value: yaml.Node) -> bool:
    if '/' in key.value or not isinstance(value, yaml.MappingNode):
        return False
    return any(inner.value == PARAMETERS for inner, _ in value.value)


def _merge(into: yaml.MappingNode, other: yaml.MappingNode) -> None:
    """Add the mappings of a tree to another."""
    at = {key.value: value for key, value in into.value}
    for key, value in other.value:
        if isinstance(value, yaml.MappingNode) and isinstance(at.get(key.value), yaml.MappingNode):
            _merge(at[key.value], value)
        else:
            into.value.append((key, value))


def _files(arguments: Sequence[str]) -> Iterator[Path]:
    for option, value in pairwise(arguments):
        if option == '--params-file':
            yield Path(value)


def _read(path: Path) -> Any:
    try:
        text = read_text(path, most=_LARGEST)
        root = yaml.compose(text)
        if root is not None:
            _check_keys(root, str(path))
        return yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError, RecursionError, ConfigurationError):
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
