"""Parameters as ROS tools see them: names, types, ranges, and refusals that say why."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

from kbr_localization.demo.tour import own_domain
from kbr_localization.errors import ConfigurationError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.ros.config import InitialPose, NodeConfig
from kbr_localization.ros.inputs import Inputs, TransformListener
from kbr_localization.ros.interface import interface_page, parameter_file
from kbr_localization.ros.node import LocalizationNode
from kbr_localization.ros.parameters import ParameterNode, Settings
import pytest
import rclpy
from rclpy.context import Context
from rclpy.node import Node
from rclpy.parameter import Parameter
import yaml

pytestmark = pytest.mark.ros
NO_SESSION = SimpleNamespace(add_image=None)
ROOT = Path(__file__).parents[1]
NAV2_FILES = sorted(Path(__file__).with_name('nav2_params').glob('*.yaml'))


@pytest.fixture(scope='module')
def context():
    with own_domain() as domain:
        context = Context()
        rclpy.init(args=[], context=context, domain_id=domain)
        yield context
        rclpy.try_shutdown(context=context)


@pytest.fixture
def make_node(context):
    nodes = []

    def make(cli_args=(), **values):
        given = [Parameter(name, value=value) for name, value in values.items()]
        nodes.append(
            ParameterNode(
                'node',
                context=context,
                cli_args=['--ros-args', *cli_args],
                parameter_overrides=given,
            )
        )
        return nodes[-1]

    yield make
    for node in nodes:
        node.destroy_node()


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
    assert 'raw, compressed' in node.describe_parameter('image_transport').additional_constraints
    span = node.describe_parameter('transform_tolerance').floating_point_range[0]
    assert (span.from_value, span.to_value) == (0.0, 60.0)
    assert node.describe_parameter('points').integer_range[0].from_value == 10


@pytest.mark.parametrize(
    'text, says',
    [
        ('odometry_calibration:=true', "'odometry_calibration': expected str, got True"),
        ('update_min_d:=-1.0', "'update_min_d': expected a value in \\[0.0, 100.0\\], got -1.0"),
        ('points:=3.5', "'points': expected int, got 3.5"),
        ('tf_broadcast:=1', "'tf_broadcast': expected bool, got 1"),
        ('image_transport:=theora', "'image_transport': expected one of raw, compressed"),
        ("global_frame_id:=''", "expected the names of two frames, .*, got '' and 'odom'"),
        ('odom_frame_id:=/map', "expected the names of two frames, .*, got 'map' and 'map'"),
        ('update_mind:=1.0', "unknown parameter 'update_mind' = 1.0: did you mean 'update_min_"),
        ('use_sim_time:=maybe', "'use_sim_time': expected bool, got 'maybe'"),
        ('initial_pose.std_yav:=1.0', "'initial_pose.std_yav' = 1.0: did you mean 'initial_"),
        ('initial_pose.x:=abc', "parameter 'initial_pose.x': expected float, got 'abc'"),
        ('image_topics:=[1, 2]', r"'image_topics': expected a list of texts, got \[1, 2\]: put"),
        ('map_files:=[true]', r"'map_files': expected a list of texts, got \[True\]: put each in"),
        ('image_topics:=a,b', r"'image_topics': expected a list such as \[a,b\], got 'a,b'"),
        ('points:=[]', r"'points': expected int, got \[\]"),
        ('pionts:=[]', "unknown parameter 'pionts' = .*: did you mean 'points'"),
        ('use_sim_time:=[]', "parameter 'use_sim_time': expected bool, got"),
    ],
)
def test_a_bad_value_is_refused_with_name_value_and_range(make_node, text, says):
    with pytest.raises(ConfigurationError, match=says):
        Settings(make_node(cli_args=['-p', text]))


def test_an_integer_is_taken_where_a_float_is_meant_and_an_empty_list_is_none(make_node):
    cli_args = ['-p', 'image_topics:=[]', '-p', 'map_files:=[]', '-p', 'initial_pose.x:=3']
    node = make_node(cli_args=cli_args, update_min_d=1)
    settings = Settings(node)
    assert (settings.filter.update_min_d, settings.initial_pose.x) == (1.0, 3.0)
    assert isinstance(node.get_parameter('update_min_d').value, float)
    assert (settings.config.image_topics, settings.config.map_files) == ((), ())
    assert node.get_parameter('image_topics').value == ['']
    assert not node.describe_parameter('image_topics').dynamic_typing


def inputs_of(node, **values):
    config = NodeConfig(**values)
    return Inputs(node, config, NO_SESSION, print, TransformListener(node, config, print))


def test_two_inputs_on_one_topic_are_refused_with_its_name(make_node):
    node = make_node(cli_args=['-r', 'odom:=/image'])
    with pytest.raises(ConfigurationError, match=r"cannot use topic 'odom': .*one type of"):
        inputs_of(node)


@pytest.mark.parametrize('path', NAV2_FILES, ids=lambda path: path.stem)
def test_a_file_of_nav2_configures_the_node(ros, tiny_world, path):
    """Its section of AMCL was renamed, nothing else."""
    own = [f'map_file:={tiny_world.map_file}', f'pose_file:={ros.folder / "pose.json"}']
    arguments = ['--ros-args', '--params-file', str(path), '-p', own[0], '-p', own[1]]
    node = LocalizationNode(context=ros.context, cli_args=arguments)
    try:
        assert node.trigger_configure().name == 'SUCCESS'
        assert {'laser_model_type', 'z_hit', 'max_particles'} <= set(node.settings.ignored)
        assert 'update_min_d' not in node.settings.ignored
    finally:
        node.clean_up()
        node.destroy_node()


def test_a_change_is_followed_without_what_rclpy_of_humble_lacks(make_node, monkeypatch):
    node, seen = make_node(z_hit=0.5), []
    for name in ('list_parameters', 'add_pre_set_parameters_callback'):
        monkeypatch.delattr(Node, name)
    settings = Settings(node, seen.append)
    changes = [Parameter('transform_tolerance', value=2.0), Parameter('points', value=99)]
    assert node.set_parameters_atomically(changes).successful
    assert settings.config.transform_tolerance == 2.0 and settings.filter.points == 99
    assert [before.points for before in seen] == [KbrConfig().points]


def test_filter_parameters_follow_the_map_unless_given(make_node):
    node = make_node(delta=7.0)
    settings = Settings(node)
    settings.follow_map(KbrConfig(delta=3.0, points=77, image_bandwidth=0.4))
    assert (settings.filter.delta, settings.filter.points) == (7.0, 77)
    assert node.get_parameter('points').value == 77
    node.set_parameters([Parameter('points', value=88)])
    settings.follow_map(KbrConfig(points=99, image_bandwidth=0.5))
    assert (settings.filter.points, settings.filter.image_bandwidth) == (88, 0.5)


def test_the_parameter_file_has_the_names_and_defaults_of_the_code():
    text = (ROOT / 'config' / 'localization.yaml').read_text()
    assert text == parameter_file(), 'run `python -m kbr_localization.ros.interface`'
    values = yaml.safe_load(text)['/**/localization']['ros__parameters']
    assert InitialPose(**values.pop('initial_pose')) == InitialPose()
    values = {name: tuple(v[1:]) if v == [''] else v for name, v in values.items()}
    assert NodeConfig(**values) == NodeConfig()
    # those of the filter are comments
    pairs = [line.strip().removeprefix('# ').partition(': ') for line in text.splitlines()]
    own = {n: yaml.safe_load(v) for n, _, v in pairs if n in dataclasses.asdict(KbrConfig())}
    assert KbrConfig(**own) == KbrConfig() and len(own) == len(dataclasses.fields(KbrConfig))


def test_the_page_of_the_interface_is_that_of_the_code():
    text = (ROOT / 'docs' / 'ros_interface.md').read_text()
    assert text == interface_page(text), 'run `python -m kbr_localization.ros.interface`'
