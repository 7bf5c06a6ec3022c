"""The bond by which Nav2's lifecycle manager sees that the node is alive."""

from __future__ import annotations

from typing import Any
import uuid

from kbr_localization.ros.conversions import optional_interface
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.duration import Duration
from rclpy.node import Node


def have_bonds() -> bool:
    """Whether the messages of bonds are installed, as they are with Nav2."""
    return optional_interface('bond.msg', 'Status') is not None


class Bond:
    """Heartbeats on `bond` under the node's name while it is active, from its executor."""

    def __init__(self, node: Node, period: float) -> None:
        self._node, self._period = node, period
        self._type = optional_interface('bond.msg', 'Status')
        self._publisher: Any = None

    def start(self) -> None:
        """Send heartbeats from now on."""
        if self._type is None or self._period == 0.0 or self._publisher is not None:
            return
        self._instance = str(uuid.uuid4())
        self._publisher = self._node.create_publisher(self._type, 'bond', 1)
        # simulated time may stand still while the node lives
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = self._node.create_timer(self._period, self._beat, clock=steady)

    def stop(self) -> None:
        """Say goodbye, so that the manager does not wait for the next heartbeat."""
        if self._publisher is None:
            return
        self._node.destroy_timer(self._timer)
        self._beat(active=False)
        self._publisher.wait_for_all_acked(Duration(seconds=0.5))
        self._node.destroy_publisher(self._publisher)
        self._publisher = None

    def _beat(self, active: bool = True) -> None:
        message = self._type(id=self._node.get_name(), instance_id=self._instance, active=active)
        message.header.stamp = self._node.get_clock().now().to_msg()
        # without heartbeats for 4 s the other side is dead
        message.heartbeat_timeout, message.heartbeat_period = 4.0, self._period
        self._publisher.publish(message)
