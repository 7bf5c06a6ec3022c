"""Programs of the documentation print what it says; its commands, links and parameters exist."""

import contextlib
import io
from pathlib import Path
import re
import runpy
import shlex

from kbr_localization.cli.app import app
import pytest
import typer

ROOT = Path(__file__).parents[1]
DOCS = ROOT / 'docs'
if not DOCS.is_dir():
    pytest.skip('the documentation is not installed', allow_module_level=True)
PAGES = [*ROOT.glob('*.md'), *sorted(DOCS.rglob('*.md'))]
PROGRAMS = re.findall(r'```python\n(.*?)```', (DOCS / 'tutorial.md').read_text(), re.S)


def test_programs_of_the_tutorial_print_what_it_says():
    assert len(PROGRAMS) == 3
    for program in PROGRAMS:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(program, 'tutorial.md', 'exec'), {'__name__': 'tutorial'})
        for line in output.getvalue().splitlines():
            assert f'`{line}`' in (DOCS / 'tutorial.md').read_text()


def numbers_and_words(text):
    number = r'-?\d+\.?\d*'
    return [float(found) for found in re.findall(number, text)], re.sub(number, '#', text).split()


@pytest.mark.parametrize('path', sorted(DOCS.glob('gallery/*.py')), ids=lambda path: path.stem)
def test_programs_of_the_gallery_print_what_it_says(path):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        runpy.run_path(str(path), run_name='gallery')
    page = (path.parent / 'index.md').read_text()
    shown = page.split(f'"docs/gallery/{path.name}"')[1].split('```text')[1].split('```')[0]
    numbers, words = numbers_and_words(output.getvalue())
    expected_numbers, expected_words = numbers_and_words(shown)
    assert words == expected_words
    # rounding differs between processors, and a flat optimum amplifies it
    assert numbers == pytest.approx(expected_numbers, rel=0.3, abs=0.05)


def commands(group, *names):
    """Yield every command with its options."""
    for name, command in group.commands.items():
        if hasattr(command, 'commands'):
            yield from commands(command, *names, name)
        else:
            options = [o for p in command.params for o in (*p.opts, *p.secondary_opts)]
            yield ' '.join([*names, name]), set(options)


def shown_commands(page):
    for block in re.findall(r'```sh\n(.*?)```', page.read_text(encoding='utf-8'), re.S):
        for line in block.replace('\\\n', ' ').splitlines():
            command = line.strip().removeprefix('ros2 run kbr_localization ')
            if command.startswith('kbr '):
                yield shlex.split(command, comments=True)[1:]


def test_commands_of_the_pages_and_their_options_exist():
    known = dict(commands(typer.main.get_command(app)))
    shown = [words for page in PAGES for words in shown_commands(page)]
    assert len(shown) >= 20
    for words in shown:
        length = 2 if words[0] == 'map' else 1
        options = {word.split('=')[0].strip('[]') for word in words[length:]}
        options = {option for option in options if option.startswith('--')}
        assert options <= known.get(' '.join(words[:length]), set()), words


def anchor(heading):
    return re.sub(r'[^\w\- ]', '', heading.lower()).strip().replace(' ', '-')


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r'\]\(([^)\s]+)\)', page.read_text(encoding='utf-8')):
        if '://' in link:
            continue
        path, _, name = link.partition('#')
        target = page.parent / path if path else page
        assert target.exists(), link
        if name:
            headings = re.findall(r'^#+ (.*)$', target.read_text(encoding='utf-8'), re.M)
            assert name in map(anchor, headings), link
