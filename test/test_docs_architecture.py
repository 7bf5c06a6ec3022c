"""Every file, folder and name of docs/architecture.md exists."""

import ast
from pathlib import Path
import re

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / 'docs' / 'architecture.md'
PACKAGE = ROOT / 'kbr_localization'
FILE = re.compile(r'(?<![\w./])(?:[\w-]+/)*\w+\.(?:py|md)\b')
FOLDER = re.compile(r'`((?:\w+/)+)`')
CALL = re.compile(r'\b[A-Za-z_]\w*(?:\.\w+)?\(\)')

if not PAGE.is_file():
    pytest.skip('the folder docs/ is not installed', allow_module_level=True)


def located(name):
    bases = (PACKAGE, ROOT, PAGE.parent)
    return next((base / name for base in bases if (base / name).exists()), None)


def defined(path):
    """Names of classes and functions of a module, methods as Class.method."""
    found = set()
    for node in ast.parse(path.read_text(encoding='utf-8')).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (inner for inner in node.body if isinstance(inner, ast.FunctionDef))
            found |= {f'{node.name}.{method.name}' for method in methods}
    return found


def drawn_names(drawing):
    """Names of the drawing with the file that stands beside or below each."""
    lines = drawing.splitlines()
    for number, line in enumerate(lines):
        beside = FILE.findall(line)
        for call in CALL.finditer(line):
            below = [] if beside else FILE.finditer(lines[number + 1])
            files = beside or [m.group() for m in below if abs(m.start() - call.start()) < 3]
            assert files, f'{call.group()} has no file beside or below it: {line}'
            yield call.group()[:-2], files[0]


def told_names(text):
    """Names of the text with the file in brackets behind each."""
    yield from re.findall(r'`([A-Za-z_][\w.]*)`\s+\(`([\w/]+\.py)`\)', text)


PARTS = re.split(r'```text\n(.*?)```', PAGE.read_text(encoding='utf-8'), flags=re.S)
NAMES = [pair for part in PARTS for pair in (*drawn_names(part), *told_names(part))]


def test_files_and_folders_exist():
    text = ''.join(PARTS)
    mentioned = sorted({*FILE.findall(text), *FOLDER.findall(text)})
    assert len(mentioned) > 40
    assert [name for name in mentioned if located(name) is None] == []


@pytest.mark.parametrize(('name', 'path'), sorted(set(NAMES)))
def test_names_are_defined_in_their_files(name, path):
    assert name in defined(located(path))


def test_the_drawing_and_the_answers_are_read():
    assert len(set(NAMES)) > 25
    assert ('Likelihood.match', 'localization/kbr/likelihood.py') in NAMES
    assert ('ImageQueue.put', 'ros/session/image_queue.py') in NAMES
    assert ('HogDescriber', 'vision/hog_describer.py') in NAMES


def test_every_room_is_on_the_page():
    text = PAGE.read_text(encoding='utf-8')
    rooms = [path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob('__init__.py')]
    missing = [str(room) for room in rooms if str(room) != '.' and f'`{room}/`' not in text]
    assert missing == []
    assert len([room for room in rooms if len(room.parts) == 1]) < 12
