"""Finished maps that get more images, or keep fewer."""

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.calibration import Calibration, SIZE
from kbr_localization.localization.map import prune as pruning
from kbr_localization.localization.map.grow import (
    added_images,
    GROWN_RUN,
    NewImage,
    with_images,
    with_settings_of,
)
from kbr_localization.localization.map.kernel_map import MapStatistics
from kbr_localization.localization.map.prune import cover, prune
from kbr_localization.localization.methods.on_map import FullyNonparametricFilter
from map_helpers import TinyRun
import numpy as np
import pytest


@pytest.fixture(scope='module')
def kernel_map(shared_map):
    return shared_map.subset(np.arange(20))


def new_image(kernel_map, index):
    frame = TinyRun(30)[index]
    descriptor = kernel_map.describer.describe(frame.load_image())
    return NewImage(frame.stamp_ns, frame.reference, descriptor, b'jpeg')


def test_a_grown_map_is_the_old_one_and_the_new_images(kernel_map):
    images = [new_image(kernel_map, 25), new_image(kernel_map, 29)]
    larger = with_images(with_images(kernel_map, images[:1]), images[1:])
    twice = with_images(replace(kernel_map, run_names=('run', 'run')), images)
    assert twice.run_names == ('run', 'run', GROWN_RUN) and twice.run_index[-1] == 2
    assert len(with_settings_of(kernel_map, larger)) == 22
    assert np.array_equal(np.flatnonzero(added_images(larger)), [20, 21])
    assert larger.run_names == ('tiny', GROWN_RUN)
    assert np.array_equal(larger.descriptors[:20], kernel_map.descriptors)
    assert larger.descriptors.dtype == kernel_map.descriptors.dtype
    assert larger.thumbnails[-1] == b'jpeg' and len(larger.thumbnails) == 22
    assert larger.similarities(images[1].descriptor).argmax() == 21
    # means of the image kernel are those of all images
    known = with_images(replace(kernel_map, means=kernel_map.centring.means), images)
    np.testing.assert_allclose(known.centring.means, larger.centring.means, atol=1e-12)
    # added images are no steps for a filter that learns motion
    known = FullyNonparametricFilter(larger).controls
    assert np.array_equal(known, FullyNonparametricFilter(kernel_map).controls)


def test_it_has_the_parameters_and_the_statistics_that_the_old_one_has_now(kernel_map):
    larger = with_images(kernel_map, [new_image(kernel_map, 25)])
    changed = {
        'filter_config': replace(kernel_map.filter_config, image_bandwidth=0.05),
        'statistics': MapStatistics(evidence_limit=9.0),
        'calibration': Calibration(np.full(SIZE, 0.01), np.eye(SIZE)),
        'motion_noise': kernel_map.motion_noise.in_metres(2.0),
        'baselines': {'nearest': {'width': 0.3}},
        'decay': replace(kernel_map.decay, length=2.0 * kernel_map.decay.length),
    }
    taken = with_settings_of(replace(kernel_map, **changed), larger)
    assert len(taken) == 21
    for name, value in changed.items():
        assert getattr(taken, name) is value


def test_a_map_built_anew_is_not_grown_from_the_old_one(kernel_map):
    described_anew = replace(kernel_map, descriptors=kernel_map.descriptors[::-1])
    for base, other in (
        (kernel_map, kernel_map.subset(np.arange(1, 20))),
        (kernel_map, kernel_map.subset(np.arange(10))),
        (described_anew, kernel_map),
        (replace(kernel_map, poses=kernel_map.poses + 1.0), kernel_map),
    ):
        with pytest.raises(MapError, match='not those of this map'):
            with_settings_of(base, other)


def test_the_loss_is_that_of_the_images_that_go(shared_map):
    pruned, loss = prune(shared_map, 8)
    assert len(pruned) == len(pruned.thumbnails) == 8
    assert pruned.best_match(pruned.descriptors[4]) == (4, pytest.approx(1.0))
    points, kept = (se2.to_plane_and_circle(m.poses) for m in (shared_map, pruned))
    distance = np.linalg.norm(points[:, np.newaxis] - kept, axis=-1).min(axis=1)
    assert loss.radius == pytest.approx(distance.max())
    assert loss.median == pytest.approx(np.median(distance[distance > 0]))
    radii = [prune(shared_map, count)[1].radius for count in (3, 8, 20, 30)]
    assert radii == sorted(radii, reverse=True) and radii[-1] == 0.0
    with pytest.raises(MapError, match='expected at least 1, got 0'):
        prune(shared_map, 0)


def test_very_many_poses_are_thinned_by_cells_of_a_grid(monkeypatch):
    rng = np.random.default_rng(0)
    poses = np.column_stack([rng.uniform(0, 30, (3000, 2)), np.zeros(3000)])
    monkeypatch.setattr(pruning, 'MAX_DISTANCES', 0.0)
    kept = cover(poses, 400, rng)
    assert 300 <= len(kept) <= 400 and len(np.unique(kept)) == len(kept)
    nearest = np.linalg.norm(poses[:, np.newaxis] - poses[kept], axis=-1).min(axis=1)
    assert nearest.max() < 1.5 * 30.0 / np.sqrt(400)  # 400 places evenly spread


def test_no_image_is_kept_twice_where_the_robot_stood():
    stood = np.maximum(np.arange(50.0) - 29.0, 0.0)[:, np.newaxis] * [1, 0, 0]
    for seed in range(5):
        kept = cover(stood, 40, np.random.default_rng(seed))
        assert len(np.unique(kept)) == len(kept) == 40
        assert set(range(30, 50)) <= set(kept.tolist())
