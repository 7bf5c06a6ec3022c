"""Maps with fewer images, and methods that need few."""

from dataclasses import replace
import json

from command import invoke
from kbr_localization import se2
from kbr_localization.errors import LocalizationError, MapError
from kbr_localization.localization.map import covering
from kbr_localization.localization.map import prune as pruning
from kbr_localization.localization.map.build import cover
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods import map_kernels
from kbr_localization.localization.methods.registry import make_localizer
from map_helpers import tiny_map
import numpy as np
import pytest


@pytest.fixture(scope='module')
def kernel_map():
    return tiny_map()


def farthest(points, kept):
    return np.linalg.norm(points[:, np.newaxis] - points[kept], axis=-1).min(axis=1).max()


def test_the_loss_is_that_of_the_images_that_go(kernel_map):
    pruned, loss = pruning.prune(kernel_map, 8)
    assert (loss.images, loss.kept, len(pruned)) == (30, 8, 8)
    points, kept = (se2.to_plane_and_circle(m.poses) for m in (kernel_map, pruned))
    distance = np.linalg.norm(points[:, np.newaxis] - kept, axis=-1).min(axis=1)
    assert loss.radius == pytest.approx(distance.max())
    assert loss.median == pytest.approx(np.median(distance[distance > 0]))
    h, a = kernel_map.filter_config.position_bandwidth, kernel_map.filter_config.heading_bandwidth

    def mean(left, right):
        scaled = (left[:, np.newaxis] - right) / np.array([h, h, a, a])
        return np.exp(-0.5 * np.sum(scaled**2, axis=-1)).mean()

    whole = mean(points, points)
    squared = whole - 2 * mean(points, kept) + mean(kept, kept)
    assert loss.mmd == pytest.approx(np.sqrt(squared / whole))
    assert 0.3 < loss.similarity < 1.0


def test_more_images_lose_less(kernel_map):
    losses = [pruning.prune(kernel_map, count)[1] for count in (3, 8, 20, 30)]
    for name in ('radius', 'mmd'):
        values = [getattr(loss, name) for loss in losses]
        assert values == sorted(values, reverse=True)
    assert losses[-1].radius == losses[-1].mmd == 0.0


def test_very_many_poses_are_thinned_by_cells_nearly_as_well(monkeypatch):
    rng = np.random.default_rng(0)
    points = np.column_stack([rng.uniform(0, 30, (3000, 2)), np.ones(3000), np.zeros(3000)])
    greedy = covering.choose(points, 400, rng)
    monkeypatch.setattr(covering, '_GREEDY', 0.0)
    cells = covering.choose(points, 400, rng)
    assert 300 <= len(cells) <= 400
    assert len(np.unique(cells)) == len(cells)
    assert farthest(points, cells) < 2.5 * farthest(points, greedy)


def test_of_a_cell_the_point_nearest_to_its_middle_is_kept():
    along = np.array([0.0, 0.1, 0.5, 0.9, 1.0])
    points = np.column_stack([along, np.zeros(5)])
    np.testing.assert_array_equal(covering._one_per_cell(points, 1), [2])


def test_no_image_is_kept_twice_where_the_robot_stood():
    stood = np.concatenate([np.zeros((30, 3)), np.arange(1.0, 21.0)[:, np.newaxis] * [1, 0, 0]])
    for seed in range(5):
        kept = cover(stood, 40, np.random.default_rng(seed))
        assert len(np.unique(kept)) == len(kept) == 40
        assert set(range(30, 50)) <= set(kept.tolist())


def test_the_loss_of_many_images_is_estimated_from_some(kernel_map, monkeypatch):
    rng = np.random.default_rng(0)
    poses = np.column_stack([rng.uniform(0, 4, (600, 2)), rng.uniform(-3, 3, 600)])
    many = replace(kernel_map.subset(rng.integers(30, size=600)), poses=poses)
    exact = pruning.prune(many, 150)[1].mmd
    monkeypatch.setattr(pruning, '_SAMPLE', 300)
    assert pruning.prune(many, 150)[1].mmd == pytest.approx(exact, abs=0.05)


def test_building_and_pruning_choose_alike(kernel_map):
    rngs = (np.random.default_rng(3) for _ in range(2))
    kept = cover(kernel_map.poses, 7, next(rngs))
    points = se2.to_plane_and_circle(kernel_map.poses)
    np.testing.assert_array_equal(kept, covering.choose(points, 7, next(rngs)))


def test_no_image_at_all_is_refused(kernel_map):
    with pytest.raises(MapError, match='expected at least 1, got 0'):
        pruning.prune(kernel_map, 0)


def test_the_command_writes_the_map_and_says_what_is_lost(kernel_map, tmp_path):
    source, out = tmp_path / 'map.h5', tmp_path / 'small.h5'
    kernel_map.save(source)
    arguments = ('map', 'prune', source, '--max-images', '9', '--out', out)
    loss = json.loads(invoke(*arguments, '--json').stdout)
    assert (loss['images'], loss['kept']) == (30, 9)
    small = KernelMap.load(out)
    assert len(small) == len(small.thumbnails) == 9
    assert small.filter_config == kernel_map.filter_config
    told = invoke(*arguments).stdout
    assert f'{loss["radius"]:.2f} m' in told and f'{100 * loss["mmd"]:.1f}%' in told
    assert 'farthest dropped image' in told


@pytest.mark.parametrize(
    'method',
    ['algorithm1', 'algorithm1-adapted', 'fkbf', 'kmcf', 'kernel-kalman', 'gp-particle'],
)
def test_dense_methods_refuse_a_large_map_and_say_what_to_do(kernel_map, monkeypatch, method):
    monkeypatch.setattr(map_kernels, 'LARGEST_DENSE', 20)
    with pytest.raises(LocalizationError, match='kbr map prune MAP --max-images 20'):
        make_localizer(method, kernel_map)
    make_localizer('kbr', replace(kernel_map))


def test_the_best_match_is_that_of_the_whole_map(kernel_map):
    index, value = kernel_map.best_match(kernel_map.descriptors[4])
    assert (index, value) == (4, pytest.approx(1.0))
