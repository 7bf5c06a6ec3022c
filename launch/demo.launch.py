"""Render a building, map it, and replay a run through it to the localization node."""

from pathlib import Path
import sys

from kbr_localization.configuration import validate
from kbr_localization.errors import RosError
from kbr_localization.ros import launching
from kbr_localization.ros.player import PlayerOptions
from kbr_localization.simulation import DEMO_RUNS
from launch.actions import (
    ExecuteProcess,
    IncludeLaunchDescription,
    RegisterEventHandler,
)
from launch.event_handlers import OnProcessExit
from launch.launch_description_sources import PythonLaunchDescriptionSource
import yaml


def generate_launch_description():
    """Describe the steps; what a folder has already is not made again."""
    folder = str(Path.home() / '.ros' / 'kbr_localization' / 'demo')
    arguments = launching.arguments(folder=folder, rate='1.0', rviz='false')
    return launching.description(__file__, steps, arguments)


def steps(value):
    """Chain the commands that are still to be run, then the replay."""
    # what the player refuses would end the demo after minutes of rendering
    validate(PlayerOptions(rate=yaml.safe_load(value('rate'))))
    launching.is_true(value, 'rviz')
    folder = Path(value('folder')).expanduser()
    building, map_file = folder / 'building', folder / 'map.h5'
    *training, test = [str(building / run.name) for run in DEMO_RUNS]
    commands = []
    if not building.is_dir():
        commands.append(['synth', str(building)])
    if not map_file.is_file():
        commands.append(['map', 'build', '--out', str(map_file), *training])
    arguments = {
        'run': test,
        'map_file': str(map_file),
        'rate': value('rate'),
        'rviz': value('rviz'),
    }
    source = PythonLaunchDescriptionSource(launching.shared('launch/replay.launch.py'))
    return chain(commands, IncludeLaunchDescription(source, launch_arguments=arguments.items()))


def chain(commands, last):
    """Run the commands one after the other, then what comes last; a failure ends it."""
    if not commands:
        return [last]
    process = ExecuteProcess(
        cmd=[sys.executable, '-m', 'kbr_localization', *commands[0]], output='screen'
    )

    def go_on(event, context):
        if context.is_shutdown:
            return None  # somebody pressed Ctrl-C
        if event.returncode != 0:
            raise RosError(f'`kbr {" ".join(commands[0])}` failed: see above')
        return chain(commands[1:], last)

    return [RegisterEventHandler(OnProcessExit(target_action=process, on_exit=go_on)), process]
