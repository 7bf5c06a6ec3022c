"""The tour with the real node and player, on runs that take seconds."""

import itertools
import subprocess
import sys
import time

from helpers import write_tiny_cold_run
from kbr_localization.demo import over_ros, tour
from kbr_localization.errors import RosError
from kbr_localization.evaluation import read_tum
from process_helpers import assert_nobody_is_left, leader
import pytest
from ros_helpers import FASTDDS_PROFILE, PATIENCE

pytestmark = pytest.mark.ros


@pytest.fixture
def runs(tmp_path):
    return [write_tiny_cold_run(tmp_path / name, frames=20) for name in ('train', 'test')]


def silent(what, done, total):
    pass


def test_the_tour_compares_the_node_with_baselines_and_leaves_its_files(runs, tmp_path):
    train, test = runs
    folder = tour.new_results_folder(tmp_path / 'demo')
    result = tour.take_tour(folder, [train], test, 2.0, 0, silent)
    assert list(result.metrics) == [tour.NODE, *tour.BASELINES.values()]
    assert result.metrics[tour.NODE]['position_rmse_m'] < 0.5
    assert result.metrics[tour.NODE]['frames_without_estimate'] <= 2
    assert len(read_tum(folder / 'trajectory.tum')) >= 18
    written = {path.name for path in folder.iterdir()}
    assert written >= {'map.h5', 'trajectory.png', 'localization_node.log', 'player.log'}


def test_every_tour_has_a_folder_of_its_own(tmp_path):
    folders = {tour.new_results_folder(tmp_path) for _ in itertools.repeat(None, 3)}
    assert len(folders) == 3


def test_a_node_that_dies_ends_the_tour_with_a_reason(runs, tmp_path):
    (tmp_path / 'map.h5').write_text('no map')
    with pytest.raises(RosError, match='localization node stopped with exit code'):
        over_ros.localize_over_ros(tmp_path / 'map.h5', runs[1], 20, tmp_path, 5.0, silent)
    assert 'map.h5' in (tmp_path / 'localization_node.log').read_text()


def test_log_lines_of_a_user_who_wants_them_on_stdout_are_no_poses(
    tiny_world, monkeypatch, tmp_path
):
    monkeypatch.setenv('RCUTILS_LOGGING_USE_STDOUT', '1')
    # of which Fast DDS 3 warns in the log of every node
    monkeypatch.setenv('FASTRTPS_DEFAULT_PROFILES_FILE', str(FASTDDS_PROFILE))
    world = (tiny_world.map_file, tiny_world.run)
    assert len(over_ros.localize_over_ros(*world, 40, tmp_path, 8.0, silent))


TOUR = """
from pathlib import Path
import sys
from kbr_localization.demo import over_ros

folder = Path(sys.argv[1])
over_ros.localize_over_ros(
    folder / 'map.h5', folder / 'run', 40, folder, 0.05, lambda what, done, total: print('plays')
)
"""


def test_the_node_and_the_player_end_with_a_tour_that_is_killed(tiny_world):
    folder = tiny_world.map_file.parent
    with leader([sys.executable, '-u', '-c', TOUR, folder], stdout=subprocess.PIPE) as run:
        assert run.stdout.readline() == b'plays\n'
        run.kill()
        assert_nobody_is_left(run, time.monotonic() + PATIENCE)
    assert 'Traceback' not in (folder / 'localization_node.log').read_text()
