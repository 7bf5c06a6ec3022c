"""The executables: what a signal does before a node is there to take it."""

import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.ros
PROGRAM = """
from kbr_localization import programs
print('begun', flush=True)
raise SystemExit(programs.{}())
"""


@pytest.mark.parametrize('node', ['localization_node', 'player_node', 'recorder_node'])
def test_an_early_signal_ends_a_program_without_a_traceback(node):
    for number, delay in ((signal.SIGINT, 0.02), (signal.SIGINT, 0.2), (signal.SIGTERM, 0.4)):
        process = subprocess.Popen(
            [sys.executable, '-c', PROGRAM.format(node)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == 'begun\n'
        time.sleep(delay)
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
        # a node that was there already has told of its empty parameters, and may have been ending
        ended = (2, -number) if told else (0, -number)
        assert 'Traceback' not in told and process.returncode in ended, told


def test_a_node_imports_nothing_that_takes_long_and_is_not_for_it():
    """What only maps are made with, or compared with: half a second of every start."""
    heavy = {'scipy.stats', 'scipy.optimize', 'matplotlib', 'rosbags', 'typer'}
    program = f'import sys, kbr_localization.ros.node; print(set(sys.modules) & {heavy!r})'
    told = subprocess.run(
        [sys.executable, '-c', program], check=True, capture_output=True, text=True
    )
    assert told.stdout == 'set()\n'
