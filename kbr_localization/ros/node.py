"""The localization node: lifecycle, services and parameters; `Session.work` localizes."""

from collections.abc import Callable
from functools import partial
import gc
import sys
import traceback
from typing import Any, cast

from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization.errors import KbrError, LocalizationError, MapError, RosError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.localizer import check_start
from kbr_localization.ros import conversions
from kbr_localization.ros.conversions import optional_interface
from kbr_localization.ros.localization import Localization
from kbr_localization.ros.maps import MapInUse
from kbr_localization.ros.parameters import ParameterNode, Settings
from kbr_localization.ros.running import program, spin
from kbr_localization.ros.session import GivenPose, Session
import numpy as np
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from rclpy.task import Future
from std_srvs.srv import Empty, Trigger


def _transition(action: Callable[[Any], None]) -> Callable[..., TransitionCallbackReturn]:
    """Log the errors of a transition and return its result; rclpy would hide them."""

    def transition(self: Any, state: LifecycleState) -> TransitionCallbackReturn:
        try:
            action(self)
        except KbrError as error:
            self.get_logger().error(str(error))
            return TransitionCallbackReturn.FAILURE
        except Exception:
            self.get_logger().error(f'internal error:\n{traceback.format_exc()}')
            return TransitionCallbackReturn.ERROR
        return TransitionCallbackReturn.SUCCESS

    return transition


class LocalizationNode(ParameterNode, LifecycleNode):
    """Localize a robot by its camera and odometry on a map; see docs/ros_interface.md."""

    def __init__(self, **options: Any) -> None:
        super().__init__('localization', **options)
        self.localization: Localization | None = None
        self.settings = Settings(self, self._follow_parameters)
        self.active = self._loading = False
        self._deferred_start: Callable[[Session], None] | None = None
        self._create_services()
        pose_type = PoseWithCovarianceStamped
        self.create_subscription(pose_type, 'initialpose', self._on_initial_pose, 10)
        self._log_missing_packages()

    def _create_services(self) -> None:
        # with the default depth of ten, requests of many clients at once are lost
        create = partial(self.create_service, qos_profile=QoSProfile(depth=1000))
        create(Empty, 'reinitialize_global_localization', self._reinitialize)
        create(Empty, 'request_nomotion_update', self._request_update)
        set_initial_pose = optional_interface('nav2_msgs.srv', 'SetInitialPose')
        if set_initial_pose is not None:
            create(set_initial_pose, 'set_initial_pose', self._set_initial_pose)
        # a callback that awaits blocks its group, so it must not be in the group of the node
        group = ReentrantCallbackGroup()
        for name in ('', *self.settings.config.maps):
            service = f'~/load_map/{name}' if name else '~/load_map'
            create(Trigger, service, partial(self._load_map, name), callback_group=group)

    def _log_missing_packages(self) -> None:
        config = self.settings.config
        if config.tf_broadcast and optional_interface('tf2_msgs.msg', 'TFMessage') is None:
            self.log('warning', 'tf2_msgs is not installed: no transform will be broadcast')
        if optional_interface('nav2_msgs.msg', 'ParticleCloud') is None:
            without = 'particle_cloud is a PoseArray, there is no service set_initial_pose'
            self.log('info', f'nav2_msgs is not installed: {without}')
        if not (config.autostart or optional_interface('bond.msg', 'Status')):
            self.log('info', "bond is not installed: set the manager's bond_timeout to 0.0")

    @_transition
    def on_configure(self) -> None:
        self._permanent = {*self.publishers, *self.subscriptions}
        try:
            self.localization = Localization(self, self.settings)
        except BaseException:
            self._close_topics()  # some may be open when another one is refused
            raise

    @_transition
    def on_activate(self) -> None:
        self._configured().start()
        self.active = True
        self._run_deferred_start()

    @_transition
    def on_deactivate(self) -> None:
        self.active = False
        self._configured().stop()

    def clean_up(self) -> None:
        self.active = False
        if self.localization is not None:
            self.localization.destroy()
            self.localization = None
            self._close_topics()
            gc.collect()  # its parts refer to each other, so the map would stay in memory

    on_cleanup = on_shutdown = on_error = _transition(clean_up)

    def _close_topics(self) -> None:
        for publisher in {*self.publishers} - self._permanent:
            self.destroy_publisher(publisher)
        for subscription in {*self.subscriptions} - self._permanent:
            self.destroy_subscription(subscription)

    def _configured(self) -> Localization:
        if self.localization is None:
            raise LocalizationError('the node has no map: configure it first')
        return self.localization

    def _follow_parameters(self, before: KbrConfig) -> None:
        if self.localization is not None and self.settings.filter != before:
            session = self.localization.session
            session.request(session.replace_tracker)

    def _start_belief(self, start: Callable[[Session], None]) -> str:
        """Start now, or else later: then replace an earlier request, and return text on when."""
        if self.active and not self._loading:
            session = self._configured().session
            session.request(partial(start, session))
            return ''
        self._deferred_start = start
        return f', kept until {"the new map is read" if self._loading else "the node is active"}'

    def _run_deferred_start(self) -> None:
        start, self._deferred_start = self._deferred_start, None
        if start is not None:
            self._start_belief(start)

    def _reinitialize(self, request: Empty.Request, response: Empty.Response) -> Empty.Response:
        when = self._start_belief(Session.start_globally)
        self.log('info', f'global localization requested{when}', 1.0)
        return response

    def _request_update(self, request: Empty.Request, response: Empty.Response) -> Empty.Response:
        if self.active:
            session = self._configured().session
            session.request(session.tracker.localizer.request_update)
        else:
            self.log('warning', 'an update was requested, but the node is not active')
        return response

    def _set_initial_pose(self, request: Any, response: Any) -> Any:
        self._on_initial_pose(request.pose)
        return response

    def _on_initial_pose(self, message: PoseWithCovarianceStamped) -> None:
        # the limit of 1 s logs each click of a user, but not each pose of a stream
        try:
            given = self._given_pose(message)
        except KbrError as error:
            self.log('warning', f'initial pose refused: {error}', 1.0)
            return
        when = self._start_belief(lambda session: session.start_from(given))
        text = 'initial pose x {:.2f} m, y {:.2f} m, heading {:.2f} rad'.format(*given.pose)
        self.log('info', text + when, 1.0)

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
        check_start(pose, covariance)
        # no given pose is more accurate than 5 cm and 0.05 rad
        floor = np.diag(np.maximum(0.05**2 - np.diag(covariance), 0.0))
        stamp_ns = conversions.stamp_to_ns(message.header.stamp)
        return GivenPose(pose, covariance + floor, stamp_ns or None)

    async def _load_map(
        self, name: str, request: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        try:
            response.message, response.success = await self._load(name), True
        except KbrError as error:
            response.message = str(error)
        level = 'info' if response.success else 'error'
        self.log(level, f'load_map: {response.message}', 1.0)
        return response

    async def _load(self, name: str) -> str:
        """Switch to another map; raises KbrError and keeps the present one if that fails."""
        if self._loading:
            raise MapError('another map is being read: call again when it is loaded')
        self._loading, self._deferred_start = True, None
        try:
            localization = self._configured()
            read = partial(localization.open_map, name)
            loaded = cast(MapInUse, await _future(localization.background.submit, read))
            self._check_not_reconfigured(localization)
            self.settings.follow_map(loaded.kernel_map.filter_config)
            # poses on the old map may be published until the worker has switched
            session = localization.session
            switched = _future(session.request, partial(localization.use_map, loaded))
            if not self.active:
                session.run_requests()
            await switched
            self._check_not_reconfigured(localization)
        except KbrError as error:
            self._deferred_start = None  # it was meant for the new map
            raise MapError(f'the map stays as it was: {error}') from error
        finally:
            self._loading = False
            if self.localization is not None:  # make the parameter name the map in use
                in_use = self.localization.growing.in_use.name
                self.set_parameters([Parameter('map_file', value=in_use)])
        self._run_deferred_start()
        return f'{loaded.name}: {len(loaded.kernel_map)} images'

    def _check_not_reconfigured(self, localization: Localization) -> None:
        if self.localization is not localization:
            raise LocalizationError('the node was configured again meanwhile: call again')


def _future(submit: Callable[[Callable[[], None]], Any], action: Callable[[], Any]) -> Future[Any]:
    """Submit an action to another thread; return the future of its result or KbrError."""
    future: Future[Any] = Future()

    def act() -> None:
        try:
            future.set_result(action())
        except KbrError as error:
            future.set_exception(error)
        except Exception as error:  # a bug must not end the node
            future.set_exception(LocalizationError(f'internal error: {error!r}'))
            raise

    submit(act)
    return future


@program
def main() -> None:
    node = LocalizationNode()
    success = TransitionCallbackReturn.SUCCESS
    try:
        if node.settings.config.autostart and (
            node.trigger_configure() != success or node.trigger_activate() != success
        ):
            sys.exit(2)  # the reason is in the log
        spin(node)
    finally:
        node.clean_up()
        node.destroy_node()


if __name__ == '__main__':
    sys.exit(main())
