"""Folders from strangers: pipes, devices and lists of other files in them do no harm."""

from contextlib import contextmanager
import os
import shutil
import signal

from command import assert_one_line, invoke
from helpers import write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.run_folder import NOTES
from kbr_localization.errors import DatasetError, VisionError
from kbr_localization.evaluation import read_tum
from kbr_localization.evaluation.details import with_details
from kbr_localization.trajectory import parse_seconds
from kbr_localization.vision import torch_file
import numpy as np
from public_datasets import write_euroc, write_image_folder, write_traverse, write_tum_rgbd
import pytest

SECONDS = 20
SECRET = 'only for the owner of the machine'


@contextmanager
def bounded():
    """Nothing here may wait for somebody who writes into a pipe."""

    def give_up(*_):
        raise TimeoutError(f'more than {SECONDS} s')

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def replace_by(path, kind):
    path.unlink(missing_ok=True)
    if kind == 'pipe':
        os.mkfifo(path)
    else:
        path.symlink_to('/dev/zero')


@pytest.mark.parametrize('kind', ['pipe', 'device'])
@pytest.mark.parametrize(
    'write, name',
    [
        (write_tum_rgbd, 'groundtruth.txt'),
        (write_euroc, 'mav0/cam0/sensor.yaml'),
    ],
)
def test_a_pipe_or_a_device_in_the_place_of_a_text_is_refused(tmp_path, write, name, kind):
    path = write(tmp_path / 'run')
    replace_by(path / name, kind)
    with bounded(), pytest.raises(DatasetError, match=path.name):
        open_dataset(path)


@pytest.mark.parametrize('kind', ['pipe', 'device'])
def test_a_pipe_or_a_device_in_the_place_of_the_notes_is_left_alone(tmp_path, kind):
    run = write_tiny_cold_run(tmp_path / 'run', frames=4)
    replace_by(run / NOTES, kind)
    with bounded():
        assert len(open_dataset(run)) == 4


@pytest.mark.parametrize('kind', ['pipe', 'device'])
def test_a_pipe_or_a_device_in_the_place_of_a_trajectory_is_refused(tmp_path, kind):
    run = write_tiny_cold_run(tmp_path / 'run', frames=4)
    replace_by(tmp_path / 'a.tum', kind)
    with bounded():
        assert_one_line(invoke('evaluate', run, tmp_path / 'a.tum'), 'a.tum: is a device')
        (tmp_path / 'b.tum').write_text('1.0 0 0 0 0 0 0 1\n')
        replace_by(tmp_path / 'b.csv', kind)
        with pytest.raises(OSError, match='is a device'):
            with_details(read_tum(tmp_path / 'b.tum'), tmp_path / 'b.csv')


@pytest.mark.parametrize('kind', ['pipe', 'device'])
def test_a_pipe_or_a_device_in_the_place_of_weights_is_refused(tmp_path, kind):
    replace_by(tmp_path / 'x.pt', kind)
    with bounded(), pytest.raises(VisionError, match=r'is a device or a pipe'):
        torch_file.read_tensors(tmp_path / 'x.pt', 'inside')


@pytest.mark.parametrize('kind', ['sibling', 'absolute'])
@pytest.mark.parametrize(
    'write, table, line',
    [
        (write_tum_rgbd, 'rgb.txt', '1403636579.0 {}\n'),
        (write_euroc, 'mav0/cam0/data.csv', '1403636579000000000,{}\n'),
        (write_image_folder, 'images.txt', '1403636579.0 {}\n'),
    ],
)
def test_a_list_names_nothing_outside_of_its_folder(tmp_path, write, table, line, kind):
    path = write(tmp_path / 'run')
    (tmp_path / 'secret').write_text(SECRET)
    name = tmp_path / 'secret' if kind == 'absolute' else '../secret'
    (path / table).write_text(line.format(name))
    with pytest.raises(DatasetError, match=r'expected files in .*run.* got .*secret'):
        open_dataset(path)


@pytest.mark.parametrize('form', ['cold', 'bag'])
def test_what_lies_under_the_name_of_an_image_is_not_copied_unless_it_is_one(tmp_path, form):
    if form == 'bag':
        pytest.importorskip('rosbags')
    run = write_tiny_cold_run(tmp_path / 'run', frames=6)
    (tmp_path / 'secret').write_text(SECRET)
    image = sorted((run / 'std_cam').iterdir())[2]
    image.unlink()
    image.symlink_to(tmp_path / 'secret')
    out = tmp_path / 'out'
    result = invoke('convert', run, out, '--to', form)
    assert result.returncode == 0 and 'skipped: 1 x broken image' in result.stderr
    copies = [file for file in out.rglob('*') if file.is_file()]
    assert copies and not any(SECRET.encode() in file.read_bytes() for file in copies)


@pytest.mark.parametrize('time', ['1e999999', '1e99999', '9' * 5000, 'sNaN', '-1', '٣e40', 'x'])
def test_a_time_of_a_million_digits_is_refused(tmp_path, time):
    with bounded(), pytest.raises(ValueError, match='expected a '):
        parse_seconds(time)
    path = write_tum_rgbd(tmp_path / 'run')
    with (path / 'groundtruth.txt').open('a') as file:
        file.write(f'{time} 0 0 0 0 0 0 1\n' * 200)
    with bounded(), pytest.raises(DatasetError, match=r'expected a time'):
        open_dataset(path)
    (tmp_path / 'a.tum').write_text(f'{time} 0 0 0 0 0 0 1\n' * 200)
    with bounded():
        assert_one_line(invoke('evaluate', path, tmp_path / 'a.tum'), 'kbr: ')


def test_a_line_of_commas_is_no_pose(tmp_path):
    run = write_tiny_cold_run(tmp_path / 'run', frames=4)
    (tmp_path / 'a.tum').write_text(',\n')
    assert_one_line(invoke('evaluate', run, tmp_path / 'a.tum'), 'line 1: expected 8 numbers')


def test_times_lose_nothing():
    assert parse_seconds('1403636579.763555584') == 1403636579763555584
    assert parse_seconds('1e-999999') == 0


NESTED = '[' * 5000 + ']' * 5000
LAUGHS = 'a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1]\n' + ''.join(
    f'a{n}: &a{n} [{", ".join([f"*a{n - 1}"] * 8)}]\n' for n in range(1, 10)
)


@pytest.mark.parametrize(
    'text',
    [
        f'T_BS: {{data: {NESTED}}}',
        f'{LAUGHS}T_BS: {{data: *a9}}',
        'T_BS: {data: [' + '1, ' * 100_000 + '1]}',
        'T_BS: {data: [' + '1, ' * 15 + 'true]}',
        'T_BS: {data: ' + '9' * 5000 + '}',
    ],
)
def test_a_sensor_of_absurd_numbers_is_refused(tmp_path, text):
    path = write_euroc(tmp_path / 'run')
    (path / 'mav0/cam0/sensor.yaml').write_text(text)
    with bounded(), pytest.raises(DatasetError, match=r'sensor.yaml: expected T_BS'):
        open_dataset(path)


def test_a_sensor_may_have_rows(tmp_path):
    path = write_euroc(tmp_path / 'run')
    plain = open_dataset(path)
    text = (path / 'mav0/cam0/sensor.yaml').read_text()
    numbers = text.partition('[')[2].partition(']')[0].split(',')
    rows = zip(*[iter(numbers)] * 4, strict=True)
    data = ', '.join(f'[{", ".join(row)}]' for row in rows).replace('\n', ' ')
    (path / 'mav0/cam0/sensor.yaml').write_text(f'T_BS: {{data: [{data}]}}')
    np.testing.assert_array_equal(
        [f.reference for f in open_dataset(path)], [f.reference for f in plain]
    )


@pytest.mark.parametrize('text', [NESTED, '9' * 400, '9' * 5000, '2001-99-99', '.nan'])
def test_an_absurd_spacing_is_refused(tmp_path, text):
    path = write_traverse(tmp_path / 'run')
    (path / 'traverse.yaml').write_text(f'spacing: {text}')
    with bounded(), pytest.raises(DatasetError, match='expected a'):
        open_dataset(path)


@pytest.mark.parametrize('text', [NESTED, '2001-99-99', '9' * 5000, '*a', '&a [*a]'])
def test_an_absurd_setting_is_one_line(tmp_path, text):
    run = write_tiny_cold_run(tmp_path / 'run', frames=4)
    result = invoke('map', 'build', run, '--out', tmp_path / 'm.h5', '--set', f'points={text}')
    assert_one_line(result, 'points')


def test_the_folders_that_the_tests_break_are_good(tmp_path):
    for number, write in enumerate((write_tum_rgbd, write_euroc, write_image_folder)):
        assert len(open_dataset(write(tmp_path / f'{number}'))) > 0
        shutil.rmtree(tmp_path / f'{number}')
