"""Pages and views for people, checked against the code and against a node that runs."""

import ast
import json
from pathlib import Path
import re

from diagnostic_msgs.msg import DiagnosticArray
from kbr_localization.ros.parameters import parameters
from kbr_localization.ros.recording.recorder import RecorderConfig
from kbr_localization.ros.session.odometry_buffer import Coverage
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
if not (ROOT / 'docs').is_dir():
    pytest.skip('the documentation is not installed', allow_module_level=True)
TROUBLE = (ROOT / 'docs' / 'troubleshooting.md').read_text()
ROBOT = (ROOT / 'docs' / 'your_robot.md').read_text()
LAYOUT = json.loads((ROOT / 'config' / 'foxglove_layout.json').read_text())
RVIZ = yaml.safe_load((ROOT / 'config' / 'kbr_localization.rviz').read_text())
HINTS = ('common/hints.py', 'recording/image_sizes.py')
MESSAGES = re.findall(r'`([^`]+)`', ' '.join(re.findall(r'^> (.*)$', TROUBLE, re.MULTILINE)))


@pytest.fixture(scope='module')
def literals():
    """Every text of the code, with … for what is filled in."""
    texts = []
    for path in (ROOT / 'kbr_localization').rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else '…' for p in node.values]
                texts.append(''.join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return '\n'.join(texts)


def test_the_page_quotes_many_messages():
    assert len(MESSAGES) >= 34 and all(len(message) > 10 for message in MESSAGES)


@pytest.mark.parametrize('message', MESSAGES)
def test_a_quoted_message_is_in_the_code(literals, message):
    for piece in filter(None, (part.strip(' :,;()') for part in message.split('…'))):
        for part in piece.split(': '):
            assert part.strip(' :,;()') in literals, part


def test_every_hint_of_the_inputs_is_explained():
    sources = [(ROOT / 'kbr_localization' / 'ros' / file).read_text() for file in HINTS]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    returned = [node.value for node in nodes if isinstance(node, ast.Return)]
    texts = [value for value in returned if isinstance(value, ast.JoinedStr)]
    assert len(texts) >= 6
    for text in texts:
        parts = [part.value for part in text.values if isinstance(part, ast.Constant)]
        longest = max(parts, key=len).strip(' :')
        assert longest in TROUBLE, longest


COUNTING = {'_drop', '_drop_first', '_count', '_skip', 'clear'}
"""Methods that are given the reason for which images are dropped."""
DROPPING = {
    'Images that are dropped': (
        'ros/session/image_queue.py',
        'ros/session/session.py',
        'localization/pipeline.py',
        'datasets/synchronizer.py',
        'ros/inputs/cameras.py',
    ),
    'The recorder': ('ros/recording/recording.py',),
}


def reasons_in(path):
    """Texts that the calls of a module count images under, with … for what is filled in."""
    for node in ast.walk(ast.parse((ROOT / 'kbr_localization' / path).read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, 'attr', '') in COUNTING:
            texts = [arg for arg in node.args if isinstance(arg, (ast.Constant, ast.JoinedStr))]
        elif isinstance(node, ast.Subscript) and getattr(node.value, 'attr', '') == 'counts':
            texts = [node.slice]
        else:
            continue
        for text in texts:
            parts = text.values if isinstance(text, ast.JoinedStr) else [text]
            told = [part.value if isinstance(part, ast.Constant) else '…' for part in parts]
            if any(isinstance(part, str) and re.search('[a-z]', part) for part in told):
                yield ''.join(told)


@pytest.mark.parametrize('section', DROPPING)
def test_every_reason_for_a_dropped_image_is_explained_once(section):
    found = {reason for path in DROPPING[section] for reason in reasons_in(path)}
    if section == 'Images that are dropped':
        found |= {Coverage.LATE.value, Coverage.GAP.value}
    else:
        found |= {Coverage.UNPLACED.value}
    assert len(found) >= 7
    text = TROUBLE.split(f'## {section}\n')[1].split('\n## ')[0]
    rows = re.findall(r'^\| `(?:…: )?([^`]+)` \| .+ \| .+ \|$', text, re.MULTILINE)
    assert sorted(rows) == sorted(found)


def test_links_between_pages_lead_somewhere():
    nav = (ROOT / 'mkdocs.yml').read_text()
    readme = (ROOT / 'README.md').read_text()
    for page in ('your_robot.md', 'troubleshooting.md'):
        assert page in nav and f'docs/{page}' in readme
    for text in (TROUBLE, ROBOT):
        for target in re.findall(r'\]\(([^)#]+)\)', text):
            assert (ROOT / 'docs' / target).is_file(), target


def test_launch_arguments_of_the_page_exist():
    declared = set(parameters.fields(RecorderConfig))
    for path in (ROOT / 'launch').glob('*.launch.py'):
        declared |= set(re.findall(r"argument\('(\w+)'", path.read_text()))
    commands = re.findall(r'ros2 launch kbr_localization (?:.*\\\n)*.*', ROBOT)
    used = set(re.findall(r'(\w+):=', ' '.join(commands)))
    assert len(commands) >= 3 and used <= declared | {'dds_profile'}


def test_no_launch_argument_of_a_page_is_empty():
    """`ros2 launch` refuses NAME:= as malformed, and the shell makes that of NAME:=''."""
    pages = [ROOT / 'README.md', ROOT / 'CHANGELOG.rst', *(ROOT / 'docs').glob('*.md')]
    for path in (*pages, *(ROOT / 'launch').glob('*.py')):
        assert not re.findall(r"\w+:=(?:''|\"\"|(?=\s|$))", path.read_text(), re.M), path


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
