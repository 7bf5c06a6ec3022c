"""The executables: what ends them before a node is there, and what keeps a node from starting."""

import os
import signal
import subprocess
import sys
import time

from kbr_localization.demo.tour import own_domain
from process_helpers import leader
import pytest
from ros_helpers import parameter_arguments, PATIENCE

pytestmark = pytest.mark.ros
PROGRAM = """
from kbr_localization import programs
print('begun', flush=True)
raise SystemExit(programs.{}())
"""


@pytest.mark.parametrize(
    'node, number, delay',
    [
        ('localization_node', signal.SIGINT, 0.02),
        ('player_node', signal.SIGINT, 0.2),
        ('recorder_node', signal.SIGTERM, 0.4),
    ],
)
def test_an_early_signal_ends_a_program_without_a_traceback(node, number, delay):
    program = [sys.executable, '-c', PROGRAM.format(node)]
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True}
    process = subprocess.Popen(program, **pipes)
    assert process.stdout.readline() == 'begun\n'
    time.sleep(delay)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    # a node that was there already has told of its empty parameters, and may have been ending
    ended = (2, -number) if told else (0, -number)
    assert 'Traceback' not in told and process.returncode in ended, told


@pytest.mark.parametrize(
    'node, values, says',
    [
        ('localization_node', {'map_file': '/no/such/map.h5'}, '/no/such/map.h5'),
        ('localization_node', {'map_file': ''}, 'wrong ROS arguments'),
        ('localization_node', {'mapfile': 'x'}, "'mapfile' = 'x': did you mean 'map_file'?"),
        ('recorder_node', {}, "parameter 'out' is empty"),
        ('recorder_node', {'out': '/proc/run'}, 'cannot record into /proc/run'),
        ('player_node', {'run': '/no/such/run'}, 'no such run: /no/such/run'),
    ],
)
def test_a_node_that_cannot_start_says_why_and_exits_with_2(node, values, says):
    program = [sys.executable, '-c', PROGRAM.format(node), *parameter_arguments(values)]
    with own_domain() as domain:
        own = {**os.environ, 'ROS_DOMAIN_ID': str(domain)}
        done = subprocess.run(program, env=own, check=False, capture_output=True, text=True)
    assert done.returncode == 2 and says in done.stderr and 'Traceback' not in done.stderr


def test_a_node_imports_nothing_that_takes_long_and_is_not_for_it():
    """What only maps are made with, or compared with: half a second of every start."""
    heavy = {'scipy.stats', 'scipy.optimize', 'matplotlib', 'rosbags', 'typer'}
    program = f'import sys, kbr_localization.ros.node; print(set(sys.modules) & {heavy!r})'
    told = subprocess.run(
        [sys.executable, '-c', program], check=True, capture_output=True, text=True
    )
    assert told.stdout == 'set()\n'


WAITS_FOR_A_SIGNAL = """
import time
from kbr_localization.ros.running import stop_at_signals

stop = stop_at_signals()
print('waits')
end = time.monotonic() + 2.0
while time.monotonic() < end:
    pass
raise SystemExit(not stop.is_set)
"""


def test_signals_that_come_together_stop_a_program():
    command = [sys.executable, '-u', '-c', WAITS_FOR_A_SIGNAL]
    with leader(command, stdout=subprocess.PIPE) as run:
        assert run.stdout.readline() == b'waits\n'
        for _ in range(10_000):
            os.kill(run.pid, signal.SIGINT)
            os.kill(run.pid, signal.SIGTERM)
        assert run.wait(PATIENCE) == 0
