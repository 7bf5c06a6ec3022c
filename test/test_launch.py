"""The launch files as `ros2 launch` runs them; needs a ROS installation with this package."""

from importlib.util import find_spec
import os
from pathlib import Path
import shutil
import subprocess

from kbr_localization.demo.dds_domain import own_domain
import pytest

pytestmark = [
    pytest.mark.ros,
    pytest.mark.skipif(
        find_spec('launch_ros') is None or shutil.which('ros2') is None,
        reason='launch is not on PyPI; needs a ROS installation',
    ),
]
REPLAY = Path(__file__).parents[1] / 'launch' / 'replay.launch.py'


@pytest.fixture
def replay(tiny_world, tmp_path):
    """Run the replay with arguments, and return its exit code and what it says."""

    def run(seconds=60.0, **arguments):
        given = {'run': tiny_world.run, 'map_file': tiny_world.map_file, 'rate': 8, **arguments}
        texts = [f'{name}:={value}' for name, value in given.items()]
        with own_domain() as domain:
            env = {**os.environ, 'ROS_DOMAIN_ID': str(domain), 'ROS_HOME': str(tmp_path)}
            command = ['timeout', '-s', 'INT', str(seconds), 'ros2', 'launch', REPLAY, *texts]
            result = subprocess.run(command, check=False, env=env, capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr

    return run


def test_a_run_is_replayed_and_that_is_the_end(replay):
    code, output = replay()
    assert code == 0 and 'images used: 40' in output


@pytest.mark.parametrize(
    'arguments, says',
    [
        ({'run': '/no/such/run'}, 'player_node-1 ended with exit code 2'),
        ({'map_file': '/no/such.h5'}, 'localization_node-2 ended with exit code 2'),
        ({'map_file': '/no/such.h5', 'exit_at_end': 'false'}, 'ended with exit code 2'),
        ({'namespace': 'one,two'}, 'expected the namespace of one robot'),
    ],
)
def test_a_replay_that_cannot_be_ends_with_an_exit_code(replay, arguments, says):
    code, output = replay(**arguments)
    assert code == 1 and says in output


def test_the_localization_goes_on_after_the_run_if_it_shall(replay):
    code, output = replay(seconds=12.0, exit_at_end='false')
    assert code == 124 and 'user interrupted' in output and 'Caught exception' not in output
