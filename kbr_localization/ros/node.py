"""
The localization node: a lifecycle node with nav2_amcl's names.

Callbacks only; the work is done in `session` by the thread of `worker`.
"""

from __future__ import annotations

import sys
import threading
import traceback
from typing import Any

from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization.errors import KbrError, LocalizationError, RosError
from kbr_localization.localization.config import FilterConfig
from kbr_localization.ros import conversions
from kbr_localization.ros.answer import GivenPose
from kbr_localization.ros.localization import Localization
from kbr_localization.ros.map_services import MapServices
from kbr_localization.ros.running import run_node, spin
from kbr_localization.ros.settings import Settings
from kbr_localization.ros.telling import Teller
from kbr_localization.ros.timed_executor import TimedExecutor
from kbr_localization.ros.transforms import have_tf
import numpy as np
from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from std_srvs.srv import Empty

SMALLEST_DEVIATION = 0.05
"""Metres and radians: a given pose is not taken to be more certain than that."""
CLOCK_JUMP_BACK = Duration(seconds=-1)


class LocalizationNode(LifecycleNode):
    """Localize a robot by its camera and odometry on a map; see docs/ros_interface.md."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            'localization', automatically_declare_parameters_from_overrides=True, **options
        )
        self.tell = Teller(self.get_logger())
        self.localization: Localization | None = None
        self.settings = Settings(self, self._follow_parameters)
        self.active = False
        self.starting = False
        self.failure: KbrError | None = None
        self._kept_pose: GivenPose | None = None
        self.create_subscription(PoseWithCovarianceStamped, 'initialpose', self._take_pose, 10)
        self.create_service(Empty, 'reinitialize_global_localization', self._reinitialize)
        self.create_service(Empty, 'request_nomotion_update', self._request_update)
        self.maps = MapServices(self, self)
        self._jump_handle = self.get_clock().create_jump_callback(
            JumpThreshold(min_forward=None, min_backward=CLOCK_JUMP_BACK, on_clock_change=False),
            post_callback=self._clock_jumped,
        )
        self._say_what_is_special()

    def _say_what_is_special(self) -> None:
        if self.settings.ignored:
            ignored = ', '.join(self.settings.ignored)
            self.tell('info', f'parameters of nav2_amcl without a meaning here: {ignored}')
        if self.settings.config.tf_broadcast and not have_tf():
            self.tell('warning', 'tf2_msgs is not installed: no transform will be broadcast')

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Read the map and open the topics."""
        return self._transition(self._configure)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Begin to work."""
        return self._transition(self._activate)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop working, keeping map and belief."""
        return self._transition(self._deactivate)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Let map and topics go."""
        return self._transition(self.clean_up)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Let everything go."""
        return self._transition(self.clean_up)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Let everything go, to be configured again."""
        return self._transition(self.clean_up)

    def _transition(self, action: Any) -> TransitionCallbackReturn:
        # rclpy swallows what a transition raises, so it is told here
        try:
            action()
        except KbrError as error:
            self.failure = error
            if not self.starting:
                self.get_logger().error(str(error))
            return TransitionCallbackReturn.FAILURE
        except Exception:
            self.get_logger().error(f'internal error:\n{traceback.format_exc()}')
            return TransitionCallbackReturn.ERROR
        return TransitionCallbackReturn.SUCCESS

    def _configure(self) -> None:
        self.localization = Localization(self, self.settings, self.tell)

    def _activate(self) -> None:
        self.configured().start()
        self._give_kept_pose()
        self.active = True

    def _deactivate(self) -> None:
        self.active = False
        self.configured().stop()

    def clean_up(self) -> None:
        """Let everything go that configuring and activating made."""
        self.active = False
        localization, self.localization = self.localization, None
        if localization is not None:
            localization.destroy()

    def configured(self) -> Localization:
        """Return what is at work; raises LocalizationError before there is anything."""
        if self.localization is None:
            raise LocalizationError('the node has no map: configure it first')
        return self.localization

    def _take_pose(self, message: PoseWithCovarianceStamped) -> None:
        try:
            given = self._given_pose(message)
        except RosError as error:
            self.tell('warning', f'initial pose refused: {error}', 0.0)
            return
        x, y, yaw = given.pose
        text = f'initial pose x {x:.2f} m, y {y:.2f} m, heading {yaw:.2f} rad'
        if self.maps.loading:
            self.maps.kept = given
            text += ', kept until the new map is read'
        else:
            self.begin_from(given)
            text += '' if self.active else ', kept until the node is active'
        self.tell('info', text, 0.0)

    def begin_from(self, given: GivenPose) -> None:
        """Start anew from a pose, as soon as the node is active."""
        if self.active:
            self.configured().session.give_pose(given)
        else:
            self._kept_pose = given

    def _given_pose(self, message: PoseWithCovarianceStamped) -> GivenPose:
        frame_id, expected = message.header.frame_id, self.settings.config.global_frame_id
        if frame_id.lstrip('/') != expected.lstrip('/'):
            raise RosError(
                f'expected frame {expected!r}, got {frame_id!r}: '
                'set the fixed frame of RViz, or global_frame_id'
            )
        pose = conversions.pose_from_message(message.pose.pose)
        covariance = conversions.covariance_from_message(message.pose.covariance)
        stamp_ns = conversions.stamp_to_ns(message.header.stamp)
        floor = SMALLEST_DEVIATION**2 - np.diag(covariance)
        return GivenPose(pose, covariance + np.diag(np.maximum(floor, 0.0)), stamp_ns or None)

    def _reinitialize(self, request: Empty.Request, response: Empty.Response) -> Empty.Response:
        if self.active:
            self.tell('info', 'global localization asked for', 0.0)
            self.configured().session.initialize_globally()
        else:
            self.tell('warning', 'global localization asked for, but the node is not active')
        return response

    def _request_update(self, request: Empty.Request, response: Empty.Response) -> Empty.Response:
        if self.active:
            self.configured().session.request_update()
        return response

    def _give_kept_pose(self) -> None:
        kept, self._kept_pose = self._kept_pose, None
        if kept is not None:
            self.configured().session.give_pose(kept)

    def _follow_parameters(self, before: FilterConfig) -> None:
        if self.localization is not None:
            self.localization.follow_settings(before)

    def _clock_jumped(self, jump: Any) -> None:
        if self.localization is not None:
            self.localization.reset('the clock jumped back')


def main(args: list[str] | None = None) -> int:
    """Run the localization node."""
    return run_node(_run, args)


def _run(stop: threading.Event) -> None:
    node = LocalizationNode()
    executor = TimedExecutor()
    executor.add_node(node)
    try:
        if node.settings.config.autostart:
            _start(node)
        spin(executor, stop)
    finally:
        node.clean_up()
        executor.shutdown()
        node.destroy_node()


def _start(node: LocalizationNode) -> None:
    """Configure and activate; a failure is raised, as the program then ends with it."""
    success = TransitionCallbackReturn.SUCCESS
    node.starting = True
    if node.trigger_configure() != success or node.trigger_activate() != success:
        raise node.failure or RosError('the node could not start: see the log')
    node.starting = False


if __name__ == '__main__':
    sys.exit(main())
