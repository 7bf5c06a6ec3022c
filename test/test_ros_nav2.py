"""What Nav2 expects of a localization, over its own messages: particles, initial pose, bond."""

from kbr_localization.ros import conversions
import numpy as np
import pytest
from ros_helpers import BEST_EFFORT, call
from ros_robot import node_at_hand, Robot

pytestmark = pytest.mark.ros


def test_particles_service_and_heartbeats_are_those_that_nav2_expects(ros, nav2, tiny_world):
    from bond.msg import Status
    from nav2_msgs.msg import ParticleCloud
    from nav2_msgs.srv import SetInitialPose

    clouds = ros.collect(ParticleCloud, 'particle_cloud', BEST_EFFORT)
    beats = ros.collect(Status, 'bond')
    values = {'initialize_globally': False, 'particles': 50, 'autostart': False}
    with node_at_hand(ros, map_file=tiny_world.map_file, **values) as node:
        robot = Robot(ros)
        robot.wait_for_listeners()
        robot.drive(0.0, 1.0)
        given = conversions.pose_with_covariance(0, 'map', robot.pose(1.0), 0.01 * np.eye(3))
        call(ros, SetInitialPose, 'set_initial_pose', SetInitialPose.Request(pose=given))
        assert robot.arrive(1.05, 2.8) < 0.3
        ros.spin_until(lambda: clouds)
        assert len(clouds[-1].particles) == 50 and clouds[-1].header.frame_id == 'map'
        assert sum(particle.weight for particle in clouds[-1].particles) == pytest.approx(1.0)
        ros.spin_until(lambda: len(beats) >= 5)
        assert {(beat.id, beat.active) for beat in beats} == {('localization', True)}
        assert beats[0].heartbeat_period == pytest.approx(0.1)
        node.trigger_deactivate()
        ros.spin_until(lambda: not beats[-1].active)
        known = len(beats)
        ros.spin(0.3)
        assert len(beats) == known
        node.trigger_activate()
        ros.spin_until(lambda: beats[-1].active)
        # a bond that was broken is not formed again under the same name
        assert len({beat.instance_id for beat in beats}) == 2
