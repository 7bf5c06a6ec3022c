"""
Functions of all benchmarks: timing, tables, and the results page `README.md`.

Each benchmark replaces only its own sections of the page.
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
    """Return a parser that prints the docstring of a benchmark as help."""
    style = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=about, formatter_class=style)


def interleaved(
    functions: Mapping[Any, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Any, list[float]]:
    """
    Time functions in alternation, `rounds` times each; return seconds by name.

    Alternation exposes all functions to the same load of the machine. `clock` returns seconds;
    `time.thread_time` excludes other processes.
    """
    times: dict[Any, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()  # fill caches and finish lazy imports first
    gc.collect()
    names = list(functions)
    for index in range(rounds):
        for name in names if index % 2 else reversed(names):
            start = clock()
            functions[name]()
            times[name].append(clock() - start)
    return times


def median_ms(seconds: Sequence[float]) -> float:
    return 1e3 * float(np.median(seconds))


def publish(text: str, section: str, path: Path = PAGE) -> None:
    """Print the results, and replace or add their section of the page."""
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
    """Format a Markdown table; floats get three significant digits."""
    lines = [header, ['---'] * len(header), *([_shown(cell) for cell in row] for row in rows)]
    return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)


def machine() -> str:
    """Describe this machine and the library versions in one line."""
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
