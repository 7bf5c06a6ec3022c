"""Images that join a finished map."""

from dataclasses import replace

from kbr_localization.errors import MapError
from kbr_localization.localization.calibration import Calibration, SIZE
from kbr_localization.localization.filter.filter import KernelBayesLocalizer
from kbr_localization.localization.map.grow import (
    grown,
    grown_form,
    GROWN_RUN,
    is_grown_from,
    NewImage,
    with_images,
)
from kbr_localization.localization.map.kernel_map import MapStatistics
from kbr_localization.localization.methods.on_map import FullyNonparametricFilter
from map_helpers import tiny_map, TinyRun
import numpy as np
import pytest


@pytest.fixture(scope='module')
def kernel_map():
    return tiny_map(30).subset(np.arange(20))


def new_image(kernel_map, index):
    frame = TinyRun(30)[index]
    descriptor = kernel_map.describer.describe(frame.load_image())
    return NewImage(frame.stamp_ns, frame.reference, descriptor, b'jpeg')


def test_a_grown_map_is_the_old_one_and_the_new_images(kernel_map):
    images = [new_image(kernel_map, 25), new_image(kernel_map, 29)]
    larger = with_images(with_images(kernel_map, images[:1]), images[1:])
    assert len(larger) == 22 and is_grown_from(larger, kernel_map)
    assert np.array_equal(np.flatnonzero(grown(larger)), [20, 21])
    assert larger.run_names == ('tiny', GROWN_RUN)
    assert np.array_equal(larger.descriptors[:20], kernel_map.descriptors)
    assert larger.descriptors.dtype == kernel_map.descriptors.dtype
    assert larger.thumbnails[-1] == b'jpeg' and len(larger.thumbnails) == 22
    assert larger.similarities(images[1].descriptor).argmax() == 21


def test_means_of_the_image_kernel_are_those_of_all_images(kernel_map):
    known = replace(kernel_map, means=kernel_map.centring.means)
    larger = with_images(known, [new_image(kernel_map, 25), new_image(kernel_map, 29)])
    expected = replace(larger, means=None).centring.means
    np.testing.assert_allclose(larger.centring.means, expected, atol=1e-12)
    assert len(expected) == 22


def test_it_has_the_parameters_and_the_statistics_that_the_old_one_has_now(kernel_map):
    larger = with_images(kernel_map, [new_image(kernel_map, 25)])
    config = replace(kernel_map.filter_config, image_bandwidth=0.05)
    statistics = MapStatistics(evidence_limit=9.0)
    tuned = replace(
        kernel_map,
        filter_config=config,
        statistics=statistics,
        calibration=Calibration(np.full(SIZE, 0.01), np.eye(SIZE)),
        motion_noise=kernel_map.motion_noise.in_metres(2.0),
        baselines={'nearest': {'width': 0.3}},
    )
    taken = grown_form(tuned, larger)
    for name in ('filter_config', 'statistics', 'calibration', 'motion_noise', 'baselines'):
        assert getattr(taken, name) is getattr(tuned, name)
    assert len(taken) == 21


def test_added_images_are_no_steps_for_a_filter_that_learns_motion(kernel_map):
    larger = with_images(kernel_map, [new_image(kernel_map, 25)])
    known = FullyNonparametricFilter(larger).controls
    assert np.array_equal(known, FullyNonparametricFilter(kernel_map).controls)


def test_a_filter_goes_on_and_sees_the_new_image(kernel_map):
    far = new_image(kernel_map, 29)
    localizer = KernelBayesLocalizer(kernel_map)
    localizer.initialize(far.pose, np.diag([0.01, 0.01, 0.01]))
    before = localizer.belief.poses.copy()
    localizer.follow_map(with_images(kernel_map, [far]))
    assert np.array_equal(localizer.belief.poses, before)
    localizer.update(far.descriptor)
    assert localizer.diagnostics['best_similarity'] == pytest.approx(1.0)
    assert np.hypot(*(localizer.estimate().pose - far.pose)[:2]) < 0.2


@pytest.mark.parametrize(
    'change, says',
    [
        ({'descriptor': np.zeros(3, np.uint8)}, 'descriptor of shape'),
        ({'pose': np.array([0.0, np.nan, 0.0])}, 'expected finite numbers'),
    ],
)
def test_what_does_not_fit_the_map_is_refused(kernel_map, change, says):
    with pytest.raises(MapError, match=says):
        with_images(kernel_map, [replace(new_image(kernel_map, 25), **change)])


def test_a_map_built_anew_is_not_grown_from_the_old_one(kernel_map):
    assert not is_grown_from(kernel_map.subset(np.arange(1, 20)), kernel_map)
    assert not is_grown_from(kernel_map.subset(np.arange(10)), kernel_map)
    described_anew = replace(kernel_map, descriptors=kernel_map.descriptors[::-1])
    assert not is_grown_from(kernel_map, described_anew)
