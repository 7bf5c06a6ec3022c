"""The bond by which Nav2's lifecycle manager sees that the node is alive."""

from __future__ import annotations

from typing import Any
import uuid

from kbr_localization.ros.common.optional import interface
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.duration import Duration
from rclpy.node import Node

TIMEOUT = 4.0
"""Seconds without a heartbeat of the manager after which it would be taken for dead."""
_GOODBYE = Duration(seconds=0.5)


def have_bonds() -> bool:
    """Whether the messages of bonds are installed, as they are with Nav2."""
    return interface('bond.msg', 'Status') is not None


class Bond:
    """
    Heartbeats on the topic `bond` under the node's name, while the node is active.

    A bond has two sides, and each tells the other that it lives; the manager takes the node for
    dead when they cease. They come from the executor: a node that hangs is a dead one.
    """

    def __init__(self, node: Node, period: float) -> None:
        self._node, self._period = node, period
        self._instance = str(uuid.uuid4())
        self._publisher: Any = None
        self._timer: Any = None

    def start(self) -> None:
        """Say from now on that the node is alive."""
        status = interface('bond.msg', 'Status')
        if status is None or self._period == 0.0 or self._publisher is not None:
            return
        self._publisher = self._node.create_publisher(status, 'bond', 1)
        # simulated time may stand still while the node lives
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = self._node.create_timer(self._period, self._beat, clock=steady)

    def stop(self) -> None:
        """Take leave, so that nobody waits for the next heartbeat."""
        if self._publisher is None:
            return
        self._node.destroy_timer(self._timer)
        self._beat(active=False)
        # a publisher that is gone sends nothing any more
        self._publisher.wait_for_all_acked(_GOODBYE)
        self._node.destroy_publisher(self._publisher)
        self._publisher = None
        self._instance = str(uuid.uuid4())

    def _beat(self, active: bool = True) -> None:
        message = interface('bond.msg', 'Status')()
        message.header.stamp = self._node.get_clock().now().to_msg()
        message.id, message.instance_id = self._node.get_name(), self._instance
        message.active = active
        message.heartbeat_timeout, message.heartbeat_period = TIMEOUT, self._period
        self._publisher.publish(message)
