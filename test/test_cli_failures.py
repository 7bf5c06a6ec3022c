"""Every mistake is exit code 2 and one line on stderr; signals and pipes end a command cleanly."""

import contextlib
from importlib.metadata import entry_points
import io
import os
from pathlib import Path
import signal
import subprocess
import sys
from types import UnionType

from command import assert_one_line, invoke, KBR, kbr
from helpers import write_tiny_cold_run
from kbr_localization import __version__
import kbr_localization.cli
from kbr_localization.cli.failures import run_command
from kbr_localization.datasets import open_dataset
from kbr_localization.evaluation import reference_trajectory, write_tum
import pytest


@pytest.fixture
def run_with_truth(tmp_path):
    run = write_tiny_cold_run(tmp_path / 'run')
    write_tum(tmp_path / 'truth.tum', reference_trajectory(open_dataset(run)))
    return run, tmp_path / 'truth.tum'


def test_the_console_script_is_the_module_and_has_the_version_of_the_package():
    (script,) = entry_points(group='console_scripts', name='kbr')
    assert script.load() is kbr_localization.cli.main
    assert kbr('--version').stdout == f'kbr {__version__}\n'


def test_no_command_shows_the_help_and_fails():
    result = invoke()
    assert result.returncode == 2
    assert 'evaluate' in result.stdout + result.stderr


@pytest.mark.parametrize(
    ('arguments', 'fragments'),
    [
        (['fly'], ["'fly'", 'kbr --help']),
        (['map', 'build', 'somewhere'], ["'--out'", 'kbr map build --help']),
        (['evaluate', 'nowhere', 'x.tum'], ['no such run: nowhere']),
        (['evaluate'], ["'RUN'", 'kbr evaluate --help']),
        (['localize', 'm.h5', 'r', '--out', 't', '--init', 'guess'], ["'guess'"]),
        (['map', 'build', 'r', '--out', 'm.h5', '--max-images', '0'], ['--max-images', '1']),
        (['tune', 'r', '--out', 'm.h5', '--trials', '9' * 20], ['--trials', '10000']),
    ],
)
def test_bad_usage_is_one_line(arguments, fragments):
    assert_one_line(invoke(*arguments), *fragments)


def test_a_trajectory_that_is_none_is_one_line(run_with_truth, tmp_path):
    run, _ = run_with_truth
    (tmp_path / 'bad.tum').write_text('rubbish\n')
    assert_one_line(invoke('evaluate', run, tmp_path / 'bad.tum'), 'line 1', "'rubbish'")
    assert_one_line(invoke('evaluate', run, tmp_path / 'no.tum'), 'no.tum: No such file')
    assert_one_line(invoke('evaluate', run, tmp_path), 'Is a directory')


def test_a_camera_without_a_name_is_one_line(run_with_truth):
    result = invoke('evaluate', *run_with_truth, '--cameras', 'std_cam,')
    assert_one_line(result, "--cameras 'std_cam,': expected names with commas between")


def test_a_full_disk_is_one_line(run_with_truth):
    with Path('/dev/full').open('w') as full:
        options = {'capture_output': False, 'stdout': full, 'stderr': subprocess.PIPE}
        result = kbr('evaluate', *run_with_truth, **options)
    assert_one_line(result, 'no space left on device')


def test_a_closed_pipe_is_silent(run_with_truth):
    reader, writer = os.pipe()
    os.close(reader)
    options = {'capture_output': False, 'stdout': writer, 'stderr': subprocess.PIPE}
    result = kbr('evaluate', *run_with_truth, '--json', **options)
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, '')


def test_a_table_stands_on_a_stdout_of_few_characters():
    result = kbr('parameters', env=os.environ | {'PYTHONIOENCODING': 'ascii'})
    assert (result.returncode, result.stderr) == (0, '')
    assert 'vision.working_width' in result.stdout


@pytest.mark.parametrize(
    ('number', 'says'),
    [(signal.SIGINT, 'kbr: interrupted\n'), (signal.SIGTERM, None), (signal.SIGHUP, None)],
)
def test_a_command_that_is_ended_leaves_no_half_of_a_folder(tmp_path, number, says):
    command = [*KBR, 'synth', tmp_path / 'building']
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline().startswith('render ')
        assert list(tmp_path.iterdir())
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert says is None or stderr.endswith(says)
    assert 'Traceback' not in stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.version_info >= (3, 14), reason='Optional is written X | None there')
def test_the_typer_of_ubuntu_24_04_understands_the_options():
    from kbr_localization.cli import app

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
        run_command(failing(ZeroDivisionError()), [])


@pytest.mark.parametrize('module', ['rosbags', 'joblib', 'matplotlib', 'rclpy'])
def test_a_missing_module_is_told_with_what_installs_it(module):
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        assert run_command(failing(ModuleNotFoundError('no', name=module)), []) == 2
    line = errors.getvalue()
    assert line.count('\n') == 1 and module in line and 'pip install' in line
