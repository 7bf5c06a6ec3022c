"""What must be set before any test imports rclpy."""

import fcntl
import functools
from importlib.util import find_spec
import itertools
import os
from pathlib import Path
import shutil
import signal

from hypothesis import settings
from kbr_localization.threads import prefer_one_thread
import pytest
from side_by_side import BACKWARDS, FROM_DDS, OTHERS, OVER_DDS

# before NumPy is imported: where a core is busy threads of small matrices spin most of the time
prefer_one_thread()
os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'

# the same examples in every run; fuzz tests can be asked for others (fuzzing.py)
settings.register_profile('repeatable', derandomize=True)
settings.load_profile('repeatable')

WITHOUT_ROS = find_spec('rclpy') is None
collect_ignore_glob = ['test_ros_*.py'] if WITHOUT_ROS else []


def pytest_addoption(parser):
    parser.addoption('--claims', type=Path, help='folder and order, see side_by_side.py')

    parser.addoption('--again', type=Path, help='file of the tests that are to run, and no others')


def pytest_configure(config):
    """Let the processes of `side_by_side`, and the nodes of their tests, end with it."""
    if config.getoption('claims') or config.getoption('again'):
        from kbr_localization.child_processes import end_with_parent

        # a shell without job control has what it starts in the background ignore it
        signal.signal(signal.SIGINT, signal.default_int_handler)
        end_with_parent(os.getppid(), signal.SIGINT)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    claims, again = config.getoption('claims'), config.getoption('again')
    if again is not None:
        wanted = set(again.read_text().splitlines())
        items[:] = [item for item in items if item.nodeid in wanted]
    if claims is None:
        return
    modules = [list(group) for _, group in itertools.groupby(items, lambda item: item.path)]
    if claims.name == BACKWARDS:
        modules.reverse()
    elif claims.name == FROM_DDS:
        over_dds = (n for n, module in enumerate(modules) if module[0].get_closest_marker('ros'))
        first = next(over_dds, 0)
        modules = modules[first:] + modules[:first]
    items[:] = [item for module in modules for item in module]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """Leave a test to another process where that one has claimed its module."""
    claims = item.config.getoption('claims')
    return None if claims is None or is_mine(claims, item.path) else True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """
    Let a test marked `alone` run while the other processes are between two tests.

    What it measures shall not be the load of the others. It waits in the door, so that they begin
    no further test until it has run.
    """
    claims = item.config.getoption('claims')
    if claims is None:
        return (yield)
    with (claims.parent / 'turn').open('w') as turn:
        with (claims.parent / 'door').open('w') as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(turn, fcntl.LOCK_EX if item.get_closest_marker('alone') else fcntl.LOCK_SH)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Tell `side_by_side` which tests failed, and whether they are over DDS."""
    report, claims = (yield), item.config.getoption('claims')
    if report.failed and claims is not None:
        kind = OVER_DDS if item.get_closest_marker('ros') else OTHERS
        with (claims.parent / kind).open('a') as failed:
            failed.write(f'{item.nodeid}\n')
    return report


@functools.cache
def is_mine(claims, path):
    try:
        (claims.parent / path.name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def pytest_report_header(config):
    return 'rclpy is not installed: test_ros_*.py are left out' if WITHOUT_ROS else None


@pytest.fixture
def ros(tmp_path):
    from kbr_localization.resources import profile_variable
    from ros_helpers import FASTDDS_PROFILE, ros_world

    os.environ[profile_variable()] = str(FASTDDS_PROFILE)
    with ros_world(tmp_path) as world:
        yield world


@pytest.fixture(scope='session')
def tiny_world(tmp_path_factory):
    from ros_robot import make_tiny_world

    return make_tiny_world(tmp_path_factory.mktemp('tiny_world'))


@pytest.fixture(scope='session')
def tf2(pytestconfig):
    """Make tf2_msgs importable; the environment of processes that shall import it too."""
    from ros_interfaces import interface_environment

    cache = pytestconfig.cache.mkdir('tf2_msgs')
    return interface_environment(cache, 'tf2_msgs', 'tf2_interface')


@pytest.fixture(scope='session')
def nav2(pytestconfig):
    """Make Nav2's messages and those of bonds importable, likewise."""
    from ros_interfaces import interface_environment

    cache = pytestconfig.cache.mkdir('nav2_msgs')
    bond = interface_environment(cache, 'bond', 'bond_interface')
    return interface_environment(cache, 'nav2_msgs', 'nav2_interface', bond)


@pytest.fixture
def tiny_world_copy(tiny_world, tmp_path):
    """Give a world whose map file a test may damage."""
    from ros_robot import TinyWorld

    return TinyWorld(tiny_world.run, Path(shutil.copy(tiny_world.map_file, tmp_path / 'map.h5')))


@pytest.fixture(scope='session')
def shared_map():
    """Give the map of a tiny run, for tests that leave it as it is."""
    from map_helpers import tiny_map

    return tiny_map()


@pytest.fixture
def saved(shared_map, tmp_path):
    """Save the map of a tiny run in a file of the test's own."""
    shared_map.save(tmp_path / 'map.h5')
    return tmp_path / 'map.h5'


@pytest.fixture(scope='session')
def _flows():
    from mapping_helpers import FollowedOnce

    return FollowedOnce()


@pytest.fixture(scope='module')
def followed_once(_flows):
    """Let drives that see the same images have their points followed once: it takes longest."""
    from kbr_localization.localization.mapping import headings

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headings, 'follow', _flows)
        yield


@pytest.fixture
def short_episodes(monkeypatch):
    """Let a tuner's trial be one short start a run: it does not matter how sure a score is."""
    from kbr_localization.localization.tuning import score

    one = dict.fromkeys((score.QUICK, score.FULL, score.FRESH, score.CALIBRATION), 1)
    monkeypatch.setattr(score, '_STARTS', one)
    monkeypatch.setattr(score, '_WHOLE_RUNS', dict.fromkeys(one, 0))
