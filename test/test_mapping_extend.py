"""Drives that join a finished map."""

from dataclasses import replace

import cv2
from kbr_localization.errors import MapError
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.mapping import build
from kbr_localization.localization.mapping import extend as extending
from kbr_localization.localization.mapping.build import map_from_odometry
from kbr_localization.localization.mapping.extend import extend
from kbr_localization.localization.mapping.headings import CorrectedOdometry
from kbr_localization.localization.mapping.odometry_model import Prior
from kbr_localization.vision.turning import load_small, small, View
from mapping_helpers import RingRun, ROUND, STEP, trajectory_error, VISION
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures('followed_once')


@pytest.fixture(scope='module')
def ring():
    """Drive more than a round, and map it."""
    run = RingRun(metres=1.8 * ROUND)
    return run, map_from_odometry([run], VISION)


def test_another_drive_joins_and_nothing_else_moves(ring, tmp_path):
    run, mapped = ring
    more = RingRun(name='more', begin=12.0, metres=30.0, seed=2, drift=-0.015)
    longer, told = extend(mapped.kernel_map, more)
    n = len(mapped.kernel_map)
    np.testing.assert_array_equal(longer.poses[:n], mapped.kernel_map.poses)
    truth = np.concatenate([run.true, more.true])
    assert trajectory_error(longer.poses, truth) < 0.35
    assert 'joined by' in told[0]
    longer.save(tmp_path / 'longer.h5')
    assert len(KernelMap.load(tmp_path / 'longer.h5').mapping.odometry) == len(longer)


def test_poses_that_join_are_as_uncertain_as_those_of_the_map_there_and_more(ring):
    _, mapped = ring
    kernel_map, found = mapped.kernel_map, []
    n = len(kernel_map)
    more = RingRun(name='more', begin=12.0, metres=30.0, seed=2)
    for variances in (np.zeros(n), np.where(kernel_map.poses[:, 1] < 4.0, 1.0, 4.0)):
        covariances = variances[:, np.newaxis, np.newaxis] * np.eye(3)
        record = replace(kernel_map.mapping, covariances=covariances)
        found.append(extend(replace(kernel_map, mapping=record), more)[0])
    exact, unsure = (each.mapping.covariances[n:] for each in found)
    # at more than an image's way from where the one variance ends and the other begins
    across = found[0].poses[n:, 1]
    assert np.any(across < 3.5) and np.any(across > 4.5)
    for inside, variance in ((across < 3.5, 1.0), (across > 4.5, 4.0)):
        added = unsure[inside] - exact[inside]
        np.testing.assert_allclose(added, np.broadcast_to(variance * np.eye(3), added.shape))
    assert np.all(np.linalg.eigvalsh(exact) > 0.0)


def test_a_drive_with_known_poses_joins_as_it_is(ring):
    _, mapped = ring
    more = RingRun(name='known', metres=10.0, known=(0.0, 0.0, 0.0))
    longer, _ = extend(mapped.kernel_map, more, known=True)
    first = len(mapped.kernel_map)
    np.testing.assert_array_equal(longer.poses[first:], more.true)
    # the errors of the odometry of the next run are not taken for those of this one
    drive = RingRun(name='more', begin=12.0, metres=30.0, seed=2, drift=-0.015)
    parameters = extend(longer, drive)[0].mapping.parameters
    assert len(parameters) == 3
    np.testing.assert_array_equal(parameters[1], 0.0)
    assert parameters[2, -1] == pytest.approx(-0.015, abs=0.005)


def test_an_odometry_that_begins_again_is_no_step_of_the_map(ring):
    _, mapped = ring
    n = len(mapped.kernel_map)
    more = RingRun(name='more', begin=9.0, metres=50.0, seed=2, reset=25.0, origin=(40, 3, 1))
    longer, _ = extend(mapped.kernel_map, more)
    assert np.nanmax(np.abs(longer.controls[n:, :2])) < 2.0 * STEP
    last = np.isnan(longer.controls[n:, 0])
    np.testing.assert_array_equal(last, np.isnan(longer.next_poses[n:, 0]))
    assert last.sum() == 2


def test_a_drive_elsewhere_does_not_join(ring):
    _, mapped = ring
    with pytest.raises(MapError, match='shows no place of the map') as told:
        extend(mapped.kernel_map, RingRun(name='elsewhere', metres=20.0, wall=1))
    assert 'nothing is added; drive where' in str(told.value)


def test_a_thin_map_is_named_where_a_drive_does_not_join(ring):
    _, mapped = ring
    more = RingRun(name='more', begin=12.0, metres=30.0, seed=2)
    thin = mapped.kernel_map.subset(np.arange(0, len(mapped.kernel_map), 5))
    with pytest.raises(MapError, match=r'every 1\.50 m only, the run every 0\.30 m') as told:
        extend(thin, more)
    assert '--max-images' in str(told.value) and '--poses' not in str(told.value)
    with pytest.raises(MapError, match='by its known poses: --poses known'):
        extend(thin, replace(more, known=(0.0, 0.0, 0.0)))


def test_a_drive_that_joins_is_looked_at_beside_the_pictures_of_the_map(ring, monkeypatch):
    run, mapped = ring
    more = RingRun(name='more', begin=12.0, metres=30.0, seed=2)
    looked = []

    def measure(trajectories, closures, parameters, pictures, progress):
        looked.append((closures, pictures))
        return closures

    wheels = CorrectedOdometry(more.odometry.poses, np.zeros(1), Prior.unknown())
    seeing = replace(wheels, view=View(0.8, np.zeros(2)))
    monkeypatch.setattr(extending, 'correct_headings', lambda *_: seeing)
    monkeypatch.setattr(build, 'measure_closures', measure)
    extend(mapped.kernel_map, more)
    [(closures, pictures)] = looked
    n = len(mapped.kernel_map)
    assert len(pictures.images) == n + len(more)
    assert np.all(closures.first >= n) and np.any(closures.second < n)
    for image, frame in ((n + 3, more[3]), (5, run[5]), (n - 1, run[n - 1])):
        blurred = cv2.GaussianBlur(small(frame.image), (0, 0), 1.5)
        shown = cv2.GaussianBlur(load_small(pictures.images[image]), (0, 0), 1.5)
        assert np.abs(shown.astype(float) - blurred).mean() < 6.0
