"""What makes the cost of an update independent of the size of the map, and what that costs."""

from dataclasses import replace
import importlib
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.kbr.likelihood import Likelihood
from kbr_localization.localization.kbr.pose_grid import PoseGrid
from map_helpers import random_poses
import numpy as np
import pytest

if not (Path(__file__).parents[1] / 'benchmarks').is_dir():
    pytest.skip('the folder benchmarks/ is not installed', allow_module_level=True)

synthetic = importlib.import_module('benchmarks.synthetic_map')
START = np.diag([0.1, 0.1, 0.05]) ** 2


@pytest.fixture(scope='module')
def large(tmp_path_factory):
    """Map of 3000 images, more than are compared exactly, and the building."""
    return synthetic.synthetic_map(3000, tmp_path_factory.mktemp('large'))


seeds = st.integers(0, 10**6)


@given(seeds, st.floats(0.1, 100.0), st.floats(0.05, 10.0))
@settings(max_examples=60, deadline=None)
def test_the_grid_finds_every_pose_in_reach_and_few_others(seed, size, reach):
    rng = np.random.default_rng(seed)
    poses, points = random_poses(rng, 150, size), random_poses(rng, 20, 1.5 * size)
    grid = PoseGrid(poses, reach)
    found = grid.near(points)
    distance = np.linalg.norm(poses[:, np.newaxis, :2] - points[:, :2], axis=-1).min(axis=1)
    assert set(np.flatnonzero(distance <= reach)) <= set(found)
    assert np.all(distance[found] <= 4 / 3 * reach * np.sqrt(2) + 1e-9)
    np.testing.assert_array_equal(found, np.unique(found))


def test_the_blocks_of_a_grid_share_the_points_out():
    points = random_poses(np.random.default_rng(0), 500, 20.0)
    blocks = PoseGrid(points, 1.0).blocks(points)
    np.testing.assert_array_equal(np.sort(np.concatenate(blocks)), np.arange(500))
    assert len(blocks) > 50
    assert max(np.ptp(points[block, :2], axis=0).max() for block in blocks) <= 4 * 0.6


def follow(localizer, frames, whole=False):
    """Positions (m, 2) that a localizer reports, and how far they are from the truth."""
    poses, errors = [], []
    for pose, increment, image in frames:
        localizer.predict(increment)
        if whole:
            localizer.update_similarities(localizer.kernel_map.similarities(image))
        else:
            localizer.update(image)
        poses.append(localizer.estimate().pose[:2])
        errors.append(np.hypot(*(poses[-1] - pose[:2])))
    return np.array(poses), np.array(errors)


def make(kernel_map, seed=1):
    return KernelBayesFilter(kernel_map, rng=np.random.default_rng(seed))


def test_tracking_with_local_values_is_tracking_with_all_of_them(large):
    kernel_map, building = large
    frames = list(synthetic.drive(building, 100.0, 12.0, np.random.default_rng(4)))
    local, exact = make(kernel_map), make(kernel_map)
    exact.likelihood = Likelihood(kernel_map, exact.config, len(kernel_map))
    exact.hypotheses.likelihood = exact.likelihood
    for localizer in (local, exact):
        localizer.initialize(frames[0][0], START)
        localizer.confirm()  # a start spreads its points at random, tracking does not
    positions, errors = follow(local, frames)
    reference, _ = follow(exact, frames, whole=True)
    assert errors.max() < 0.3
    # systems of a part, and candidates in place of all images, over 12 m
    assert np.abs(positions - reference).max() < 0.03


def test_an_update_of_a_large_map_computes_few_kernel_values(large):
    kernel_map, building = large
    frames = list(synthetic.drive(building, 100.0, 4.0, np.random.default_rng(4)))
    localizer = make(kernel_map)
    localizer.initialize(frames[0][0], START)
    computed = []

    def compare(*arguments):
        computed.append(type(kernel_map).compare(kernel_map, *arguments))
        return computed[-1]

    localizer.kernel_map = replace(kernel_map)
    object.__setattr__(localizer.kernel_map, 'compare', compare)
    follow(localizer, frames)
    assert max(similarity.computed for similarity in computed[3:]) < 500


def test_a_large_map_localizes_from_nothing_and_finds_a_carried_robot(large):
    kernel_map, building = large
    localizer = make(kernel_map)
    localizer.initialize_globally()
    rng = np.random.default_rng(6)
    _, errors = follow(localizer, synthetic.drive(building, 60.0, 6.0, rng))
    assert errors[3:].max() < 0.3
    _, errors = follow(localizer, synthetic.drive(building, 200.0, 10.0, rng))
    assert errors[0] > 5.0
    assert errors[-5:].max() < 0.3
    assert localizer.diagnostics['recoveries'] == 1
