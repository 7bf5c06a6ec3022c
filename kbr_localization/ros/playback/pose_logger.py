"""
Print the poses on a topic, one JSON object a line, for programs that know nothing of ROS.

The first line says that the sender was found and poses will be heard. A pose has the status that
the node said last on /diagnostics, once a second: 'localized' is all that a stack gets to know.

`python -m kbr_localization.ros.playback.pose_logger --ros-args -r amcl_pose:=/robot/amcl_pose`
"""

from __future__ import annotations

import json
import sys
import threading

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization.errors import RosError
from kbr_localization.ros.common import conversions
from kbr_localization.ros.common.diagnostics import LEVELS
from kbr_localization.ros.common.running import run_node, spin
from rclpy.clock import Clock
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile

QUEUE = QoSProfile(depth=1000)


class PoseLogger(Node):
    """Subscribe to `amcl_pose` and print what comes."""

    def __init__(self) -> None:
        super().__init__('pose_logger')
        self._poses = self.create_subscription(
            PoseWithCovarianceStamped, 'amcl_pose', self._print, QUEUE
        )
        self._status = 'not localized'
        self._diagnostics = self.create_subscription(
            DiagnosticArray, '/diagnostics', self._hear, QUEUE
        )
        self._waiting = self.create_timer(0.1, self._look_for_publisher, clock=Clock())

    def _look_for_publisher(self) -> None:
        """Say once that nothing will be missed from now on."""
        if self.count_publishers(self._poses.topic_name):
            self._waiting.cancel()
            print(json.dumps({'listening': self._poses.topic_name}), flush=True)

    def _hear(self, message: DiagnosticArray) -> None:
        for one in message.status:
            if one.name.endswith(': localization'):
                self._status = _status(one)

    def _print(self, message: PoseWithCovarianceStamped) -> None:
        try:
            line = {
                'stamp_ns': conversions.stamp_to_ns(message.header.stamp),
                'pose': conversions.pose_from_message(message.pose.pose).tolist(),
                'covariance': conversions.covariance_from_message(
                    message.pose.covariance
                ).tolist(),
                'status': self._status,
            }
        except RosError as error:
            self.get_logger().warning(f'pose left out: {error}')
            return
        print(json.dumps(line), flush=True)


def _status(said: DiagnosticStatus) -> str:
    """Status that a message begins with, as two have one level; a stale one is none."""
    text = said.message.lower()
    words = (word for word, level in LEVELS.items() if level == said.level)
    return next((word for word in words if text.startswith(word)), 'not localized')


def main(args: list[str] | None = None) -> int:
    """Print poses until the process is told to stop."""
    return run_node(_run, args)


def _run(stop: threading.Event) -> None:
    node = PoseLogger()
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        spin(executor, stop)
    finally:
        executor.shutdown()
        node.destroy_node()


if __name__ == '__main__':
    sys.exit(main())
