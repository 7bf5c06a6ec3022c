"""The page and the recording of a run."""

import dataclasses
import json
import re
import shutil
import subprocess

from helpers import write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.evaluation.metrics import run_errors
from kbr_localization.evaluation.report import map_data, record_run, run_data, write_page
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import MappingRecord
from kbr_localization.trajectory import Trajectory
from map_helpers import TinyRun
import numpy as np
import pytest

BROWSERS = ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')
browser = next(filter(None, map(shutil.which, BROWSERS)), None)
needs_browser = pytest.mark.skipif(browser is None, reason='no Chromium on this machine')


@pytest.fixture(scope='module')
def kernel_map(tmp_path_factory):
    run = write_tiny_cold_run(tmp_path_factory.mktemp('map') / 'train', frames=24)
    return build_map([open_dataset(run)])


@pytest.fixture(scope='module')
def record(kernel_map, tmp_path_factory):
    run = write_tiny_cold_run(tmp_path_factory.mktemp('run') / 'test', frames=16)
    return record_run(kernel_map, open_dataset(run), init='reference')


def in_browser(page, folder):
    """Open a page; return its document as the browser has it then, and what the console says."""
    command = [browser, '--headless', '--no-sandbox', '--disable-gpu', '--enable-logging=stderr']
    command += [f'--user-data-dir={folder / "profile"}', '--virtual-time-budget=3000']
    command += ['--dump-dom', page.as_uri()]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return result.stdout, [line for line in result.stderr.splitlines() if 'CONSOLE' in line]


def page_of(data, folder):
    write_page(folder / 'report.html', data)
    return in_browser(folder / 'report.html', folder)


@needs_browser
def test_the_page_opens_without_an_error_and_shows_the_run(record, tmp_path):
    document, console = page_of(run_data(record), tmp_path)
    assert console == []
    assert '<h1 id="title">test</h1>' in document
    assert re.search(r'<b>0\.\d\d m</b><small>position RMSE</small>', document)
    assert document.count('<figure') == len(record.worst)
    assert len(re.findall(r'<span>filter: \w+</span>', document)) > 10
    assert re.search(r'class="scale".*?>[\d.]+ m</text>', document)
    # nothing of it can reach the network
    page = (tmp_path / 'report.html').read_text()
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    fetching = page.replace("'use strict';", "'use strict'; fetch('http://localhost:9/');", 1)
    (tmp_path / 'fetching.html').write_text(fetching)
    _, console = in_browser(tmp_path / 'fetching.html', tmp_path)
    assert any('Content Security Policy' in line for line in console)


@needs_browser
def test_other_pages_open_without_an_error(kernel_map, tmp_path):
    unknown = TinyRun(6)
    unknown.frames = [dataclasses.replace(frame, reference=None) for frame in unknown.frames]
    document, console = page_of(run_data(record_run(kernel_map, unknown)), tmp_path)
    assert console == []
    assert '<figure' not in re.sub(r'<script.*', '', document, flags=re.DOTALL)
    document, console = page_of(map_data(hand_made(kernel_map), 'map'), tmp_path)
    assert console == []
    assert len(re.findall(r'<svg[^>]*class="plan"', document)) == 2
    assert 'closures that contradict the others' in document


def data_of(page):
    """Return the text of a page's element of data, and what it holds."""
    written = page.read_text().partition('id="data">')[2].partition('</script>\n<script>')[0]
    return written, json.loads(written)


def test_no_text_of_a_run_gets_out_of_the_data(tmp_path):
    text = '</script><!--<script>&\u2028'
    write_page(tmp_path / 'report.html', {'title': text})
    written, data = data_of(tmp_path / 'report.html')
    assert '</' not in written and '<!' not in written and '\u2028' not in written
    assert data['title'] == text


def test_the_worst_frames_are_apart_from_each_other(kernel_map, record, tmp_path):
    moved = dataclasses.replace(kernel_map, poses=kernel_map.poses + np.array([3.0, 0.0, 0.0]))
    record = record_run(moved, record.dataset)
    errors = record.errors.position_m[list(record.worst)]
    assert list(errors) == sorted(errors, reverse=True)
    assert np.diff(np.sort(record.worst)).min() >= 5
    write_page(tmp_path / 'report.html', run_data(record))
    _, data = data_of(tmp_path / 'report.html')
    assert set(data['pairs']) == {str(number) for number in record.pairs}
    assert data['pairs']['0']['frame'].startswith('data:image/jpeg;base64,')
    assert data['frames']['error_m'][record.worst[0]] == max(data['frames']['error_m'])


def test_the_page_has_the_numbers_of_each_frame_in_its_units(record, tmp_path):
    count = len(record.trajectory)
    covariances = np.tile(np.diag([0.04, 0.09, 0.01]), (count, 1, 1))
    covariances[3] = np.diag([9999.0] * 3)
    trajectory = dataclasses.replace(
        record.trajectory,
        poses=record.reference.poses + np.array([0.3, 0.4, np.radians(10.0)]),
        covariances=covariances,
        seconds=np.full(count, 0.025),
    )
    reference = Trajectory(record.reference.stamps_ns[1:], record.reference.poses[1:])
    data = run_data(
        dataclasses.replace(
            record,
            trajectory=trajectory,
            reference=reference,
            errors=run_errors(reference, trajectory),
            beliefs=(np.array([[1.0, 2.0, 3.0]]),) * count,
        )
    )
    write_page(tmp_path / 'report.html', data)
    _, data = data_of(tmp_path / 'report.html')
    frames = data['frames']
    assert frames['error_m'] == [None, *[0.5] * (count - 1)]
    assert frames['error_deg'] == [None, *[10.0] * (count - 1)]
    assert frames['sigma_m'] == [0.3, 0.3, 0.3, None, *[0.3] * (count - 4)]
    assert data['histograms'][0]['values'] == [25.0] * count
    assert frames['seconds'][:3] == [0.0, 0.4, 0.8]
    assert frames['beliefs'][0] == [[1.0, 2.0]]


def hand_made(kernel_map):
    """Return the map as two runs beside each other, which are joined by four closures of five."""
    half = len(kernel_map) // 2
    poses = kernel_map.poses[:half] + np.array([0.0, 5.0, 0.0])
    misses = [[0.7, 0, 0], [0, 0.6, 0], [0, 0, 0.25], [0.46, 0, 0], [1, 1, 0]]
    record = MappingRecord(
        odometry=np.tile(poses, (2, 1)),
        covariances=np.tile(np.diag([0.09, 0.16, 0.01]), (2 * half, 1, 1)),
        closures=np.array([[image, half + image] for image in range(5)]),
        chain=np.array([0, 0, 1, 2, 3]),
        relative=np.zeros((5, 3)),
        misses=np.array(misses),
        score=np.arange(5.0),
        kept=np.array([1, 1, 1, 1, 0]),
        parameters=np.zeros((2, 7)),
        aligned=False,
    )
    stamps = kernel_map.stamps_ns[:half]
    return dataclasses.replace(
        kernel_map,
        poses=np.tile(poses, (2, 1)),
        run_index=np.repeat([0, 1], half),
        run_names=('first', 'second'),
        stamps_ns=np.concatenate([stamps, stamps + 100_000_000_000]),
        mapping=record,
    )


def test_the_page_of_a_map_shows_its_numbers_in_their_units(kernel_map):
    joined = hand_made(kernel_map)
    # of each sequence the worst one; a radian is as bad as two metres
    data = map_data(joined, 'map')
    assert data['tiles'] == [
        ['closures used', 4, ''],
        ['sequences of these closures', 3, ''],
        ['contradictory sequences', 1, ''],
        ['uncertainty of the poses', pytest.approx(0.5), 'm'],
    ]
    used, rejected = data['pair_groups']
    assert [len(group['pairs']) for group in (used, rejected)] == [3, 1]
    assert used['pairs'][1]['caption'] == (
        'first 0.8 s and second 0.8 s: error +0.00 m along, +0.00 m across, +14.3°; score 2.0'
    )
    assert set(data['tables']) == {'odometry of run 1', 'odometry of run 2'}
