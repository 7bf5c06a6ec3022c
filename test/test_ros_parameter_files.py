"""Parameter files: sections for all nodes, and what a launch file makes of a user's file."""

import os
from pathlib import Path
import re

from kbr_localization.errors import ConfigurationError
from kbr_localization.ros.parameters.parameter_files import (
    launch_file_parameters,
    shared_names,
    unrenamed_section,
)
from kbr_localization.ros.recording.recorder import RecorderConfig
import pytest
import yaml

PLAIN = """\
localization:  # of Nav2
  ros__parameters: {update_min_d: 1e-1, use_sim_time: true, initial_pose: {x: 1.0}}
map_server: {ros__parameters: {use_sim_time: true}}
"""


@pytest.mark.parametrize('section', ['/**', '/robot/*', 'robot: {/**'])
def test_only_sections_for_all_nodes_are_shared(tmp_path, section):
    path = tmp_path / 'params.yaml'
    nested = section.endswith('{/**')
    text = f'{section}: {{ros__parameters: {{a: 1, b: {{c: 2}}, mine: 3}}}}' + '}' * nested
    # that another node has one of them of its own says nothing of this one
    own, other = ('{ros__parameters: {mine: 4}}', '{ros__parameters: {a: 5}}')
    path.write_text(f'{text}\nlocalization: {own}\nlocal_costmap: {{local_costmap: {other}}}\n')
    arguments = ['node', '--ros-args', '--params-file', str(path), '-p', 'x:=1']
    assert shared_names(arguments, 'localization') == {'a', 'b.c'}


def test_a_file_that_cannot_be_read_shares_nothing(tmp_path):
    (tmp_path / 'bad.yaml').write_text('{')
    assert shared_names(['--params-file', str(tmp_path / 'bad.yaml')], 'localization') == set()
    assert (
        shared_names(['--params-file', '/no/such/file', '--params-file'], 'localization') == set()
    )


@pytest.mark.parametrize('kind', ['pipe', 'device'])
def test_a_pipe_or_a_device_in_the_place_of_a_file_is_refused(tmp_path, kind):
    path = tmp_path / 'params.yaml'
    if kind == 'pipe':
        os.mkfifo(path)
    else:
        path.symlink_to('/dev/zero')
    assert shared_names(['--params-file', str(path)], 'localization') == set()
    assert unrenamed_section(str(path), 'localization') == ''
    with pytest.raises(ConfigurationError, match='is a device or a pipe'):
        launch_file_parameters(str(path), '', 'localization', {})


@pytest.fixture
def made(tmp_path):
    """Return what a launch file makes of a text, with a namespace and given values."""

    def make(text, namespace='', **given):
        path = tmp_path / 'params.yaml'
        path.write_text(text)
        return launch_file_parameters(str(path), namespace, 'localization', given)

    return make


def test_a_file_without_a_namespace_stays_as_it_is(made):
    assert yaml.safe_load(made(PLAIN)) == yaml.safe_load(PLAIN)
    assert 'update_min_d: 1e-1' in made(PLAIN)  # to PyYAML that is text, to ROS a number


@pytest.mark.parametrize('namespace', ['robot1', '/fleet/robot1'])
def test_plain_sections_are_those_of_the_namespace(made, namespace):
    key = namespace.strip('/')
    assert yaml.safe_load(made(PLAIN, namespace)) == {key: yaml.safe_load(PLAIN)}
    absolute = '/**: {ros__parameters: {a: 1}}\nother: {localization: {ros__parameters: {b: 2}}}'
    assert yaml.safe_load(made(absolute, namespace)) == yaml.safe_load(absolute)
    named = f'{key}/localization: {{ros__parameters: {{a: 1}}}}'
    assert yaml.safe_load(made(named, namespace)) == yaml.safe_load(named)
    both = f'{PLAIN}{key}: {{"*": {{ros__parameters: {{c: 1}}}}}}'
    assert set(yaml.safe_load(made(both, namespace))[key]) == {'localization', 'map_server', '*'}


def test_sections_of_other_nodes_are_left_out_with_what_they_ask_for(made):
    """Nav2's own file looks for its packages, which a robot that only localizes may not have."""
    other = 'ros__parameters: {folders: [$(find-pkg-share nav2_bt_navigator)/trees]}'
    costmap = f'local_costmap: {{local_costmap: {{{other}}}}}\n'
    text = f'{PLAIN}bt_navigator: {{{other}}}\n{costmap}/one/controller: {{{other}}}\n'
    assert set(yaml.safe_load(made(text))) == {'localization', 'map_server'}
    assert 'find-pkg-share' not in made(text) + made(text, 'one')


def test_a_section_that_nobody_renamed_is_told(tmp_path):
    path = tmp_path / 'a.yaml'
    amcl = 'one: {amcl: {ros__parameters: {a: 1}}}'
    path.write_text(amcl)
    assert "'localization': rename that of 'amcl'" in unrenamed_section(str(path), 'localization')
    for key in ('/**', 'localization'):
        path.write_text(f'{amcl}\n{key}: {{ros__parameters: {{}}}}')
        assert not unrenamed_section(str(path), 'localization')
    path.write_text('map_server: {ros__parameters: {a: 1}}')
    assert not unrenamed_section(str(path), 'localization')


def test_a_given_value_takes_the_place_of_the_files_in_every_section(made):
    text = f'{PLAIN}/**/localization: {{ros__parameters: {{use_sim_time: true}}}}'
    tree = yaml.safe_load(made(text, 'one', use_sim_time=False, image_topics=['a', 'b']))
    assert tree['/one/localization'] == {
        'ros__parameters': {'use_sim_time': False, 'image_topics': ['a', 'b']}
    }
    assert tree['/**/localization'] == {'ros__parameters': {}}
    assert 'use_sim_time' not in tree['one']['localization']['ros__parameters']
    alone = launch_file_parameters('', 'one', 'recorder', {'out': 'run'})
    assert yaml.safe_load(alone) == {'/one/recorder': {'ros__parameters': {'out': 'run'}}}


@pytest.mark.parametrize('text', ['{', '[1, 2]', '', 'a: [', 'text'])
def test_a_file_of_something_else_is_named(made, text):
    with pytest.raises(ConfigurationError, match=r'params_file: expected .*params\.yaml'):
        made(text)


def test_a_file_that_is_missing_is_named(tmp_path):
    missing = str(tmp_path / 'none.yaml')
    with pytest.raises(ConfigurationError, match=r"got '.*none\.yaml'.*No such file"):
        launch_file_parameters(missing, '', 'localization', {})


def test_the_text_parameters_of_the_launch_files_are_known():
    source = Path(__file__).parents[1] / 'kbr_localization' / 'ros' / 'parameters' / 'launching.py'
    listed = source.read_text().split('TEXT_PARAMETERS = (')[1].split(')')[0]
    texts = [name for name, value in vars(RecorderConfig(out='x')).items() if type(value) is str]
    assert texts and all(f"'{name}'" in listed for name in texts)


def as_launch_reads(text):
    """Give the values of a file as nodes get them: launch takes backslashes for its own."""
    assert not re.search(r'(?<!\\)(\\\\)*\$\(', text)  # nothing to replace
    sections = yaml.safe_load(re.sub(r'\\(.)', r'\1', text))
    return next(iter(sections.values()))['ros__parameters']


ODD = (
    'Büro/größe 2.h5',
    "it's a map.h5",
    'back\\slash.h5',
    'cost $(5) or $5.h5',
    '/maps/' + 'long name ' * 20 + 'ü.h5',
    '地図.h5',
    '"quoted": #1.h5',
)


@pytest.mark.parametrize('name', ODD, ids=range(len(ODD)))
def test_names_of_files_come_to_the_node_as_they_are(tmp_path, name):
    given = {'map_file': name, 'map_files': [name, 'b']}
    assert as_launch_reads(launch_file_parameters('', '', 'localization', given)) == given
    if '\\' in name or '$' in name:
        return  # in a file of the user's they are for launch
    path = tmp_path / 'params.yaml'
    section = {'localization': {'ros__parameters': given}}
    path.write_text(yaml.safe_dump(section, allow_unicode=True), encoding='utf-8')
    assert as_launch_reads(launch_file_parameters(str(path), '', 'localization', {})) == given
