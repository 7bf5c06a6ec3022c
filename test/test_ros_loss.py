"""Messages that are lost on the way: what DDS counts reaches whoever looks at /diagnostics."""

import time
from types import SimpleNamespace

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from kbr_localization.ros.common import hints
import pytest
from ros_node_helpers import node_at_hand, start_node
from ros_robot import Robot

pytestmark = pytest.mark.ros


def lose(node, topic, count):
    """Let DDS tell a subscription of the node of so many lost messages."""
    (subscription,) = [s for s in node.subscriptions if s.topic_name == topic]
    told = [
        handler.callback(SimpleNamespace(total_count=count))
        for handler in subscription.event_handlers
        if handler.callback.__name__ == 'take_lost'
    ]
    assert told, 'nobody listens'


def input_status(reports):
    found = [s for report in reports for s in report.status if s.name.endswith(': input')]
    return found[-1] if found else DiagnosticStatus()


def test_a_camera_whose_images_are_half_lost_is_told_with_the_remedy(ros, tiny_world):
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    with node_at_hand(ros, map_file=tiny_world.map_file) as node:
        robot = Robot(ros)
        robot.wait_for_listeners()
        robot.drive(0.0, 4.0)
        ros.spin_until(lambda: node.configured().session.answered >= 11)
        lose(node, '/image', 24)
        ros.spin_until(lambda: 'messages arrive' in input_status(reports).message)
    status = input_status(reports)
    assert '/image: 11 of 35 messages arrive' in status.message
    assert 'config/fastdds.xml' in status.message and 'compressed images' in status.message
    assert status.level == DiagnosticStatus.WARN and status.hardware_id == 'localization'
    assert {pair.key: pair.value for pair in status.values}['/image lost'] == '24'


def test_two_senders_of_the_odometry_are_told(ros, tiny_world, monkeypatch):
    """Poses of two drivers in turn are a robot that jumps to and fro, or are left out."""
    monkeypatch.setattr(hints, 'GHOST_SECONDS', 1.0)
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    with node_at_hand(ros, map_file=tiny_world.map_file):
        robot, other = (Robot(ros, start_ns=time.time_ns()) for _ in range(2))
        robot.wait_for_listeners()
        ros.spin_until(other.odometry.get_subscription_count)
        robot.drive(0.0, 1.0)
        other.send_odometry(1.05)
        ros.spin_until(lambda: 'only one may send' in input_status(reports).message)
    assert '/odom: 2 publishers' in input_status(reports).message


def test_two_nodes_of_one_name_are_told(ros, tiny_world, monkeypatch):
    """One that was left running answers half of the service calls, and publishes poses too."""
    monkeypatch.setattr(hints, 'GHOST_SECONDS', 1.0)
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    with node_at_hand(ros, map_file=tiny_world.map_file):
        ros.spin_until(lambda: reports)
        ros.spin(3.0)
        assert 'another node' not in input_status(reports).message
        start_node(ros, tiny_world)
        says = 'another node is called /localization too: end the one'
        ros.spin_until(lambda: says in input_status(reports).message)
