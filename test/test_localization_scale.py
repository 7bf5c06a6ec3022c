"""What makes the cost of an update independent of the size of the map, and what that costs."""

from dataclasses import replace
import importlib
import os
from pathlib import Path

import h5py
from hypothesis import given, settings
from hypothesis import strategies as st
from kbr_localization.errors import MapError
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.kbr.likelihood import Likelihood
from kbr_localization.localization.kbr.pose_grid import PoseGrid
from kbr_localization.localization.map import grow as growth
from kbr_localization.localization.map import index as index_module
from kbr_localization.localization.map import storage as map_storage
from kbr_localization.localization.map.index import SketchIndex
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.similarity import LocalSimilarity
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


@pytest.fixture(scope='module')
def similarities(large):
    """Images at places in the building with their full kernel vectors."""
    kernel_map, building = large
    rng = np.random.default_rng(3)
    images = [
        building.descriptors(np.array([way]), False, rng)[0] for way in rng.uniform(5, 280, 20)
    ]
    return [(image, kernel_map.similarities(image)) for image in images]


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


def test_values_are_computed_once_and_only_where_asked():
    vector, asked = np.random.default_rng(0).random(100), []

    def compute(indices):
        asked.append(indices)
        return vector[indices]

    given = np.array([8, 20]), vector[[8, 20]]
    similarity = LocalSimilarity(compute, np.array([50, 7, 8]), 100, given)
    assert similarity.best == max(vector[[7, 8, 20, 50]])
    wanted = np.array([3, 7, 8, 99])
    np.testing.assert_array_equal(similarity.at(wanted), vector[wanted])
    np.testing.assert_array_equal(similarity.at(wanted), vector[wanted])
    assert sorted(np.concatenate(asked)) == [3, 7, 50, 99]
    assert similarity.computed == 6
    # values count relative to the best: it may not change between two questions
    assert vector[99] > max(vector[[7, 8, 20, 50]])
    assert similarity.best == max(vector[[7, 8, 20, 50]])
    np.testing.assert_array_equal(similarity.known, [7, 8, 20, 50])


@pytest.mark.parametrize('thorough', [False, True])
def test_the_index_proposes_what_an_exact_search_finds(large, similarities, thorough):
    kernel_map, _ = large
    shares = []
    for image, exact in similarities:
        found = kernel_map.search_index.candidates(image, 64, thorough)
        assert len(np.unique(found)) == 64
        worth = np.exp((exact - exact.max()) / 0.02)
        shares.append(np.sort(worth[found])[-10:].sum() / np.sort(worth)[-10:].sum())
    assert np.mean(shares) > 0.99


@pytest.mark.parametrize('thorough', [False, True])
def test_the_values_of_a_large_map_are_those_of_a_full_comparison(large, similarities, thorough):
    kernel_map, _ = large
    nearby = np.arange(300, 340)
    for image, exact in similarities:
        found = kernel_map.compare(image, thorough, nearby)
        assert np.isin(nearby, found.known).all()
        assert np.isin(kernel_map.centring.references, found.known).all()
        np.testing.assert_allclose(found.at(found.known), exact[found.known], atol=1e-12)


def test_vectors_of_numbers_are_found_too():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((500, 20)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = SketchIndex.fit(vectors, rng)
    hits = [row in index.candidates(vectors[row], 5, thorough=True) for row in range(0, 500, 25)]
    assert all(hits)


def test_a_quick_search_reads_the_nearest_lists_and_a_thorough_one_all(monkeypatch):
    monkeypatch.setattr(index_module, '_PROBED', 40)
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((40, 8)) * np.linspace(0.3, 2.0, 40)[:, np.newaxis]
    vectors = np.repeat(centres, 50, axis=0) + 0.05 * rng.standard_normal((2000, 8))
    index = SketchIndex.fit(vectors, rng)
    for row in range(0, 2000, 60):
        distances = np.linalg.norm(vectors - vectors[row], axis=1)
        for thorough in (False, True):
            found = index.candidates(vectors[row], 10, thorough)
            assert row in found
            assert np.sort(distances[found]).max() < 2.0 * np.sort(distances)[10]
        assert 40 <= len(index.candidates(vectors[row], 1500)) < 200
        assert len(index.candidates(vectors[row], 1500, thorough=True)) == 1500


def test_an_image_of_more_features_is_found_by_the_fractions_of_them():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, (300, 60)).astype(np.uint8)
    counts[::2] //= 2
    index = SketchIndex.fit(counts, rng)
    rows = range(0, 300, 10)
    hits = [row in index.candidates(counts[row] * 9, 1, thorough=True) for row in rows]
    assert np.mean(hits) > 0.9


@pytest.mark.parametrize(
    ('name', 'harm'),
    [
        ('order', lambda order: np.where(order == 0, -1, order)),
        ('order', lambda order: np.where(order == 0, len(order), order)),
        ('order', lambda order: order[:-1]),
        ('starts', lambda starts: np.minimum(starts, starts[-1] - 1)),
        ('starts', lambda starts: np.maximum(starts, 1)),
        ('starts', lambda starts: np.delete(starts, 1)),
        ('starts', lambda starts: starts[[0, 2, 1, *range(3, len(starts))]]),
        ('lists', lambda lists: lists[:, :-1]),
        ('axes', lambda axes: axes[:-1]),
    ],
)
def test_arrays_that_are_no_index_are_refused(name, harm):
    rng = np.random.default_rng(0)
    arrays = SketchIndex.fit(rng.standard_normal((200, 6)), rng).arrays
    SketchIndex(arrays)
    with pytest.raises(MapError, match='build the map again'):
        SketchIndex(arrays | {name: harm(arrays[name])})
    with pytest.raises(MapError, match=f'the index has no {name}'):
        SketchIndex({other: array for other, array in arrays.items() if other != name})


def test_the_axes_of_an_index_are_those_along_which_its_images_differ_most():
    rng = np.random.default_rng(0)
    turned = np.linalg.qr(rng.standard_normal((120, 120)))[0]
    vectors = rng.standard_normal((400, 120)) * np.where(np.arange(120) < 5, 3.0, 0.1) @ turned
    index = SketchIndex.fit(vectors, rng)
    kept = ((vectors - index.centre) @ index.axes).var(axis=0).sum()
    assert kept > 0.98 * vectors.var(axis=0).sum()


def test_an_index_grows_with_its_map():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, (300, 60)).astype(np.uint8)
    index = SketchIndex.fit(counts[:200], rng).extended(counts[200:])
    assert index.fits(counts) and not index.fits(counts[1:]) and not index.fits(counts[:, 1:])
    hits = [row in index.candidates(counts[row], 3, thorough=True) for row in range(0, 300, 10)]
    assert all(hits)


def test_a_large_map_grows_with_its_index_and_a_huge_one_is_refused(large, monkeypatch):
    kernel_map, building = large
    descriptor = building.descriptors(np.array([50.0]), False, np.random.default_rng(9))[0]
    image = growth.NewImage(1, np.array([9.0, 9.0, 0.0]), descriptor)
    grown = growth.with_images(kernel_map, [image])
    assert grown.search_index.fits(grown.descriptors)
    assert len(kernel_map) in grown.compare(descriptor).candidates
    monkeypatch.setattr(growth, 'LARGEST_TO_GROW', 100)
    with pytest.raises(MapError, match='3000 images cannot grow'):
        growth.with_images(kernel_map, [image])


def test_images_that_are_all_alike_make_an_index():
    index = SketchIndex.fit(np.full((50, 40), 3, dtype=np.uint8), np.random.default_rng(0))
    assert len(index.candidates(np.full(40, 3, dtype=np.uint8), 8)) == 8


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


@pytest.fixture(scope='module')
def mapped(large, tmp_path_factory):
    """File of a map whose arrays count as large ones."""
    kernel_map, _ = large
    path = tmp_path_factory.mktemp('mapped') / 'map.h5'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_storage, 'MAPPED_BYTES', 10_000)
        pictures = tuple(bytes([i % 251]) * (i % 50) for i in range(len(kernel_map)))
        replace(kernel_map, thumbnails=pictures, index=kernel_map.search_index).save(path)
        yield path, pictures


def test_the_arrays_of_a_large_map_stay_in_its_file(large, mapped):
    kernel_map, _ = large
    path, pictures = mapped
    loaded = KernelMap.load(path)
    assert not loaded.descriptors.flags.owndata
    assert not loaded.descriptors.flags.writeable
    for name in ('poses', 'descriptors', 'stamps_ns', 'controls'):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(kernel_map, name))
    assert isinstance(loaded.thumbnails, map_storage.Thumbnails)
    assert tuple(loaded.thumbnails) == pictures
    assert loaded.thumbnails[-1] == pictures[-1]
    assert loaded.thumbnails[3:9:2] == pictures[3:9:2]
    for name, array in kernel_map.search_index.arrays.items():
        np.testing.assert_array_equal(loaded.search_index.arrays[name], array)
    assert loaded.search_index is loaded.index
    assert loaded.subset(np.array([5, 7])).thumbnails == (pictures[5], pictures[7])


def test_a_large_map_knows_the_means_of_its_image_kernel(large, mapped):
    kernel_map, _ = large
    loaded = KernelMap.load(mapped[0])
    np.testing.assert_allclose(loaded.means, kernel_map.centring.means, rtol=1e-12)
    assert loaded.centring.means is not None and not np.isnan(loaded.centring._means).any()
    rows, columns = np.arange(5), np.arange(1000, 1200)
    expected = kernel_map.centring.gram(rows, columns)
    np.testing.assert_allclose(loaded.centring.gram(rows, columns), expected, atol=1e-9)
    assert loaded.subset(columns).means is None


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_means_that_are_not_finite_are_refused(mapped, tmp_path, value):
    path = tmp_path / 'map.h5'
    path.write_bytes(mapped[0].read_bytes())
    with h5py.File(path, 'r+') as file:
        means = file['means'][...]
        means[3] = value
        del file['means'], file['checksums/means']
        file['means'] = means
    with pytest.raises(MapError, match='means has values that are not finite'):
        KernelMap.load(path)


def test_a_large_map_can_be_saved_over_itself_while_it_is_in_use(mapped, tmp_path):
    path = tmp_path / 'copy.h5'
    path.write_bytes(mapped[0].read_bytes())
    loaded = KernelMap.load(path)
    before = loaded.descriptors[100].copy()
    replace(loaded, run_names=('one', 'two')).save(path)
    np.testing.assert_array_equal(loaded.descriptors[100], before)
    again = KernelMap.load(path)
    np.testing.assert_array_equal(again.descriptors, loaded.descriptors)
    assert again.run_names == ('one', 'two')


@pytest.mark.parametrize('share', [0.3, 0.7, 0.999])
def test_a_truncated_large_map_is_named(mapped, tmp_path, share):
    path = tmp_path / 'cut.h5'
    path.write_bytes(mapped[0].read_bytes())
    os.truncate(path, int(share * path.stat().st_size))
    with pytest.raises(MapError, match='truncated, damaged or not a map'):
        KernelMap.load(path)


@pytest.mark.parametrize('harm', ['order', 'starts', 'lists', 'missing'])
def test_a_damaged_index_is_refused(mapped, tmp_path, harm):
    path = tmp_path / 'harmed.h5'
    path.write_bytes(mapped[0].read_bytes())
    with h5py.File(path, 'r+') as file:
        index = file['index']
        if harm == 'missing':
            del index['codes']
        elif harm == 'lists':
            index['starts'][...] = index['starts'][...][::-1]
        else:
            index[harm][1] = 10**6
    with pytest.raises(MapError, match='index'):
        KernelMap.load(path)


def test_a_map_file_without_an_index_gets_one_when_it_is_needed(large, mapped, tmp_path):
    kernel_map, building = large
    path = tmp_path / 'old.h5'
    path.write_bytes(mapped[0].read_bytes())
    with h5py.File(path, 'r+') as file:
        del file['index']
    loaded = KernelMap.load(path)
    image = building.descriptors(np.array([80.0]), False, np.random.default_rng(0))[0]
    exact = kernel_map.similarities(image)
    assert int(exact.argmax()) in loaded.compare(image).candidates
