"""What makes the cost of an update independent of the size of the map, and what that costs."""

from dataclasses import replace
import importlib
from pathlib import Path

from kbr_localization.localization.filter import image_model
from kbr_localization.localization.filter.filter import KernelBayesLocalizer
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
    return KernelBayesLocalizer(kernel_map, rng=np.random.default_rng(seed))


def test_tracking_with_local_values_is_tracking_with_all_of_them(large, monkeypatch):
    kernel_map, building = large
    frames = list(synthetic.drive(building, 100.0, 12.0, np.random.default_rng(4)))
    local, exact = make(kernel_map), make(kernel_map)
    monkeypatch.setattr(image_model, 'EXACT_IMAGES', len(kernel_map))
    exact.model = image_model.ImageModel(kernel_map, exact.config)
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
