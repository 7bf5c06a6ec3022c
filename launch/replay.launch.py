"""Play a COLD run or a bag to the localization node, whose arguments can be given too."""

from kbr_localization.ros import launching
from kbr_localization.ros.config import PlayerConfig
from launch.actions import IncludeLaunchDescription, Shutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource


def generate_launch_description():
    described = launching.describe(
        nodes,
        PlayerConfig,
        run=None,
        rate='1.0',
        loop='false',
        image_transport='',
        cameras='',
        params_file=launching.shared('config/localization.yaml'),
        use_sim_time='true',
        exit_at_end='true',
    )
    source = PythonLaunchDescriptionSource(launching.shared('launch/localization.launch.py'))
    described.add_action(IncludeLaunchDescription(source))
    return described


def nodes(values):
    at_end = Shutdown() if values['exit_at_end'].lower() == 'true' else None
    without_clock = {**values, 'use_sim_time': ''}  # the player publishes the clock
    return launching.package_node('player', PlayerConfig, without_clock, on_exit=at_end)
