"""
The localization node: a lifecycle node with nav2_amcl's names.

Callbacks only; the work is done in `session` by the thread of `worker`.
"""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from typing import Any

from kbr_localization.errors import KbrError, LocalizationError, RosError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.ros.common.bond import Bond, have_bonds
from kbr_localization.ros.common.node_logger import NodeLogger
from kbr_localization.ros.common.running import interruptible, run_node, spin, TimedExecutor
from kbr_localization.ros.inputs.transforms import have_tf
from kbr_localization.ros.node.initial_pose import InitialPoseInput
from kbr_localization.ros.node.localization import Localization
from kbr_localization.ros.node.map_services import MapServices
from kbr_localization.ros.parameters import parameters
from kbr_localization.ros.parameters.parameter_files import shared_names
from kbr_localization.ros.parameters.settings import names, SettableNode, Settings
from kbr_localization.ros.session.answer import GivenPose
from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from std_srvs.srv import Empty

CLOCK_JUMP_BACK = Duration(seconds=-1)


class LocalizationNode(SettableNode, LifecycleNode):
    """Localize a robot by its camera and odometry on a map; see docs/ros_interface.md."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            'localization', automatically_declare_parameters_from_overrides=True, **options
        )
        self.log = NodeLogger(self.get_logger())
        self.localization: Localization | None = None
        shared = shared_names(options.get('cli_args') or (), self.get_name())
        self.settings = Settings(self, self._follow_parameters, shared)
        self.active = False
        self.starting = False
        self.failure: KbrError | None = None
        self._kept_pose: GivenPose | None = None
        self.create_service(Empty, 'reinitialize_global_localization', self._reinitialize)
        self.create_service(Empty, 'request_nomotion_update', self._request_update)
        self.maps = MapServices(self, self)
        self._initial_poses = InitialPoseInput(self, self)
        self._bond = Bond(self, self.settings.config.bond_heartbeat_period)
        self._jump_handle = self.get_clock().create_jump_callback(
            JumpThreshold(min_forward=None, min_backward=CLOCK_JUMP_BACK, on_clock_change=False),
            post_callback=self._clock_jumped,
        )
        self._say_what_is_special()

    def _say_what_is_special(self) -> None:
        if self.settings.ignored:
            ignored = ', '.join(self.settings.ignored)
            self.log('info', f'parameters of nav2_amcl without a meaning here: {ignored}')
        for name in self.settings.foreign:
            remedy = parameters.hint(name, names())
            self.log('info', f'parameter {name!r} for all nodes is none of this one: {remedy}')
        if not (self.settings.config.autostart or have_bonds()):
            self.log('info', 'no bond is installed: set bond_timeout of the manager to 0.0')
        if self.settings.config.tf_broadcast and not have_tf():
            self.log('warning', 'tf2_msgs is not installed: no transform will be broadcast')

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
            self.failure = error.with_traceback(None)  # it holds the map and its claim
            if not self.starting:
                self.get_logger().error(str(error))
            return TransitionCallbackReturn.FAILURE
        except KeyboardInterrupt:
            return TransitionCallbackReturn.FAILURE
        except Exception:
            self.get_logger().error(f'internal error:\n{traceback.format_exc()}')
            return TransitionCallbackReturn.ERROR
        return TransitionCallbackReturn.SUCCESS

    def _configure(self) -> None:
        before = [*self.publishers, *self.subscriptions]
        try:
            with interruptible():
                self.localization = Localization(self, self.settings, self.log)
        except BaseException:
            # of several topics one may be refused when others are open
            for publisher in self.publishers:
                if publisher not in before:
                    self.destroy_publisher(publisher)
            for subscription in self.subscriptions:
                if subscription not in before:
                    self.destroy_subscription(subscription)
            raise

    def _activate(self) -> None:
        self.configured().start()
        self.active = True
        self._give_kept_pose()
        if not self.settings.config.autostart:
            self._bond.start()

    def _deactivate(self) -> None:
        self._bond.stop()
        self.active = False
        self.configured().stop()

    def clean_up(self) -> None:
        """Let everything go that configuring and activating made."""
        self._bond.stop()
        self.active = False
        localization, self.localization = self.localization, None
        if localization is not None:
            localization.destroy()
            del localization
            # its parts know each other, and with so few objects Python would keep twenty maps
            gc.collect()

    def configured(self) -> Localization:
        """Return what is at work; raises LocalizationError before there is anything."""
        if self.localization is None:
            raise LocalizationError('the node has no map: configure it first')
        return self.localization

    def begin_from(self, given: GivenPose) -> None:
        """
        Start anew from a pose, as soon as the node is active.

        Raises RosError for one off the map, LocalizationError where an active node has no map.
        """
        if self.localization is not None:
            self.localization.check_is_near(given.pose)
        if self.active:
            self.configured().session.give_pose(given)
        else:
            self._kept_pose = given

    def _reinitialize(self, request: Empty.Request, response: Empty.Response) -> Empty.Response:
        if self.active:
            # of requests for a map that is being read the last one counts
            self.maps.kept, self.maps.globally = None, True
            self.log('info', 'global localization asked for', 0.0)
            self.configured().session.initialize_globally()
        else:
            self.log('warning', 'global localization asked for, but the node is not active')
        return response

    def _request_update(self, request: Empty.Request, response: Empty.Response) -> Empty.Response:
        if self.active:
            session = self.configured().session
            session.request(session.tracking.request_update)
        else:
            self.log('warning', 'an update asked for, but the node is not active')
        return response

    def _give_kept_pose(self) -> None:
        kept, self._kept_pose = self._kept_pose, None
        if kept is None:
            return
        try:
            self.begin_from(kept)
        except RosError as error:
            self.log('warning', f'initial pose refused: {error}', 0.0)

    def _follow_parameters(self, before: KbrConfig) -> None:
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
            _start(node, stop)
        spin(executor, stop)
    finally:
        node.clean_up()
        executor.shutdown()
        node.destroy_node()


def _start(node: LocalizationNode, stop: threading.Event) -> None:
    """Configure and activate; a failure is raised, as the program then ends with it."""
    success = TransitionCallbackReturn.SUCCESS
    node.starting = True
    if node.trigger_configure() != success or node.trigger_activate() != success:
        if node.failure is None and stop.is_set():
            return
        raise node.failure or RosError('the node could not start: see the log')
    node.starting = False


if __name__ == '__main__':
    sys.exit(main())
