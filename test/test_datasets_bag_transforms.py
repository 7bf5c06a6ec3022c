"""Poses of a bag that exist on /tf alone."""

from bag_helpers import (
    bag,
    drive,
    header,
    images,
    make,
    pose_stamped,
    SECOND,
    stamp_of,
    write_messages,
)
from kbr_localization import se2
from kbr_localization.datasets.rosbag import BagRun
from kbr_localization.errors import DatasetError
import numpy as np
import pytest

CORRECTION = np.array([3.0, -1.0, 0.7])
"""map -> odom."""


def transform(stamp_ns, parent, child, pose):
    x, y, heading = (float(value) for value in pose)
    return make(
        'geometry_msgs/msg/TransformStamped',
        header=header(stamp_ns, parent),
        child_frame_id=child,
        transform=make(
            'geometry_msgs/msg/Transform',
            translation=make('geometry_msgs/msg/Vector3', x=x, y=y, z=0.3),
            rotation=make(
                'geometry_msgs/msg/Quaternion',
                x=0.0, y=0.0, z=np.sin(heading / 2), w=np.cos(heading / 2),
            ),
        ),
    )  # fmt: skip


def sent(parent, child, poses, topic='/tf', every=50_000_000, start=SECOND):
    """Messages (topic, message, recorded) of one transform over time."""
    stamps = [start + index * every for index in range(len(poses))]
    return [
        (topic, make('tf2_msgs/msg/TFMessage', transforms=[transform(s, parent, child, p)]), s)
        for s, p in zip(stamps, poses, strict=True)
    ]


def driven(seconds=4.0):
    """Odometry poses at 20 Hz: half a metre per second along x."""
    return [(0.5 * index / 20, 0.0, 0.0) for index in range(int(seconds * 20) + 1)]


def recorded(path, *groups):
    messages = [
        (topic, message, at if at is not None else stamp_of(message))
        for group in groups
        for topic, message, at in group
    ]
    return write_messages(path, sorted(messages, key=lambda m: m[2]))


def expected_at(run, frame):
    moved = [0.5 * (frame.stamp_ns - SECOND) / SECOND, 0.0, 0.0]
    return se2.compose(CORRECTION, moved)


def test_the_way_from_map_over_odom_to_the_base_is_the_reference(tmp_path):
    path = recorded(
        tmp_path / 'bag',
        drive(),
        images(),
        sent('map', 'odom', [CORRECTION] * 9, every=SECOND // 2),
        sent('odom', 'base', driven()),
    )
    run = BagRun(path)
    assert run.sources[2] == 'reference poses on /tf (map -> odom -> base)'
    assert run.reference_frame == 'map'
    for frame in run:
        np.testing.assert_allclose(frame.reference, expected_at(run, frame), atol=1e-9)


def test_odometry_messages_stand_for_a_transform_that_is_not_sent(tmp_path):
    path = recorded(
        tmp_path / 'bag', drive(), images(), sent('map', 'odom', [CORRECTION] * 9, every=SECOND)
    )
    run = BagRun(path)
    assert run.sources[2] == 'reference poses on /tf (map -> odom -> base)'
    np.testing.assert_allclose(run[1].reference, expected_at(run, run[1]), atol=1e-9)


def test_transforms_of_a_time_before_zero_are_left_out(tmp_path):
    way = sent('odom', 'base', driven(), start=-100_000_000)
    late = [(topic, message, max(at, 0)) for topic, message, at in way]
    run = BagRun(recorded(tmp_path / 'bag', images(1), late))
    assert run.odometry.stamps_ns[0] == 0


def test_transforms_that_were_sent_before_the_clock_of_a_simulation_came_are_left_out(tmp_path):
    computer = 1_700_000_000 * SECOND
    way = [*sent('odom', 'base', [(9.0, 0, 0)], start=0) * 3, *sent('odom', 'base', driven())]
    laser = sent('base', 'laser', [(0.1, 0, 0)], '/tf_static', start=0)
    late = [(topic, message, computer + i) for i, (topic, message, _) in enumerate(way)]
    run = BagRun(recorded(tmp_path / 'bag', images(1), laser, late))
    assert run.odometry.stamps_ns[[0, -1]].tolist() == [SECOND, 5 * SECOND]
    np.testing.assert_allclose(run[0].odometry, [0.5, 0, 0], atol=1e-9)


def test_without_an_odometry_topic_transforms_are_the_odometry(tmp_path):
    path = recorded(
        tmp_path / 'bag',
        images(),
        sent('odom', 'base_footprint', driven()),
        sent('map', 'base_link', [CORRECTION] * 2, every=3 * SECOND),
        sent('base_footprint', 'laser', [(0.1, 0, 0)], '/tf_static'),
    )
    run = BagRun(path)
    assert run.sources[1:] == (
        'odometry on /tf (odom -> base_footprint)', 'reference poses on /tf (map -> base_link)',
    )  # fmt: skip
    np.testing.assert_allclose(run[0].odometry, [0.5, 0, 0], atol=1e-9)
    np.testing.assert_allclose(run[0].reference, CORRECTION, atol=1e-9)


def test_a_fixed_transform_holds_for_all_times(tmp_path):
    path = recorded(
        tmp_path / 'bag',
        images(),
        sent('odom', 'base_footprint', driven()),
        sent('base_footprint', 'base_link', [(0.2, 0, 0)], '/tf_static', start=10 * SECOND),
        sent('map', 'odom', [CORRECTION], '/tf_static', start=10 * SECOND),
    )
    run = BagRun(path)
    assert run.sources[2] == 'reference poses on /tf (map -> odom -> base_footprint)'
    np.testing.assert_allclose(run[1].reference, expected_at(run, run[1]), atol=1e-9)


def test_a_topic_of_poses_is_preferred_unless_tf_is_asked_for(tmp_path):
    truth = [('/truth', pose_stamped(SECOND * n, 7.0), None) for n in (1, 2, 3, 4)]
    path = recorded(
        tmp_path / 'bag', drive(), images(), truth, sent('map', 'base', [CORRECTION] * 5)
    )
    assert BagRun(path).sources[2] == 'reference poses on /truth (frame map)'
    run = BagRun(path, reference_topic='/tf')
    assert run.sources[2] == 'reference poses on /tf (map -> base)'


def test_what_may_hold_the_reference_is_named_where_nothing_does(tmp_path):
    path = recorded(tmp_path / 'bag', drive(), images(), sent('odom', 'base_link', driven()))
    run = BagRun(path)
    assert [frame.reference for frame in run] == [None] * len(run)
    for word in ('PoseWithCovarianceStamped', '--reference-topic', 'map -> base_link on /tf'):
        assert word in run.sources[2]
    with pytest.raises(DatasetError, match=r'expected transforms map -> base_link or map -> odom'):
        BagRun(path, reference_topic='/tf')
    with pytest.raises(DatasetError, match=r'no odometry in bag .*odom -> base_link on /tf'):
        BagRun(bag(tmp_path / 'other', drive(), images()), odometry_topic='/tf')


def test_transforms_that_do_not_overlap_are_no_reference(tmp_path):
    path = recorded(
        tmp_path / 'bag',
        drive(),
        images(),
        sent('odom', 'base_link', driven()),
        sent('map', 'odom', [CORRECTION] * 3, start=100 * SECOND),
    )
    assert BagRun(path).fixes is None


def test_frames_of_one_robot_among_several(tmp_path):
    path = recorded(
        tmp_path / 'bag',
        images(),
        sent('map', 'r1/odom', [CORRECTION] * 9, every=SECOND // 2),
        sent('r1/odom', 'r1/base_link', driven()),
        sent('map', 'r1/camera', [CORRECTION] * 9),
    )
    run = BagRun(path)
    assert run.sources[2] == 'reference poses on /tf (map -> r1/odom -> r1/base_link)'
    np.testing.assert_allclose(run[1].reference, expected_at(run, run[1]), atol=1e-9)
