"""Imports between the rooms of the package run one way, and only `ros` needs ROS."""

import ast
from pathlib import Path
import re

import kbr_localization

ROOT = Path(kbr_localization.__file__).parent
LAYERS = [
    {'kernels', 'vision', 'datasets'},
    {'localization', 'simulation'},
    {'evaluation', 'ros'},
    {'demo'},
    {'cli'},
    {'__main__'},
]
"""Rooms by layer. A room imports itself, lower layers and the modules below all of them."""
ROS = re.compile(r'rclpy|\w+_(msgs|srvs|interfaces)')
SOURCES = sorted(ROOT.rglob('*.py'))


def layer(room):
    return next((n for n, rooms in enumerate(LAYERS, 1) if room in rooms), 0)


def imported(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from (f'{node.module}.{a.name}' for a in node.names)


def imported_rooms(tree):
    for module in imported(ast.walk(tree)):
        package, *rooms = module.split('.')
        if package == 'kbr_localization' and rooms:
            yield rooms[0]


def test_imports_between_rooms_run_one_way():
    for path in SOURCES:
        room = path.relative_to(ROOT).parts[0].removesuffix('.py')
        for other in imported_rooms(ast.parse(path.read_text(encoding='utf-8'))):
            assert (
                other == room or layer(other) < layer(room) or layer(room) == 0 == layer(other)
            ), f'{path.relative_to(ROOT)} imports {other}'


def test_kernels_import_nothing_of_the_package_but_errors():
    for path in (ROOT / 'kernels').rglob('*.py'):
        rooms = set(imported_rooms(ast.parse(path.read_text(encoding='utf-8'))))
        assert rooms <= {'kernels', 'errors'}, path


def test_only_ros_and_its_demo_import_ros():
    for path in SOURCES:
        if path.relative_to(ROOT).parts[0] in ('ros', 'demo'):
            continue
        for module in imported(ast.parse(path.read_text(encoding='utf-8')).body):
            own = module.startswith(('kbr_localization.ros', 'kbr_localization.demo'))
            assert not own and not ROS.fullmatch(module.split('.')[0]), f'{path} imports {module}'
