"""Files for people and launch files, checked against the code they describe."""

from pathlib import Path

from kbr_localization.localization.config import KbrConfig
from kbr_localization.ros import parameters
from kbr_localization.ros.config import InitialPose, NodeConfig
from kbr_localization.ros.interface import interface_page, parameter_file
import pytest
import yaml

ROOT = Path(__file__).parents[1]
LAUNCH_FILES = sorted((ROOT / 'launch').glob('*.launch.py'))


def test_the_parameter_file_has_the_names_and_defaults_of_the_code():
    text = (ROOT / 'config' / 'localization.yaml').read_text()
    assert text == parameter_file(), 'run `python -m kbr_localization.ros.interface`'
    values = yaml.safe_load(text)['/**/localization']['ros__parameters']
    initial_pose = values.pop('initial_pose')
    values = {name: tuple(v[1:]) if v == [''] else v for name, v in values.items()}
    assert values == {name: getattr(NodeConfig(), name) for name in parameters.fields(NodeConfig)}
    assert initial_pose == {n: getattr(InitialPose(), n) for n in parameters.fields(InitialPose)}


def test_the_page_of_the_interface_is_that_of_the_code():
    text = (ROOT / 'docs' / 'ros_interface.md').read_text()
    assert text == interface_page(), 'run `python -m kbr_localization.ros.interface`'


def test_filter_parameters_stand_there_as_comments_and_are_right():
    text = (ROOT / 'config' / 'localization.yaml').read_text().split('Parameters of the filter')[1]
    lines = [line.strip().removeprefix('# ') for line in text.splitlines()]
    settings = {}
    for line in lines:
        name, _, value = line.partition(': ')
        if name in parameters.fields(KbrConfig):
            settings[name] = yaml.safe_load(value)
    assert KbrConfig(**settings) == KbrConfig() and len(settings) == len(
        parameters.fields(KbrConfig)
    )


@pytest.mark.parametrize('path', LAUNCH_FILES, ids=lambda path: path.name)
def test_launch_files_load_and_document_their_arguments(path):
    pytest.importorskip('launch_ros', reason='launch is not on PyPI; needs a ROS installation')
    from launch.actions import DeclareLaunchArgument
    from launch.launch_description_sources import (
        get_launch_description_from_python_launch_file,
    )

    description = get_launch_description_from_python_launch_file(str(path))
    arguments = [e for e in description.entities if isinstance(e, DeclareLaunchArgument)]
    assert arguments and all(argument.description for argument in arguments)
