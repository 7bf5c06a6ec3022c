"""The launch files as `ros2 launch` runs them; needs a ROS installation with this package."""

from importlib.util import find_spec
import os
from pathlib import Path
import re
import shutil
import signal
import subprocess
import time

from kbr_localization.demo.over_ros import own_domain
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
    Run a launch file with arguments, and return its exit code and what it says.

    It gets a Ctrl-C `linger` seconds after it has said `until`, or after some seconds.
    """

    def run(name, seconds, until='', linger=0.0, **arguments):
        texts = [f'{key}:={value}' for key, value in arguments.items() if value != '']
        with own_domain() as domain:
            env = {**os.environ, 'ROS_DOMAIN_ID': str(domain), 'ROS_HOME': str(tmp_path)}
            program = ['ros2', 'launch', LAUNCH / f'{name}.launch.py', *texts]
            return watched(program, env, tmp_path / 'output', seconds, until, linger)

    return run


def watched(program, env, path, seconds, until, linger):
    """Exit code and output of a program, that of `timeout` when it had to be ended."""
    with path.open('w') as output:
        process = subprocess.Popen(program, env=env, stdout=output, stderr=subprocess.STDOUT)
        end, ended = time.monotonic() + seconds, False
        while process.poll() is None:
            if until and until in path.read_text():
                end, until = min(end, time.monotonic() + linger), ''
            if not ended and time.monotonic() >= end:
                process.send_signal(signal.SIGINT)
                ended = True
            time.sleep(0.2)
    return ENDED if ended else process.returncode, path.read_text()


@pytest.fixture
def replay(tiny_world, ros2_launch, tmp_path):
    """Run the replay with arguments, and return its exit code and what it says."""
    # a machine that is slow uses every image later
    file = tmp_path / 'every_image.yaml'
    file.write_text('/**/localization: {ros__parameters: {image_queue: 200, image_backlog: 200}}')
    world = {'run': tiny_world.run, 'map_file': tiny_world.map_file, 'params_file': file}

    def run(seconds=60.0, **arguments):
        return ros2_launch('replay', seconds, **{**world, 'rate': 8, **arguments})

    return run


@pytest.fixture
def localize(tiny_world, ros2_launch):
    """Run the localization for some seconds, and return its exit code and what it says."""

    def run(**arguments):
        given = {'map_file': tiny_world.map_file, **arguments}
        return ros2_launch('localization', given.pop('seconds', 30.0), **given)

    return run


def test_a_run_is_replayed_and_that_is_the_end(replay):
    code, output = replay()
    assert code == 0 and 'images answered: 40' in output


@pytest.mark.parametrize(
    'arguments, says',
    [
        ({'run': '/no/such/run'}, 'player_node-1 ended with exit code 2'),
        ({'map_file': '/no/such.h5'}, 'localization_node-2 ended with exit code 2'),
        ({'map_file': '/no/such.h5', 'exit_at_end': 'false'}, 'ended with exit code 2'),
    ],
)
def test_a_replay_that_cannot_be_ends_with_an_exit_code(replay, arguments, says):
    code, output = replay(**arguments)
    assert code == 1 and says in output


def test_a_replay_goes_over_the_topics_that_are_named(replay):
    topics = {'image_topic': 'cam/image', 'odom_topic': 'wheels'}
    code, output = replay(**topics, namespace='one', grow_map='false')
    assert code == 0 and 'images answered: 40' in output


def test_the_localization_goes_on_after_the_run_if_it_shall(replay):
    code, output = replay(until='in 6.0 s', exit_at_end='false')
    assert code == ENDED and 'user interrupted' in output and 'Caught exception' not in output


@pytest.mark.parametrize('name', ['localization', 'mapping'])
def test_a_node_that_dies_at_the_start_ends_the_launch_with_1(ros2_launch, name):
    code, output = ros2_launch(name, 30.0, **{'map_file': '/no.h5'} if name[0] == 'l' else {})
    assert (
        code == 1 and f'{"localization" if name[0] == "l" else "recorder"}_node-1 ended' in output
    )


def test_a_run_is_recorded_without_a_pose(ros2_launch, tmp_path):
    arguments = {'out': tmp_path / 'run', 'pose_type': 'none', 'label': 7, 'max_position_sd': 1}
    _, output = ros2_launch('mapping', 30.0, until='on /odom', **arguments)
    assert 'no data for 5 s on /image' in output and 'no data for 5 s on /odom' in output
    assert '_pose' not in output and 'error' not in output


def test_what_a_file_says_stands_against_defaults_and_not_against_arguments(localize, tmp_path):
    file = tmp_path / 'nav2.yaml'
    file.write_text('/**/localization: {ros__parameters: {autostart: false, max_beams: 60}}')
    for namespace, name in (('', 'localization'), ('fleet/one', 'fleet.one.localization')):
        arguments = {'params_file': file, 'namespace': namespace}
        _, waits = localize(**arguments, until='are ignored: max_beams', linger=5.0)
        assert f'[{name}]: parameters without' in waits and 'nothing on' not in waits
        _, starts = localize(**arguments, autostart='true', until='nothing on')
        assert 'nothing on' in starts


def test_map_is_the_grid_of_the_map_server(localize):
    code, output = localize(map='office.h5')
    assert code == 1 and 'give the map of images as map_file' in output


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Put programs in the place of other packages' that show their arguments and their files."""
    prefix = tmp_path / 'ws'
    others = os.environ.get('AMENT_PREFIX_PATH', '')
    monkeypatch.setenv('AMENT_PREFIX_PATH', f'{prefix}:{others}')
    monkeypatch.setenv('OVERRIDE_LAUNCH_PROCESS_OUTPUT', 'screen')

    def make(package, name):
        program = prefix / 'lib' / package / name
        known = prefix / 'share' / 'ament_index' / 'resource_index' / 'packages' / package
        for path in (program, known):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        show = 'echo "$@"; for file; do cat "$file" 2>/dev/null; done; echo the end'
        program.write_text(f'#!/bin/sh\n{show}\n')
        program.chmod(0o755)

    return make


@pytest.mark.parametrize('given, clock', [('', 'true'), ('false', 'false')])
def test_the_map_server_goes_by_the_clock_of_the_file_unless_it_is_given(
    localize, stand_in, tmp_path, given, clock
):
    for name in ('map_server', 'lifecycle_manager'):
        stand_in(f'nav2_{name}', name)
    (tmp_path / 'grid.yaml').touch()
    file = tmp_path / 'nav2.yaml'
    file.write_text('map_server: {ros__parameters: {use_sim_time: true}}')
    arguments = {'params_file': file, 'map': tmp_path / 'grid.yaml', 'use_sim_time': given}
    _, output = localize(until='[map_server-1] the end', **arguments)
    # of several the last one counts
    assert re.findall(r'\[map_server-1\].*use_sim_time: (\w+)', output)[-1] == clock
