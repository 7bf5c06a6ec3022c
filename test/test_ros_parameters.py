"""Parameters as ROS tools see them: names, types, ranges, and refusals that say why."""

from contextlib import ExitStack
import dataclasses
from types import SimpleNamespace

from kbr_localization.demo.dds_domain import own_domain
from kbr_localization.errors import ConfigurationError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.ros.inputs.inputs import InputConfig, Inputs
from kbr_localization.ros.parameters import parameters
from kbr_localization.ros.parameters.node_config import InitialPose, NodeConfig
from kbr_localization.ros.parameters.parameter_files import launch_file_parameters, Text
from kbr_localization.ros.parameters.settings import SettableNode, Settings
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


def test_a_slash_before_a_frame_is_taken_away(make_node):
    config = Settings(make_node(global_frame_id='/map', odom_frame_id='/odom')).config
    assert (config.global_frame_id, config.odom_frame_id) == ('map', 'odom')


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


@pytest.mark.parametrize('given', ['off', False])
def test_a_word_that_yaml_reads_as_a_truth_value_is_taken_as_written(make_node, given):
    node = make_node(odometry_calibration=given)
    assert Settings(node).filter.odometry_calibration == 'off'
    assert node.get_parameter('odometry_calibration').value == 'off'


@pytest.mark.parametrize('text', ['1e5', 'y', 'N', 'nan', '7', "it's", 'back\\slash'])
def test_a_text_that_a_launch_file_was_given_is_one_to_ros(make_node, tmp_path, text):
    """YAML of ROS is not that of Python: it takes more words for truth values and numbers."""
    given = {'map_file': Text(text), 'image_topics': [Text(text), Text('b')]}
    given['sync_tolerance'] = yaml.safe_load('1e-2')  # a text to Python
    written = launch_file_parameters('', '', 'node', given).replace('\\\\', '\\')  # as launch does
    (tmp_path / 'params.yaml').write_text(written)
    config = Settings(make_node(['--params-file', str(tmp_path / 'params.yaml')])).config
    assert (config.map_file, config.image_topics) == (text, (text, 'b'))
    assert config.sync_tolerance == 0.01


def test_such_a_word_can_be_set_while_the_node_runs(make_node):
    node = make_node()
    settings = with_settings(node)
    assert node.set_parameters([Parameter('odometry_calibration', value=False)])[0].successful
    assert settings.filter.odometry_calibration == 'off'
    refused = node.set_parameters([Parameter('odometry_calibration', value=True)])[0]
    assert not refused.successful and settings.filter.odometry_calibration == 'off'


@pytest.mark.parametrize(
    'values, says',
    [
        ({'odometry_calibration': True}, "'odometry_calibration': expected str, got True"),
        ({'update_min_d': -1.0}, "'update_min_d': expected a value in \\[0.0, 100.0\\], got -1.0"),
        ({'update_min_d': 'far'}, "'update_min_d': expected float, got 'far'"),
        ({'update_min_d': float('nan')}, "'update_min_d': expected a finite number"),
        ({'points': 3.5}, "'points': expected int, got 3.5"),
        ({'image_queue': 201}, "'image_queue': expected a value in \\[1, 200\\], got 201"),
        ({'image_backlog': 201}, "'image_backlog': expected a value in \\[1, 200\\], got 201"),
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


def test_a_parameter_is_not_deleted_and_that_is_said(make_node):
    node = make_node()
    with_settings(node)
    refused = node.set_parameters([Parameter('particles', Parameter.Type.NOT_SET)])[0]
    assert not refused.successful and 'cannot be undeclared' in refused.reason


def test_a_list_that_does_not_fit_is_refused_at_run_time(make_node):
    node = make_node()
    with_settings(node)
    refused = node.set_parameters([Parameter('map_files', value=[1, 2])])[0]
    assert not refused.successful and 'expected a list of texts, got [1, 2]' in refused.reason


@pytest.mark.parametrize(
    'policy, value, shown',
    [
        ('reliability', 'foo', "reliability 'foo'"),
        ('reliability', 5, 'reliability 5'),
        ('depth', 'abc', "depth 'abc'"),
        ('depth', -1, 'depth -1'),
        ('depth', 10**15, 'depth 1000000000000000'),
    ],
)
def test_a_qos_that_there_is_not_is_refused_with_the_topic(make_node, policy, value, shown):
    node = make_node(**{f'qos_overrides./image.subscription.{policy}': value})
    says = (
        f'cannot listen to /image: expected parameters qos_overrides./image.sub.*, got .*{shown}'
    )
    with pytest.raises(ConfigurationError, match=says):
        Inputs(node, InputConfig('raw', (), 0.1, 'odom'), NO_SESSION, print, print)


def test_a_qos_is_that_of_its_topic_alone(make_node):
    node = make_node(**{'qos_overrides./a/image.subscription.depth': 77})
    config = InputConfig('raw', ('a/image', 'b/image'), 0.1, 'odom')
    inputs = Inputs(node, config, NO_SESSION, print, print)
    assert [s.qos_profile.depth for s in inputs.cameras.subscriptions] == [77, 5]


def test_two_inputs_on_one_topic_are_refused_with_its_name(make_node):
    node = make_node(cli_args=['-r', 'odom:=/image'])
    with pytest.raises(
        ConfigurationError, match="cannot listen to 'odom' on /image: the node has"
    ):
        Inputs(node, InputConfig('raw', (), 0.1, 'odom'), NO_SESSION, print, print)


@pytest.mark.parametrize('topic', ['front-cam/image', 'cam/0/image', 'front/image/', '~image'])
def test_a_topic_that_ros_does_not_allow_is_refused_with_its_name(make_node, topic):
    config = InputConfig('raw', (topic, 'rear/image'), 0.1, 'odom')
    says = f"cannot listen to '{topic}': Invalid topic name: topic name .*: correct image_topics"
    with pytest.raises(ConfigurationError, match=says):
        Inputs(make_node(), config, NO_SESSION, print, print)


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


def test_names_for_all_nodes_may_be_those_of_others(make_node):
    node = make_node(robot_radius=0.2, z_hit=0.5)
    settings = Settings(node, shared={'robot_radius'})
    assert (settings.foreign, settings.ignored) == (['robot_radius'], ['z_hit'])


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


def test_who_follows_a_change_sees_the_new_values_at_once(make_node):
    node, seen = make_node(), []

    def follow(before):
        seen.append((before.points, settings.filter.points, settings.config.tf_broadcast))

    settings = with_settings(node, follow)
    node.set_parameters([Parameter('points', value=77)])
    node.set_parameters([Parameter('tf_broadcast', value=False)])
    assert seen == [(1000, 77, True), (77, 77, False)]


def test_lists_survive_ros(make_node):
    @dataclasses.dataclass(frozen=True)
    class Config:
        topics: tuple[str, ...] = parameters.configuration.parameter((), 'some topics')

    assert parameters.declare(make_node(), Config).topics == ()
    assert parameters.declare(make_node(topics=['a', 'b']), Config).topics == ('a', 'b')
