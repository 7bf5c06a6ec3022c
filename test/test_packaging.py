"""The package as colcon sees, builds and installs it."""

import os
from pathlib import Path
import shutil
import subprocess
import sys

import pytest

ROOT = Path(__file__).parents[1]
COLCON = Path(sys.executable).with_name('colcon')
EXECUTABLES = {'kbr', 'localization_node', 'player_node', 'recorder_node'}
IGNORED = shutil.ignore_patterns('.*', 'build', 'install', 'log', 'out', 'demo', '*.egg-info')

pytestmark = pytest.mark.skipif(
    not COLCON.is_file(), reason=f'colcon is not installed beside {sys.executable}'
)


def colcon(folder, *arguments):
    # the wheels of ROS mark a process that has found its libraries; a child must look again
    env = {k: v for k, v in os.environ.items() if k != '_ROS_WHEELS_BOOTSTRAP_COMPLETE'}
    result = subprocess.run(
        [COLCON, *arguments], cwd=folder, env=env, check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope='module')
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp('workspace')
    shutil.copytree(ROOT, folder / 'src' / 'kbr_localization', ignore=IGNORED)
    colcon(folder, 'build')
    return folder


def test_colcon_knows_an_ament_python_package(workspace):
    listed = colcon(workspace, 'list').split()
    assert listed == ['kbr_localization', 'src/kbr_localization', '(ros.ament_python)']


def test_ros2_run_finds_the_executables(workspace):
    folder = workspace / 'install' / 'kbr_localization' / 'lib' / 'kbr_localization'
    assert {path.name for path in folder.iterdir()} >= EXECUTABLES


def test_launch_and_configuration_files_are_installed(workspace):
    share = workspace / 'install' / 'kbr_localization' / 'share' / 'kbr_localization'
    for folder in ('launch', 'config'):
        wanted = {path.name for path in (ROOT / folder).iterdir() if path.name != '.gitkeep'}
        assert {path.name for path in (share / folder).iterdir()} >= wanted
    assert (share / 'package.xml').is_file()


def test_the_installed_command_runs(workspace):
    prefix = workspace / 'install' / 'kbr_localization'
    (site_packages,) = prefix.glob('lib/python3*/site-packages')
    result = subprocess.run(
        [prefix / 'lib' / 'kbr_localization' / 'kbr', '--version'],
        env={**os.environ, 'PYTHONPATH': str(site_packages)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert result.stdout.startswith('kbr ')
