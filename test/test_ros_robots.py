"""What several robots in one launch get of its arguments; `launch` itself is not needed."""

from pathlib import Path

from kbr_localization.errors import ConfigurationError
from kbr_localization.ros.parameters.robots import one_robot, robots
import pytest


def folders(monkeypatch, namespace, grow_into=''):
    """Folder to grow into by namespace."""
    monkeypatch.setenv('ROS_HOME', '/home/robot/.ros')
    arguments = {'namespace': namespace, 'grow_into': grow_into, 'map_file': 'office.h5'}
    values = robots(arguments.get)
    assert all(value('map_file') == 'office.h5' for value in values)
    return {value('namespace'): value('grow_into') for value in values}


@pytest.mark.parametrize('namespace', ['one,two', '/one, /two/'])
def test_several_robots_never_grow_one_file(monkeypatch, namespace):
    grown = '/home/robot/.ros/kbr_localization/grown'
    assert folders(monkeypatch, namespace) == {'one': f'{grown}/one', 'two': f'{grown}/two'}
    given = {'one': str(Path('grown', 'one')), 'two': str(Path('grown', 'two'))}
    assert folders(monkeypatch, namespace, 'grown') == given


@pytest.mark.parametrize('namespace', ['', 'one', '/one'])
def test_a_single_robot_has_what_was_given(monkeypatch, namespace):
    assert folders(monkeypatch, namespace) == {namespace: ''}
    assert folders(monkeypatch, namespace, 'grown') == {namespace: 'grown'}


@pytest.mark.parametrize('namespace', ['one,', 'one,/one', ','])
def test_robots_that_cannot_be_told_apart_are_refused(monkeypatch, namespace):
    with pytest.raises(ConfigurationError, match='namespaces that differ'):
        folders(monkeypatch, namespace)


def test_where_one_robot_is_meant_several_are_refused():
    assert one_robot({'namespace': '/one'}.get)('namespace') == '/one'
    with pytest.raises(ConfigurationError, match='namespace of one robot'):
        one_robot({'namespace': 'one,two'}.get)
