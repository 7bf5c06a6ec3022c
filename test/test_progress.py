"""Progress on a terminal and in a log."""

import os
import pty
import subprocess
import sys

WORK = """
from kbr_localization.progress import report, terminal_progress
with terminal_progress():
    for done in range(0, 201):
        report('counting', done, 200)
    report('nothing to do', 0, 0)
"""


def test_a_log_gets_a_line_at_the_end_and_every_ten_seconds():
    command = [sys.executable, '-c', WORK]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert result.stdout == ''
    told = ['counting: 0 of 200', 'counting: 200 of 200', 'nothing to do: 0 of 0']
    assert result.stderr.splitlines() == told


def test_a_terminal_gets_a_line_that_changes_and_the_next_line_at_the_end():
    reader, terminal = pty.openpty()
    env = {**os.environ, 'COLUMNS': '20'}
    subprocess.run([sys.executable, '-c', WORK], check=True, stderr=terminal, env=env)
    os.close(terminal)
    shown = os.read(reader, 100_000).decode()
    os.close(reader)
    counted, nothing, rest = shown.split('\r\n')
    assert counted.startswith('\rcounting: 0 of 200') and 'ing: 200 of 200' in counted
    assert nothing == '\rthing to do: 0 of 0\033[K' and not rest
