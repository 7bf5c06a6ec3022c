"""Runs and maps that are broken: one clear line each, and what can be used is used."""

import json
import shutil

from command import assert_one_line, invoke
import cv2
import h5py
from helpers import START_NS, textured_image, write_tiny_cold_run
import pytest


@pytest.fixture(scope='module')
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp('good')
    write_tiny_cold_run(folder / 'run', frames=12)
    result = invoke('map', 'build', '--out', folder / 'map.h5', folder / 'run')
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture
def run(good, tmp_path):
    """Copy of the good run, to be broken."""
    return shutil.copytree(good / 'run', tmp_path / 'run')


def localize(good, run, map_file=None):
    out = run.parent / 'out.tum'
    return invoke('localize', map_file or good / 'map.h5', run, '--out', out)


def images(run):
    return sorted((run / 'std_cam').iterdir())


def test_a_broken_jpeg_is_skipped_and_counted(good, run):
    images(run)[0].write_bytes(b'\xff\xd8 this is no picture')
    result = localize(good, run)
    assert result.returncode == 0, result.stderr
    assert 'skipped: 1 x broken image' in result.stderr
    assert f'left out: broken image {images(run)[0]}: expected a whole JPEG' in result.stderr
    evaluated = invoke('evaluate', run, run.parent / 'out.tum', '--json')
    assert json.loads(evaluated.stdout)['frames'] == 12


def test_a_run_of_broken_jpegs_only(good, run):
    for image in images(run):
        image.write_bytes(b'')
    assert_one_line(localize(good, run), 'no image of run could be used')
    result = invoke('map', 'build', run, '--out', run.parent / 'm.h5')
    assert_one_line(result, 'no images to learn', 'expected a whole JPEG')


def test_images_of_another_size(good, run):
    for image in images(run):
        cv2.imwrite(str(image), textured_image(1, (60, 80)))
    assert_one_line(localize(good, run), 'no image of run could be used', '60', '96')


def test_a_map_that_is_no_map(good, run):
    foreign = run.parent / 'foreign.h5'
    foreign.write_text('hello')
    assert_one_line(localize(good, run, foreign), 'foreign.h5')
    with h5py.File(foreign, 'w') as file:
        file['data'] = [1, 2, 3]
    assert_one_line(localize(good, run, foreign), 'foreign.h5')
    assert_one_line(localize(good, run, run), str(run))


def test_a_parameter_out_of_its_range_in_a_map(good, run):
    odd = shutil.copy(good / 'map.h5', run.parent / 'odd.h5')
    with h5py.File(odd, 'r+') as file:
        file['filter'].attrs['image_bandwidth'] = -1.0
    assert_one_line(localize(good, run, odd), 'odd.h5', "'image_bandwidth'", '-1.0')


@pytest.mark.parametrize(
    ('setting', 'fragments'),
    [
        ('warp=9', ["unknown parameter 'warp'", 'image_bandwidth']),
        ('image_bandwidth=-1', ["'image_bandwidth'", '[0.001, 100.0]', '-1']),
        ('localized_mass=0', ["'localized_mass'", '[0.05, 1.0]']),
        ('image_bandwidth=much', ["'image_bandwidth'", 'float', "'much'"]),
        ('image_bandwidth', ['NAME=VALUE']),
        ('image_bandwidth=[', ['NAME=VALUE']),
    ],
)
def test_a_bad_parameter(good, run, setting, fragments):
    out = run.parent / 'out.tum'
    result = invoke('localize', good / 'map.h5', run, '--out', out, '--set', setting)
    assert_one_line(result, *fragments)
    result = invoke('map', 'build', run, '--out', run.parent / 'm.h5', '--set', setting)
    assert_one_line(result, *fragments)


def test_a_trajectory_of_another_run(good, run, tmp_path):
    (tmp_path / 'other.tum').write_text('1.0 0 0 0 0 0 0 1\n')
    result = invoke('evaluate', run, tmp_path / 'other.tum')
    assert_one_line(result, 'no estimate within 0.01 s', f'{START_NS * 1e-9:.3f}')
