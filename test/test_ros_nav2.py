"""What Nav2 expects of a localization, over its own messages: particles, initial pose, bond."""

import time

from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization.ros import conversions
from lifecycle_msgs.msg import Transition
import numpy as np
import pytest
from ros_helpers import BEST_EFFORT, call
from ros_node_helpers import change_state, EVERY_IMAGE, wait_for_answer
from ros_robot import Robot

pytestmark = pytest.mark.ros


@pytest.fixture
def start(ros, nav2, tiny_world):
    """Return what starts a node in a process that has Nav2's messages."""

    def start_node(**values):
        values = {'pose_file': ros.folder / 'pose.json', **EVERY_IMAGE, **values}
        return ros.start_node('node', map_file=tiny_world.map_file, environment=nav2, **values)

    return start_node


def test_particles_and_the_service_for_the_initial_pose_are_those_of_nav2(ros, start):
    from nav2_msgs.msg import ParticleCloud
    from nav2_msgs.srv import SetInitialPose

    clouds = ros.collect(ParticleCloud, 'particle_cloud', BEST_EFFORT)
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    node, robot = start(initialize_globally=False, particles=50), Robot(ros)
    robot.wait_for_listeners()

    def set_pose(x):
        given = np.array([x, robot.pose(0.0)[1], robot.pose(0.0)[2]])
        message = conversions.pose_with_covariance(0, 'map', given, 0.01 * np.eye(3))
        call(ros, SetInitialPose, 'set_initial_pose', SetInitialPose.Request(pose=message))

    set_pose(1e4)
    assert 'initial pose refused: x 10000.00 m' in node.output
    assert 'm from the nearest image of the map: give a pose on it' in node.output
    set_pose(30.0)
    assert 'the robot may not be found there' in node.output
    set_pose(robot.pose(0.0)[0])
    robot.drive(0.0, 2.0)
    wait_for_answer(ros, poses, robot.stamp_ns(2.0))
    ros.spin_until(lambda: clouds)
    assert len(clouds[-1].particles) == 50 and clouds[-1].header.frame_id == 'map'
    assert sum(particle.weight for particle in clouds[-1].particles) == pytest.approx(1.0)
    assert 'nav2_msgs' not in node.output and 'Traceback' not in node.output


def test_a_manager_that_wants_a_bond_hears_heartbeats_while_the_node_is_active(ros, start):
    from bond.msg import Status

    beats = ros.collect(Status, 'bond')
    node = start(autostart=False)
    assert change_state(ros, Transition.TRANSITION_CONFIGURE)
    ros.spin(0.5)
    assert not beats
    assert change_state(ros, Transition.TRANSITION_ACTIVATE)
    started = time.monotonic()
    ros.spin_until(lambda: len(beats) >= 5)
    assert time.monotonic() - started < 4.0
    assert {(beat.id, beat.active) for beat in beats} == {('localization', True)}
    assert change_state(ros, Transition.TRANSITION_DEACTIVATE)
    ros.spin_until(lambda: not beats[-1].active)
    assert change_state(ros, Transition.TRANSITION_ACTIVATE)
    ros.spin_until(lambda: beats[-1].active)
    # a bond that was broken is not formed again under the same name
    assert len({beat.instance_id for beat in beats}) == 2
    assert 'bond_timeout' not in node.output
