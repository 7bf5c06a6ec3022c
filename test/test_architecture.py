"""Imports between the rooms of the package run one way, and only `ros` needs ROS."""

import ast
from importlib.util import find_spec
from pathlib import Path
import subprocess
import sys

import kbr_localization

ROOT = Path(kbr_localization.__file__).parent
LAYERS = [
    {'kernels', 'vision', 'datasets'},
    {'localization', 'simulation'},
    {'evaluation', 'ros'},
    {'demo'},
    {'cli'},
    {'programs', '__main__'},
]
"""Rooms by layer. A room imports itself, lower layers and the modules below all of them."""
SOURCES = sorted(ROOT.rglob('*.py'))


def layer(room):
    return next((n for n, rooms in enumerate(LAYERS, 1) if room in rooms), 0)


def imported_rooms(tree):
    for node in ast.walk(tree):
        modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [f'{node.module}.{a.name}' for a in node.names]
        for module in modules:
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


def test_everything_but_ros_and_its_demo_imports_without_rclpy():
    modules = [
        '.'.join(path.relative_to(ROOT.parent).with_suffix('').parts).removesuffix('.__init__')
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] not in ('demo', 'ros', '__main__.py')
        and (path.stem != 'rerun_recording' or find_spec('rerun'))
    ]
    script = (
        'import sys\n'
        'sys.modules["rclpy"] = sys.modules["sensor_msgs"] = None\n'
        f'for module in {modules!r}: __import__(module)\n'
        'assert "kbr_localization.ros" not in sys.modules\n'
    )
    subprocess.run([sys.executable, '-c', script], check=True)
