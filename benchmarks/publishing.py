"""The last stage of a frame: messages out of an estimate, on real publishers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import importlib
import os
from typing import Any

DOMAIN = '91'


@contextmanager
def publisher() -> Iterator[Callable[[Any, int], None] | None]:
    """Give a function that publishes an estimate with its stamp, None where ROS is missing."""
    os.environ.setdefault('ROS_DOMAIN_ID', DOMAIN)
    os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    try:
        rclpy: Any = importlib.import_module('rclpy')
        conversions: Any = importlib.import_module('kbr_localization.ros.common.conversions')
        messages: Any = importlib.import_module('geometry_msgs.msg')
    except ImportError:
        yield None
        return
    rclpy.init()
    node = rclpy.create_node('benchmark')
    kind = messages.PoseWithCovarianceStamped
    publishers = [node.create_publisher(kind, name, 1) for name in ('amcl_pose', 'pose')]

    def publish(estimate: Any, stamp_ns: int) -> None:
        message = conversions.pose_with_covariance(
            stamp_ns, 'map', estimate.pose, estimate.covariance
        )
        for each in publishers:
            each.publish(message)

    try:
        yield publish
    finally:
        node.destroy_node()
        rclpy.shutdown()
