"""Parameter files of Nav2, the section of AMCL renamed, start the node as they are."""

from pathlib import Path

from kbr_localization.ros.node import LocalizationNode
import pytest

pytestmark = pytest.mark.ros
FILES = sorted(Path(__file__).with_name('nav2_params').glob('*.yaml'))


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_a_file_of_nav2_configures_the_node(ros, tiny_world, path):
    arguments = [
        '--ros-args',
        '--params-file',
        str(path),
        '-p',
        f'map_file:={tiny_world.map_file}',
    ]
    arguments += ['-p', f'pose_file:={ros.folder / "pose.json"}']
    node = LocalizationNode(context=ros.context, cli_args=arguments)
    try:
        assert node.trigger_configure().name == 'SUCCESS', node.failure
        assert {'laser_model_type', 'z_hit', 'scan_topic'} <= set(node.settings.ignored)
        assert 'update_min_d' not in node.settings.foreign
        assert node.settings.foreign == (
            ['costmap.resolution', 'robot_radius'] if path.stem == 'rolling' else []
        )
    finally:
        node.clean_up()
        node.destroy_node()
