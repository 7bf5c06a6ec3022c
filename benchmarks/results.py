"""
What all benchmarks share: how ratios are measured, and where the figures go.

`latest.json` holds one number for each figure, `README.md` a section for each benchmark. Every
benchmark replaces its own part of them and leaves the others' alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import gc
import json
import os
from pathlib import Path
import platform
import re
import subprocess
import time
from typing import Any

import cv2
from kbr_localization.files import write_text
from kbr_localization.resources import package_version
import numpy as np
import scipy

FOLDER = Path(__file__).parent
FIGURES = FOLDER / 'latest.json'
PAGE = FOLDER / 'README.md'
_TITLE = """# Speed and memory

`make bench` measures times and memory, and replaces the sections below and `latest.json`. Ratios
are medians of alternating runs in one process. Other results are in
[docs/results.md](../docs/results.md); `--section SECTION` of a benchmark adds a section here.
"""


def take_no_options(about: str | None) -> None:
    """Read the command line of a benchmark that has no options: print help, refuse the rest."""
    style = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=about, formatter_class=style).parse_args()


def interleaved(
    functions: Mapping[str, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    warm_up: bool = True,
) -> dict[str, list[float]]:
    """
    Time functions in turn, `rounds` times each, in seconds by name.

    Whatever else the machine does meets them all alike: compare two by `ratio`. `clock`: seconds;
    `time.thread_time` leaves out what other processes take. `warm_up`: call each once before.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values() if warm_up else ():
        function()  # caches and lazy imports are not what is compared
    gc.collect()
    names = list(functions)
    for index in range(rounds):
        for name in names if index % 2 else reversed(names):
            start = clock()
            functions[name]()
            times[name].append(clock() - start)
    return times


def ratio(times: Mapping[str, Sequence[float]], over: str, under: str) -> float:
    """Median over the rounds of the quotient of two functions' times."""
    return float(np.median(np.asarray(times[over]) / np.asarray(times[under])))


def median_ms(seconds: Sequence[float]) -> float:
    """Median in milliseconds."""
    return 1e3 * float(np.median(seconds))


def merge_figures(figures: Mapping[str, float], path: Path = FIGURES) -> dict[str, Any]:
    """Put figures into `latest.json` beside those that others measured; returns all of them."""
    known = json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}
    merged = known | {name: float(f'{value:.4g}') for name, value in figures.items()}
    write_text(path, json.dumps(dict(sorted(merged.items())), indent=2) + '\n')
    return merged


def publish(text: str, section: str | None) -> None:
    """Print what was measured, and put it into `README.md` where a section is named."""
    print(text)
    if section:
        write_section(section, text)


def write_section(name: str, text: str, path: Path = PAGE) -> None:
    """
    Replace the section of a benchmark in `README.md`, or add it; names stand in order.

    Below it stands what was measured (`measured_with`).
    """
    page = path.read_text(encoding='utf-8') if path.exists() else ''
    found = dict(re.findall(r'<!-- (\w+) -->\n(.*?)\n<!-- end -->', page, re.DOTALL))
    found[name] = f'{text.strip()}\n\n{measured_with()}'
    parts = [f'<!-- {key} -->\n{found[key]}\n<!-- end -->' for key in sorted(found)]
    write_text(path, '\n'.join([_TITLE, *parts]) + '\n')


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Lay out a table in Markdown; numbers get three significant digits."""
    lines = [header, ['---'] * len(header), *([_shown(cell) for cell in row] for row in rows)]
    return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)


def measured_with() -> str:
    """Say in one line which commit of which day is measured; of a copy without git the version."""
    about = ['git', '-C', str(FOLDER), 'log', '-1', '--format=commit %h of %cs']
    try:
        commit = subprocess.run(about, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return f'Measured with version {package_version()}.'
    return f'Measured with {commit}.'


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
