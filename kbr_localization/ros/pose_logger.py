"""
Print the poses on `amcl_pose`, one JSON object a line, for programs that know nothing of ROS.

The first line is printed when a publisher is found. A pose has the last status on /diagnostics,
which comes once a second.

`python -m kbr_localization.ros.pose_logger --ros-args -r amcl_pose:=/robot/amcl_pose`
"""

from __future__ import annotations

import json
import sys
import threading

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization.errors import RosError
from kbr_localization.ros.conversions import (
    covariance_from_message,
    pose_from_message,
    stamp_to_ns,
)
from kbr_localization.ros.diagnostics import LEVELS
from kbr_localization.ros.running import run_program, spin
from rclpy.clock import Clock
from rclpy.node import Node


class PoseLogger(Node):
    """Subscribe to `amcl_pose` and print what comes."""

    def __init__(self) -> None:
        super().__init__('pose_logger')
        self._poses = self.create_subscription(
            PoseWithCovarianceStamped, 'amcl_pose', self._print, 1000
        )
        self._status = 'not localized'
        self.create_subscription(DiagnosticArray, '/diagnostics', self._take_status, 1000)
        self._waiting = self.create_timer(0.1, self._look_for_publisher, clock=Clock())

    def _look_for_publisher(self) -> None:
        if self.count_publishers(self._poses.topic_name):
            self._waiting.cancel()
            print(json.dumps({'listening': self._poses.topic_name}), flush=True)

    def _take_status(self, message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name.endswith(': localization'):
                # two statuses have one level, and a stale one is none
                text = status.message.lower()
                words = [w for w, level in LEVELS.items() if level == status.level]
                self._status = next((w for w in words if text.startswith(w)), 'not localized')

    def _print(self, message: PoseWithCovarianceStamped) -> None:
        try:
            line = {
                'stamp_ns': stamp_to_ns(message.header.stamp),
                'pose': pose_from_message(message.pose.pose).tolist(),
                'covariance': covariance_from_message(message.pose.covariance).tolist(),
                'status': self._status,
            }
        except RosError as error:
            self.get_logger().warning(f'pose left out: {error}')
            return
        print(json.dumps(line), flush=True)


def main(args: list[str] | None = None) -> int:
    """Print poses until a signal comes."""
    return run_program(_run, args)


def _run(stop: threading.Event) -> None:
    node = PoseLogger()
    try:
        spin(node, stop)
    finally:
        node.destroy_node()


if __name__ == '__main__':
    sys.exit(main())
