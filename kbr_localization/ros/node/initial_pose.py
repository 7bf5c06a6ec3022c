"""Poses that people and other nodes give: RViz on a topic, Nav2 by a service."""

from __future__ import annotations

from typing import Any, Protocol

from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization.errors import KbrError, RosError
from kbr_localization.localization.localizer import check_start
from kbr_localization.ros.common import conversions
from kbr_localization.ros.common.node_logger import NodeLogger
from kbr_localization.ros.common.optional import interface
from kbr_localization.ros.node.map_services import MapServices
from kbr_localization.ros.parameters.settings import Settings
from kbr_localization.ros.session.answer import GivenPose
import numpy as np
from rclpy.node import Node

QUIET_SECONDS = 1.0
"""Each click is told, but not each of a stream of poses."""
SMALLEST_DEVIATION = 0.05
"""Metres and radians: a given pose is not taken to be more certain than that."""


class Owner(Protocol):
    """What the inputs need to know of their node."""

    settings: Settings
    log: NodeLogger
    maps: MapServices
    active: bool

    def begin_from(self, given: GivenPose) -> None:
        """Start anew from a pose; raises RosError when it is none on the map."""
        ...


class InitialPoseInput:
    """The topic `initialpose`, and the service `set_initial_pose` where nav2_msgs is installed."""

    def __init__(self, node: Node, owner: Owner) -> None:
        self._owner = owner
        node.create_subscription(PoseWithCovarianceStamped, 'initialpose', self._take, 10)
        service_type = interface('nav2_msgs.srv', 'SetInitialPose')
        if service_type is not None:
            node.create_service(service_type, 'set_initial_pose', self._serve)

    def _serve(self, request: Any, response: Any) -> Any:
        self._take(request.pose)
        return response

    def _take(self, message: PoseWithCovarianceStamped) -> None:
        owner = self._owner
        try:
            given = self._given_pose(message)
            x, y, yaw = given.pose
            text = f'initial pose x {x:.2f} m, y {y:.2f} m, heading {yaw:.2f} rad'
            if owner.maps.loading:
                owner.maps.kept = given
                text += ', kept until the new map is read'
            else:
                owner.begin_from(given)
                text += '' if owner.active else ', kept until the node is active'
        except KbrError as error:
            owner.log('warning', f'initial pose refused: {error}', QUIET_SECONDS)
            return
        owner.log('info', text, QUIET_SECONDS)

    def _given_pose(self, message: PoseWithCovarianceStamped) -> GivenPose:
        frame_id = message.header.frame_id
        expected = self._owner.settings.config.global_frame_id
        if frame_id.lstrip('/') != expected.lstrip('/'):
            raise RosError(
                f'expected frame {expected!r}, got {frame_id!r}: '
                'set the fixed frame of RViz, or global_frame_id'
            )
        pose = conversions.pose_from_message(message.pose.pose)
        covariance = conversions.covariance_from_message(message.pose.covariance)
        if not covariance.any():  # unset, as BasicNavigator leaves it
            covariance = self._owner.settings.initial_pose.covariance
        stamp_ns = conversions.stamp_to_ns(message.header.stamp)
        check_start(pose, covariance)
        floor = SMALLEST_DEVIATION**2 - np.diag(covariance)
        return GivenPose(pose, covariance + np.diag(np.maximum(floor, 0.0)), stamp_ns or None)
