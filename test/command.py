"""The command `kbr` as a user runs it: a process of its own."""

import subprocess
import sys


def kbr(*arguments, **options):
    """Run `kbr` and return what came of it; options are those of subprocess.run."""
    options = {'capture_output': True, 'text': True, 'check': False} | options
    return subprocess.run([*KBR, *map(str, arguments)], **options)  # noqa: PLW1510


KBR = (sys.executable, '-m', 'kbr_localization')
"""Wherever the package is installed, by pip or by colcon."""


def assert_one_line(result, *fragments):
    """Exit code 2, and one line on stderr that holds the fragments."""
    assert result.returncode == 2, result
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    for fragment in ('kbr: ', *fragments):
        assert fragment in lines[0]
