from command import assert_one_line, invoke
from helpers import write_tiny_cold_run
from map_helpers import tiny_map
import pytest


@pytest.fixture
def map_and_run(tmp_path):
    train, test = (write_tiny_cold_run(tmp_path / name, frames=10) for name in ('train', 'test'))
    assert invoke('map', 'build', train, '--out', tmp_path / 'map.h5').returncode == 0
    return tmp_path / 'map.h5', test


def test_page_and_recording_are_written(map_and_run, tmp_path):
    pytest.importorskip('rerun', reason='rerun-sdk is not installed')
    out, recording = tmp_path / 'new' / 'page.html', tmp_path / 'run.rrd'
    options = ('--out', out, '--rerun', recording, '--method', 'nearest')
    result = invoke('report', *map_and_run, *options)
    assert result.returncode == 0, result.stderr
    assert 'page.html' in result.stderr and 'run.rrd' in result.stderr
    assert '<title>kbr report</title>' in out.read_text()
    assert recording.stat().st_size > 10_000


def test_parameters_can_be_set_as_for_localize(map_and_run, tmp_path):
    out = tmp_path / 'page.html'
    result = invoke('report', *map_and_run, '--out', out, '--set', 'image_bandwidth=0.123456')
    assert result.returncode == 0, result.stderr
    assert '0.123456' in out.read_text()
    assert_one_line(invoke('report', *map_and_run, '--out', out, '--set', 'warp=9'), "'warp'")


def test_a_recording_in_the_place_of_the_page_is_refused(map_and_run, tmp_path):
    (tmp_path / 'link.html').symlink_to('page.html')
    options = ('--out', tmp_path / 'page.html', '--rerun', tmp_path / 'link.html')
    assert_one_line(invoke('report', *map_and_run, *options), 'link.html: is the file of the page')


@pytest.mark.parametrize(
    'options', [('--rerun', 'x.rrd'), ('--set', 'image_bandwidth=0.1'), ('--cameras', 'std_cam')]
)
def test_options_of_a_run_are_refused_without_one(tmp_path, options):
    tiny_map().save(tmp_path / 'map.h5')
    result = invoke('report', tmp_path / 'map.h5', '--out', tmp_path / 'page.html', *options)
    assert_one_line(result, 'options of a run: expected RUN beside MAP')
    assert not (tmp_path / 'page.html').exists()
