"""Parameters as ROS tools see them: names, types, ranges, and refusals that say why."""

from contextlib import ExitStack
import dataclasses
from types import SimpleNamespace

from kbr_localization.demo.dds_domain import own_domain
from kbr_localization.errors import ConfigurationError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.ros.config import InitialPose, NodeConfig
from kbr_localization.ros.inputs import Inputs
from kbr_localization.ros.launch_values import (
    node_parameters,
    one_robot,
    robots,
    Text,
    unknown_arguments,
)
from kbr_localization.ros.parameters import SettableNode, Settings, shared_names
from kbr_localization.ros.transforms import TransformListener
import pytest
import rclpy
from rclpy.context import Context
from rclpy.node import Node
from rclpy.parameter import Parameter
import yaml

pytestmark = pytest.mark.ros
NO_SESSION = SimpleNamespace(add_image=None)


@pytest.fixture
def make_node():
    context, domain = Context(), ExitStack()
    rclpy.init(args=[], context=context, domain_id=domain.enter_context(own_domain()))
    nodes = []

    def make(cli_args=(), **values):
        given = [Parameter(name.replace('__', '.'), value=value) for name, value in values.items()]
        nodes.append(
            SettableNode(
                'node',
                context=context,
                cli_args=['--ros-args', *cli_args],
                parameter_overrides=given,
                automatically_declare_parameters_from_overrides=True,
            )
        )
        return nodes[-1]

    yield make
    for node in nodes:
        node.destroy_node()
    rclpy.try_shutdown(context=context)
    domain.close()


def with_settings(node, *arguments):
    node.settings = Settings(node, *arguments)
    return node.settings


def test_a_clock_that_is_neither_true_nor_false_is_refused(make_node):
    """What rclpy says of it goes under in the log, and the node runs by the wrong clock."""
    with pytest.raises(ConfigurationError, match=r"'use_sim_time': expected bool, got 'maybe'"):
        Settings(make_node(use_sim_time='maybe'))


def test_every_parameter_has_a_description_a_type_and_the_default(make_node):
    node = make_node()
    Settings(node)
    for prefix, config in (
        ('', NodeConfig()),
        ('', KbrConfig()),
        ('initial_pose.', InitialPose()),
    ):
        for name, value in dataclasses.asdict(config).items():
            described = node.describe_parameter(prefix + name)
            assert described.description and not described.dynamic_typing
            # ROS has no typed empty list
            expected = [''] if value == () else value
            assert node.get_parameter(prefix + name).value == expected
            assert type(node.get_parameter(prefix + name).value) is type(expected)


def test_ranges_and_choices_are_shown(make_node):
    node = make_node()
    Settings(node)
    assert 'raw, compressed' in node.describe_parameter('image_transport').additional_constraints
    span = node.describe_parameter('transform_tolerance').floating_point_range[0]
    assert (span.from_value, span.to_value) == (0.0, 60.0)
    assert node.describe_parameter('points').integer_range[0].from_value == 10


def test_an_integer_is_taken_where_a_float_is_meant(make_node):
    node = make_node(update_min_d=1, initial_pose__x=3)
    settings = with_settings(node)
    assert (settings.filter.update_min_d, settings.initial_pose.x) == (1.0, 3.0)
    assert isinstance(node.get_parameter('update_min_d').value, float)
    assert node.set_parameters([Parameter('update_min_d', value=2)])[0].successful
    assert settings.filter.update_min_d == 2.0


@pytest.mark.parametrize('text', ['1e5', 'y', 'N', 'nan', '7', "it's", 'back\\slash'])
def test_a_text_that_a_launch_file_was_given_is_one_to_ros(make_node, tmp_path, text):
    """YAML of ROS is not that of Python: it takes more words for truth values and numbers."""
    given = {'map_file': Text(text), 'image_topics': [Text(text), Text('b')]}
    given['sync_tolerance'] = yaml.safe_load('1e-2')  # a text to Python
    written = node_parameters('', '', 'node', given).replace('\\\\', '\\')  # as launch does
    (tmp_path / 'params.yaml').write_text(written)
    config = Settings(make_node(['--params-file', str(tmp_path / 'params.yaml')])).config
    assert (config.map_file, config.image_topics) == (text, (text, 'b'))
    assert config.sync_tolerance == 0.01


@pytest.mark.parametrize(
    'values, says',
    [
        ({'odometry_calibration': True}, "'odometry_calibration': expected str, got True"),
        ({'update_min_d': -1.0}, "'update_min_d': expected a value in \\[0.0, 100.0\\], got -1.0"),
        ({'update_min_d': 'far'}, "'update_min_d': expected float, got 'far'"),
        ({'points': 3.5}, "'points': expected int, got 3.5"),
        ({'tf_broadcast': 1}, "'tf_broadcast': expected bool, got 1"),
        ({'image_transport': 'theora'}, "'image_transport': expected one of raw, compressed"),
        ({'method': 'amcl'}, "'method': expected one of kbr"),
        ({'global_frame_id': ''}, "expected the names of two frames, .*, got '' and 'odom'"),
        ({'odom_frame_id': '/'}, "expected the names of two frames, .*, got 'map' and ''"),
        ({'odom_frame_id': '/map'}, "expected the names of two frames, .*, got 'map' and 'map'"),
        ({'update_mind': 1.0}, "unknown parameter 'update_mind' = 1.0: did you mean 'update_min_"),
        ({'initial_pose__roll': 1.0}, "unknown parameter 'initial_pose.roll'"),
        ({'initial_pose__x': 'abc'}, "parameter 'initial_pose.x': expected float, got 'abc'"),
    ],
)
def test_a_bad_value_is_refused_with_name_value_and_range(make_node, values, says):
    with pytest.raises(ConfigurationError, match=says):
        Settings(make_node(**values))


@pytest.mark.parametrize(
    'text, says',
    [
        (
            'image_topics:=[1, 2]',
            r"'image_topics': expected a list of texts, got \[1, 2\]: put each",
        ),
        ('map_files:=[true]', r"'map_files': expected a list of texts, got \[True\]: put each in"),
        ('points:=[]', r"'points': expected int, got \[\]"),
        ('map_file:=[]', r"'map_file': expected str, got \[\]"),
        ('pionts:=[]', "unknown parameter 'pionts' = .*: did you mean 'points'"),
        ('use_sim_time:=[]', "parameter 'use_sim_time': expected bool, got"),
    ],
)
def test_a_list_of_the_command_line_that_does_not_fit_is_refused(make_node, text, says):
    with pytest.raises(ConfigurationError, match=says):
        Settings(make_node(cli_args=['-p', text]))


def test_an_empty_list_is_none(make_node):
    node = make_node(cli_args=['-p', 'image_topics:=[]', '-p', 'map_files:=[]'])
    config = Settings(node).config
    assert (config.image_topics, config.map_files) == ((), ())
    assert node.get_parameter('image_topics').value == ['']
    assert not node.describe_parameter('image_topics').dynamic_typing


def inputs_of(node, **values):
    config = NodeConfig(**values)
    return Inputs(node, config, NO_SESSION, print, TransformListener(node, config, print))


@pytest.mark.parametrize(
    'policy, value, shown',
    [
        ('reliability', 'foo', "reliability 'foo'"),
        ('depth', 10**15, 'depth 1000000000000000'),
    ],
)
def test_a_qos_that_there_is_not_is_refused_with_the_topic(make_node, policy, value, shown):
    node = make_node(**{f'qos_overrides./image.subscription.{policy}': value})
    says = (
        f'cannot listen to /image: expected parameters qos_overrides./image.sub.*, got .*{shown}'
    )
    with pytest.raises(ConfigurationError, match=says):
        inputs_of(node)


def test_a_qos_is_that_of_its_topic_alone(make_node):
    node = make_node(**{'qos_overrides./a/image.subscription.depth': 77})
    inputs_of(node, image_topics=('a/image', 'b/image'))
    depths = {s.topic_name: s.qos_profile.depth for s in node.subscriptions}
    assert (depths['/a/image'], depths['/b/image']) == (77, 5)


def test_two_inputs_on_one_topic_are_refused_with_its_name(make_node):
    node = make_node(cli_args=['-r', 'odom:=/image'])
    with pytest.raises(ConfigurationError, match="cannot use 'odom' on /image: the node has"):
        inputs_of(node)


@pytest.mark.parametrize('topic', ['front-cam/image', 'cam/0/image'])
def test_a_topic_that_ros_does_not_allow_is_refused_with_its_name(make_node, topic):
    says = f"cannot use topic '{topic}': Invalid topic name: topic name .*: correct its name"
    with pytest.raises(ConfigurationError, match=says):
        inputs_of(make_node(), image_topics=(topic, 'rear/image'))


def test_parameters_of_amcl_are_left_alone(make_node):
    assert Settings(make_node(z_hit=0.5, laser_model_type='beam')).ignored == [
        'laser_model_type',
        'z_hit',
    ]


def test_a_misspelt_parameter_is_refused_at_run_time_with_what_may_be_meant(make_node):
    node = make_node()
    with_settings(node)
    for refused in (
        node.set_parameters([Parameter('tf_brodcast', value=False)])[0],
        node.set_parameters_atomically([Parameter('tf_brodcast', value=False)]),
    ):
        assert not refused.successful
        assert refused.reason == "unknown parameter 'tf_brodcast': did you mean 'tf_broadcast'?"


def test_what_rclpy_of_humble_has_not_is_not_needed(make_node, monkeypatch):
    node = make_node(z_hit=0.5)
    for name in (
        'list_parameters',
        'add_pre_set_parameters_callback',
        'add_post_set_parameters_callback',
    ):
        monkeypatch.delattr(Node, name)
    seen = []
    settings = with_settings(node, seen.append)
    assert settings.ignored == ['z_hit']
    assert node.set_parameters([Parameter('transform_tolerance', value=2)])[0].successful
    assert settings.config.transform_tolerance == 2.0 and len(seen) == 1


@pytest.mark.parametrize(
    'name, value, says',
    [
        ('update_min_d', -1.0, 'range'),
        ('transform_tolerance', 'long', 'type'),
        ('image_bandwidth', float('nan'), 'range'),
        ('map_file', 7, 'type'),
        ('global_frame_id', 'world', 'read-only'),
    ],
)
def test_a_bad_change_is_refused_and_changes_nothing(make_node, name, value, says):
    node = make_node()
    settings = with_settings(node)
    before = (settings.config, settings.filter, node.get_parameter(name).value)
    result = node.set_parameters([Parameter(name, value=value)])[0]
    assert not result.successful and says in result.reason.lower()
    assert (settings.config, settings.filter, node.get_parameter(name).value) == before


def test_filter_parameters_follow_the_map_unless_given(make_node):
    node = make_node(delta=7.0)
    settings = with_settings(node)
    settings.follow_map(KbrConfig(delta=3.0, points=77))
    assert (settings.filter.delta, settings.filter.points) == (7.0, 77)
    assert node.get_parameter('points').value == 77
    node.set_parameters([Parameter('points', value=88)])
    settings.follow_map(KbrConfig(points=99, image_bandwidth=0.5))
    assert (settings.filter.points, settings.filter.image_bandwidth) == (88, 0.5)


FILE = """
/**: {ros__parameters: {robot_radius: 0.2, use_sim_time: true}}
localization: {ros__parameters: {points: 50, map_file: $(env HOME)/a.h5, use_sim_time: false}}
/one/localization: {ros__parameters: {points: 60}}
amcl: {ros__parameters: {laser_model_type: $(find-pkg-share missing)}}
"""


def written_parameters(tmp_path, namespace='', **given):
    path = tmp_path / 'nav2.yaml'
    path.write_text(FILE)
    return yaml.safe_load(node_parameters(str(path), namespace, 'localization', given))


def test_a_launch_file_takes_its_nodes_sections_and_given_values_win(tmp_path):
    tree = written_parameters(tmp_path, map_file='$(b)')
    assert tree['/**']['ros__parameters']['robot_radius'] == 0.2
    own = tree['/**/localization']['ros__parameters']
    assert own == {'points': 50, 'map_file': '\\$(b)', 'use_sim_time': False}
    own = written_parameters(tmp_path, 'one')['/**/localization']['ros__parameters']
    assert own['points'] == 60 and own['map_file'] == '$(env HOME)/a.h5'
    assert 'laser_model_type' not in str(tree)


@pytest.mark.parametrize('text', ['- 1', 'a: b: c', '\t'])
def test_a_file_that_is_none_of_parameters_is_refused(tmp_path, text):
    (tmp_path / 'bad.yaml').write_text(text)
    with pytest.raises(ConfigurationError, match='params_file: expected'):
        node_parameters(str(tmp_path / 'bad.yaml'), '', 'localization', {})


def test_names_for_all_nodes_are_found_in_parameter_files(tmp_path):
    path = tmp_path / 'params.yaml'
    path.write_text(FILE)
    arguments = ['node', '--ros-args', '--params-file', str(path)]
    assert shared_names(arguments, 'localization') == {'robot_radius'}
    assert shared_names(['--params-file', '/no/such.yaml'], 'localization') == set()


def test_several_robots_never_grow_one_file_and_need_a_name_each(monkeypatch, tmp_path):
    monkeypatch.setenv('ROS_HOME', str(tmp_path))

    def given(namespace, grow_into=''):
        values = {'namespace': namespace, 'grow_into': grow_into, 'rate': '1'}
        return values.__getitem__

    folders = [robot('grow_into') for robot in robots(given('one, /two/'))]
    assert folders == [f'{tmp_path}/kbr_localization/grown/{name}' for name in ('one', 'two')]
    (alone,) = robots(given('/one', '/maps'))
    assert (alone('namespace'), alone('grow_into'), alone('rate')) == ('/one', '/maps', '1')
    for namespace in ('one,', 'one,/one'):
        with pytest.raises(ConfigurationError, match='name each robot once'):
            robots(given(namespace))
    with pytest.raises(ConfigurationError, match='expected the namespace of one robot'):
        one_robot(given('one,two'))


def test_unknown_launch_arguments_are_those_of_the_file_that_was_started():
    command = ['ros2', 'launch', 'kbr_localization', 'localization.launch.py', 'map_flie:=x']
    assert unknown_arguments('/x/localization.launch.py', ['map_file'], command) == ['map_flie']
    assert unknown_arguments('/x/replay.launch.py', ['map_file'], command) == []
