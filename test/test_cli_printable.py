"""Names from strangers on a terminal: shown as they are, without doing anything."""

from dataclasses import replace
import json
from pathlib import Path

from command import invoke
from kbr_localization.cli import console
from kbr_localization.errors import MapError
from kbr_localization.progress import printable
from map_helpers import tiny_map
import numpy as np
import pytest

NASTY = '[red]run[/] [/nothing] \x1b[2J\x07\r\u202etxt\x9b31m'
SHOWN = '[red]run[/] [/nothing] \\x1b[2J\\x07\\r\\u202etxt\\x9b31m'


def test_what_moves_the_cursor_is_spelled_out():
    assert printable(NASTY) == SHOWN
    assert printable('Straße 1 · ü') == 'Straße 1 · ü'


def test_the_name_of_a_run_in_a_map_is_no_markup(tmp_path):
    replace(tiny_map(), run_names=(NASTY,)).save(tmp_path / 'map.h5')
    result = invoke('map', 'info', tmp_path / 'map.h5')
    assert result.returncode == 0, result.stderr
    assert f'runs.{SHOWN}.images' in result.stdout and '\x1b' not in result.stdout
    facts = json.loads(invoke('map', 'info', tmp_path / 'map.h5', '--json').stdout)
    assert list(facts['runs']) == [NASTY]


def test_notes_and_errors_are_one_plain_line(tmp_path, capsys):
    console.note(NASTY)
    assert capsys.readouterr().err == f'kbr: {SHOWN}\n'
    result = invoke('map', 'info', tmp_path / '\x1b[31m.h5')
    assert '\x1b' not in result.stderr and '\\x1b[31m.h5' in result.stderr
    # as a node logs it
    assert str(MapError(f'map of {NASTY}')) == f'map of {SHOWN}'


def test_the_numbers_of_a_list_are_written_as_single_ones_are(capsys):
    console.show('map', {'x_m': [-1.0000000000000002, 2.5], 'size': [480, 640]})
    out = capsys.readouterr().out
    assert '[-1.000, 2.500]' in out and '[480, 640]' in out


def test_what_is_no_number_is_null_in_json(capsys):
    console.print_json({'rows': [(1.5, float('nan')), float('inf')]})
    assert json.loads(capsys.readouterr().out) == {'rows': [[1.5, None], None]}


@pytest.mark.parametrize(
    ('turned', 'says'),
    [
        ([3.1, -3.1, 3.12], 'by its odometry the robot stood still'),
        ([0.0, 0.5, 1.0], 'is this a map of that place, made with that camera?'),
    ],
)
def test_a_robot_that_turned_has_not_stood_still(turned, says, capsys):
    odometry = np.column_stack([np.zeros((3, 2)), turned])
    console.note_localized(Path('run.tum'), ['uncertain'] * 3, odometry)
    told = capsys.readouterr().err.splitlines()
    assert told[0] == 'kbr: run.tum: 3 poses, localized at 0 of them (0%)'
    assert says in told[1]


def test_numbers_have_the_digits_that_a_reader_wants():
    written = {
        0.0: '0.000',
        0.005: '0.005',
        -0.001: '-0.001',
        0.0004: '4.0e-04',
        12.34567: '12.346',
    }
    assert {value: console.format_value(value) for value in written} == written
    assert console.format_value([None, 3, 'a', 0.5]) == '[-, 3, a, 0.500]'
