"""The RViz and Foxglove views show what a running node publishes."""

import json
from pathlib import Path
import re

from diagnostic_msgs.msg import DiagnosticArray
import pytest
from rclpy.qos import (
    DurabilityPolicy,
    qos_check_compatible,
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
)
from ros_node_helpers import diagnostics, start_node, start_player
import yaml

pytestmark = pytest.mark.ros
ROOT = Path(__file__).parents[1]
LAYOUT = json.loads((ROOT / 'config' / 'foxglove_layout.json').read_text())
RVIZ = yaml.safe_load((ROOT / 'config' / 'kbr_localization.rviz').read_text())


def displays():
    found = RVIZ['Visualization Manager']['Displays']
    return [display for display in found if 'Topic' in display]


def rviz_qos(topic):
    reliability = {'Best Effort': 'BEST_EFFORT', 'Reliable': 'RELIABLE'}
    durability = {'Transient Local': 'TRANSIENT_LOCAL', 'Volatile': 'VOLATILE'}
    return QoSProfile(
        depth=topic['Depth'],
        reliability=ReliabilityPolicy[reliability[topic['Reliability Policy']]],
        durability=DurabilityPolicy[durability[topic['Durability Policy']]],
    )


def layout_topics():
    panels = LAYOUT['configById']
    topics = {panels['Image!match']['imageMode']['imageTopic']}
    topics |= set(panels['3D!map']['topics'])
    return topics | {panels['DiagnosticSummary!all']['topicToRender']}


def paths(tree):
    if isinstance(tree, str):
        return {tree}
    return paths(tree['first']) | paths(tree['second'])


def test_the_layout_has_every_panel_once():
    assert paths(LAYOUT['layout']) == set(LAYOUT['configById'])


def test_what_views_ask_for_is_what_the_node_offers(ros, tiny_world):
    """Topics of RViz and Foxglove, their QoS, and the diagnostics that are plotted."""
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    start_node(ros, tiny_world, use_sim_time=True)
    start_player(ros, tiny_world, loop=True)
    ros.spin_until(lambda: ros.node.count_publishers('/reference_pose'))
    for display in displays():
        topic = '/' + display['Topic']['Value']
        (publisher,) = ros.node.get_publishers_info_by_topic(topic)
        compatible = qos_check_compatible(publisher.qos_profile, rviz_qos(display['Topic']))
        assert compatible[0] != QoSCompatibility.ERROR, (topic, compatible[1])
    for topic in layout_topics():
        assert ros.node.count_publishers(topic) == 1, topic
    assert ros.node.count_subscribers(
        LAYOUT['configById']['3D!map']['publish']['poseEstimateTopic']
    )
    for panel in ('Plot!latency', 'Plot!sure'):
        for line in LAYOUT['configById'][panel]['paths']:
            name, key = re.findall(r'=="([^"]+)"', line['value'])
            ros.spin_until(lambda n=name, k=key: float(diagnostics(reports, n)[1].get(k, -1)) >= 0)
    panel = LAYOUT['configById']['DiagnosticStatusPanel!localization']
    sent = {(one.hardware_id, one.name) for report in reports for one in report.status}
    assert (panel['selectedHardwareId'], panel['selectedName']) in sent
