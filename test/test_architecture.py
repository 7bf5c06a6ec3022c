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
TREES = {
    path.relative_to(ROOT): ast.parse(path.read_text(encoding='utf-8'))
    for path in sorted(ROOT.rglob('*.py'))
}


def layer(room):
    return next((n for n, rooms in enumerate(LAYERS, 1) if room in rooms), 0)


def imported(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from (f'{node.module}.{a.name}' for a in node.names)


def test_imports_between_rooms_run_one_way_and_kernels_import_nothing_but_errors():
    for path, tree in TREES.items():
        room = path.parts[0].removesuffix('.py')
        for module in imported(ast.walk(tree)):
            package, *rooms = module.split('.')
            if package != 'kbr_localization' or not rooms or rooms[0] == room:
                continue
            below = layer(rooms[0]) < layer(room) or layer(room) == 0 == layer(rooms[0])
            assert below, f'{path} imports {module}'
            assert room != 'kernels' or rooms[0] == 'errors', f'{path} imports {module}'


def test_only_ros_and_its_demo_import_ros():
    for path, tree in TREES.items():
        if path.parts[0] in ('ros', 'demo'):
            continue
        for module in imported(tree.body):
            own = module.startswith(('kbr_localization.ros', 'kbr_localization.demo'))
            assert not own and not ROS.fullmatch(module.split('.')[0]), f'{path} imports {module}'
