"""Outputs that cannot be written: one line, no traceback, and nothing half written."""

import os
from pathlib import Path
import resource
import shutil
import signal

from command import assert_one_line, invoke, kbr
import cv2
from helpers import textured_image, write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from map_helpers import tiny_map
import pytest


@pytest.fixture(scope='module')
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp('world')
    tiny_map().save(folder / 'map.h5')
    write_tiny_cold_run(folder / 'run', frames=12)
    return folder


WITHOUT_BYTECODE = os.environ | {'PYTHONDONTWRITEBYTECODE': '1'}
"""Half a file of bytecode would break the next process."""


def full_disk():
    """No file of this process may have more than 8 kB; that is refused, and no signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))


@pytest.mark.parametrize('out', ['/', '.', ''])
def test_a_folder_is_no_trajectory(world, out):
    assert_one_line(invoke('localize', world / 'map.h5', world / 'run', '--out', out), 'a folder')


def test_a_file_of_the_run_is_not_overwritten(world, tmp_path):
    run = Path(shutil.copytree(world / 'run', tmp_path / 'run'))
    odometry = run / 'odom_scans' / 'odom.tdf'
    (run / 'linked.tum').symlink_to(Path(shutil.copy(odometry, tmp_path / 'elsewhere.tum')))
    (tmp_path / 'link.tum').symlink_to(odometry)
    before = odometry.read_bytes()
    localize = ('localize', world / 'map.h5', run, '--method', 'dead-reckoning')
    for command in (
        (*localize, '--out', odometry),
        (*localize, '--out', run / 'linked.tum'),
        (*localize, '--out', tmp_path / 'link.tum'),
        ('report', world / 'map.h5', run, '--out', odometry),
        ('map', 'build', run, '--out', odometry),
    ):
        assert_one_line(invoke(*command), f'{command[-1]} is in the folder of the run')
    assert odometry.read_bytes() == before == (tmp_path / 'elsewhere.tum').read_bytes()


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
def test_a_bag_on_a_full_disk_is_one_line_and_leaves_nothing(world, tmp_path, storage):
    pytest.importorskip('rosbags')
    arguments = ('convert', world / 'run', tmp_path / 'bag', '--storage', storage)
    result = kbr(*arguments, preexec_fn=full_disk, env=WITHOUT_BYTECODE)
    assert_one_line(result, 'cannot write', 'bag')
    assert list(tmp_path.iterdir()) == []


def test_a_building_on_a_full_disk_names_what_was_asked_for(tmp_path):
    result = kbr('synth', tmp_path / 'house', preexec_fn=full_disk, env=WITHOUT_BYTECODE)
    assert_one_line(result, f'cannot write {tmp_path / "house"}: ')
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('to', ['bag', 'cold'])
def test_broken_images_are_left_out_of_a_conversion_and_counted(tmp_path, caplog, to):
    run = write_tiny_cold_run(tmp_path / 'run')
    files = sorted((run / 'std_cam').iterdir())
    png = cv2.imencode('.png', textured_image(0))[1].tobytes()
    # nothing of an image, and half of one
    for file, data in zip(files[2:5], (b'', files[3].read_bytes()[:700], png[:-20]), strict=True):
        file.write_bytes(data)
    result = invoke('convert', run, tmp_path / 'out', '--to', to)
    assert result.returncode == 0, result.stderr
    told = ['kbr: skipped: 3 x broken image', f'kbr: {tmp_path / "out"}: 5 frames']
    assert result.stderr.splitlines() == told
    assert caplog.messages[0].startswith(f'{files[2].name} left out: broken image')
    assert len(caplog.messages) == 1
    assert len(open_dataset(tmp_path / 'out')) == 5
    for file in files:
        file.write_bytes(b'')
    result = invoke('convert', run, tmp_path / 'none', '--to', to)
    assert (result.returncode, (tmp_path / 'none').exists()) == (2, False)


def test_a_trajectory_on_a_full_disk_stays_with_its_own_details(world, tmp_path):
    run = write_tiny_cold_run(tmp_path / 'run', frames=95)
    folder = tmp_path / 'out'
    arguments = ('localize', world / 'map.h5', run, '--out', folder / 'run.tum')
    assert invoke(*arguments, '--method', 'nearest').returncode == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    # there is room for the poses, not for the details of this method
    result = kbr(
        *arguments, '--method', 'dead-reckoning', preexec_fn=full_disk, env=WITHOUT_BYTECODE
    )
    assert_one_line(result, 'run.')
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_file_is_no_folder_for_the_demo(tmp_path):
    (tmp_path / 'file').touch()
    assert_one_line(invoke('demo', '--out', tmp_path / 'file'), 'Not a directory')


def test_a_storage_is_for_bags(world, tmp_path):
    words = ('convert', world / 'run', tmp_path / 'out', '--to', 'cold', '--storage', 'sqlite3')
    assert_one_line(invoke(*words), '--storage sqlite3: expected --to bag')
    assert not (tmp_path / 'out').exists()
