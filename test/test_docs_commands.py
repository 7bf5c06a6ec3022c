"""Commands, options and links of the documentation exist, and every option is documented."""

from pathlib import Path
import re
import shlex

from kbr_localization.cli.app import app
import pytest
import typer

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / 'README.md', *(ROOT / 'docs').glob('*.md')])

if not (ROOT / 'docs').is_dir():
    pytest.skip('the documentation is not installed', allow_module_level=True)


def commands(group, *names):
    """Every command of a group by its words, with its options."""
    for name, command in group.commands.items():
        if hasattr(command, 'commands'):
            yield from commands(command, *names, name)
        else:
            options = [o for p in command.params for o in (*p.opts, *p.secondary_opts)]
            yield ' '.join([*names, name]), {o for o in options if o.startswith('-')}


COMMANDS = dict(commands(typer.main.get_command(app)))


def shown(page):
    """Command lines of `kbr` in the blocks of a page, in words."""
    for block in re.findall(r'```sh\n(.*?)```', page.read_text(encoding='utf-8'), re.S):
        for line in block.replace('\\\n', ' ').splitlines():
            command = line.strip().removeprefix('ros2 run kbr_localization ')
            if command.startswith('kbr '):
                yield shlex.split(command, comments=True)[1:]


def wrong_in(words):
    """Name what of a command line `kbr` would refuse; None if nothing."""
    length = 2 if words[0] == 'map' else 1
    name = ' '.join(words[:length])
    if name not in COMMANDS:
        return name
    given = {word.split('=')[0].strip('[]') for word in words[length:]}
    return sorted(o for o in given if o.startswith('--') and o not in COMMANDS[name]) or None


def test_commands_of_the_pages_have_these_options():
    lines = [(page.name, words) for page in PAGES for words in shown(page)]
    assert len(lines) >= 40
    assert [line for line in lines if wrong_in(line[1])] == []


@pytest.mark.parametrize('words', [['map', 'stretch'], ['localize', 'm.h5', 'run', '--inti', 'x']])
def test_a_command_or_an_option_that_is_not_there_is_found(words):
    assert wrong_in(words)


def test_every_command_and_option_is_in_a_page():
    text = '\n'.join(page.read_text(encoding='utf-8') for page in PAGES)
    written = set(re.findall(r'(?<![\w-])--[a-z][a-z-]+', text))
    missing = {
        (name, option)
        for name, options in COMMANDS.items()
        for option in options - {'--help', '-h', '-r'}
        if option not in written
    }
    assert missing == set()
    assert [name for name in COMMANDS if f'kbr {name}' not in text] == []


def test_no_help_has_brackets_that_a_terminal_does_not_show():
    group = typer.main.get_command(app)
    every = [*group.commands.values(), *group.commands['map'].commands.values()]
    helps = [getattr(p, 'help', None) or '' for command in every for p in command.params]
    assert len(helps) > 100 and [text for text in helps if '[' in text] == []


def anchor(heading):
    """Return the name by which a heading is linked to."""
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
