"""What the tests of the localization node share."""

from contextlib import contextmanager

from kbr_localization.ros import conversions
from kbr_localization.ros.node import LocalizationNode
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
import numpy as np
from ros_helpers import call

EVERY_IMAGE = {'image_queue': 200, 'image_backlog': 200}
"""A machine that is slow answers later, and from the same images."""


def start_node(ros, world, **values):
    """
    Start the localization node and wait for it.

    It saves its pose in the test's folder, and uses every image however long that takes.
    """
    pose_file = ros.folder / 'pose.json'
    known = ros.node.count_publishers('/diagnostics')
    values = {'map_file': world.map_file, 'pose_file': pose_file, **EVERY_IMAGE, **values}
    node = ros.start_node('node', **values)
    if values.get('autostart', True):
        ros.spin_until(lambda: ros.node.count_publishers('/diagnostics') > known)
    return node


def change_state(ros, transition):
    """Ask a lifecycle node for a transition; returns whether it was made."""
    request = ChangeState.Request(transition=Transition(id=transition))
    return call(ros, ChangeState, '/localization/change_state', request).success


@contextmanager
def node_at_hand(ros, **values):
    """Give a node that is active in the process of the test, whose parts can be reached."""
    values = {'pose_file': ros.folder / 'pose.json', **EVERY_IMAGE, **values}
    arguments = [part for name, value in values.items() for part in ('-p', f'{name}:={value}')]
    node = LocalizationNode(context=ros.context, cli_args=['--ros-args', *arguments])
    ros.executor.add_node(node)
    node.trigger_configure()
    node.trigger_activate()
    try:
        yield node
    finally:
        ros.executor.remove_node(node)
        node.clean_up()
        node.destroy_node()


def start_player(ros, world, **values):
    """Start the player on the world's run."""
    return ros.start_node('player', run=world.run, **{'rate': 3.0, **values})


def by_stamp(messages):
    """Poses with covariance by stamp in nanoseconds."""
    return {conversions.stamp_to_ns(message.header.stamp): message.pose for message in messages}


def diagnostics(messages, part):
    """Newest status of a part of the node: its message and its values."""
    for message in reversed(messages):
        for status in message.status:
            if status.name.endswith(part):
                return status.message, {pair.key: pair.value for pair in status.values}
    return '', {}


def wait_for_answer(ros, poses, stamp_ns):
    """Wait until the image of a stamp is answered; give the pose of the answer."""
    ros.spin_until(lambda: stamp_ns in by_stamp(poses))
    return conversions.pose_from_message(by_stamp(poses)[stamp_ns].pose)


def is_localized(reports):
    """Whether the newest report says so, also when the robot has gone silent since."""
    return diagnostics(reports, ': localization')[0].startswith('Localized')


def off_by(pose, expected):
    """Metres from one pose (3,) to another."""
    return float(np.hypot(*(pose - expected)[:2]))
