"""Play a COLD run or a bag to the localization node, which takes its arguments from here."""

from kbr_localization.ros import launching
from kbr_localization.ros.config import PlayerConfig
from launch.actions import IncludeLaunchDescription, Shutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource

OVERRIDES = ('run', 'rate', 'loop', 'image_transport', 'cameras')


def generate_launch_description():
    """Describe the player and the localization that listens to it."""
    described = launching.describe(
        nodes,
        PlayerConfig,
        run=None,
        rate='1.0',
        loop='false',
        image_transport='',
        cameras='',
        image_topic='image',
        odom_topic='odom',
        params_file=launching.shared('config/localization.yaml'),
        namespace='',
        use_sim_time='true',
        log_level='info',
        exit_at_end='true',
    )
    source = PythonLaunchDescriptionSource(launching.shared('launch/localization.launch.py'))
    described.add_action(IncludeLaunchDescription(source))
    return described


def nodes(values):
    """Make the player from the arguments' values."""
    at_end = Shutdown() if values['exit_at_end'].lower() == 'true' else None
    parameters = launching.parameters(values, PlayerConfig, OVERRIDES)
    node = launching.package_node('player', values, parameters, ['image', 'odom'], on_exit=at_end)
    return [launching.ends_with_failure(node), node]
