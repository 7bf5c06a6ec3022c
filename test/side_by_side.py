"""
Run the tests in three processes that share the work: `python test/side_by_side.py [options]`.

Options are those of pytest. Tests over DDS wait for processes as long as they compute, so that two
cores have time for three. Each process collects everything, takes the modules in an order of its
own and claims one before it begins with it: from the first to the last, from the last to the
first, and from the first one over DDS on. So they meet somewhere however long modules take. A
module is never split: its fixtures are made once. What claims is in conftest.py; what the second
and the third process say is printed when all have ended.

Tests over DDS wait for other processes, and on a machine that others use too a wait can be too
long. Where nothing but such tests failed they run once more, by themselves, and are named.
"""

import os
from pathlib import Path
import subprocess
import sys
import tempfile

FORWARDS, BACKWARDS, FROM_DDS = 'forwards', 'backwards', 'from_dds'
ALL_CLAIMED = 5
"""What pytest returns when no test was left to run."""
TESTS_FAILED = 1
OVER_DDS, OTHERS = 'failed_over_dds', 'failed_others'
"""Files beside the claims, into which conftest.py writes the tests that failed."""


def main(options):
    """Run pytest in each order; return the worst of the exit codes."""
    # some processes and their nodes: more processes would only wait for each other
    environment = {'LOKY_MAX_CPU_COUNT': '1'} | os.environ
    # hundreds of processes import the package, each of which would compile it anew
    environment.pop('PYTHONDONTWRITEBYTECODE', None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code = _side_by_side(options, folder, environment)
        again = _failed(folder / OVER_DDS)
        if code != TESTS_FAILED or not again or _failed(folder / OTHERS):
            return code
        print(f'once more, by themselves: {" ".join(again)}', flush=True)
        command = [*_pytest(options), f'--again={folder / OVER_DDS}']
        return subprocess.run(command, check=False, env=environment).returncode


def _side_by_side(options, folder, environment):
    outputs = {FORWARDS: None}
    outputs |= {way: (folder / f'{way}.log').open('w+') for way in (FROM_DDS, BACKWARDS)}
    runs = []
    for way, output in outputs.items():
        command = [*_pytest(options), f'--claims={folder / way}']
        runs.append(subprocess.Popen(command, stdout=output, env=environment))
    codes = [run.wait() for run in runs]
    for output in filter(None, outputs.values()):
        with output:
            output.seek(0)
            print(output.read(), flush=True)
    return max(0 if code == ALL_CLAIMED else code for code in codes)


def _pytest(options):
    return [sys.executable, '-m', 'pytest', *options]


def _failed(path):
    return path.read_text().splitlines() if path.exists() else []


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
