"""Which topics of a bag a command uses, and how a user chooses others."""

from bag_helpers import bag, drive, images, pose_stamped, SECOND
from command import assert_one_line, invoke
from kbr_localization.localization.map.kernel_map import KernelMap
import numpy as np
import pytest

SMALL = ('--set', 'vision.words=4')
IMAGES = images(shape=(64, 80))
POSES = [('/mocap', pose_stamped(second * SECOND, float(second)), None) for second in (1, 2, 3, 4)]


@pytest.fixture
def ambiguous(tmp_path):
    """Two odometries, and two known poses."""
    other = [('/laser', message, None) for _, message, _ in POSES]
    return bag(
        tmp_path / 'bag', drive(topic='/wheels'), drive(topic='/eyes'), IMAGES, POSES, other
    )


def build(tmp_path, run, *options):
    return invoke('map', 'build', run, '--out', tmp_path / 'map.h5', *SMALL, *options)


def test_known_poses_that_come_too_seldom_are_told(tmp_path):
    seldom = [('/mocap', pose_stamped(t * SECOND // 2, float(t)), None) for t in (3, 7, 11)]
    run, out = bag(tmp_path / 'bag', drive(), images(2), seldom), tmp_path / 'run.tum'
    told = (
        'no image of bag has a known pose: reference poses come every 2.0 s and 4.0 m, and '
        'between two that are more than 1 s and 0.3 m apart nothing is interpolated'
    )
    result = build(tmp_path, run)
    assert (result.returncode, told in result.stderr) == (2, True), result.stderr
    assert f'without known poses: {told}' in invoke('convert', run, tmp_path / 'copy').stderr
    out.write_text('2 0 0 0 0 0 0 1\n')
    assert told in invoke('evaluate', run, out).stderr


def test_a_fused_odometry_makes_no_map(tmp_path):
    run = bag(tmp_path / 'bag', drive(), drive(topic='/odometry/filtered'), IMAGES)
    result = build(tmp_path, run)
    assert result.returncode == 2
    assert 'no reference poses (in the frame of the odometry: /odometry/filtered' in result.stderr
    assert 'nothing to build a map from' in result.stderr
    assert build(tmp_path, run, '--reference-topic', '/odometry/filtered').returncode == 0


def test_topics_are_chosen_by_the_options_that_the_refusal_names(tmp_path, ambiguous):
    assert_one_line(build(tmp_path, ambiguous), '/eyes', '/wheels', '--odometry-topic')
    chosen = ['--odometry-topic', '/wheels']
    assert_one_line(build(tmp_path, ambiguous, *chosen), '/laser', '/mocap', '--reference-topic')
    chosen += ['--reference-topic', 'mocap']
    result = build(tmp_path, ambiguous, *chosen)
    assert result.returncode == 0, result.stderr
    poses = KernelMap.load(tmp_path / 'map.h5').poses
    np.testing.assert_allclose(poses[:, 0], [2, 3, 4])
    out, kernel_map = tmp_path / 'run.tum', tmp_path / 'map.h5'
    trials = ('--sizes', 2, '--trials', 1, '--methods', 'dead-reckoning')
    for command in (
        ('localize', kernel_map, ambiguous, '--out', out, '--method', 'dead-reckoning'),
        ('evaluate', ambiguous, out),
        ('report', kernel_map, ambiguous, '--out', tmp_path / 'page', '--method', 'nearest'),
        ('convert', ambiguous, tmp_path / 'converted'),
        ('tune', ambiguous, '--out', tmp_path / 't.h5', '--trials', 1, '--methods', 'kbr', *SMALL),
        ('compare', '--map', kernel_map, '--test', ambiguous, '--out', tmp_path / 'c', *trials),
    ):
        result = invoke(*command, *chosen)
        assert 'odometry on /wheels, reference poses on /mocap' in result.stderr, result.stderr


def test_known_poses_of_another_clock_are_told_with_both_spans(tmp_path):
    late = [('/mocap', pose_stamped((1000 + t) * SECOND, float(t)), None) for t in (1, 2, 3, 4)]
    run = bag(tmp_path / 'late', drive(), IMAGES, late)
    assert build(tmp_path, bag(tmp_path / 'bag', drive(), IMAGES, POSES)).returncode == 0
    kernel_map, truth = tmp_path / 'map.h5', tmp_path / 'truth.tum'
    truth.write_text('2.0 1 0 0 0 0 0 1\n')
    for command in (
        ('map', 'build', run, '--out', tmp_path / 'late.h5'),
        ('map', 'extend', kernel_map, run, '--poses', 'known', '--out', tmp_path / 'late.h5'),
        ('evaluate', run, truth),
        ('compare', '--map', kernel_map, '--test', run, '--sizes', 2, '--out', tmp_path / 'all'),
    ):
        result = invoke(*command)
        assert result.returncode == 2
        assert result.stderr.splitlines()[-1] == (
            'kbr: no image of late lies within its reference poses: images at [2.000, 4.000] s, '
            'reference poses at [1001.000, 1004.000] s: are their stamps of one clock?'
        )
