"""Messages that are lost on the way: what DDS counts reaches whoever looks at /diagnostics."""

from types import SimpleNamespace

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
import pytest
from ros_node_helpers import node_at_hand
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
