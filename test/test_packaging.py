"""The package as colcon sees, builds and installs it."""

import ast
from importlib import metadata
import os
from pathlib import Path
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import kbr_localization
from packaging.requirements import Requirement
import pytest

ROOT = Path(__file__).parents[1]
COLCON = Path(sys.executable).with_name('colcon')
EXECUTABLES = {'kbr', 'localization_node', 'player_node', 'recorder_node'}
IGNORED = shutil.ignore_patterns('.*', 'build', 'install', 'log', 'out', 'demo', '*.egg-info')

needs_colcon = pytest.mark.skipif(
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


def test_the_package_has_one_version():
    manifest = ElementTree.parse(ROOT / 'package.xml').getroot()
    assert manifest.findtext('version') == kbr_localization.__version__
    assert metadata.version('kbr_localization') == kbr_localization.__version__


def test_what_the_package_always_imports_is_in_the_manifest():
    keys = {e.text for e in ElementTree.parse(ROOT / 'package.xml').iter('exec_depend')}
    required = [
        requirement.name
        for requirement in map(Requirement, metadata.requires('kbr_localization'))
        if requirement.marker is None or requirement.marker.evaluate({'extra': 'app'})
    ]
    names = {'opencv-python-headless': 'opencv', 'pyyaml': 'yaml', 'scikit-image': 'skimage'}
    assert len(required) >= 7
    assert {f'python3-{names.get(name, name)}' for name in required} <= keys


def test_no_message_installs_the_package_from_an_index_which_has_none():
    for path in [*Path(kbr_localization.__file__).parent.rglob('*.py'), ROOT / 'README.md']:
        assert f'{kbr_localization.__name__}[' not in path.read_text(encoding='utf-8'), path


def test_the_messages_that_are_imported_are_in_the_manifest_and_the_extra():
    keys = {e.text for e in ElementTree.parse(ROOT / 'package.xml').iter('exec_depend')}
    paths = [*(ROOT / 'kbr_localization').rglob('*.py'), *(ROOT / 'launch').glob('*.py')]
    imported = {
        node.module.split('.')[0]
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    messages = {name for name in imported if name.endswith(('_msgs', '_srvs', '_interfaces'))}
    assert len(messages) >= 11 and messages <= keys
    on_pypi = {name for name in messages if name != 'tf2_msgs'}
    text = (ROOT / 'setup.py').read_text()
    assert all(f"'ros-{name.replace('_', '-')}'" in text for name in on_pypi)


@pytest.fixture(scope='module')
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp('workspace')
    shutil.copytree(ROOT, folder / 'src' / 'kbr_localization', ignore=IGNORED)
    colcon(folder, 'build')
    return folder


@needs_colcon
def test_colcon_knows_an_ament_python_package(workspace):
    listed = colcon(workspace, 'list').split()
    assert listed == ['kbr_localization', 'src/kbr_localization', '(ros.ament_python)']


@needs_colcon
def test_ros2_run_finds_the_executables(workspace):
    folder = workspace / 'install' / 'kbr_localization' / 'lib' / 'kbr_localization'
    assert {path.name for path in folder.iterdir()} >= EXECUTABLES


@needs_colcon
def test_launch_and_configuration_files_are_installed(workspace):
    share = workspace / 'install' / 'kbr_localization' / 'share' / 'kbr_localization'
    for folder in ('launch', 'config'):
        wanted = {path.name for path in (ROOT / folder).iterdir() if path.name != '.gitkeep'}
        assert {path.name for path in (share / folder).iterdir()} >= wanted
    assert (share / 'package.xml').is_file()


@needs_colcon
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
