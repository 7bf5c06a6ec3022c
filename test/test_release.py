"""What bloom, catkin_prepare_release and the index of ROS packages need."""

from importlib.util import find_spec
from pathlib import Path
import re
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import kbr_localization
import pytest

ROOT = Path(__file__).parents[1]
if not (ROOT / 'CHANGELOG.rst').is_file():
    pytest.skip('the source tree is not here', allow_module_level=True)
pytest.importorskip('catkin_pkg')
pytestmark = [
    pytest.mark.filterwarnings('ignore::DeprecationWarning'),  # catkin_pkg's own
    pytest.mark.filterwarnings('ignore::PendingDeprecationWarning'),
]


def test_the_changelog_is_one_that_bloom_reads():
    from catkin_pkg.package_version import get_forthcoming_label

    text = (ROOT / 'CHANGELOG.rst').read_text()
    assert text.splitlines()[1] == 'Changelog for package kbr_localization'
    released = re.findall(r'^(\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)$', text, re.MULTILINE)
    assert get_forthcoming_label(text) == 'Forthcoming' or released
    assert not re.search(r'(?<!`)`[^`:<>]+`(?!`)', text), 'code stands between two backticks each'


def test_a_release_bumps_the_one_version(tmp_path):
    from catkin_pkg.changelog import get_changelog_from_path
    from catkin_pkg.package import parse_package
    from catkin_pkg.package_version import (
        get_forthcoming_label,
        update_changelog_sections,
        update_versions,
    )

    for name in ('package.xml', 'setup.py', 'CHANGELOG.rst'):
        shutil.copy(ROOT / name, tmp_path / name)
    ignored = shutil.ignore_patterns('__pycache__')
    shutil.copytree(ROOT / 'kbr_localization', tmp_path / 'kbr_localization', ignore=ignored)
    update_versions({str(tmp_path): parse_package(tmp_path / 'package.xml')}, '7.8.9')
    log = tmp_path / 'CHANGELOG.rst'
    label = get_forthcoming_label(log.read_text())
    if label:
        changelog = get_changelog_from_path(str(tmp_path))
        update_changelog_sections({'kbr_localization': (str(log), changelog, label)}, '7.8.9')
        released = get_changelog_from_path(str(tmp_path))
        sections = {version: content for version, _, content in released.foreach_version()}
        assert len(sections['7.8.9']) == 1
    assert "version='7.8.9'," in (tmp_path / 'setup.py').read_text()
    command = [sys.executable, '-c', 'import kbr_localization as k; print(k.__version__)']
    result = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert result.stdout.strip() == '7.8.9'
    literals = [
        path
        for path in (ROOT / 'kbr_localization').rglob('*.py')
        if re.search(rf'[\'"]{re.escape(kbr_localization.__version__)}[\'"]', path.read_text())
    ]
    assert not literals


def test_what_pip_alone_has_is_not_asked_of_binary_packages():
    from catkin_pkg.package import parse_package

    def keys(context):
        package = parse_package(ROOT / 'package.xml')
        package.evaluate_conditions(context)
        depends = package.exec_depends + package.test_depends
        return {depend.name for depend in depends if depend.evaluated_condition}

    of_bloom = keys({'ROS_VERSION': '2', 'ROS_DISTRO': 'jazzy', 'ROS_PYTHON_VERSION': '3'})
    of_rosdep = keys({'AMENT_PREFIX_PATH': '/opt/ros/jazzy'})
    assert not [key for key in of_bloom if key.endswith('-pip')]
    assert of_rosdep - of_bloom == {'python3-rosbags-pip'}


def test_the_manifest_has_what_the_index_shows():
    package = ElementTree.parse(ROOT / 'package.xml').getroot()
    for tag in ('name', 'version', 'description', 'maintainer', 'license'):
        assert package.findtext(tag), tag
    assert (ROOT / 'LICENSE').is_file() and re.match(
        r'\S+@\S+', package.find('maintainer').get('email')
    )


def test_ci_knows_every_distribution_that_the_page_lists():
    import yaml

    workflow = ROOT / '.github' / 'workflows' / 'ros.yml'
    text = workflow.read_text()
    jobs = yaml.safe_load(text)['jobs']
    entries = jobs['colcon']['strategy']['matrix']['include']
    distributions = {entry['distribution'] for entry in entries}
    assert distributions == {'humble', 'jazzy', 'kilted', 'rolling'}
    page = (ROOT / 'docs' / 'distributions.md').read_text()
    assert all(f'| {name.capitalize()} |' in page for name in distributions)
    assert 'has not been run' in text and 'not been run' in page


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec('build') is None or find_spec('twine') is None,
    reason='needs the packages build and twine',
)
def test_the_distributions_for_pypi_are_accepted(tmp_path):
    module = [sys.executable, '-m']
    out = ['--outdir', str(tmp_path), str(ROOT)]
    subprocess.run([*module, 'build', *out], check=True, capture_output=True)
    made = [str(path) for path in tmp_path.iterdir()]
    assert len(made) == 2
    subprocess.run([*module, 'twine', 'check', '--strict', *made], check=True)


@pytest.mark.parametrize(
    'distribution, starts', [('humble', 'FASTRTPS'), ('jazzy', 'FASTRTPS'), ('kilted', 'FASTDDS')]
)
def test_a_profile_is_named_as_the_fast_dds_of_the_distribution_reads_it(
    monkeypatch, distribution, starts
):
    from kbr_localization.resources import profile_variable

    monkeypatch.setenv('ROS_DISTRO', distribution)
    assert profile_variable() == f'{starts}_DEFAULT_PROFILES_FILE'
