"""Maps from odometry and images: what is joined, what is not, and what is said of it."""

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.map.grow import NewImage, with_images
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.mapping.build import map_from_odometry
from mapping_helpers import RingRun, ROUND, trajectory_error, VISION
import numpy as np
import pytest


@pytest.fixture(scope='module')
def ring():
    """Drive two and a half rounds, and map them."""
    run = RingRun()
    return run, map_from_odometry([run], VISION)


def test_closures_take_out_the_drift(ring):
    run, mapped = ring
    assert mapped.joined
    assert trajectory_error(run.odometry.poses, run.true) > 1.0
    assert trajectory_error(mapped.kernel_map.poses, run.true) < 0.35


def test_no_closure_joins_places_apart(ring):
    run, mapped = ring
    record = mapped.kernel_map.mapping
    ends = record.closures[record.kept == 1]
    assert len(ends) > 20
    apart = np.hypot(*(run.true[ends[:, 0]] - run.true[ends[:, 1]])[:, :2].T)
    assert apart.max() < 2.0


def test_the_covariance_holds_the_truth_and_is_positive(ring):
    _, mapped = ring
    covariances = mapped.kernel_map.mapping.covariances
    assert np.linalg.eigvalsh(covariances).min() > -1e-9
    assert 0.02 < np.sqrt(np.mean(covariances[:, 0, 0])) < 1.0


def test_the_record_survives_the_file(ring, tmp_path):
    _, mapped = ring
    mapped.kernel_map.save(tmp_path / 'map.h5')
    record, before = KernelMap.load(tmp_path / 'map.h5').mapping, mapped.kernel_map.mapping
    for name, array in before.arrays().items():
        np.testing.assert_array_equal(getattr(record, name), array, name)


def test_a_part_of_the_map_keeps_its_part_of_the_record(ring):
    _, mapped = ring
    part = mapped.kernel_map.subset(np.arange(0, len(mapped.kernel_map), 2))
    assert len(part.mapping.odometry) == len(part) == len(part.mapping.covariances)
    assert part.mapping.closures.max() < len(part)


def test_a_map_that_grows_has_covariances_of_its_new_images(ring, tmp_path):
    _, mapped = ring
    kernel_map = mapped.kernel_map
    image = NewImage(1, kernel_map.poses[3], kernel_map.descriptors[3], kernel_map.thumbnails[3])
    grown = with_images(kernel_map, [image])
    grown.save(tmp_path / 'grown.h5')
    record = KernelMap.load(tmp_path / 'grown.h5').mapping
    np.testing.assert_array_equal(record.covariances[-1], kernel_map.mapping.covariances[3])


def test_two_runs_come_into_one_frame():
    runs = [RingRun(name='first', metres=40.0), RingRun(name='second', begin=5.0, seed=1)]
    mapped = map_from_odometry(runs, VISION)
    truth = np.concatenate([run.true for run in runs])
    assert trajectory_error(mapped.kernel_map.poses, truth) < 0.35


def test_a_run_without_loops_is_built_with_a_warning(tmp_path):
    mapped = map_from_odometry([RingRun(metres=30.0)], VISION)
    assert not mapped.joined
    assert mapped.notes[-1].startswith('warning: no place is shown again')
    assert mapped.growth[0] > 0.3
    mapped.kernel_map.save(tmp_path / 'map.h5')
    assert len(KernelMap.load(tmp_path / 'map.h5').mapping.closures) == 0


def test_runs_that_share_no_place_are_not_built_together():
    runs = [RingRun(name='here', metres=40.0), RingRun(name='there', metres=40.0, wall=1)]
    with pytest.raises(MapError, match='share no place'):
        map_from_odometry(runs, VISION)


def test_an_odometry_that_begins_again_is_cut_and_joined():
    run = RingRun(reset=ROUND)
    mapped = map_from_odometry([run], VISION)
    assert any('its odometry leaps' in note for note in mapped.notes)
    assert len(mapped.kernel_map) == len(run)
    assert trajectory_error(mapped.kernel_map.poses, run.true) < 0.5


def test_a_robot_that_is_carried_is_noticed_and_joined():
    run = RingRun(carried=(0.75 * ROUND, 0.5 * ROUND))
    mapped = map_from_odometry([run], VISION)
    assert any('stands still' in note for note in mapped.notes)
    assert trajectory_error(mapped.kernel_map.poses, run.true) < 0.5


def test_a_robot_that_stays_is_refused():
    with pytest.raises(MapError, match='stays in one place: its odometry has 0'):
        map_from_odometry([RingRun(metres=1.0)], VISION)


def test_known_poses_are_not_looked_at(ring):
    run, mapped = ring

    class Known(RingRun):
        def __getitem__(self, index):
            return replace(super().__getitem__(index), reference=np.array([1e6, 0.0, 0.0]))

    again = map_from_odometry([Known()], VISION)
    np.testing.assert_allclose(again.kernel_map.poses, mapped.kernel_map.poses, atol=1e-9)
    assert se2.travelled(again.kernel_map.poses).max() < 2.0 * run.metres
