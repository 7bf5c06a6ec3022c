"""Maps of odometry with the poses of the robot's base in place of those of its camera."""

from dataclasses import replace

from command import invoke
from kbr_localization import se2
from kbr_localization.localization.calibration import Calibration, moved, SIZE
from kbr_localization.localization.mapping.align import (
    align_onto,
    at_base,
    camera_poses,
    point_of,
)
from kbr_localization.localization.mapping.build import map_from_odometry
from kbr_localization.localization.mapping.extend import extend
from mapping_helpers import RingRun, ROUND, trajectory_error, VISION
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures('followed_once')
POINT = np.array([0.3, -0.1, 0.05])


@pytest.fixture(scope='module')
def ring():
    """Map a ring, as if the odometry's point were elsewhere than the camera."""
    run = RingRun(metres=1.6 * ROUND)
    kernel_map = map_from_odometry([run], VISION).kernel_map
    values = np.array([*POINT, 0.01, 0.0, -0.02, 0.01])
    known = Calibration(values, np.diag(np.full(SIZE, 1e-4)))
    parameters = np.delete(values, 4)[np.newaxis]
    record = replace(kernel_map.mapping, parameters=parameters)
    return run, replace(kernel_map, calibration=known, mapping=record)


def test_the_odometry_of_the_base_is_that_of_its_own_point(ring):
    _, camera = ring
    base = at_base(camera)
    reports = np.random.default_rng(0).normal(size=(40, 3)) * np.array([0.3, 0.0, 0.2])
    at_camera = moved(reports, camera.calibration.values)
    carried = se2.compose(se2.compose(se2.inverse(POINT), at_camera), POINT)
    np.testing.assert_allclose(moved(reports, base.calibration.values), carried, atol=1e-12)
    np.testing.assert_allclose(base.calibration.values[:3], 0.0, atol=1e-15)
    np.testing.assert_allclose(base.mapping.parameters[:, :3], 0.0, atol=1e-15)


def test_poses_of_the_base_lie_beside_those_of_the_camera(ring):
    _, camera = ring
    base = at_base(camera)
    np.testing.assert_allclose(base.poses, se2.compose(camera.poses, POINT), atol=1e-12)
    np.testing.assert_allclose(camera_poses(base), camera.poses, atol=1e-12)
    same = np.isfinite(base.next_poses[:-1, 0])
    np.testing.assert_allclose(base.next_poses[:-1][same], base.poses[1:][same], atol=1e-12)


def test_the_covariance_is_carried_along_the_lever(ring):
    _, camera = ring
    base = at_base(camera)
    rng = np.random.default_rng(1)
    for image in (0, 60, 140):
        law = camera.mapping.covariances[image]
        errors = rng.multivariate_normal(np.zeros(3), 1e-4 * law, 20000, method='cholesky')
        moved_poses = se2.compose(camera.poses[image] + errors, POINT)
        sampled = np.cov((moved_poses - base.poses[image]).T) / 1e-4
        spread = np.sqrt(np.diag(sampled))
        missed = (base.mapping.covariances[image] - sampled) / np.outer(spread, spread)
        assert np.abs(missed).max() < 0.05


def test_another_drive_joins_a_map_of_the_base_as_one(ring):
    run, camera = ring
    base = at_base(camera)
    more = RingRun(name='more', begin=12.0, metres=24.0, seed=2, drift=-0.015)
    longer, _ = extend(base, more)
    np.testing.assert_array_equal(longer.poses[: len(base)], base.poses)
    of_camera, _ = extend(camera, more)
    expected = se2.compose(of_camera.poses, POINT)
    np.testing.assert_allclose(longer.poses[:, :2], expected[:, :2], atol=1e-3)
    truth = se2.compose(np.concatenate([run.true, more.true]), POINT)
    assert trajectory_error(longer.poses, truth) < 0.35
    own = longer.mapping.parameters[-1, :3] + POINT
    np.testing.assert_allclose(own, of_camera.mapping.parameters[-1, :3], atol=1e-3)


@pytest.mark.parametrize('shift_ns', [0, 10**15])
def test_maps_of_camera_and_base_come_into_one_frame(ring, shift_ns):
    """By the stamps of the same images, and by images alone."""
    _, camera = ring
    frame = np.array([4.0, 1.0, 1.2])
    other = replace(
        camera, poses=se2.compose(frame, camera.poses), stamps_ns=camera.stamps_ns + shift_ns
    )
    moved_map, found = align_onto(at_base(camera), other)
    np.testing.assert_allclose(point_of(moved_map), POINT)
    apart = (camera_poses(moved_map) - other.poses)[:, :2]
    assert np.sqrt(np.mean(np.sum(apart**2, axis=1))) < (0.15 if shift_ns else 1e-6)
    assert len(found.residuals) > 10


def test_the_first_pose_of_the_base_is_the_frame_and_the_map_says_whose_it_is(tmp_path):
    from kbr_localization.cli.map_commands import describe_map

    mapped = map_from_odometry([RingRun(metres=1.3 * ROUND)], VISION, base=True)
    np.testing.assert_allclose(mapped.kernel_map.poses[0], 0.0, atol=1e-12)
    assert describe_map(mapped.kernel_map)['poses']['of'].startswith('base, ')
    # walls that pass by aside show no turns
    assert any('do not tell how far the camera is ahead' in note for note in mapped.notes)


def test_the_command_refuses_the_base_of_known_poses(tmp_path):
    words = ('map', 'build', tmp_path, '--pose-frame', 'base', '--out', tmp_path / 'map.h5')
    done = invoke(*words)
    assert done.returncode == 2
    assert '--pose-frame base: expected --poses odometry' in done.stderr
