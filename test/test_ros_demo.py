"""The tour with the real node and player, on runs that take seconds."""

import subprocess
import sys
import time

from helpers import write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.demo import tour
from kbr_localization.errors import RosError
from kbr_localization.evaluation import read_tum, run_errors
from kbr_localization.evaluation.report import ImagePair
from kbr_localization.localization.localizer import LOST_M
from kbr_localization.trajectory import Trajectory
import numpy as np
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
    assert {path.name for path in folder.iterdir()} >= {'map.h5', 'trajectory.png'}
    log = (folder / 'node.log').read_text().splitlines()
    warned = [line for line in log if 'WARN' in line and 'tf2_msgs is not installed' not in line]
    assert all('nothing on /image for ' in line for line in warned), 'but when the run has ended'


def test_a_node_that_dies_ends_the_tour_with_a_reason(runs, tmp_path):
    run = open_dataset(runs[1])
    (tmp_path / 'map.h5').write_text('no map')
    with pytest.raises(RosError, match=r'the node failed: see .*node\.log'):
        tour.localize_over_ros(tmp_path / 'map.h5', run, tmp_path, 5.0)
    assert 'map.h5' in (tmp_path / 'node.log').read_text()


def test_a_node_that_is_not_there_in_time_ends_the_tour(tiny_world, runs, tmp_path, monkeypatch):
    run = open_dataset(runs[1])
    monkeypatch.setattr(tour, 'START_S', 0.0)
    with pytest.raises(RosError, match=r'no node after 0 s: see .*node\.log'):
        tour.localize_over_ros(tiny_world.map_file, run, tmp_path, 5.0)


TOUR = """
from pathlib import Path
import sys
from kbr_localization.datasets import open_dataset
from kbr_localization.demo import tour
from kbr_localization.progress import shown_by

folder = Path(sys.argv[1])
run = open_dataset(folder / 'run')
with shown_by(lambda what, done, total: print('plays')):
    tour.localize_over_ros(folder / 'map.h5', run, folder, 0.05)
"""


def test_the_node_and_the_player_end_with_a_tour_that_is_killed(tiny_world):
    folder = tiny_world.map_file.parent
    with leader([sys.executable, '-u', '-c', TOUR, folder], stdout=subprocess.PIPE) as run:
        assert run.stdout.readline() == b'plays\n'
        run.kill()
        assert_nobody_is_left(run, time.monotonic() + PATIENCE)
    assert 'Traceback' not in (folder / 'node.log').read_text()


HOLD = """
from kbr_localization.demo.tour import own_domain
with own_domain() as domain:
    print(domain, flush=True)
    input()
"""


def test_no_two_have_the_same_domain_until_the_process_ends():
    program = [sys.executable, '-c', HOLD]
    pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE, 'text': True}
    with subprocess.Popen(program, **pipes) as holder:
        taken = int(holder.stdout.readline())
        with tour.own_domain() as one, tour.own_domain() as other:
            assert len({taken, one, other}) == 3
        holder.kill()


METRES = np.linspace(0.0, 10.0, 21)


def along(x, y):
    x, y = np.broadcast_arrays(x, y)
    stamps = np.arange(len(x)) * 1_000_000_000
    return Trajectory(stamps, np.column_stack([x, y, np.zeros(len(x))]))


def test_a_figure_of_a_run_has_its_images_its_jumps_and_the_limit_of_lost_frames(
    tmp_path, monkeypatch
):
    drawn = []
    monkeypatch.setattr(tour.Figure, 'savefig', lambda figure, *_, **__: drawn.append(figure))
    blue = np.zeros((4, 6, 3), np.uint8)
    blue[..., 0] = 255
    pairs = [ImagePair(blue, blue, pose, np.zeros(3), 0.5) for pose in (np.ones(3), None)]
    straight = along(METRES, 0.0)
    estimates = {'kbr': along(METRES, np.where(METRES < 5.0, 0.0, 3.0)), 'far': along(METRES, 900)}
    errors = {name: run_errors(straight, run) for name, run in estimates.items()}
    given = (straight.poses, straight, estimates, errors, pairs)
    tour.save_run_figure(tmp_path / 'run.png', 'run', *given)
    (figure,) = drawn
    plan, over_travel, *images = figure.axes
    shown = [axes.images[0].get_array() for axes in images]
    assert len(shown) == 4
    assert all((pixels == [0, 0, 255]).all() for pixels in shown)
    # a frame whose place is not known has no number on the plan
    assert [text.get_text() for text in plan.texts] == ['1']
    assert over_travel.lines[-1].get_ydata() == [LOST_M, LOST_M]
    line = next(line for line in plan.lines if line.get_label() == 'kbr')
    assert np.isnan(line.get_ydata()).sum() == 1
    # what strays does not make the building a dot
    assert np.ptp(plan.get_xlim()) < 13.0 and np.ptp(plan.get_ylim()) < 5.0
