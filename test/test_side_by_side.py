"""The tests in three processes: each module once; what is over DDS gets a second chance."""

import os
from pathlib import Path
import shutil
import subprocess
import sys
import time

from process_helpers import assert_nobody_is_left, leader
import pytest

HERE = Path(__file__).parent
MODULE = """
from pathlib import Path
import time
import pytest

pytestmark = [pytest.mark.{marker}]


def test_it():
    begun = time.monotonic()
    runs = Path(__file__).with_suffix('.runs')
    runs.write_text(runs.read_text() + 'x' if runs.exists() else 'x')
    assert len(runs.read_text()) > {failures}
    time.sleep(0.3)
    Path(__file__).with_suffix('.time').write_text(f'{{begun}} {{time.monotonic()}}')
"""
SLEEPING = """
from pathlib import Path
import time


def test_it():
    path = Path(__file__)
    path.with_suffix('.runs').touch()
    try:
        time.sleep(300)
    finally:
        path.with_suffix('.ended').touch()
"""
MARKERS = '[pytest]\nmarkers =\n    ros: over DDS\n    slow: slow\n    alone: alone\n'


def run(folder, **modules):
    """Run modules, each of a marker and of so many failures; return the code and the counts."""
    for name in ('conftest.py', 'side_by_side.py'):
        shutil.copy(HERE / name, folder)
    (folder / 'pytest.ini').write_text(MARKERS)
    for name, (marker, failures) in modules.items():
        text = MODULE.format(marker=marker, failures=failures)
        (folder / f'test_{name}.py').write_text(text)
    command = [sys.executable, 'side_by_side.py', '-q', '.']
    # what plugins are installed takes a process a second to import, and is not needed here
    environment = os.environ | {'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1'}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    counts = {path.stem[5:]: len(path.read_text()) for path in folder.glob('*.runs')}
    return ended.returncode, counts, ended.stdout


def test_every_module_runs_once(tmp_path):
    code, counts, _ = run(tmp_path, one=('slow', 0), two=('ros', 0), three=('slow', 0))
    assert (code, counts) == (0, {'one': 1, 'two': 1, 'three': 1})


def test_what_failed_over_dds_runs_once_more_and_is_named(tmp_path):
    code, counts, output = run(tmp_path, one=('slow', 0), two=('ros', 1))
    assert (code, counts) == (0, {'one': 1, 'two': 2})
    assert 'once more, by themselves: test_two.py::test_it' in output


@pytest.mark.parametrize('others, runs', [(('slow', 0), 2), (('slow', 1), 1)])
def test_what_fails_again_or_fails_elsewhere_is_a_failure(tmp_path, others, runs):
    code, counts, _ = run(tmp_path, one=others, two=('ros', 5))
    assert code == 1 and counts == {'one': 1, 'two': runs}


def test_a_test_that_is_to_be_alone_runs_beside_no_other(tmp_path):
    others = {f'other{n}': ('slow', 0) for n in range(4)}
    code, _, _ = run(tmp_path, a_lone=('alone', 0), **others, z_lone=('alone', 0))
    assert code == 0
    times = {p.stem[5:]: list(map(float, p.read_text().split())) for p in tmp_path.glob('*.time')}
    assert len(times) == 6
    for name in ('a_lone', 'z_lone'):
        begun, ended = times.pop(name)
        assert all(end <= begun or begin >= ended for begin, end in times.values())


def test_no_process_outlives_the_one_that_started_it_and_was_killed(tmp_path):
    for name in ('conftest.py', 'side_by_side.py'):
        shutil.copy(HERE / name, tmp_path)
    (tmp_path / 'pytest.ini').write_text(MARKERS)
    for name in ('one', 'two', 'three'):
        (tmp_path / f'test_{name}.py').write_text(SLEEPING)
    command = [sys.executable, 'side_by_side.py', '-q', '.']
    with leader(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as run:
        end = time.monotonic() + 60.0
        while len(list(tmp_path.glob('*.runs'))) < 3:
            assert time.monotonic() < end
            time.sleep(0.1)
        run.kill()
        assert_nobody_is_left(run, end)
    # pytest has ended in good order
    assert len(list(tmp_path.glob('*.ended'))) == 3
