"""The command `kbr` as a user runs it, and the same within the test's own process."""

import contextlib
import io
import re
import subprocess
import sys

from kbr_localization.cli.app import app, repeat_options, run_command

KBR = (sys.executable, '-m', 'kbr_localization')
"""Wherever the package is installed, by pip or by colcon."""
FEW_WORDS = ('--set', 'vision.words=30', '--set', 'vision.vocabulary_samples=3000')
"""Half of what a tiny map takes is its vocabulary."""
PROGRESS = re.compile(r'[\w ]+: \d+ of \d+')


def kbr(*arguments, **options):
    """Run `kbr` and return what came of it; options are those of subprocess.run."""
    options = {'capture_output': True, 'text': True, 'check': False} | options
    return subprocess.run([*KBR, *map(str, arguments)], **options)  # noqa: PLW1510


def invoke(*arguments):
    """Do the same without a new process: faster, but what is logged is left out."""
    command = list(map(str, arguments))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command(app, repeat_options(command))
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


def done(*arguments):
    """Do the same and assert that it succeeds."""
    result = invoke(*arguments)
    assert result.returncode == 0, result.stderr
    return result


def assert_one_line(result, *fragments):
    """Exit code 2, and beside progress one line on stderr, which holds the fragments."""
    assert result.returncode == 2, result
    lines = [line for line in result.stderr.splitlines() if not PROGRESS.fullmatch(line)]
    assert len(lines) == 1, result.stderr
    for fragment in ('kbr: ', *fragments):
        assert fragment in lines[0]
