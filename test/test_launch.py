"""The launch files as `ros2 launch` runs them; needs a ROS installation with this package."""

from importlib.util import find_spec
import os
from pathlib import Path
import re
import shutil
import signal
import subprocess
import time

from kbr_localization.demo.tour import own_domain
import pytest

pytestmark = [
    pytest.mark.ros,
    pytest.mark.skipif(
        find_spec('launch_ros') is None or shutil.which('ros2') is None,
        reason='launch is not on PyPI; needs a ROS installation',
    ),
]
LAUNCH = Path(__file__).parents[1] / 'launch'
ENDED = 124


@pytest.fixture
def ros2_launch(tmp_path):
    """
    Run a launch file with arguments; return its exit code, or `ENDED`, and what it says.

    It gets a Ctrl-C `linger` seconds after it has said `until`, or after two minutes.
    """

    def run(name, until='', linger=0.0, **arguments):
        texts = [f'{key}:={value}' for key, value in arguments.items()]
        program, said = ['ros2', 'launch', LAUNCH / f'{name}.launch.py', *texts], tmp_path / 'said'
        with own_domain() as domain, said.open('w') as output:
            env = {**os.environ, 'ROS_DOMAIN_ID': str(domain), 'ROS_HOME': str(tmp_path)}
            process = subprocess.Popen(program, env=env, stdout=output, stderr=subprocess.STDOUT)
            end = time.monotonic() + 120.0
            while process.poll() is None and time.monotonic() < end:
                if until and until in said.read_text():
                    end, until = time.monotonic() + linger, ''
                time.sleep(0.2)
            ended = process.poll() is None
            process.send_signal(signal.SIGINT)
            process.wait()
        return ENDED if ended else process.returncode, said.read_text()

    return run


@pytest.fixture
def replay(tiny_world, ros2_launch):
    """Run the replay with arguments; return its exit code and what it says."""
    world = {'run': tiny_world.run, 'map_file': tiny_world.map_file}
    return lambda **arguments: ros2_launch('replay', **{**world, 'rate': 8, **arguments})


@pytest.fixture
def localize(tiny_world, ros2_launch):
    """Run the localization with arguments; return its exit code and what it says."""
    world = {'map_file': tiny_world.map_file}
    return lambda **arguments: ros2_launch('localization', **{**world, **arguments})


def test_a_run_is_replayed_over_the_topics_that_are_named_and_that_is_the_end(replay):
    code, output = replay(image_topic='cam/image', namespace='one', grow_map='false')
    assert code == 0 and 'one.localization]: images answered: ' in output
    assert 'images answered: 0' not in output


def test_the_localization_goes_on_after_the_run_if_it_shall(replay):
    code, output = replay(until=' 40 images in ', linger=10.0, exit_at_end='false')
    assert code == ENDED and 'user interrupted' in output and 'Caught exception' not in output


@pytest.mark.parametrize(
    'arguments, says',
    [
        ({'run': '/no/such/run'}, 'player_node-1 ended with exit code 2'),
        ({'map_file': '/no.h5', 'exit_at_end': 'false'}, 'localization_node-2 ended with exit'),
        ({'map_file': '/no.h5', 'use_respawn': 'true'}, 'localization_node-2 ended with exit'),
        ({'map': 'office.h5'}, 'give the map of images as map_file'),
        ({'params_file': '/no.yaml'}, "params_file: expected a YAML file, got '/no.yaml'"),
    ],
)
def test_what_cannot_be_ends_with_a_reason_and_an_exit_code(replay, arguments, says):
    code, output = replay(**arguments)
    assert code == 1 and says in output


def test_a_run_is_recorded_without_a_pose(ros2_launch, tmp_path):
    arguments = {'out': tmp_path / 'run', 'pose_type': 'none', 'label': 7, 'max_position_sd': 1}
    topics = {'image_topic': 'cam/image', 'odom_topic': 'wheels', 'namespace': 'one'}
    _, output = ros2_launch('mapping', until='on /one/wheels', **arguments, **topics)
    for topic in ('/one/cam/image', '/one/wheels'):
        assert f'on {topic}: publisher count 0' in output
    assert '_pose' not in output and 'error' not in output


@pytest.mark.parametrize('namespace', ['', 'fleet/one'])
def test_what_a_file_says_stands_against_defaults_and_not_against_arguments(
    localize, tmp_path, namespace
):
    file = tmp_path / 'nav2.yaml'
    file.write_text('/**/localization: {ros__parameters: {autostart: false, max_beams: 60}}')
    given = {'params_file': file, **({'namespace': namespace} if namespace else {})}
    _, waits = localize(**given, until='are ignored: max_beams', linger=5.0)
    assert 'are ignored: max_beams' in waits and 'nothing on' not in waits
    _, starts = localize(**given, autostart='true', until='nothing on')
    assert 'nothing on' in starts


def test_the_map_server_goes_by_the_clock_that_is_given(localize, monkeypatch, tmp_path):
    """Programs in the place of other packages' show their arguments and their files."""
    prefix = tmp_path / 'ws'
    others = os.environ.get('AMENT_PREFIX_PATH', '')
    monkeypatch.setenv('AMENT_PREFIX_PATH', f'{prefix}:{others}')
    monkeypatch.setenv('OVERRIDE_LAUNCH_PROCESS_OUTPUT', 'screen')
    for name in ('map_server', 'lifecycle_manager'):
        program = prefix / 'lib' / f'nav2_{name}' / name
        known = prefix / 'share/ament_index/resource_index/packages' / f'nav2_{name}'
        for path in (program, known):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        program.write_text('#!/bin/sh\necho "$@"; cat -- "$@" 2>/dev/null; echo the end\n')
        program.chmod(0o755)
    (tmp_path / 'grid.yaml').touch()
    file = tmp_path / 'nav2.yaml'
    file.write_text('map_server: {ros__parameters: {use_sim_time: true}}')
    arguments = {'params_file': file, 'map': tmp_path / 'grid.yaml', 'use_sim_time': 'false'}
    _, output = localize(until='[map_server-1] the end', **arguments)
    # of several the last one counts
    assert re.findall(r'\[map_server-1\].*use_sim_time: (\w+)', output) == ['true', 'false']
