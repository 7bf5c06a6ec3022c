"""One HTML page about a map of odometry and images: what was joined, and how well."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from html import escape
from pathlib import Path

from kbr_localization import __version__, se2
from kbr_localization.errors import EvaluationError, MapError
from kbr_localization.evaluation.page import write_page
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.mapping_record import MappingRecord
from kbr_localization.localization.mapping.align import fit, moved
from kbr_localization.localization.mapping.base_frame import described_point
from kbr_localization.localization.mapping.wheels import NAMES
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

TEMPLATE = 'map_report.html'
PLACE = '<!-- the data goes here -->'
WORST, AGAINST = 24, 12
"""Pairs of images that are shown, of those used and of those that contradict them."""
_LEAP = 1.5  # metres: no line is drawn over more
_WEIGHTS = np.array([1.0, 1.0, 2.0])  # of what a closure misses: a radian is as bad as two metres
_UNITS = {'offset_x': ' m', 'offset_y': ' m', 'mounting': ' rad', 'drift': ' rad/m'}
_BARS = 24


def write_map_report(path: str | Path, kernel_map: KernelMap, name: str) -> None:
    """
    Write the page of a map called `name`; raises OSError when that fails.

    Raises EvaluationError for a map whose poses were known: there is nothing to show.
    """
    record = kernel_map.mapping
    if record is None:
        raise EvaluationError(
            f'{name} was built of known poses: give a run to localize on it, as in '
            '`kbr report MAP RUN`'
        )
    write_page(path, TEMPLATE, PLACE, ''.join(_parts(kernel_map, record, name)))


def _parts(kernel_map: KernelMap, record: MappingRecord, name: str) -> Iterator[str]:
    written = datetime.now(timezone.utc).strftime('%Y-%m-%d %H:%M UTC')
    about = f'written {written}, {__version__}'
    yield f'<header><h1>{escape(name)}</h1><small>{about}</small></header>'
    before, after = _plan(kernel_map, record, True), _plan(kernel_map, record, False)
    yield (
        '<section class="halves">'
        f'<div class="card"><h2>By the odometry alone, each run for itself</h2>{before}</div>'
        f'<div class="card"><h2>The map: closures used, and those that contradict</h2>{after}'
        '</div></section>'
    )
    yield (
        f'<section class="halves"><div class="card"><h2>In numbers</h2>{_numbers(record)}</div>'
        f'<div class="card"><h2>What the closures miss</h2>{_bars(record)}</div></section>'
    )
    used = worst_first(record, WORST)
    against = strongest_against(record, AGAINST)
    for title, chosen in (
        ('Taken for one place, the worst first', used),
        ('Look alike, but contradict the others: not used', against),
    ):
        pairs = ''.join(_pair(kernel_map, record, index) for index in chosen)
        yield f'<div class="card"><h2>{title}</h2><div class="pairs">{pairs or "none"}</div></div>'


def worst_first(record: MappingRecord, most: int) -> NDArray[np.intp]:
    """Closures (k,) that were used and miss most, one of each chain before another of any."""
    used = np.flatnonzero(record.kept == 1)
    badness = np.linalg.norm(record.misses[used] * _WEIGHTS, axis=1)
    order = used[np.argsort(-badness, kind='stable')]
    _, first = np.unique(record.chain[order], return_index=True)
    leading = np.zeros(len(order), dtype=bool)
    leading[first] = True
    return np.concatenate([order[leading], order[~leading]])[:most]


def strongest_against(record: MappingRecord, most: int) -> NDArray[np.intp]:
    """Closure (k,) in the middle of each chain that was not used, the strongest chain first."""
    _, chain = np.unique(record.chain, return_inverse=True)
    score, used = np.bincount(chain, record.score), np.bincount(chain, record.kept) > 0
    found = []
    for number in np.argsort(-score, kind='stable'):
        members = np.flatnonzero(chain == number)
        if not used[number]:
            found.append(int(members[len(members) // 2]))
    return np.array(found[:most], dtype=np.intp)


def _plan(kernel_map: KernelMap, record: MappingRecord, before: bool) -> str:
    poses = kernel_map.poses.copy()
    runs = range(len(kernel_map.run_names))
    if before:
        for run in runs:
            members = kernel_map.run_index == run
            poses[members] = _laid_over(record.odometry[members], poses[members])
    lines = [
        _path(poses[kernel_map.run_index == run], 'before' if before else 'after') for run in runs
    ]
    if not before:
        for kind, kept in (('against', 0), ('kept', 1)):
            lines += [
                _line(poses[a], poses[b], kind)
                for a, b in record.closures[_thinned(record, kept)].tolist()
            ]
    both = np.concatenate([poses, kernel_map.poses])[:, :2]
    low, high = both.min(axis=0), both.max(axis=0)
    room = 0.04 * float(np.max(high - low)) + 0.3
    x, y = float(low[0]) - room, -float(high[1]) - room
    width, height = (high - low + 2.0 * room).tolist()
    size = 0.03 * max(width, height)
    height += 2.0 * size  # for the bar, below all that was driven
    scale = 10.0 ** np.floor(np.log10(max(width, 1.0) / 2.0))
    above = y + height - room / 2
    bar = (
        f'<path class="before" d="M{x + room:.2f} {above:.2f}h{scale:g}"/>'
        f'<text x="{x + room:.2f}" y="{above - 0.4 * size:.2f}" font-size="{size:.2f}">'
        f'{scale:g} m</text>'
    )
    return (
        f'<svg viewBox="{x:.2f} {y:.2f} {width:.2f} {height:.2f}" role="img">{"".join(lines)}{bar}'
        '</svg>'
    )


def _thinned(record: MappingRecord, kept: int) -> NDArray[np.intp]:
    """Closures to draw: all that were used, of each other chain one."""
    if kept:
        return np.flatnonzero(record.kept == 1)
    return strongest_against(record, len(record.chain))


def _laid_over(odometry: FloatArray, poses: FloatArray) -> FloatArray:
    """Odometry (n, 3) of a run, moved to begin where the run does in the map."""
    if not len(poses):
        return odometry
    try:
        return moved(odometry, fit(odometry, poses)[0])
    except MapError:  # a run in one place has no direction
        return se2.compose(se2.compose(poses[0], se2.inverse(odometry[0])), odometry)


def _path(poses: FloatArray, kind: str) -> str:
    if not len(poses):
        return ''
    leaps = np.concatenate([[True], np.hypot(*np.diff(poses[:, :2], axis=0).T) > _LEAP])
    steps = [
        f'{"M" if leap else "L"}{x:.2f} {-y:.2f}'
        for (x, y), leap in zip(poses[:, :2].tolist(), leaps, strict=True)
    ]
    return f'<path class="{kind}" d="{"".join(steps)}"/>'


def _line(a: FloatArray, b: FloatArray, kind: str) -> str:
    # a dot where both are at one place
    ends = f'x1="{a[0]:.2f}" y1="{-a[1]:.2f}" x2="{b[0]:.2f}" y2="{-b[1]:.2f}"'
    return f'<line class="{kind}" {ends}/>'


def _numbers(record: MappingRecord) -> str:
    used = record.kept == 1
    rows: list[tuple[str, str]] = [
        ('images', str(len(record.odometry))),
        ('poses of the', described_point(record)),
        ('closures used', f'{int(used.sum())} in {len(np.unique(record.chain[used]))} sequences'),
        ('sequences that contradict them', str(len(strongest_against(record, 10**6)))),
        ('uncertainty of the poses, as a whole', f'{record.deviation_m:.2f} m'),
    ]
    for run, values in enumerate(record.parameters):
        told = ', '.join(
            f'{name.replace("_", " ")} {value:+.3f}{_UNITS.get(name, "")}'
            for name, value in zip(NAMES, values, strict=True)
        )
        rows.append((f'odometry of run {run + 1}', told))
    cells = ''.join(f'<tr><td>{escape(a)}</td><td>{escape(b)}</td></tr>' for a, b in rows)
    return f'<table>{cells}</table>'


def _bars(record: MappingRecord) -> str:
    """Histograms of what the closures that were used miss along, across and in heading."""
    missed = record.misses[record.kept == 1] * np.array([1.0, 1.0, 180.0 / np.pi])
    if not len(missed):
        return 'no closures'
    charts = [
        _histogram(missed[:, axis], unit, 110 * axis)
        for axis, unit in enumerate(('m along', 'm across', 'degrees'))
    ]
    return f'<svg viewBox="0 0 600 330">{"".join(charts)}</svg>'


def _histogram(values: FloatArray, unit: str, top: int) -> str:
    limit = max(float(np.abs(values).max()), 1e-3)
    counts, _ = np.histogram(values, bins=_BARS, range=(-limit, limit))
    width = 580.0 / _BARS
    bars = ''.join(
        f'<rect class="bar" x="{10 + i * width:.1f}" y="{top + 80 - 70 * n / counts.max():.1f}" '
        f'width="{width - 1:.1f}" height="{70 * n / counts.max():.1f}"/>'
        for i, n in enumerate(counts.tolist())
    )
    text = f'{-limit:.2f} to {limit:.2f} {unit}, median size {np.median(np.abs(values)):.2f}'
    return f'{bars}<text x="10" y="{top + 96}" font-size="12">{text}</text>'


def _pair(kernel_map: KernelMap, record: MappingRecord, index: int) -> str:
    a, b = record.closures[index].tolist()
    along, across, turn = record.misses[index]
    where = ' and '.join(_named(kernel_map, image) for image in (a, b))
    shown = ''.join(_picture(kernel_map.thumbnails, image) for image in (a, b))
    caption = (
        f'{escape(where)}: misses {along:+.2f} m along, {across:+.2f} m across, '
        f'{np.degrees(turn):+.1f}°; score {record.score[index]:.1f}'
    )
    return f'<figure><div class="images">{shown}</div><figcaption>{caption}</figcaption></figure>'


def _named(kernel_map: KernelMap, image: int) -> str:
    run = int(kernel_map.run_index[image])
    begin = kernel_map.stamps_ns[kernel_map.run_index == run].min()
    seconds = (kernel_map.stamps_ns[image] - begin) * 1e-9
    return f'{kernel_map.run_names[run]} {seconds:.1f} s'


def _picture(thumbnails: Sequence[bytes], image: int) -> str:
    if not len(thumbnails):
        return '<span></span>'
    data = base64.b64encode(thumbnails[image]).decode('ascii')
    return f'<img alt="" src="data:image/jpeg;base64,{data}">'
