"""Poses of a bag that exist on /tf alone."""

from bag_helpers import bag, drive, images, pose_stamped, SECOND, transforms
from kbr_localization import se2
from kbr_localization.datasets import open_dataset
from kbr_localization.errors import DatasetError
import numpy as np
import pytest

CORRECTION = np.array([3.0, -1.0, 0.7])
"""map -> odom."""
DRIVEN = [(0.5 * index / 20, 0.0, 0.0) for index in range(81)]
"""Half a metre a second along x at 20 Hz for 4 s."""
OVER_ODOM = (
    transforms('map', 'odom', [CORRECTION] * 9, every=SECOND // 2),
    transforms('odom', 'base', DRIVEN),
)
BASE = transforms('odom', 'base_footprint', DRIVEN)
FIXED = (
    transforms('base_footprint', 'base_link', [(0.2, 0, 0)], '/tf_static', start=10 * SECOND),
    transforms('map', 'odom', [CORRECTION], '/tf_static', start=10 * SECOND),
)
OF_R1 = (
    transforms('map', 'r1/odom', [CORRECTION] * 9, every=SECOND // 2),
    transforms('r1/odom', 'r1/base_link', DRIVEN),
    transforms('map', 'r1/camera', [CORRECTION] * 9),
    transforms('r1/laser_odom', 'r1/base_link', DRIVEN),
    transforms('r1/base_link', 'r1/odom', DRIVEN),
)


@pytest.mark.parametrize(
    ('sent', 'wheels', 'way'),
    [
        ((drive(), *OVER_ODOM), '/odom', 'map -> odom -> base'),
        # messages of odometry stand for a transform that is not sent
        ((drive(), OVER_ODOM[0]), '/odom', 'map -> odom -> base'),
        ((BASE, *FIXED), '/tf (odom -> base_footprint)', 'map -> odom -> base_footprint'),
        (OF_R1, '/tf (r1/odom -> r1/base_link)', 'map -> r1/odom -> r1/base_link'),
    ],
)
def test_the_way_from_the_map_to_the_base_is_the_reference(tmp_path, sent, wheels, way):
    run = open_dataset(bag(tmp_path / 'bag', images(), *sent))
    assert run.sources[1:] == (f'odometry on {wheels}', f'reference poses on /tf ({way})')
    assert run.reference_frame == 'map'
    known = [frame for frame in run if frame.reference is not None]
    assert known
    for frame in known:
        moved = [0.5 * (frame.stamp_ns - SECOND) / SECOND, 0.0, 0.0]
        np.testing.assert_allclose(frame.odometry, moved, atol=1e-9)
        expected = se2.compose(CORRECTION, moved)
        np.testing.assert_allclose(frame.reference, expected, atol=1e-9)


def test_transforms_that_were_sent_before_the_clock_of_a_simulation_came_are_left_out(tmp_path):
    way = transforms('odom', 'base_footprint', [(9.0, 0, 0)], start=0) * 3 + BASE
    laser = transforms('base_footprint', 'laser', [(0.1, 0, 0)], '/tf_static', start=0)
    by_computer = 1_700_000_000 * SECOND
    late = [(topic, message, by_computer + i) for i, (topic, message, _) in enumerate(way)]
    run = open_dataset(bag(tmp_path / 'bag', images(1), laser, late))
    assert run.odometry.stamps_ns[[0, -1]].tolist() == [SECOND, 5 * SECOND]
    np.testing.assert_allclose(run[0].odometry, [0.5, 0, 0], atol=1e-9)


def test_a_topic_of_poses_is_preferred_unless_tf_is_asked_for(tmp_path):
    truth = [('/truth', pose_stamped(SECOND * n, 7.0), None) for n in (1, 2, 3, 4)]
    straight = transforms('map', 'base', [CORRECTION] * 5)
    path = bag(tmp_path / 'bag', drive(), images(), truth, straight)
    assert open_dataset(path).sources[2] == 'reference poses on /truth (frame map)'
    run = open_dataset(path, reference_topic='/tf')
    assert run.sources[2] == 'reference poses on /tf (map -> base)'


WITHOUT_OVERLAP = (
    transforms('odom', 'base_link', DRIVEN),
    transforms('map', 'odom', [CORRECTION] * 3, start=99 * SECOND),
)


@pytest.mark.parametrize('sent', [WITHOUT_OVERLAP[:1], WITHOUT_OVERLAP])
def test_what_may_hold_the_reference_is_named_where_nothing_does(tmp_path, sent):
    path = bag(tmp_path / 'bag', drive(), images(), *sent)
    run = open_dataset(path)
    assert [frame.reference for frame in run] == [None] * len(run)
    named = ('PoseWithCovarianceStamped', '--reference-topic', 'map -> base_link on /tf')
    assert all(word in run.sources[2] for word in named)
    with pytest.raises(DatasetError, match=r'no reference poses in bag .*map -> base_link on /tf'):
        open_dataset(path, reference_topic='/tf')
    with pytest.raises(DatasetError, match=r'no odometry in bag .*odom -> base_link on /tf'):
        open_dataset(bag(tmp_path / 'other', drive(), images()), odometry_topic='/tf')
