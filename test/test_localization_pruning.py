"""Maps with fewer images, and methods that need few."""

from command import invoke
from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.map import prune as pruning
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.prune import cover
from map_helpers import tiny_map
import numpy as np
import pytest


@pytest.fixture(scope='module')
def kernel_map():
    return tiny_map()


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
    poses = np.column_stack([rng.uniform(0, 30, (3000, 2)), np.zeros(3000)])
    greedy = cover(poses, 400, rng)
    monkeypatch.setattr(pruning, '_MOST_DISTANCES', 0.0)
    cells = cover(poses, 400, rng)
    assert 300 <= len(cells) <= 400 and len(np.unique(cells)) == len(cells)
    radius, other = (
        np.linalg.norm(poses[:, np.newaxis] - poses[kept], axis=-1).min(axis=1).max()
        for kept in (greedy, cells)
    )
    assert other < 2.5 * radius


def test_no_image_is_kept_twice_where_the_robot_stood():
    stood = np.concatenate([np.zeros((30, 3)), np.arange(1.0, 21.0)[:, np.newaxis] * [1, 0, 0]])
    for seed in range(5):
        kept = cover(stood, 40, np.random.default_rng(seed))
        assert len(np.unique(kept)) == len(kept) == 40
        assert set(range(30, 50)) <= set(kept.tolist())


def test_no_image_at_all_is_refused(kernel_map):
    with pytest.raises(MapError, match='expected at least 1, got 0'):
        pruning.prune(kernel_map, 0)


def test_the_command_writes_the_map_and_says_what_is_lost(kernel_map, tmp_path):
    source, out = tmp_path / 'map.h5', tmp_path / 'small.h5'
    kernel_map.save(source)
    arguments = ('map', 'prune', source, '--max-images', '9', '--out', out)
    told = invoke(*arguments).stdout
    assert 'farthest dropped image' in told
    small = KernelMap.load(out)
    assert len(small) == len(small.thumbnails) == 9
    assert small.filter_config == kernel_map.filter_config


def test_the_best_match_is_that_of_the_whole_map(kernel_map):
    index, value = kernel_map.best_match(kernel_map.descriptors[4])
    assert (index, value) == (4, pytest.approx(1.0))
