"""The tour with the real node and player, on runs that take seconds."""

import subprocess
import sys
import time

from helpers import write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.demo import tour
from kbr_localization.errors import RosError
from kbr_localization.evaluation import read_tum
from process_helpers import assert_nobody_is_left, leader
import pytest
from ros_helpers import PATIENCE

pytestmark = pytest.mark.ros


@pytest.fixture
def runs(tmp_path):
    return [write_tiny_cold_run(tmp_path / name, frames=20) for name in ('train', 'test')]


def test_the_tour_compares_the_node_with_baselines_and_leaves_its_files(runs, tmp_path):
    folder = tmp_path / 'tour'
    folder.mkdir()
    metrics = tour.take_tour(folder, runs[:1], runs[1], 2.0)
    assert list(metrics) == [tour.NODE, *tour.BASELINES.values()]
    assert metrics[tour.NODE]['position_rmse_m'] < 0.5
    assert metrics[tour.NODE]['localized_after_s'] is not None
    assert metrics[tour.NODE]['frames_without_estimate'] <= 2
    assert len(read_tum(folder / 'trajectory.tum')) >= 18
    assert {path.name for path in folder.iterdir()} >= {'map.h5', 'report.html'}
    log = (folder / 'node.log').read_text().splitlines()
    warned = [line for line in log if 'WARN' in line and 'tf2_msgs is not installed' not in line]
    assert all('nothing on /image for ' in line for line in warned), 'but when the run has ended'


def test_a_node_that_dies_ends_the_tour_with_a_reason(runs, tmp_path):
    run = open_dataset(runs[1])
    (tmp_path / 'map.h5').write_text('no map')
    with pytest.raises(RosError, match=r'the node failed: see .*node\.log'):
        tour.localize_over_ros(tmp_path, run, 5.0)
    assert 'map.h5' in (tmp_path / 'node.log').read_text()


TOUR = """
from pathlib import Path
import sys
from kbr_localization.datasets import open_dataset
from kbr_localization.demo import tour
from kbr_localization.progress import report_to

folder = Path(sys.argv[1])
run = open_dataset(folder / 'run')
with report_to(lambda what, done, total: print('plays')):
    tour.localize_over_ros(folder, run, 0.05)
"""


def test_the_node_and_the_player_end_with_a_tour_that_is_killed(tiny_world):
    folder = tiny_world.map_file.parent
    with leader([sys.executable, '-u', '-c', TOUR, folder], stdout=subprocess.PIPE) as run:
        assert run.stdout.readline() == b'plays\n'
        run.kill()
        assert_nobody_is_left(run, time.monotonic() + PATIENCE)
    assert 'Traceback' not in (folder / 'node.log').read_text()


def test_no_two_have_the_same_domain():
    with tour.own_domain() as one, tour.own_domain() as other:
        assert one != other
