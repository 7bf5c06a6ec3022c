"""Large maps: the index proposes what an exact search finds, at a cost that does not grow."""

import importlib
from pathlib import Path

from kbr_localization.errors import MapError
from kbr_localization.localization.filter.filter import KernelBayesLocalizer
from kbr_localization.localization.map.grow import NewImage, with_images
from kbr_localization.localization.map.index import SketchIndex
from kbr_localization.localization.map.kernel_map import KernelMap
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


@pytest.mark.parametrize('thorough', [False, True])
def test_the_index_proposes_what_an_exact_search_finds_and_values_are_exact(
    large, similarities, thorough
):
    kernel_map, _ = large
    shares, nearby = [], np.arange(300, 340)
    for image, exact in similarities:
        found = kernel_map.search_index.candidates(image, 64, thorough)
        assert len(np.unique(found)) == 64
        worth = np.exp((exact - exact.max()) / 0.02)
        shares.append(np.sort(worth[found])[-10:].sum() / np.sort(worth)[-10:].sum())
        seen = kernel_map.compare(image, thorough, nearby)
        found = seen.evaluated
        assert np.isin([*nearby, *kernel_map.centring.references], found).all()
        np.testing.assert_allclose(seen.values_at(found), exact[found], atol=1e-12)
    assert np.mean(shares) > 0.99


def test_a_quick_search_reads_the_nearest_lists_and_a_thorough_one_all():
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((40, 8)) * np.linspace(0.3, 2.0, 40)[:, np.newaxis]
    vectors = np.repeat(centres, 500, axis=0) + 0.05 * rng.standard_normal((20_000, 8))
    index = SketchIndex.fit(vectors, rng)
    for row in range(0, 20_000, 900):
        distances = np.linalg.norm(vectors - vectors[row], axis=1)
        for thorough in (False, True):
            found = index.candidates(vectors[row], 10, thorough)
            assert row in found
            assert distances[found].max() < 2.0 * np.sort(distances)[10]
        assert 8192 <= len(index.candidates(vectors[row], 15_000)) < 11_000
        assert len(index.candidates(vectors[row], 15_000, thorough=True)) == 15_000


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
        ('order', lambda order: np.where(order == 0, len(order), order)),
        ('starts', lambda starts: np.minimum(starts, starts[-1] - 1)),
        ('starts', lambda starts: np.delete(starts, 1)),
        ('starts', lambda starts: starts[[0, 2, 1, *range(3, len(starts))]]),
    ],
)
def test_arrays_that_are_no_index_are_refused(name, harm):
    rng = np.random.default_rng(0)
    arrays = SketchIndex.fit(rng.standard_normal((200, 6)), rng).arrays
    SketchIndex(arrays)
    with pytest.raises(MapError, match='build the map again'):
        SketchIndex(arrays | {name: harm(arrays[name])})


def test_a_large_map_grows_with_its_index_and_a_huge_one_is_refused(large):
    kernel_map, building = large
    descriptor = building.descriptors(np.array([50.0]), False, np.random.default_rng(9))[0]
    image = NewImage(1, np.array([9.0, 9.0, 0.0]), descriptor)
    grown = with_images(kernel_map, [image])
    assert len(grown.index) == len(grown)
    assert len(kernel_map) in grown.compare(descriptor).candidates
    with pytest.raises(MapError, match='12000 images cannot grow'):
        with_images(kernel_map.subset(np.arange(12_000) % 3000), [image])


def test_a_map_file_keeps_the_index_and_the_means_of_the_image_kernel(large, tmp_path):
    kernel_map, _ = large
    kernel_map.save(tmp_path / 'map.h5')
    loaded = KernelMap.load(tmp_path / 'map.h5')
    for name, array in kernel_map.search_index.arrays.items():
        np.testing.assert_array_equal(loaded.index.arrays[name], array)
    np.testing.assert_allclose(loaded.means, kernel_map.centring.means, rtol=1e-12)
    rows, columns = np.arange(5), np.arange(1000, 1200)
    expected = kernel_map.centring.gram(rows, columns)
    np.testing.assert_allclose(loaded.centring.gram(rows, columns), expected, atol=1e-9)
    assert loaded.subset(columns).means is None


def follow(localizer, frames):
    """Return how far the positions that a localizer reports are from the truth."""
    errors = []
    for pose, increment, image in frames:
        localizer.predict(increment)
        localizer.update(image)
        errors.append(np.hypot(*(localizer.estimate().pose - pose)[:2]))
    return np.array(errors)


def make(kernel_map, seed=1):
    return KernelBayesLocalizer(kernel_map, rng=np.random.default_rng(seed))


def test_an_update_of_a_large_map_computes_few_kernel_values(large, monkeypatch):
    kernel_map, building = large
    frames = list(synthetic.drive(building, 100.0, 4.0, np.random.default_rng(4)))
    localizer, computed, cross_gram = make(kernel_map), [], type(kernel_map.describer).cross_gram
    localizer.initialize(frames[0][0], START)
    follow(localizer, frames[:3])

    def counted(describer, left, right):
        computed.append(len(right))
        return cross_gram(describer, left, right)

    monkeypatch.setattr(type(kernel_map.describer), 'cross_gram', counted)
    for frame in frames[3:]:
        follow(localizer, [frame])
        assert 0 < sum(computed) < 400
        computed.clear()


def test_a_large_map_localizes_from_nothing_and_finds_a_carried_robot(large):
    kernel_map, building = large
    localizer = make(kernel_map)
    localizer.initialize_globally()
    rng = np.random.default_rng(6)
    errors = follow(localizer, synthetic.drive(building, 60.0, 6.0, rng))
    assert errors[3:].max() < 0.3
    errors = follow(localizer, synthetic.drive(building, 200.0, 10.0, rng))
    assert errors[0] > 5.0
    assert errors[-5:].max() < 0.3
    assert localizer.diagnostics['recoveries'] == 1
