"""Files that appear as a whole or not at all."""

import errno
import os
from pathlib import Path
import stat
import subprocess
import sys

from kbr_localization import files
from kbr_localization.datasets.run_folder import new_folder
from kbr_localization.files import expanded, LockBeside, new_file, read_file, write_text
import pytest


def test_a_file_takes_its_place_when_it_is_whole(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text('old')
    with new_file(path, sync=True) as part:
        part.write_text('new')
        assert path.read_text() == 'old'
    assert path.read_text() == 'new'
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_on_the_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    path, written = tmp_path / 'a.txt', []

    def sync(handle):
        written.append((os.pread(handle, 9, 0), path.exists()))

    monkeypatch.setattr(os, 'fsync', sync)
    write_text(path, 'text', sync=True)
    assert written == [(b'text', False)]
    assert path.read_text() == 'text'


def test_after_an_error_the_old_file_stays_and_the_error_names_it(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text('old')
    with pytest.raises(OSError, match='no space') as caught, new_file(path) as part:
        part.write_text('half')
        raise OSError(28, 'no space left')
    assert caught.value.filename == str(path)
    assert path.read_text() == 'old'
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_told_by_the_name_of_the_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write_text(tmp_path / 'no' / 'a.txt', 'text')
    assert caught.value.filename == str(tmp_path / 'no' / 'a.txt')


def test_a_claim_that_was_let_go_just_now_is_taken_of_the_file_that_is_there(
    tmp_path, monkeypatch
):
    first, claim = LockBeside(tmp_path / 'map.h5'), files.claim

    def claim_late(handle, refusal):
        monkeypatch.setattr(files, 'claim', claim)
        first.release()
        claim(handle, refusal)

    monkeypatch.setattr(files, 'claim', claim_late)
    second = LockBeside(tmp_path / 'map.h5')
    with pytest.raises(BlockingIOError):
        LockBeside(tmp_path / 'map.h5')
    second.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    'name', ['n' * 250 + '.h5', 'n' * 255, 'ö' * 125 + '.txt', 'n.' + 's' * 250]
)
def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path, name):
    path = tmp_path / name
    with new_file(path) as part:
        assert part.name != name
        part.write_text('new')
    lock = LockBeside(path)
    with pytest.raises(BlockingIOError):
        LockBeside(path)
    LockBeside(path.with_name(name[:-1] + 'x')).release()
    lock.release()
    assert list(tmp_path.iterdir()) == [path]
    with new_folder(tmp_path / 'runs' / name) as folder:
        assert folder.is_dir()


def test_a_link_goes_on_to_lead_to_the_file(tmp_path):
    (tmp_path / 'link').symlink_to(tmp_path / 'a.txt')
    write_text(tmp_path / 'link', 'text')
    assert (tmp_path / 'link').is_symlink()
    assert (tmp_path / 'a.txt').read_text() == 'text'


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path):
    path = tmp_path / 'a.txt'
    code = (
        'import os, sys\n'
        'from kbr_localization.datasets.run_folder import new_folder\n'
        'from kbr_localization.files import new_file\n'
        'with new_folder(sys.argv[2]), new_file(sys.argv[1]):\n'
        '    print("there", flush=True)\n'
        '    sys.stdin.read(1)\n'
    )
    command = [sys.executable, '-c', code, path, tmp_path / 'run']
    pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as living, subprocess.Popen(command, **pipes) as other:
        assert living.stdout.readline() == other.stdout.readline() == b'there\n'
        others = ['.a.kbr-0000.txt', '.a.txt', 'a.kbr-00000000.txt', '.kbr-00000000.txt']
        for name in [*others, '.b.kbr-00000000.h5', '.b.kbr-00000000']:
            (tmp_path / name).touch()
        assert len(list(tmp_path.iterdir())) == 6 + len(others)
        other.kill()
        other.wait()
        write_text(path, 'text')
        with new_folder(tmp_path / 'run'):
            pass
        assert len(list(tmp_path.iterdir())) == 2 + 2 + len(others)
        living.kill()
    write_text(path, 'text')
    (tmp_path / 'run').rmdir()
    with new_folder(tmp_path / 'run'):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*others, 'a.txt', 'run'])


@pytest.mark.parametrize('mask, mode', [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_a_new_file_has_the_mode_that_the_user_wants(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_text(tmp_path / 'a.txt', 'text')
        with new_folder(tmp_path / 'run'):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / 'a.txt').stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / 'run').stat().st_mode) == 0o777 & ~mask


def test_a_file_that_is_written_anew_keeps_its_mode(tmp_path):
    path = tmp_path / 'a.txt'
    path.touch(0o600)
    write_text(path, 'text')
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_null_device_is_refused(tmp_path):
    (tmp_path / 'link').symlink_to('/dev/null')
    for path in ('/dev/null', tmp_path / 'link'):
        with pytest.raises(OSError, match='is the null device'):
            write_text(path, 'text')


def test_a_pipe_is_written_that_a_link_leads_to(tmp_path):
    reader, writer = os.pipe()
    try:
        (tmp_path / 'stdout').symlink_to(f'/proc/self/fd/{writer}')
        write_text(tmp_path / 'stdout', 'text')
        assert os.read(reader, 10) == b'text'
    finally:
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


def test_a_file_is_claimed_by_one_at_a_time_also_on_a_full_disk(tmp_path, monkeypatch):
    target = tmp_path / 'map.h5'
    first = LockBeside(target)
    with pytest.raises(BlockingIOError, match=f'process {os.getpid()} on'):
        LockBeside(target)
    first.release()
    assert list(tmp_path.iterdir()) == []

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, 'write', full)
    second = LockBeside(target)
    with pytest.raises(BlockingIOError, match='another process'):
        LockBeside(target)
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_a_claim_writes_through_no_link(tmp_path):
    (tmp_path / 'theirs').write_text('text')
    (tmp_path / '.map.h5.lock').symlink_to(tmp_path / 'theirs')
    with pytest.raises(OSError, match='symbolic links'):
        LockBeside(tmp_path / 'map.h5')
    assert (tmp_path / 'theirs').read_text() == 'text'


def test_the_folder_of_a_user_whom_nobody_knows_is_no_file(monkeypatch):
    """It was a traceback from a parameter of the node; a file that is not there is told."""
    monkeypatch.setenv('HOME', '/home/robot')
    assert expanded('~/map.h5') == Path('/home/robot/map.h5')
    assert expanded('~nobody_of_that_name/map.h5') == Path('~nobody_of_that_name/map.h5')
