"""
Run the tests in two processes that share the work: `python test/in_two.py [options of pytest]`.

Both collect everything. One goes through the modules from the first to the last, the other from
the last to the first, and each claims a module before it begins with it, so that they meet
somewhere in the middle however long modules take. A module is never split: its fixtures are made
once. What claims is in conftest.py; what the second process says is printed when the first ends.
"""

import os
from pathlib import Path
import subprocess
import sys
import tempfile

FORWARDS, BACKWARDS = 'forwards', 'backwards'
ALL_CLAIMED = 5
"""What pytest returns when no test was left to run."""
TESTS_FAILED = 1
OVER_DDS, OTHERS = 'failed_over_dds', 'failed_others'
"""Files beside the claims, into which conftest.py writes the tests that failed."""


def main(options):
    """Run pytest twice; return the worse of the two exit codes."""
    # two processes and their nodes: more threads would only wait for each other
    environment = {'OPENBLAS_NUM_THREADS': '1', 'OMP_NUM_THREADS': '1', **os.environ}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code = _in_two(options, folder, environment)
        again = _failed(folder / OVER_DDS)
        if code != TESTS_FAILED or not again or _failed(folder / OTHERS):
            return code
        print(f'once more, by themselves: {" ".join(again)}', flush=True)
        command = [*_pytest(options), *again]
        return subprocess.run(command, check=False, env=environment).returncode


def _in_two(options, folder, environment):
    with (folder / 'output').open('w+') as output:
        runs = []
        for way, out in ((BACKWARDS, output), (FORWARDS, None)):
            command = [*_pytest(options), f'--claims={folder / way}']
            runs.append(subprocess.Popen(command, stdout=out, env=environment))
        codes = [run.wait() for run in reversed(runs)]
        output.seek(0)
        print(output.read(), flush=True)
    return max(0 if code == ALL_CLAIMED else code for code in codes)


def _pytest(options):
    return [sys.executable, '-m', 'pytest', *options]


def _failed(path):
    return path.read_text().splitlines() if path.exists() else []


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
