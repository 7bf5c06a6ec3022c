"""The rooms of the package and who may import whom."""

import ast
from importlib.util import find_spec
from pathlib import Path
import subprocess
import sys

import kbr_localization
from kbr_localization import simulation
import pytest

ROOT = Path(kbr_localization.__file__).parent
BASE = {
    '', 'configuration', 'conversions', 'errors', 'extras', 'files', 'progress', 'resources',
    'se2', 'stamps', 'threads', 'trajectory', 'workers',
}  # fmt: skip
ALLOWED = {
    'child_processes': set(),
    'errors': set(),
    'extras': set(),
    'programs': {'extras'},
    'conversions': set(),
    'files': set(),
    'configuration': {'errors'},
    'se2': {'errors'},
    'stamps': set(),
    'trajectory': {'se2'},
    'progress': set(),
    'resources': set(),
    'threads': set(),
    'workers': {'child_processes', 'errors', 'threads'},
    'kernels': {'errors', 'kernels'},
    'vision': BASE | {'vision'},
    'datasets': BASE | {'datasets'},
    'simulation': BASE | {'simulation', 'datasets'},
    'localization': BASE | {'localization', 'kernels', 'vision', 'datasets'},
    'evaluation': BASE | {'evaluation', 'localization', 'kernels', 'vision', 'datasets'},
    'ros': BASE | {'ros', 'localization', 'kernels', 'vision', 'datasets'},
    'demo': BASE
    | {'child_processes'}
    | {'demo', 'evaluation', 'localization', 'vision', 'datasets', 'simulation'},
    'cli': BASE
    | {
        'cli',
        'demo',
        'evaluation',
        'localization',
        'kernels',
        'vision',
        'datasets',
        'simulation',
    },
    '__main__': {'cli'},
    '__init__': set(),
}
LAZY = {'cli': {'ros'}}
"""What a room may import inside of a function only."""
SOURCES = sorted(ROOT.rglob('*.py'))


def room_of(module):
    return module.split('.')[1] if '.' in module else ''


def imported_modules(tree, path):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'{path}: relative import in line {node.lineno}'
            if node.module == 'kbr_localization':
                names = [a.name for a in node.names]
                yield from ((node, f'kbr_localization.{name}') for name in names)
            else:
                yield node, node.module


def lazy_nodes(tree):
    functions = (n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.Lambda)))
    return {inner for function in functions for inner in ast.walk(function)}


def violations(path):
    tree = ast.parse(path.read_text(encoding='utf-8'))
    room = path.relative_to(ROOT).parts[0].removesuffix('.py')
    lazy = lazy_nodes(tree)
    for node, module in imported_modules(tree, path):
        if module.split('.')[0] != 'kbr_localization':
            continue
        target = room_of(module) if module != 'kbr_localization.__version__' else ''
        allowed = ALLOWED[room] | (LAZY.get(room, set()) if node in lazy else set())
        if target not in allowed:
            yield f'{path.relative_to(ROOT)}:{node.lineno}: {room} imports {module}'


@pytest.mark.parametrize('path', SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_in_one_direction(path):
    assert list(violations(path)) == []


def test_a_forbidden_import_would_be_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], 'ROOT', tmp_path)
    (tmp_path / 'vision').mkdir()
    source = tmp_path / 'vision' / 'bad.py'
    source.write_text('def f():\n    from kbr_localization import ros\n')
    assert list(violations(source)) == ['vision/bad.py:2: vision imports kbr_localization.ros']


def inner_imports(room):
    """Rooms inside a room: which imports which."""
    found = {}
    for path in (ROOT / room).rglob('*.py'):
        source = path.relative_to(ROOT / room).parts[0].removesuffix('.py')
        targets = found.setdefault(source, set())
        for _, module in imported_modules(ast.parse(path.read_text(encoding='utf-8')), path):
            parts = module.split('.')
            if parts[:2] == ['kbr_localization', room] and len(parts) > 2 and parts[2] != source:
                targets.add(parts[2])
    return found


@pytest.mark.parametrize(
    'room', ['cli', 'datasets', 'evaluation', 'localization', 'ros', 'simulation', 'vision']
)
def test_imports_inside_a_room_go_in_no_circle(room):
    left = inner_imports(room)
    while left:
        free = [inner for inner, targets in left.items() if not targets & left.keys()]
        assert free, f'a circle among {sorted(left)}: {left}'
        for inner in free:
            del left[inner]


def past_the_door(path, door='kbr_localization.simulation'):
    """Lines of a file that import from the renderer what its door does not offer."""
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.ImportFrom):
            inside = (node.module or '').startswith(f'{door}.')
            if inside or (
                node.module == door and {a.name for a in node.names} - set(simulation.__all__)
            ):
                yield f'{path}:{node.lineno}'
        if isinstance(node, ast.Import) and any(a.name.startswith(f'{door}.') for a in node.names):
            yield f'{path}:{node.lineno}'


def test_the_renderer_is_imported_by_its_door_only():
    top = Path(__file__).parents[1]
    rooms = [top / name for name in ('benchmarks', 'experiments', 'launch', 'test')]
    sources = [*SOURCES, *(path for room in rooms for path in room.rglob('*.py'))]
    outside = [path for path in sources if 'simulation' not in str(path.relative_to(top))]
    assert len(outside) > 300
    assert [line for path in outside for line in past_the_door(path)] == []
    assert list(past_the_door(ROOT / 'simulation' / 'run.py')) != []


DUCKS = {
    'cli/console.py': 'numbers and arrays of any library',
    'cli/failures.py': 'errors of typer and of click',
    'datasets/pose_message.py': 'messages of rclpy and of rosbags',
    'kernels/array_rules.py': "the array API's protocol",
    'kernels/conditional_means.py': 'kernels of the caller',
    'kernels/estimator_base.py': "scikit-learn's and SciPy's protocols",
    'kernels/filters.py': 'sequences of the caller',
    'kernels/objects.py': 'functions of the caller',
    'kernels/rules.py': 'arguments of the caller',
    'localization/mapping/resume.py': 'groups of a file and mappings',
    'ros/common/optional.py': 'modules that may be missing',
    'vision/preparation.py': 'arguments of the caller',
}
"""Where a name may be looked up in what comes from outside of the package, and what that is."""


def guesses(path):
    """Lines that ask an object whether it has a name, rather than rely on a protocol."""
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            default = node.func.id == 'getattr' and len(node.args) == 3
            if default or node.func.id == 'hasattr':
                yield node.lineno


def test_what_an_object_can_do_is_in_its_protocol():
    found = {str(path.relative_to(ROOT)) for path in SOURCES if list(guesses(path))}
    assert found == set(DUCKS)


def test_everything_but_ros_imports_without_rclpy():
    modules = sorted(
        '.'.join(path.relative_to(ROOT.parent).with_suffix('').parts).removesuffix('.__init__')
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] not in ('ros', '__main__.py')
        and (path.stem != 'rerun_recording' or find_spec('rerun'))
    )
    script = (
        'import sys\n'
        'class Refuse:\n'
        '    def find_spec(self, name, path=None, target=None):\n'
        '        if name.split(".")[0] in ("rclpy", "sensor_msgs", "geometry_msgs"):\n'
        '            raise ImportError(name + " is not here")\n'
        'sys.meta_path.insert(0, Refuse())\n'
        f'for module in {modules!r}: __import__(module)\n'
        'assert "kbr_localization.ros" not in sys.modules\n'
    )
    subprocess.run([sys.executable, '-c', script], check=True)


METHODS, ATTRIBUTES, CLASS_LINES, FAN_OUT = 25, 16, 250, 20
"""What a reader can keep in mind of a class, and of what a module needs; see CONTRIBUTING.md."""


def class_sizes(tree):
    """Methods, attributes of self and lines of each class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [inner for inner in node.body if isinstance(inner, ast.FunctionDef)]
            stored = {
                inner.attr
                for inner in ast.walk(node)
                if isinstance(inner, ast.Attribute)
                and isinstance(inner.ctx, ast.Store)
                and isinstance(inner.value, ast.Name)
                and inner.value.id == 'self'
            }
            yield node.name, len(methods), len(stored), node.end_lineno - node.lineno + 1


def needed_modules(tree, path):
    """Modules of the package that a module imports, beside those that everything knows."""
    found = set()
    for node, module in imported_modules(tree, path):
        if module.split('.')[0] == 'kbr_localization':
            folder = ROOT.parent / module.replace('.', '/')
            names = [alias.name for alias in node.names if (folder / f'{alias.name}.py').is_file()]
            found |= {f'{module}.{name}' for name in names} or {module}
    return found - {'kbr_localization.errors', 'kbr_localization.se2'}


@pytest.mark.parametrize('path', SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_classes_and_modules_keep_their_size(path):
    tree = ast.parse(path.read_text(encoding='utf-8'))
    for name, methods, attributes, lines in class_sizes(tree):
        assert methods <= METHODS, f'{name} has {methods} methods'
        assert attributes <= ATTRIBUTES, f'{name} has {attributes} attributes'
        assert lines <= CLASS_LINES, f'{name} has {lines} lines'
    if path.name != '__init__.py':
        assert len(needed_modules(tree, path)) <= FAN_OUT


def test_rooms_are_few_enough_to_be_drawn():
    for folder in [ROOT, *(path.parent for path in ROOT.glob('*/__init__.py'))]:
        assert len(list(folder.glob('*/__init__.py'))) <= 12, folder
