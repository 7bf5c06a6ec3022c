from dataclasses import replace
import re

import cv2
from helpers import textured_image, write_tiny_cold_run
from kbr_localization import se2
from kbr_localization.datasets import OdometryTrack, open_dataset
from kbr_localization.errors import MapError
from kbr_localization.localization.map.build import build_map
from map_helpers import tiny_map, TINY_VISION, TinyRun
import numpy as np
import pytest


@pytest.fixture(scope='module')
def kernel_map():
    return tiny_map()


def test_controls_lead_from_each_image_to_the_next_of_its_run(kernel_map):
    assert np.isnan(kernel_map.controls[-1]).all()
    np.testing.assert_allclose(
        se2.compose(kernel_map.poses[:-1], kernel_map.controls[:-1])[:, :2],
        kernel_map.next_poses[:-1, :2],
        atol=1e-6,
    )


def test_fewer_images_are_chosen_to_cover_the_run():
    chosen = tiny_map(max_images=5).poses[:, 0]
    everything = tiny_map().poses[:, 0]
    gaps = np.abs(everything[:, np.newaxis] - chosen).min(axis=1)
    assert gaps.max() <= (everything.max() - everything.min()) / 4


def test_a_broken_image_is_left_out_and_counted(tmp_path):
    run = write_tiny_cold_run(tmp_path / 'run', frames=12)
    sorted((run / 'std_cam').iterdir())[4].write_bytes(b'not a jpeg')
    dataset = open_dataset(run)
    kernel_map = build_map([dataset], vision=TINY_VISION)
    assert len(kernel_map) == 11
    assert sum(dataset.skipped.values()) == 1


@pytest.mark.parametrize('place', [0, 5])
def test_an_image_of_another_size_is_left_out_counted_and_named(tmp_path, caplog, place):
    run = write_tiny_cold_run(tmp_path / 'run', frames=12)
    file = sorted((run / 'std_cam').iterdir())[place]
    cv2.imwrite(str(file), textured_image(1, (60, 80)))
    dataset = open_dataset(run)
    kernel_map = build_map([dataset], vision=TINY_VISION)
    assert len(kernel_map) == 11
    assert dataset.skipped == {'unusable image': 1}
    assert file.name in caplog.text and 'image of 80x60 pixels' in caplog.text


def test_no_map_is_made_where_as_many_images_do_not_fit_as_do(tmp_path):
    one, other = tmp_path / 'one', tmp_path / 'other'
    write_tiny_cold_run(one, frames=6)
    write_tiny_cold_run(other, frames=6, shape=(60, 80))
    with pytest.raises(MapError, match=r'only 6 of 12 images .* t16\d+.* image of 80x60 pixels'):
        build_map([open_dataset(one), open_dataset(other)], vision=TINY_VISION)


def test_frames_without_a_reference_pose_are_counted():
    class Sparse(TinyRun):
        """A run whose pose is known at every third frame."""

        def __iter__(self):
            for number, frame in enumerate(super().__iter__()):
                yield frame if number % 3 == 0 else replace(frame, reference=None)

    run = Sparse(12)
    assert len(build_map([run], vision=TINY_VISION)) == 4
    assert run.skipped == {'no reference pose': 8}


def test_no_reference_poses_make_no_map():
    class Unlabelled(TinyRun):
        """A run whose poses nobody knows."""

        def __iter__(self):
            return (replace(frame, reference=None) for frame in super().__iter__())

    with pytest.raises(MapError, match='no image with a reference pose in tiny'):
        build_map([Unlabelled()])


@pytest.mark.parametrize(
    ('frames', 'told'),
    [(('map', 'world', 'map'), '(map: a, c; world: b)'), (('map', '', 'map'), '')],
)
def test_reference_poses_in_frames_of_several_names_are_told(caplog, frames, told):
    runs = [TinyRun(10, name) for name in 'abc']
    for run, frame in zip(runs, frames, strict=True):
        run.reference_frame = frame
    assert len(build_map(runs, vision=TINY_VISION)) == 30
    assert told in caplog.text if told else not caplog.text


def test_reference_poses_of_another_clock_are_told_with_both_spans(caplog):
    class OnAnotherClock(TinyRun):
        """A run whose known poses begin a thousand seconds late."""

        def __getitem__(self, index):
            return replace(super().__getitem__(index), reference=None)

        @property
        def fixes(self):
            return OdometryTrack(self.odometry.stamps_ns + 10**12, self.odometry.poses)

    run = OnAnotherClock(10, 'late')
    says = (
        r'no image of late lies within its reference poses: images at \[1600000000.000, '
        r'1600000003.600\] s, reference poses at \[1600000999.500, 1600001004.100\] s'
    )
    with pytest.raises(MapError, match=says):
        build_map([run], vision=TINY_VISION)
    # beside a run that can be used it is told too
    assert len(build_map([TinyRun(10), run], vision=TINY_VISION)) == 10
    assert re.search(says, caplog.text)


def test_single_values_are_put_into_the_configuration_that_suits_the_map():
    suited = tiny_map().filter_config
    changed = tiny_map(filter_config={'points': 77}).filter_config
    assert changed == replace(suited, points=77)
    whole = replace(suited, position_bandwidth=3.0)
    assert tiny_map(filter_config=whole).filter_config == whole
