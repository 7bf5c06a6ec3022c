"""Folders from strangers: pipes, devices and lists of other files in them do no harm."""

import os

from command import assert_one_line, invoke
from helpers import write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.run_folder import NOTES
from kbr_localization.trajectory import parse_seconds
import pytest

SECRET = 'only for the owner of the machine'
pytestmark = pytest.mark.timeout(60)  # nothing waits for somebody who writes into a pipe


def replace_by(path, kind):
    path.unlink(missing_ok=True)
    if kind == 'pipe':
        os.mkfifo(path)
    else:
        path.symlink_to('/dev/zero')


@pytest.mark.parametrize('kind', ['pipe', 'device'])
def test_a_pipe_or_a_device_is_not_read(tmp_path, kind):
    run = write_tiny_cold_run(tmp_path / 'run', frames=4)
    replace_by(run / NOTES, kind)
    assert len(open_dataset(run)) == 4
    replace_by(tmp_path / 'a.tum', kind)
    assert_one_line(invoke('evaluate', run, tmp_path / 'a.tum'), 'is a device or a pipe')


@pytest.mark.parametrize('form', ['cold', 'bag'])
def test_what_lies_under_the_name_of_an_image_is_not_copied_unless_it_is_one(tmp_path, form):
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
def test_a_time_of_a_million_digits_is_refused(time):
    with pytest.raises(ValueError, match='expected a '):
        parse_seconds(time)
    assert parse_seconds('1403636579.763555584') == 1403636579763555584
