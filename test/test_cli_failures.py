"""Every mistake is exit code 2 and one line on stderr."""

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
from kbr_localization.cli.failures import OPTIONAL, run_command
from kbr_localization.datasets import open_dataset
from kbr_localization.evaluation import reference_trajectory, write_tum
import pytest


@pytest.fixture
def run_with_truth(tmp_path):
    run = write_tiny_cold_run(tmp_path / 'run')
    write_tum(tmp_path / 'truth.tum', reference_trajectory(open_dataset(run)))
    return run, tmp_path / 'truth.tum'


def test_the_version_is_that_of_the_package():
    assert kbr('--version').stdout == f'kbr {__version__}\n'


def test_the_console_script_is_the_module():
    (script,) = entry_points(group='console_scripts', name='kbr')
    assert script.load() is kbr_localization.cli.main


def test_no_command_shows_the_help_and_fails():
    result = kbr()
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
        (
            ['map', 'build', 'r', '--out', 'm.h5', '--max-images', 'many'],
            ['--max-images', 'integer'],
        ),
    ],
)
def test_bad_usage_is_one_line(arguments, fragments):
    assert_one_line(invoke(*arguments), *fragments)


@pytest.mark.parametrize(
    'command',
    [
        ('tune', 'RUN', '--out', 'p.yaml', '--trials'),
        ('map', 'build', 'RUN', '--out', 'm.h5', '--tune', '--trials'),
        ('compare', '--train', 'RUN', '--test', 'RUN', '--out', 'c', '--trials'),
        ('compare', '--train', 'RUN', '--test', 'RUN', '--out', 'c', '--tune'),
    ],
    ids=str,
)
@pytest.mark.parametrize('trials', [1_000_000_000, 99999999999999999999])
def test_trials_by_the_thousand_million_are_refused(command, trials):
    """They filled the memory, or ended with a traceback of NumPy's."""
    assert_one_line(invoke(*command, trials), command[-1], 'less than or equal to 10000')


def test_a_trajectory_that_is_none_is_one_line(run_with_truth, tmp_path):
    run, _ = run_with_truth
    (tmp_path / 'bad.tum').write_text('rubbish\n')
    assert_one_line(invoke('evaluate', run, tmp_path / 'bad.tum'), 'line 1', "'rubbish'")
    assert_one_line(invoke('evaluate', run, tmp_path / 'no.tum'), 'no.tum: no such file')
    assert_one_line(invoke('evaluate', run, tmp_path), 'is a directory')


@pytest.mark.parametrize('cameras', [',', 'std_cam,', ' '])
def test_a_camera_without_a_name_is_one_line(run_with_truth, cameras):
    result = invoke('evaluate', *run_with_truth, '--cameras', cameras)
    assert_one_line(result, f'--cameras {cameras!r}: expected names with commas between')


def test_a_full_disk_is_one_line(run_with_truth):
    with Path('/dev/full').open('w') as full:
        result = kbr(
            'evaluate', *run_with_truth, capture_output=False, stdout=full, stderr=subprocess.PIPE
        )
    assert_one_line(result, 'no space left on device')


def test_a_closed_pipe_is_silent(run_with_truth):
    reader, writer = os.pipe()
    os.close(reader)
    result = kbr(
        'evaluate',
        *run_with_truth,
        '--json',
        capture_output=False,
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    assert result.returncode == 1
    assert result.stderr == ''


@pytest.mark.parametrize('closed', ['>&-', '2>&-', '<&- >&- 2>&-'])
def test_a_stream_that_is_closed_is_no_defect(run_with_truth, closed):
    run, truth = run_with_truth
    command = f'"$0" -m kbr_localization evaluate "$1" "$2" {closed}'
    words = ['sh', '-c', command, sys.executable, run, truth]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, '')
    assert ('position_rmse_m' in result.stdout) == (closed == '2>&-')
    missing = subprocess.run([*words[:5], 'nowhere'], capture_output=True, text=True, check=False)
    assert missing.returncode == 2 and 'Traceback' not in missing.stderr
    assert missing.stdout == ''


@pytest.mark.parametrize('encoding', ['latin-1', 'ascii'])
def test_a_table_stands_on_a_stdout_of_few_characters(encoding):
    result = kbr('parameters', env=os.environ | {'PYTHONIOENCODING': encoding})
    assert (result.returncode, result.stderr) == (0, '')
    assert 'vision.working_width' in result.stdout


def _heed_interrupts():
    signal.signal(signal.SIGINT, signal.default_int_handler)


READING = """
import sys, time
from kbr_localization import files
from kbr_localization.cli import main

def slow(*_, **__):
    print('reading', flush=True)
    time.sleep(20.0)

files.read_text = slow
main(['evaluate', *sys.argv[1:]])
"""


ENDS = {
    signal.SIGINT: 'kbr: interrupted\n',
    signal.SIGTERM: 'kbr: ended by SIGTERM\n',
    signal.SIGHUP: 'kbr: ended by SIGHUP, as its terminal is gone\n',
}
"""What is said of each signal that ends a command."""


def assert_ended_by(number, program, run_with_truth, first_line, timeout):
    """Send a signal when a program has written its first line; it ends by that, and says so."""
    # whoever started the tests may ignore interrupts, and a child would inherit that
    process = subprocess.Popen(
        [sys.executable, '-c', program, *map(str, run_with_truth)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_interrupts,  # noqa: PLW1509
    )
    assert process.stdout.readline() == first_line
    process.send_signal(number)
    _, stderr = process.communicate(timeout=timeout)
    assert (process.returncode, stderr) == (128 + number, ENDS[number])


@pytest.mark.parametrize('number', ENDS)
def test_a_signal_leaves_with_its_exit_code_and_one_line(run_with_truth, number):
    assert_ended_by(number, READING, run_with_truth, 'reading\n', timeout=20)


IN_A_DESTRUCTOR = """
import sys, time
from kbr_localization import files
from kbr_localization.cli import main

class Dying:
    def __del__(self):
        print('dies', flush=True)
        time.sleep(20.0)

def slow(*_, **__):
    Dying()
    time.sleep(20.0)

files.read_text = slow
main(['evaluate', *sys.argv[1:]])
"""


@pytest.mark.parametrize('number', ENDS)
def test_a_signal_is_heeded_that_comes_where_no_error_goes_anywhere(run_with_truth, number):
    """Python prints what a destructor or a callback of a weak reference raises, and goes on."""
    assert_ended_by(number, IN_A_DESTRUCTOR, run_with_truth, 'dies\n', timeout=15)


@pytest.mark.parametrize('number', ENDS)
def test_a_command_that_is_ended_leaves_no_half_of_a_folder(tmp_path, number):
    command = [*KBR, 'synth', tmp_path / 'building']
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_interrupts,  # noqa: PLW1509
    ) as process:
        assert process.stderr.readline().startswith('render ')
        assert list(tmp_path.iterdir())
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr.splitlines(True)[-1]) == (128 + number, ENDS[number])
    assert not list(tmp_path.iterdir())


def test_a_signal_that_is_ignored_stays_so(tmp_path):
    """As under `nohup`."""

    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with subprocess.Popen(
        [sys.executable, '-c', READING.replace('20.0', '2.0'), 'nowhere', 'a.tum'],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=ignore,  # noqa: PLW1509
    ) as process:
        process.send_signal(signal.SIGHUP)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 2 and 'no such run: nowhere' in stderr


IMPORTING = """
import signal, sys, time
from kbr_localization.cli import main

class Slow:
    def find_spec(self, name, path, target=None):
        if name == 'kbr_localization.cli.run_commands':
            print('importing', flush=True)
            try:
                time.sleep(1.0)
            except BaseException:
                pass  # as some modules do
        return None

sys.meta_path.insert(0, Slow())
main(['methods'])
"""


def test_an_interrupt_within_an_import_is_heeded_when_that_is_over():
    """There an exception is printed with its traceback, or caught by who imports."""
    process = subprocess.Popen(
        [sys.executable, '-c', IMPORTING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_interrupts,  # noqa: PLW1509
    )
    assert process.stdout.readline() == 'importing\n'
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=10)
    assert (process.returncode, stderr) == (130, 'kbr: interrupted\n')


def test_a_typer_that_is_too_old_is_one_line(monkeypatch, capsys):
    import typer

    monkeypatch.setattr(typer, '__version__', '0.4.0')
    with pytest.raises(SystemExit) as leaving:
        kbr_localization.cli.main(['--version'])
    assert leaving.value.code == 2
    assert capsys.readouterr().err == (
        'kbr: kbr needs the Python module typer 0.9 or newer, got 0.4.0: '
        "`pip install 'typer>=0.9'`\n"
    )


@pytest.mark.skipif(sys.version_info >= (3, 14), reason='Optional is written X | None there')
def test_the_typer_of_ubuntu_24_04_understands_the_options():
    from kbr_localization.cli import app, map_commands

    commands = [*app.app.registered_commands, *map_commands.app.registered_commands]
    for command in (*commands, app.app.registered_callback):
        for name, hint in command.callback.__annotations__.items():
            kind = getattr(hint, '__origin__', hint)
            assert not isinstance(kind, str | UnionType), f'{command.callback.__name__}: {name}'


def test_a_defect_keeps_its_traceback(monkeypatch):
    def broken(arguments, **options):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_command(broken, [])


def test_a_module_that_is_missing_is_told_with_what_installs_it_anywhere():
    assert {'rosbags', 'joblib', 'matplotlib', 'distributed'} < set(OPTIONAL)
    for module, remedy in OPTIONAL.items():

        def command(arguments, missing=module, **options):
            raise ModuleNotFoundError(f'No module named {missing!r}', name=missing)

        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            assert run_command(command, []) == 2
        line = errors.getvalue()
        assert line.count('\n') == 1 and remedy in line
