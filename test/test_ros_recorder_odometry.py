"""No pose topic at all: the recorder, and the map that is made of what it recorded."""

import functools
import signal

from kbr_localization.datasets import open_dataset
from kbr_localization.localization.mapping.build import map_from_odometry
from mapping_helpers import RingRun, ROUND, trajectory_error, VISION
import numpy as np
import pytest
from ros_robot import Robot, SECOND

pytestmark = pytest.mark.ros


def test_a_drive_with_odometry_and_camera_alone_becomes_a_map(ros, tmp_path):
    ring, out = RingRun(metres=1.6 * ROUND), tmp_path / 'run'
    robot = Robot(ros, start_ns=int(ring.odometry.stamps_ns[0]))
    node = ros.start_node('recorder', out=out, pose_type='none', spacing_distance=0.1)
    ros.spin_until(lambda: 'recording into' in node.output)
    robot.wait_for_listeners()

    def has_recorded(images):
        return len(list((out / 'std_cam').glob('*.jp*g'))) >= images

    for sent, frame in enumerate(ring):
        seconds = (frame.stamp_ns - robot.start_ns) / SECOND
        robot.send_odometry(seconds, pose=frame.odometry)
        robot.send_image(seconds, frame.image)
        ros.spin(0.02)
        if sent % 10 == 9:  # best effort: no more than its queue holds ahead of a slow machine
            ros.spin_until(functools.partial(has_recorded, 0.9 * sent - 10))
    ros.spin_until(functools.partial(has_recorded, 0.9 * len(ring)))
    assert node.stop(signal.SIGINT) == 0
    run = open_dataset(out)
    assert all(frame.reference is None for frame in run)
    mapped = map_from_odometry([run], VISION)
    assert mapped.joined
    at = {int(stamp): pose for stamp, pose in zip(ring.odometry.stamps_ns, ring.true, strict=True)}
    stamps = mapped.kernel_map.stamps_ns
    nearest = np.array(sorted(at))[np.searchsorted(sorted(at), stamps - SECOND // 1000)]
    truth = np.array([at[int(stamp)] for stamp in nearest])
    assert trajectory_error(ring.odometry.poses, ring.true) > 1.0
    assert trajectory_error(mapped.kernel_map.poses, truth) < 0.35
