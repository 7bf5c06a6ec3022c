"""Files that appear as a whole or not at all."""

import os
import stat
import time

from kbr_localization.files import (
    FileLock,
    new_file,
    read_file,
    read_text,
    write_text,
)
import pytest


def test_a_file_takes_its_place_when_it_is_whole(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text('old')
    path.chmod(0o600)
    with new_file(path, sync=True) as part:
        part.write_text('new')
        assert path.read_text() == 'old' and part.suffix == '.txt'
    assert path.read_text() == 'new' and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_after_an_error_the_old_file_stays_and_the_error_names_it(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text('old')
    with pytest.raises(OSError, match='no space') as caught, new_file(path) as part:
        part.write_text('half')
        raise OSError(28, 'no space left')
    assert caught.value.filename == str(path)
    assert path.read_text() == 'old'
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError) as caught:
        write_text(tmp_path / 'no' / 'a.txt', 'text')
    assert caught.value.filename == str(tmp_path / 'no' / 'a.txt')


def test_a_link_goes_on_to_lead_to_the_file(tmp_path):
    (tmp_path / 'link').symlink_to(tmp_path / 'a.txt')
    write_text(tmp_path / 'link', 'text')
    assert (tmp_path / 'link').is_symlink()
    assert (tmp_path / 'a.txt').read_text() == 'text'


def test_what_killed_processes_left_long_ago_is_removed_and_nothing_else(tmp_path):
    old, young = tmp_path / '.b.kbr-00000000.h5', tmp_path / '.b.kbr-00000001.h5'
    folder, other = tmp_path / '.run.kbr-00000000', tmp_path / '.other'
    folder.mkdir()
    for path in (old, young, other):
        path.touch()
    for path in (old, other, folder):
        os.utime(path, (0, time.time() - 8 * 86_400))
    write_text(tmp_path / 'a.txt', 'text')
    assert set(tmp_path.iterdir()) == {young, other, tmp_path / 'a.txt'}


def test_a_pipe_is_written_that_a_link_leads_to(tmp_path):
    reader, writer = os.pipe()
    (tmp_path / 'stdout').symlink_to(f'/proc/self/fd/{writer}')
    write_text(tmp_path / 'stdout', 'text')
    assert os.read(reader, 10) == b'text'
    os.close(reader)
    os.close(writer)


def test_only_a_file_of_a_bounded_size_is_read(tmp_path):
    (tmp_path / 'a').write_bytes(b'text')
    os.mkfifo(tmp_path / 'pipe')
    assert read_file(tmp_path / 'a', 4) == b'text'
    for path, says in (
        ('a', 'has 4 bytes: expected at most 3'),
        ('pipe', 'is a device or a pipe'),
        ('.', f"Is a directory: '{tmp_path}'"),
        ('no', 'No such file'),
    ):
        with pytest.raises(OSError, match=says):
            read_file(tmp_path / path, 3)


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig', 'utf-16'])
def test_a_byte_order_mark_is_no_text(tmp_path, encoding):
    (tmp_path / 'a').write_bytes('ä'.encode(encoding))
    assert read_text(tmp_path / 'a') == 'ä'


def test_a_file_is_claimed_by_one_at_a_time(tmp_path):
    first = FileLock(tmp_path / 'map.h5')
    with pytest.raises(BlockingIOError, match=f'process {os.getpid()} on'):
        FileLock(tmp_path / 'map.h5')
    first.release()
    FileLock(tmp_path / 'map.h5').release()
