"""Maps of several cameras: sections of the descriptor, the product of the kernels, the file."""

from dataclasses import replace
import json

from command import assert_one_line, done, FEW_WORDS, invoke
import h5py
from helpers import write_tiny_cold_run
from kbr_localization.datasets.bag_writer import write_bag
from kbr_localization.datasets.multi_camera import join_cameras
from kbr_localization.errors import DatasetError, MapError, VisionError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.mapping.build import extend
from kbr_localization.localization.pipeline import localize
from kbr_localization.vision.describer import missing_cameras, TYPICAL_SIMILARITY
from map_helpers import assert_equal_maps, position_errors, TINY_VISION, TinyRun
import numpy as np
import pytest
from two_cameras import CAMERAS, two_camera_run, write_two_camera_cold_run


@pytest.fixture(scope='module')
def run():
    return two_camera_run(30)


@pytest.fixture(scope='module')
def kernel_map(run):
    return build_map([run], TINY_VISION)


def test_the_kernel_is_the_product_of_those_of_the_cameras_that_have_an_image(run, kernel_map):
    describer, image, factors = kernel_map.describer, run[7].load_image(), []
    both, alone = describer.describe(image), describer.describe((image[0], None))
    assert [missing_cameras(describer, descriptor) for descriptor in (both, alone)] == [0, 1]
    for one, section, part in zip(describer.describers, describer.sections, image, strict=True):
        assert np.array_equal(one.describe(part), both[section])
        rows = kernel_map.descriptors[:, section]
        factors.append(one.cross_gram(both[np.newaxis, section], rows)[0])
    front, rear = factors
    np.testing.assert_allclose(kernel_map.similarities(both), front * rear)
    assert kernel_map.similarities(both)[7] == pytest.approx(1.0)
    back = describer.cross_gram(kernel_map.descriptors, alone[np.newaxis])[:, 0]
    for values in (kernel_map.similarities(alone), back):
        np.testing.assert_allclose(values, TYPICAL_SIMILARITY * front)


@pytest.mark.parametrize(
    'images, says',
    [
        ((None, None), 'no camera has an image'),
        (np.zeros((96, 128), np.uint8), r'1 images at once: expected one for .*front, rear'),
        ((None, np.zeros((10, 128), np.uint8)), 'camera rear: image of 128x10 pixels'),
    ],
)
def test_images_that_do_not_fit_the_cameras_are_refused(kernel_map, images, says):
    with pytest.raises(VisionError, match=says):
        kernel_map.describer.describe(images)


def test_the_file_gives_the_same_map(run, kernel_map, tmp_path):
    path = tmp_path / 'map.h5'
    kernel_map.save(path)
    back = KernelMap.load(path)
    assert_equal_maps(kernel_map, back)
    assert back.cameras == CAMERAS
    image = run[3].load_image()
    assert np.array_equal(back.describer.describe(image), kernel_map.describer.describe(image))
    with h5py.File(path, 'a') as file:
        del file['describer/camera1']
    with pytest.raises(MapError, match=r'camera1.* is missing; build the map again'):
        KernelMap.load(path)


def test_runs_of_different_cameras_make_no_map(run):
    with pytest.raises(MapError, match=r'different cameras \(tiny: front, rear; tiny: one\)'):
        build_map([run, TinyRun(30)], TINY_VISION)


def test_moments_without_an_image_of_each_camera_do_not_enter_the_map(kernel_map):
    def broken():
        raise DatasetError('broken')

    front, rear = TinyRun(30), TinyRun(30)
    rear.frames[4] = replace(rear.frames[4], image=broken)
    run = join_cameras(CAMERAS, [front, rear])
    assert len(build_map([run], TINY_VISION)) == 29
    assert run.skipped == {'without an image of each camera': 1}
    run.skipped.clear()
    run.name = 'more'
    longer, _ = extend(kernel_map, run, known=True)
    assert len(longer) == len(kernel_map) + 29
    assert run.skipped == {'without an image of each camera': 1}


def test_localization_goes_on_with_one_camera_when_the_other_ends(kernel_map):
    test = join_cameras(CAMERAS, [TinyRun(30), TinyRun(12)])
    errors = position_errors(localize(kernel_map, test), test)
    assert len(errors) == 30 and errors[12:].max() < 0.4


def test_from_two_recorded_cameras_to_poses_by_the_command_line(tmp_path):
    path = write_two_camera_cold_run(tmp_path / 'run', 30)
    done('map', 'build', path, '--out', tmp_path / 'map.h5', *FEW_WORDS)
    facts = json.loads(done('map', 'info', tmp_path / 'map.h5', '--json').stdout)
    assert facts['cameras'] == ['front', 'rear'] and facts['descriptor'] == 'multi_camera'
    assert facts['image_shape'] == {'front': [96, 128], 'rear': [96, 128]}
    assert facts['filter']['image_bandwidth'] == pytest.approx(
        np.sqrt(0.55 / 1.55) * KbrConfig().image_bandwidth
    )
    write_bag(two_camera_run(20), tmp_path / 'bag')
    for test in (path, tmp_path / 'bag'):
        out = tmp_path / f'{test.name}.tum'
        done('localize', tmp_path / 'map.h5', test, '--out', out)
        result = done('evaluate', test, out, '--json', '--cameras', 'front,rear')
        assert json.loads(result.stdout)['position_rmse_m'] < 0.3
    done('report', tmp_path / 'map.h5', path, '--out', tmp_path / 'report.html')
    one = write_tiny_cold_run(tmp_path / 'one', 8)
    refused = invoke('localize', tmp_path / 'map.h5', one, '--out', tmp_path / 'x.tum')
    assert_one_line(refused, "no camera 'front': expected one of std_cam")


def test_a_run_of_more_or_fewer_cameras_than_the_map_is_told_before_the_work(
    kernel_map, world, tmp_path
):
    one, two, run = world / 'map.h5', tmp_path / 'two.h5', tmp_path / 'run'
    with_statistics(kernel_map).save(two)
    write_two_camera_cold_run(run, 12)
    out = ('--out', tmp_path / 'out')
    for command in (
        lambda chosen: ('localize', chosen, run, *out),
        lambda chosen: ('report', chosen, run, *out),
        lambda chosen: ('compare', '--map', chosen, '--test', run, *out),
        lambda chosen: ('map', 'extend', chosen, run, *out),
    ):
        refused = invoke(*command(one))
        assert_one_line(refused, f'map.h5 has 1 camera(s), {run} was opened with 2: give')
        assert '--cameras NAME, one of front, rear' in refused.stderr
        refused = invoke(*command(two), '--cameras', 'front')
        assert_one_line(refused, f'two.h5 has 2 camera(s), {run} was opened with 1: give')
        assert '--cameras front,rear' in refused.stderr
    assert not (tmp_path / 'out').exists()
