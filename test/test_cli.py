"""`kbr` itself: usage, exit codes, signals, parameters of `--set`, what is printed."""

from dataclasses import replace
from importlib.metadata import entry_points
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
from types import UnionType

from command import assert_one_line, done, invoke, KBR, kbr
from helpers import write_tiny_cold_run
from kbr_localization import __version__
import kbr_localization.cli
from kbr_localization.cli import app, console
from kbr_localization.cli.options import apply_settings, parse_settings
from kbr_localization.datasets import open_dataset
from kbr_localization.errors import ConfigurationError, MapError
from kbr_localization.evaluation import reference_trajectory, write_tum
from kbr_localization.localization.methods.registry import method_config
import pytest


def test_the_console_script_is_the_module_and_has_the_version_of_the_package():
    (script,) = entry_points(group='console_scripts', name='kbr')
    assert script.load() is kbr_localization.cli.main
    assert kbr('--version').stdout == f'kbr {__version__}\n'


@pytest.mark.parametrize(
    ('arguments', 'fragments'),
    [
        (['fly'], ["'fly'", 'kbr --help']),
        (['map', 'build', 'somewhere'], ["'--out'", 'kbr map build --help']),
        (['evaluate', 'nowhere', 'x.tum'], ['no such run: nowhere']),
        (['localize', 'm.h5', 'r', '--out', 't', '--init', 'guess'], ["'guess'"]),
        (['map', 'build', 'r', '--out', 'm.h5', '--max-images', '0'], ['--max-images', '1']),
    ],
)
def test_bad_usage_is_one_line(arguments, fragments):
    assert_one_line(invoke(*arguments), *fragments)


def test_a_full_disk_is_one_line_and_a_closed_pipe_is_silent(tmp_path):
    given = write_tiny_cold_run(tmp_path / 'run'), tmp_path / 'truth.tum'
    write_tum(given[1], reference_trajectory(open_dataset(given[0])))
    options = {'capture_output': False, 'stderr': subprocess.PIPE}
    with Path('/dev/full').open('w') as full:
        result = kbr('evaluate', *given, **options, stdout=full)
    assert_one_line(result, 'no space left on device')
    reader, writer = os.pipe()
    os.close(reader)
    result = kbr('evaluate', *given, '--json', **options, stdout=writer)
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, '')


def test_a_command_that_is_ended_leaves_no_half_of_a_folder(tmp_path):
    command = [*KBR, 'synth', tmp_path / 'building']
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline().startswith('render ')
        assert list(tmp_path.iterdir())
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and 'Traceback' not in stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.version_info >= (3, 14), reason='Optional is written X | None there')
def test_the_typer_of_ubuntu_24_04_understands_the_options():
    commands = [*app.app.registered_commands, *app.map_app.registered_commands]
    for command in (*commands, app.app.registered_callback):
        for name, hint in command.callback.__annotations__.items():
            kind = getattr(hint, '__origin__', hint)
            assert not isinstance(kind, str | UnionType), f'{command.callback.__name__}: {name}'


def failing(error):
    def command(arguments, **options):
        raise error

    return command


def test_a_defect_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        app.run_command(failing(ZeroDivisionError()), [])


@pytest.mark.parametrize('module', ['rosbags', 'rclpy'])
def test_a_missing_module_is_told_with_what_installs_it(module, capsys):
    assert app.run_command(failing(ModuleNotFoundError('no', name=module)), []) == 2
    line = capsys.readouterr().err
    assert line.count('\n') == 1 and module in line and 'pip install' in line


def test_numbers_have_exponents_and_words_are_taken_as_they_are_written():
    given = ['delta=1e-09', 'vision.blur=+2E-1', 'odometry_calibration=off']
    vision, chosen = parse_settings([*given, 'vision.network_file=off', 'vision.descriptor=onnx'])
    assert chosen == {'delta': 1e-9, 'odometry_calibration': 'off'}
    assert (vision.blur, vision.network_file) == (0.2, 'off')


@pytest.mark.parametrize(
    ('setting', 'says'),
    [
        ('delta=', 'expected NAME=VALUE'),
        ('delta=nan', "'delta': expected a finite number, got nan"),
        ('delta=1e-3m', r"'delta': expected float, got '1e-3m' \(str\)"),
        ('odometry_calibration=maybe', "expected one of .*, got 'maybe'"),
        ('vision.words=7.5', r"'vision\.words': expected int"),
        ('words=10', r"'words': did you mean 'vision\.words'\? .* points, "),
        ('point=10', "'point': did you mean 'points'"),
        ('vision.network_file=x.onnx', 'no effect without vision.descriptor=onnx or learned'),
    ],
)
def test_a_parameter_that_cannot_be_set_is_named_as_it_has_to_be_typed(setting, says):
    with pytest.raises(ConfigurationError, match=says):
        parse_settings([setting])


def test_parameters_of_a_method_are_set_on_a_map(shared_map):
    changed = apply_settings(shared_map, 'knn-particle', ['neighbours=5', 'noise_scale=3'])
    config = method_config('knn-particle', changed)
    assert (config.neighbours, config.noise_scale) == (5, 3.0)
    switched = apply_settings(shared_map, 'algorithm1', ['normalise=true'])
    assert method_config('algorithm1', switched).normalise is True
    for method, setting, says in (
        ('algorithm1', 'neighbours=5', "unknown parameter 'neighbours'"),
        ('algorithm1', 'normalise=2', "'normalise': expected bool, got '2'"),
        ('kbr', 'localized_mass=0', r"'localized_mass': expected a value in \[0.05, 1.0\]"),
        ('kbr', 'vision.words=100', r"'vision\.words' is fixed in the map"),
        ('nearest', 'points=100', "unknown parameter 'points': there are no parameters to set"),
        ('dead-reckoning', 'points=100', "'points': expected one of noise_scale$"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            apply_settings(shared_map, method, [setting])


def test_parameters_and_methods_are_listed():
    listed = json.loads(invoke('parameters', '--method', 'knn-particle', '--json').stdout)
    assert listed['neighbours']['default'] == 15
    listed = json.loads(invoke('parameters', '--json').stdout)
    assert 'neighbours' not in listed and listed['image_bandwidth']['default'] > 0
    assert listed['vision.words']['values'] == '[2, 4096]'
    assert all(parameter['description'] for parameter in listed.values())
    assert_one_line(invoke('parameters', '--method', 'magic'), "unknown method 'magic'")
    assert 'knn-particle' in invoke('methods').stdout
    # on a terminal of few characters
    result = kbr('parameters', env=os.environ | {'PYTHONIOENCODING': 'ascii'})
    assert (result.returncode, result.stderr) == (0, '')
    assert 'vision.working_width' in result.stdout


NASTY = '[red]run[/] [/nothing] \x1b[2J\x07\r\u202etxt\x9b31m'
SHOWN = '[red]run[/] [/nothing] \\x1b[2J\\x07\\r\\u202etxt\\x9b31m'


def test_names_from_strangers_do_nothing_to_a_terminal(shared_map, tmp_path, capsys):
    console.note(f'Straße {NASTY}')
    assert capsys.readouterr().err == f'kbr: Straße {SHOWN}\n'
    # as a node logs it
    assert str(MapError(f'map of {NASTY}')) == f'map of {SHOWN}'
    replace(shared_map, run_names=(NASTY,)).save(tmp_path / 'map.h5')
    table = done('map', 'info', tmp_path / 'map.h5').stdout
    assert f'runs.{SHOWN}.images' in table and '\x1b' not in table
    facts = json.loads(done('map', 'info', tmp_path / 'map.h5', '--json').stdout)
    assert list(facts['runs']) == [NASTY]
    result = invoke('map', 'info', tmp_path / '\x1b[31m.h5')
    assert '\x1b' not in result.stderr and '\\x1b[31m.h5' in result.stderr


def test_numbers_have_the_digits_that_a_reader_wants(capsys):
    shown = console.format_value([None, 3, 'a', 0.0, -0.001, 0.0004, 12.34567])
    assert shown == '[-, 3, a, 0.000, -0.001, 4.0e-04, 12.346]'
    console.print_json({'rows': [(1.5, float('nan')), float('inf')]})
    assert json.loads(capsys.readouterr().out) == {'rows': [[1.5, None], None]}
