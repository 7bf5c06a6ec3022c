"""The page and the recording of a run."""

import dataclasses
import json
import re
import shutil
import subprocess

from helpers import tiny_frames, tiny_odometry, write_tiny_cold_run
from kbr_localization.configuration import to_mapping
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.cold import write_cold_run
from kbr_localization.evaluation.record import GOOD_M, record_run
from kbr_localization.evaluation.report import report_data, script_json, write_report
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.methods.method_configs import method_config
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
    command = [
        browser,
        '--headless',
        '--no-sandbox',
        '--disable-gpu',
        f'--user-data-dir={folder / "profile"}',
        '--enable-logging=stderr',
        '--virtual-time-budget=3000',
        '--dump-dom',
        page.as_uri(),
    ]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return result.stdout, [line for line in result.stderr.splitlines() if 'CONSOLE' in line]


@needs_browser
def test_the_page_opens_without_an_error_and_shows_the_run(record, tmp_path):
    write_report(tmp_path / 'report.html', record)
    document, console = in_browser(tmp_path / 'report.html', tmp_path)
    assert console == []
    assert '<h1 id="title">test</h1>' in document
    assert re.search(r'<b>0\.\d\d m</b><small>position RMSE</small>', document)
    assert document.count('<figure>') == len(record.worst)
    assert len(re.findall(r'<td>filter: \w+</td>', document)) > 10


def test_no_text_of_a_run_gets_out_of_the_data():
    text = '</script><!--<script>&\u2028'
    written = script_json({'title': text})
    assert '</' not in written and '<!' not in written and '\u2028' not in written
    assert json.loads(written) == {'title': text}


@needs_browser
def test_a_name_that_would_hide_the_page_is_shown(record, tmp_path):
    name = '<script>x</script><!--<script>'
    runs = dataclasses.replace(record.kernel_map, run_names=(name,))
    write_report(tmp_path / 'report.html', dataclasses.replace(record, kernel_map=runs))
    document, console = in_browser(tmp_path / 'report.html', tmp_path)
    assert console == []
    assert '<h1 id="title">test</h1>' in document
    assert '&lt;script&gt;x&lt;/script&gt;&lt;!--&lt;script&gt;' in document


def height_of_plan(document):
    return float(re.search(r'viewBox="([^"]+)"', document)[1].split()[3])


@needs_browser
@pytest.mark.parametrize(('aside', 'off_the_plan'), [(4.0, False), (400.0, True)])
def test_an_estimate_beside_the_map_is_on_the_plan_unless_it_is_far_away(
    record, tmp_path, aside, off_the_plan
):
    # of the belief no more than its mean: its points are on the plan too
    record = dataclasses.replace(record, beliefs=tuple(record.trajectory.poses[:, np.newaxis]))
    write_report(tmp_path / 'report.html', record)
    before = height_of_plan(in_browser(tmp_path / 'report.html', tmp_path)[0])
    poses = record.trajectory.poses + np.array([0.0, aside, 0.0])
    trajectory = dataclasses.replace(record.trajectory, poses=poses)
    write_report(tmp_path / 'report.html', dataclasses.replace(record, trajectory=trajectory))
    document, console = in_browser(tmp_path / 'report.html', tmp_path)
    assert console == []
    assert before + 2.0 < height_of_plan(document) < 20.0
    assert ('m, off the plan</dd>' in document) == off_the_plan


@needs_browser
def test_a_single_frame_is_a_dot_in_the_charts(kernel_map, tmp_path):
    run = write_tiny_cold_run(tmp_path / 'run', frames=1)
    write_report(tmp_path / 'report.html', record_run(kernel_map, open_dataset(run)))
    document, console = in_browser(tmp_path / 'report.html', tmp_path)
    assert console == []
    charts = re.search(r'<section class="card" id="charts">.*?</section>', document, re.DOTALL)[0]
    assert charts.count('<circle') >= 3


@needs_browser
def test_an_error_on_the_page_would_be_noticed(record, tmp_path):
    write_report(tmp_path / 'report.html', record)
    page = (tmp_path / 'report.html').read_text()
    (tmp_path / 'broken.html').write_text(page.replace("byId('tiles')", "byId('no such tile')"))
    _, console = in_browser(tmp_path / 'broken.html', tmp_path)
    assert console


@needs_browser
def test_the_page_cannot_reach_the_network(record, tmp_path):
    write_report(tmp_path / 'report.html', record)
    page = (tmp_path / 'report.html').read_text()
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    fetching = page.replace("'use strict';", "'use strict'; fetch('http://localhost:9/');", 1)
    (tmp_path / 'fetching.html').write_text(fetching)
    _, console = in_browser(tmp_path / 'fetching.html', tmp_path)
    assert any('Content Security Policy' in line for line in console)


@needs_browser
def test_a_run_without_reference_poses_has_a_page(kernel_map, tmp_path):
    import dataclasses

    unknown = TinyRun(6)
    unknown.frames = [dataclasses.replace(frame, reference=None) for frame in unknown.frames]
    write_report(tmp_path / 'report.html', record_run(kernel_map, unknown))
    document, console = in_browser(tmp_path / 'report.html', tmp_path)
    assert console == []
    assert 'worstcard' not in re.sub(r'<script.*', '', document, flags=re.DOTALL)


def test_names_cannot_break_out_of_the_data(kernel_map, tmp_path):
    name = '<script>alert(1)<|script>'.replace('|', '_')
    write_cold_run(tmp_path / name, tiny_frames(4), tiny_odometry(4))
    dataset = open_dataset(tmp_path / name)
    dataset.name = '</script><script>alert(1)</script>'
    write_report(tmp_path / 'report.html', record_run(kernel_map, dataset))
    page = (tmp_path / 'report.html').read_text()
    assert page.count('</script>') == 2
    assert '<\\/script><script>alert(1)<\\/script>' in page


def test_the_data_cover_every_frame_and_are_plain_json(record):
    data = json.loads(json.dumps(report_data(record), allow_nan=False))
    assert len(data['frames']['error_m']) == len(data['beliefs']) == 16
    assert data['metrics']['frames'] == 16
    assert set(data['pairs']) == {str(number) for number in record.pairs}
    assert data['pairs']['0']['frame'].startswith('data:image/jpeg;base64,')
    assert data['frames']['error_m'][record.worst[0]] == max(data['frames']['error_m'])


def test_good_frames_are_not_among_the_worst_but_the_worst_of_all_is_shown(record):
    assert record.errors.position_m.max() <= GOOD_M
    assert len(record.worst) == 1


def test_the_worst_frames_are_apart_from_each_other(kernel_map, record):
    moved = dataclasses.replace(kernel_map, poses=kernel_map.poses + np.array([3.0, 0.0, 0.0]))
    record = record_run(moved, record.dataset)
    assert len(record.worst) > 1
    errors = record.errors.position_m[list(record.worst)]
    assert list(errors) == sorted(errors, reverse=True)
    gaps = [abs(a - b) for a in record.worst for b in record.worst if a != b]
    assert min(gaps) >= 5


def test_a_broken_image_has_no_picture_but_a_frame(kernel_map, tmp_path):
    run = write_tiny_cold_run(tmp_path / 'run', frames=6)
    sorted((run / 'std_cam').iterdir())[0].write_bytes(b'no jpeg')
    record = record_run(kernel_map, open_dataset(run))
    assert 0 not in record.pairs and len(record.beliefs) == 6
    assert report_data(record)['skipped'] == {'broken image': 1}


def test_the_recording_is_read_back_by_rerun(record, tmp_path):
    pytest.importorskip('rerun', reason='rerun-sdk is not installed')
    from kbr_localization.evaluation.rerun_recording import write_recording
    from rerun.chunk import RrdReader

    write_recording(tmp_path / 'run.rrd', record)
    rows = {}
    for chunk in RrdReader(tmp_path / 'run.rrd').stream():
        rows[chunk.entity_path] = rows.get(chunk.entity_path, 0) + chunk.num_rows
    assert rows['/plan/map'] == 1
    for path in ('/plan/pose', '/plan/belief', '/confidence', '/error/position_m'):
        assert rows[path] == 16
    assert rows['/images/camera'] == rows['/images/match'] == len(record.pairs)


def test_a_recording_that_fails_leaves_the_old_one(record, tmp_path):
    pytest.importorskip('rerun', reason='rerun-sdk is not installed')
    from kbr_localization.evaluation.rerun_recording import write_recording

    (tmp_path / 'run.rrd').write_bytes(b'old')
    with pytest.raises(IndexError):
        write_recording(tmp_path / 'run.rrd', dataclasses.replace(record, beliefs=()))
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b'old']


def test_the_parameters_are_those_of_the_method(record, kernel_map):
    for method in ('kbr', 'algorithm1-adapted', 'gp-particle'):
        data = report_data(record_run(kernel_map, record.dataset, method))
        assert data['parameters']['filter'] == to_mapping(method_config(method, kernel_map))
