"""Parameters as ROS tools see them: names, types, ranges, and refusals that say why."""

from pathlib import Path
import re

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
ROOT = Path(__file__).parents[1]
NAV2_FILES = sorted(Path(__file__).with_name('nav2_params').glob('*.yaml'))


@pytest.fixture(scope='module')
def make_node():
    """Return what makes a node of arguments and of parameters that are given in Python."""
    with own_domain() as domain:
        context = Context()
        rclpy.init(args=[], context=context, domain_id=domain)

        def make(*arguments, **values):
            given = [Parameter(name, value=value) for name, value in values.items()]
            options = {'context': context, 'parameter_overrides': given}
            return ParameterNode('node', cli_args=['--ros-args', *arguments], **options)

        yield make
        rclpy.try_shutdown(context=context)


@pytest.mark.parametrize(
    'text, says',
    [
        ('odometry_calibration:=true', "'odometry_calibration': expected str, got True"),
        ('update_min_d:=-1.0', "'update_min_d': expected a value in \\[0.0, 100.0\\], got -1.0"),
        ('points:=3.5', "'points': expected int, got 3.5"),
        ('image_transport:=theora', "'image_transport': expected one of raw, compressed"),
        ('odom_frame_id:=/map', "expected the names of two frames, .*, got 'map' and 'map'"),
        ('update_mind:=1.0', "unknown parameter 'update_mind' = 1.0: did you mean 'update_min_"),
        ('initial_pose.std_yav:=1.0', "'initial_pose.std_yav' = 1.0: did you mean 'initial_"),
        ('image_topics:=[1, 2]', r"'image_topics': expected a list of texts, got \[1, 2\]: put"),
        ('image_topics:=a,b', r"'image_topics': expected a list such as \[a,b\], got 'a,b'"),
        ('points:=[]', r"'points': expected int, got \[\]"),
        ('use_sim_time:=maybe', "'use_sim_time': expected bool, got 'maybe'"),
        ("map_files:=['1st floor=/a.h5']", "'map_files': expected name=path .*'1st floor="),
        ("map_files:=['a=/a.h5', 'a=/b.h5']", "'map_files': expected name=path .*'a=/b.h5'"),
    ],
)
def test_a_bad_value_is_refused_with_name_value_and_range(make_node, text, says):
    with pytest.raises(ConfigurationError, match=says):
        Settings(make_node('-p', text))


def test_parameters_have_types_and_ranges_and_take_what_yaml_makes_of_their_values(make_node):
    arguments = ['-p', 'image_topics:=[]', '-p', 'map_files:=[]', '-p', 'initial_pose.x:=3']
    node = make_node(*arguments, update_min_d=1)
    settings = Settings(node)
    assert (settings.filter.update_min_d, settings.initial_pose.x) == (1.0, 3.0)
    assert isinstance(node.get_parameter('update_min_d').value, float)
    assert (settings.config.image_topics, settings.config.map_files) == ((), ())
    assert node.get_parameter('image_topics').value == ['']
    assert not node.describe_parameter('image_topics').dynamic_typing
    described = node.describe_parameter('transform_tolerance')
    (span,) = described.floating_point_range
    assert (span.from_value, span.to_value) == (0.0, 60.0) and 'valid' in described.description


def test_two_inputs_on_one_topic_are_refused_with_its_name(make_node):
    node, config = make_node('-r', 'odom:=/image'), NodeConfig()
    with pytest.raises(ConfigurationError, match=r"cannot use topic 'odom': .*one type of"):
        Inputs(node, config, None, TransformListener(node, config))


@pytest.mark.parametrize('path', NAV2_FILES, ids=lambda path: path.stem)
def test_a_file_of_nav2_configures_the_node(ros, tiny_world, path, capfd):
    """Its section of AMCL was renamed, nothing else."""
    own = [f'map_file:={tiny_world.map_file}', f'pose_file:={ros.folder / "pose.json"}']
    arguments = ['--ros-args', '--params-file', str(path), '-p', own[0], '-p', own[1]]
    node = LocalizationNode(context=ros.context, cli_args=arguments)
    try:
        assert node.trigger_configure().name == 'SUCCESS'
        (ignored,) = re.findall('without a meaning here are ignored: (.*)', capfd.readouterr().err)
        assert {'laser_model_type', 'z_hit', 'max_particles'} <= set(ignored.split(', '))
        assert 'update_min_d' not in ignored.split(', ')
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
    bad = {'update_min_d': -1.0, 'image_bandwidth': float('nan'), 'global_frame_id': 'world'}
    for name, value in bad.items():
        (refused,) = node.set_parameters([Parameter(name, value=value)])
        assert not refused.successful and refused.reason
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


def test_the_page_of_the_interface_is_that_of_the_code():
    text = (ROOT / 'docs' / 'ros_interface.md').read_text()
    assert text == interface_page(text), 'run `python -m kbr_localization.ros.interface`'
