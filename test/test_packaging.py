"""The package as pip, colcon and bloom see it."""

import ast
from importlib import metadata
import os
from pathlib import Path
import re
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
if not (ROOT / 'package.xml').is_file():
    pytest.skip('the source tree is not here', allow_module_level=True)


@pytest.fixture
def manifest():
    return ElementTree.parse(ROOT / 'package.xml').getroot()


def test_the_package_has_one_version(manifest):
    version = kbr_localization.__version__
    assert manifest.findtext('version') == version
    assert f"version='{version}'," in (ROOT / 'setup.py').read_text()


def test_the_manifest_names_what_the_package_imports(manifest):
    keys = {element.text for element in manifest.iter('exec_depend')}
    names = {
        'opencv-python-headless': 'opencv',
        'pyyaml': 'yaml',
        'scikit-image': 'skimage',
        'pillow': 'pil',
    }
    for requirement in map(Requirement, metadata.requires('kbr_localization')):
        if requirement.marker is None or requirement.marker.evaluate({'extra': 'app'}):
            assert f'python3-{names.get(requirement.name, requirement.name)}' in keys
    paths = [*(ROOT / 'kbr_localization').rglob('*.py'), *(ROOT / 'launch').glob('*.py')]
    modules = {
        node.module.split('.')[0]
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    messages = {name for name in modules if name.endswith(('_msgs', '_srvs', '_interfaces'))}
    assert len(messages) >= 10
    assert messages <= keys
    on_pypi = messages - {'tf2_msgs', 'nav2_msgs'}
    text = (ROOT / 'setup.py').read_text()
    assert all(f"'ros-{name.replace('_', '-')}'" in text for name in on_pypi)


def test_catkin_tools_read_manifest_and_changelog(manifest):
    packages = pytest.importorskip('catkin_pkg.package')
    package = packages.parse_package(ROOT / 'package.xml')
    package.validate()
    assert {url.type for url in package.urls} == {'website', 'repository', 'bugtracker'}
    text = (ROOT / 'CHANGELOG.rst').read_text()
    assert text.splitlines()[1] == 'Changelog for package kbr_localization'
    assert re.search(r'^(Forthcoming|\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\))$', text, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.skipif(not COLCON.is_file(), reason='colcon is not installed')
def test_colcon_installs_executables_launch_files_and_configuration(tmp_path):
    ignored = shutil.ignore_patterns('.*', 'build', 'install', 'log', 'out', 'demo', '*.egg-info')
    shutil.copytree(ROOT, tmp_path / 'src' / 'kbr_localization', ignore=ignored)
    # the wheels of ROS mark a process that has found its libraries; a child must look again
    env = {k: v for k, v in os.environ.items() if k != '_ROS_WHEELS_BOOTSTRAP_COMPLETE'}
    subprocess.run([COLCON, 'build'], cwd=tmp_path, env=env, check=True, capture_output=True)
    prefix = tmp_path / 'install' / 'kbr_localization'
    programs = prefix / 'lib' / 'kbr_localization'
    assert {path.name for path in programs.iterdir()} >= EXECUTABLES
    share = prefix / 'share' / 'kbr_localization'
    for folder in ('launch', 'config'):
        wanted = {path.name for path in (ROOT / folder).iterdir() if path.name != '.gitkeep'}
        assert {path.name for path in (share / folder).iterdir()} >= wanted
    assert (share / 'package.xml').is_file()
    (site_packages,) = prefix.glob('lib/python3*/site-packages')
    command, env = [programs / 'kbr', '--version'], {**env, 'PYTHONPATH': str(site_packages)}
    result = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    assert result.stdout.startswith('kbr ')
