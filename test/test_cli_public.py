"""Commands on public datasets: they are taken directly, and what was made is told."""

from command import assert_one_line, invoke
import cv2
from helpers import wall_image
from public_datasets import write_euroc, write_tum_rgbd
import pytest

MADE = 'odometry made from the truth'


@pytest.fixture
def traverses(tmp_path):
    """Two traverses past the same wall."""
    for name in ('day', 'night'):
        (tmp_path / name).mkdir()
        for place in range(12):
            picture = wall_image(0.4 * place)
            cv2.imwrite(str(tmp_path / name / f'{place:03d}.png'), picture)
    return tmp_path / 'day', tmp_path / 'night'


def told(result):
    """Return the lines that say that the odometry was made."""
    assert result.returncode == 0, result.stderr
    return [line for line in result.stderr.splitlines() if MADE in line]


def test_every_command_takes_traverses_and_says_what_was_made(traverses, tmp_path):
    day, night = traverses
    spacing = ('--spacing', 0.4)
    built, tum = tmp_path / 'map.h5', tmp_path / 'out.tum'
    assert len(told(invoke('map', 'build', day, *spacing, '--out', built))) == 1
    assert len(told(invoke('localize', built, night, *spacing, '--out', tum))) == 1
    assert len(told(invoke('evaluate', night, tum, *spacing))) == 1
    page = tmp_path / 'page.html'
    assert len(told(invoke('report', built, night, *spacing, '--out', page))) == 1
    assert MADE in page.read_text()
    out = tmp_path / 'compared'
    options = ('--sizes', 8, '--trials', 1, '--methods', 'nearest', '--jobs', 1, *spacing)
    compared = invoke('compare', '--train', day, '--test', night, '--out', out, *options)
    assert len(told(compared)) == 2
    assert MADE in (out / 'comparison.md').read_text()


def test_the_spacing_is_asked_for(traverses, tmp_path):
    result = invoke('map', 'build', traverses[0], '--out', tmp_path / 'map.h5')
    assert_one_line(result, 'expected --spacing METRES', 'traverse.yaml')


@pytest.mark.parametrize(('to', 'images'), [('cold', 'std_cam/*'), ('bag', '*.mcap')])
def test_a_conversion_keeps_the_note(tmp_path, to, images):
    run = write_tum_rgbd(tmp_path / 'data')
    assert len(told(invoke('convert', run, tmp_path / 'out', '--to', to))) == 1
    assert list((tmp_path / 'out').glob(images))
    assert MADE in (tmp_path / 'out' / 'kbr_notes.txt').read_text()
    assert len(told(invoke('convert', tmp_path / 'out', tmp_path / 'again'))) == 1


def test_several_cameras_become_no_cold_run(tmp_path):
    run = write_euroc(tmp_path / 'data', ('cam0', 'cam1'))
    result = invoke('convert', run, tmp_path / 'out', '--to', 'cold', '--cameras', 'cam0,cam1')
    assert result.returncode == 2
    assert 'expected one camera, got cam0, cam1' in result.stderr
    assert not (tmp_path / 'out').exists()
