"""
What all benchmarks share: how ratios are measured, and where the figures go.

Each benchmark replaces its own sections of `README.md` and leaves the others' alone.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import gc
import os
from pathlib import Path
import platform
import re
import subprocess
import time
from typing import Any

import cv2
from kbr_localization import __version__
from kbr_localization.files import write_text
import numpy as np
import scipy

PAGE = Path(__file__).with_name('README.md')
_TITLE = """# Speed and memory

`make bench` measures times and memory and replaces its sections below;
`python -m benchmarks.latency` replaces that of the latency. Ratios are medians of alternating runs
in one process. Other results are in [docs/results.md](../docs/results.md).
"""


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """Parser of the command line of a benchmark, which prints its docstring as help."""
    style = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=about, formatter_class=style)


def interleaved(
    functions: Mapping[Any, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Any, list[float]]:
    """
    Time functions in turn, `rounds` times each, in seconds by name.

    Whatever else the machine does meets them all alike. Each is called once before. `clock`:
    seconds; `time.thread_time` leaves out what other processes take.
    """
    times: dict[Any, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()  # caches and lazy imports are not what is compared
    gc.collect()
    names = list(functions)
    for index in range(rounds):
        for name in names if index % 2 else reversed(names):
            start = clock()
            functions[name]()
            times[name].append(clock() - start)
    return times


def median_ms(seconds: Sequence[float]) -> float:
    """Median in milliseconds."""
    return 1e3 * float(np.median(seconds))


def publish(text: str, section: str, path: Path = PAGE) -> None:
    """Print what was measured, and replace its section of the page or add it."""
    print(text)
    page = path.read_text(encoding='utf-8') if path.exists() else ''
    found = dict(re.findall(r'<!-- (\w+) -->\n(.*?)\n<!-- end -->', page, re.DOTALL))
    about = ['git', '-C', str(PAGE.parent), 'log', '-1', '--format=commit %h of %cs']
    try:
        version = subprocess.check_output(about, stderr=subprocess.DEVNULL, text=True).strip()
    except (OSError, subprocess.CalledProcessError):  # a copy without git
        version = f'version {__version__}'
    found[section] = f'{text.strip()}\n\nMeasured with {version}.'
    parts = [f'<!-- {key} -->\n{found[key]}\n<!-- end -->' for key in sorted(found)]
    write_text(path, '\n'.join([_TITLE, *parts]) + '\n')


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Lay out a table in Markdown; numbers get three significant digits."""
    lines = [header, ['---'] * len(header), *([_shown(cell) for cell in row] for row in rows)]
    return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)


def machine() -> str:
    """Say in one line what the figures were measured on."""
    known = Path('/proc/cpuinfo').read_text(encoding='utf-8')
    processor = known.partition('model name')[2].split('\n')[0].strip('\t :') or platform.machine()
    return (
        f'{processor}, {os.cpu_count()} cores; Python {platform.python_version()}, '
        f'NumPy {np.__version__}, SciPy {scipy.__version__}, OpenCV {cv2.__version__}'
    )


def _shown(cell: Any) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f'{cell:.0f}' if abs(cell) >= 100 else f'{cell:.3g}'
