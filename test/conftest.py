"""Settings of all tests, whatever the shell they run in has; their order; shared fixtures."""

from importlib.util import find_spec
import os
from pathlib import Path
import shutil
import signal

from hypothesis import settings
from kbr_localization.workers import prefer_one_thread
import pytest

# before NumPy is imported: threads of small matrices spin while another process has the core
prefer_one_thread()
os.environ['LOKY_MAX_CPU_COUNT'] = '1'
os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
# hundreds of child processes import the package; let the first one write the bytecode
os.environ.pop('PYTHONDONTWRITEBYTECODE', None)
# nohup ignores SIGHUP and background jobs ignore SIGINT; child processes would inherit that
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

# the same examples in every run; fuzz tests can be asked for others (helpers.py)
settings.register_profile('repeatable', derandomize=True, deadline=None)
settings.load_profile('repeatable')

WITHOUT_ROS = find_spec('rclpy') is None
collect_ignore_glob = ['test_ros_*.py'] if WITHOUT_ROS else []


def pytest_collection_modifyitems(items):
    """Start with the tests over DDS: they take longest, and waiting overlaps with computing."""
    items.sort(key=lambda item: item.get_closest_marker('ros') is None)


def pytest_runtest_logreport(report):
    """Print the name of a failed test at once."""
    if report.failed and 'PYTEST_XDIST_WORKER' not in os.environ:
        print(f'\nFAILED {report.nodeid}', flush=True)


def pytest_report_header(config):
    return 'rclpy is not installed: test_ros_*.py are left out' if WITHOUT_ROS else None


@pytest.fixture
def ros(tmp_path):
    from kbr_localization.demo.tour import own_domain
    from kbr_localization.resources import fast_dds_profile
    from ros_helpers import RosWorld

    os.environ.update(fast_dds_profile())
    with own_domain() as domain:
        world = RosWorld(tmp_path, domain)
        yield world
        world.close()


@pytest.fixture(scope='session')
def tiny_world(tmp_path_factory):
    from helpers import write_tiny_cold_run
    from ros_robot import make_tiny_world

    return make_tiny_world(tmp_path_factory.mktemp('tiny_world'), write_tiny_cold_run)


@pytest.fixture(scope='session')
def two_camera_world(tmp_path_factory):
    from ros_robot import make_tiny_world
    from two_cameras import write_two_camera_cold_run

    return make_tiny_world(tmp_path_factory.mktemp('two_cameras'), write_two_camera_cold_run)


@pytest.fixture
def tf2(pytestconfig, monkeypatch):
    """Make tf2_msgs importable."""
    from ros_interfaces import provide

    provide('tf2_msgs', 'tf2_interface', pytestconfig, monkeypatch)


@pytest.fixture
def nav2(pytestconfig, monkeypatch):
    """Make Nav2's messages and those of bonds importable."""
    from ros_interfaces import provide

    provide('bond', 'bond_interface', pytestconfig, monkeypatch)
    provide('nav2_msgs', 'nav2_interface', pytestconfig, monkeypatch)


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
def world(tmp_path_factory):
    """Write two tiny runs, `train` and `test`, and a map of the first."""
    from command import done, FEW_WORDS
    from helpers import write_tiny_cold_run

    folder = tmp_path_factory.mktemp('world')
    write_tiny_cold_run(folder / 'train', frames=30)
    write_tiny_cold_run(folder / 'test', frames=20)
    done('map', 'build', '--out', folder / 'map.h5', folder / 'train', *FEW_WORDS)
    return folder


@pytest.fixture(scope='session')
def _flows():
    from mapping_helpers import FollowedOnce

    return FollowedOnce()


@pytest.fixture(scope='module')
def followed_once(_flows):
    """Let drives that see the same images have their points followed once: it takes longest."""
    from kbr_localization.vision import turning

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turning, 'follow', _flows)
        yield
