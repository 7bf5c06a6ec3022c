"""
The localization node: a lifecycle node with nav2_amcl's names.

Callbacks only; `session.work` does the work in the thread of a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import gc
import sys
import threading
import traceback
from typing import Any, cast, TypeVar

from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization.errors import KbrError, LocalizationError, MapError, RosError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.localizer import check_start
from kbr_localization.ros import conversions
from kbr_localization.ros.config import parse_map_files
from kbr_localization.ros.conversions import optional_interface
from kbr_localization.ros.localization import Localization
from kbr_localization.ros.parameters import ParameterNode, Settings
from kbr_localization.ros.running import Durations, NodeLogger, run_program, spin
from kbr_localization.ros.session import GivenPose
import numpy as np
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from rclpy.task import Future
from std_srvs.srv import Empty, Trigger

Result = TypeVar('Result')
BUSY = 'another map is being read: call again when it is there'
SERVICE_QOS = QoSProfile(depth=1000)
"""With the default of ten, requests of many clients at once are lost without an answer."""


class LocalizationNode(ParameterNode, LifecycleNode):
    """Localize a robot by its camera and odometry on a map; see docs/ros_interface.md."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            'localization', automatically_declare_parameters_from_overrides=True, **options
        )
        self.log = NodeLogger(self.get_logger())
        self.callback_durations = Durations(1000)
        self.localization: Localization | None = None
        self.settings = Settings(self, self._follow_parameters)
        self.active = False
        self.failure: KbrError | None = None
        self._kept_pose: GivenPose | None = None
        self._loading = self._start_globally = False
        self._create_services()
        self.create_subscription(
            PoseWithCovarianceStamped, 'initialpose', self._take_initial_pose, 10
        )
        self._jump_handle = self.get_clock().create_jump_callback(
            JumpThreshold(
                min_forward=None, min_backward=Duration(seconds=-1), on_clock_change=False
            ),
            post_callback=self._clock_jumped,
        )
        self._log_special_settings()

    def _create_services(self) -> None:
        create = partial(self.create_service, qos_profile=SERVICE_QOS)
        create(Empty, 'reinitialize_global_localization', self._reinitialize)
        create(Empty, 'request_nomotion_update', self._request_update)
        set_initial_pose = optional_interface('nav2_msgs.srv', 'SetInitialPose')
        if set_initial_pose is not None:
            create(set_initial_pose, 'set_initial_pose', self._set_initial_pose)
        # rclpy holds the group of a callback that awaits: the node's own would block all others
        group = ReentrantCallbackGroup()
        for name in ('', *parse_map_files(self.settings.config.map_files)):
            service = f'~/load_map/{name}' if name else '~/load_map'
            create(Trigger, service, partial(self._load_map, name), callback_group=group)
        create(Trigger, '~/add_current', self._add_current, callback_group=group)

    def _log_special_settings(self) -> None:
        settings = self.settings
        if (
            settings.config.tf_broadcast
            and optional_interface('tf2_msgs.msg', 'TFMessage') is None
        ):
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
        """Release map and topics."""
        return self._transition(self.clean_up)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything."""
        return self._transition(self.clean_up)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything, to be configured again."""
        return self._transition(self.clean_up)

    def _transition(self, action: Callable[[], None]) -> TransitionCallbackReturn:
        # rclpy swallows what a transition raises
        try:
            action()
        except KbrError as error:
            self.failure = error.with_traceback(None)  # it holds the map and its claim
            self.get_logger().error(str(error))
            return TransitionCallbackReturn.FAILURE
        except Exception:
            self.get_logger().error(f'internal error:\n{traceback.format_exc()}')
            return TransitionCallbackReturn.ERROR
        return TransitionCallbackReturn.SUCCESS

    def _configure(self) -> None:
        before = [*self.publishers, *self.subscriptions]
        try:
            self.localization = Localization(
                self, self.settings, self.log, self.callback_durations
            )
        except BaseException:
            # of several topics one may be refused when others are open
            for publisher in set(self.publishers) - set(before):
                self.destroy_publisher(publisher)
            for subscription in set(self.subscriptions) - set(before):
                self.destroy_subscription(subscription)
            raise

    def _activate(self) -> None:
        self._configured().start()
        self.active = True
        self._give_kept_pose()

    def _deactivate(self) -> None:
        self.active = False
        self._configured().stop()

    def clean_up(self) -> None:
        """Release everything that configuring and activating made."""
        self.active = False
        localization, self.localization = self.localization, None
        if localization is not None:
            localization.destroy()
            del localization
            # its parts refer to each other, and Python would keep twenty maps
            gc.collect()

    def _configured(self) -> Localization:
        if self.localization is None:
            raise LocalizationError('the node has no map: configure it first')
        return self.localization

    def _follow_parameters(self, before: KbrConfig) -> None:
        if self.localization is not None:
            self.localization.follow_settings(before)

    def _clock_jumped(self, jump: Any) -> None:
        if self.localization is not None:
            self.localization.session.reset('the clock jumped back')

    def _reinitialize(self, request: Empty.Request, response: Empty.Response) -> Empty.Response:
        if self.active:
            # of requests for a map that is being read the last one counts
            self._kept_pose, self._start_globally = None, True
            self.log('info', 'global localization asked for', 1.0)
            self._configured().session.initialize_globally()
        else:
            self.log('warning', 'global localization asked for, but the node is not active')
        return response

    def _request_update(self, request: Empty.Request, response: Empty.Response) -> Empty.Response:
        if self.active:
            session = self._configured().session
            session.request_update()
        else:
            self.log('warning', 'an update asked for, but the node is not active')
        return response

    def _set_initial_pose(self, request: Any, response: Any) -> Any:
        self._take_initial_pose(request.pose)
        return response

    def _take_initial_pose(self, message: PoseWithCovarianceStamped) -> None:
        # log each click, but not each of a stream of poses
        try:
            given = self._given_pose(message)
            x, y, yaw = given.pose
            text = f'initial pose x {x:.2f} m, y {y:.2f} m, heading {yaw:.2f} rad'
            if self._loading:
                self._kept_pose = given
                text += ', kept until the new map is read'
            else:
                self._begin_from(given)
                text += '' if self.active else ', kept until the node is active'
        except KbrError as error:
            self.log('warning', f'initial pose refused: {error}', 1.0)
            return
        self.log('info', text, 1.0)

    def _given_pose(self, message: PoseWithCovarianceStamped) -> GivenPose:
        frame_id, expected = message.header.frame_id, self.settings.config.global_frame_id
        if frame_id.lstrip('/') != expected:
            raise RosError(
                f'expected frame {expected!r}, got {frame_id!r}: '
                'set the fixed frame of RViz, or global_frame_id'
            )
        pose = conversions.pose_from_message(message.pose.pose)
        covariance = conversions.covariance_from_message(message.pose.covariance)
        if not covariance.any():  # unset, as BasicNavigator leaves it
            covariance = self.settings.initial_pose.covariance
        stamp_ns = conversions.stamp_to_ns(message.header.stamp)
        check_start(pose, covariance)
        # nobody knows a pose better than to 5 cm and 0.05 rad
        floor = 0.05**2 - np.diag(covariance)
        return GivenPose(pose, covariance + np.diag(np.maximum(floor, 0.0)), stamp_ns or None)

    def _begin_from(self, given: GivenPose) -> None:
        """Restart from a pose when the node is active; raises RosError far off the map."""
        if self.localization is not None:
            self.localization.check_is_near(given.pose)
        if self.active:
            self._configured().session.give_pose(given)
        else:
            self._kept_pose = given

    def _give_kept_pose(self) -> None:
        kept, self._kept_pose = self._kept_pose, None
        if kept is None:
            return
        try:
            self._begin_from(kept)
        except RosError as error:
            self.log('warning', f'initial pose refused: {error}', 0.0)

    async def _load_map(
        self, name: str, request: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        if self._loading:
            response.message = BUSY
        else:
            self._loading, self._start_globally = True, False
            try:
                await self._load(name, response)
            finally:
                self._loading = False
            self._start_on_loaded(response.success)
        self._log_answer('load_map', response)
        return response

    async def _load(self, name: str, response: Trigger.Response) -> None:
        try:
            localization = self._configured()
            loaded = await _in(localization.in_background, partial(localization.read_map, name))
            self._check_is_same(localization)
            localization.follow_map(loaded)
            use = partial(localization.use_map, loaded)
            if localization.is_working:
                # until then poses on the old map may come
                await _in(localization.session.switch_map, use)
                self._check_is_same(localization)
            else:
                localization.session.switch_map(use)
                localization.do_requests()
            response.success = True
            response.message = f'{loaded.name}: {len(loaded.kernel_map)} images'
        except KbrError as error:
            response.success, response.message = False, f'the map stays as it was: {error}'
        if (
            self.localization is not None
        ):  # also after a failure the parameter names the map in use
            in_use = self.localization.growing.in_use.name
            self.set_parameters([Parameter('map_file', value=in_use)])

    def _start_on_loaded(self, loaded: bool) -> None:
        """Start as was asked for while the map was read, if that is in use now."""
        if not loaded and self._kept_pose is not None:
            self._kept_pose = None
            text = 'initial pose dropped: it was meant for the map that could not be loaded'
            self.log('warning', text, 0.0)
        elif loaded and self._start_globally:
            self._configured().session.initialize_globally()
        elif loaded:
            self._give_kept_pose()

    async def _add_current(
        self, request: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        try:
            if self._loading:  # the file would get what the map that is being read has not
                raise MapError(BUSY)
            localization = self._configured()
            if not localization.is_working:
                raise LocalizationError('the node is not active: activate it first')
            added = await _in(localization.session.request, localization.add_current)
            self._check_is_same(localization)
            try:
                path = await _in(localization.in_background, localization.growing.save)
            except MapError as error:
                raise MapError(f'{added}, to be written later: {error}') from error
            response.success, response.message = True, f'{added}, written to {path}'
        except KbrError as error:
            response.success, response.message = False, str(error)
        self._log_answer('add_current', response)
        return response

    def _check_is_same(self, localization: Localization) -> None:
        if self.localization is not localization:
            raise LocalizationError('the node was configured anew meanwhile: call again')

    def _log_answer(self, service: str, response: Trigger.Response) -> None:
        level = 'info' if response.success else 'error'
        self.log(level, f'{service}: {response.message}', 1.0)


async def _in(submit: Callable[[Callable[[], None]], Any], action: Callable[[], Result]) -> Result:
    """Have another thread do something and wait for it without holding up this one."""
    future: Future[Result] = Future()

    def act() -> None:
        try:
            future.set_result(action())
        except KbrError as error:
            future.set_exception(error)
        except Exception as error:  # a bug must not end the node
            future.set_exception(LocalizationError(f'internal error: {error!r}'))
            raise

    submit(act)
    return cast(Result, await future)


def main(args: list[str] | None = None) -> int:
    """Run the localization node."""
    return run_program(_run, args)


def _run(stop: threading.Event) -> None:
    node = LocalizationNode()
    success = TransitionCallbackReturn.SUCCESS
    try:
        if node.settings.config.autostart and (
            node.trigger_configure() != success or node.trigger_activate() != success
        ):
            sys.exit(2)  # the reason is in the log
        spin(node, stop, node.callback_durations)
    finally:
        node.clean_up()
        node.destroy_node()


if __name__ == '__main__':
    sys.exit(main())
