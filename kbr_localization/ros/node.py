"""The localization node, of callbacks only: `Session.work` does the work in a thread."""

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
from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from rclpy.task import Future
from std_srvs.srv import Empty, Trigger


def _transition(action: Callable[[Any], None]) -> Callable[..., TransitionCallbackReturn]:
    """Make a transition, which may fail, of an action; rclpy swallows what a transition raises."""

    def make(self: Any, state: LifecycleState) -> TransitionCallbackReturn:
        try:
            action(self)
        except KbrError as error:
            self.get_logger().error(str(error))
            return TransitionCallbackReturn.FAILURE
        except Exception:
            self.get_logger().error(f'internal error:\n{traceback.format_exc()}')
            return TransitionCallbackReturn.ERROR
        return TransitionCallbackReturn.SUCCESS

    return make


class LocalizationNode(ParameterNode, LifecycleNode):
    """Localize a robot by its camera and odometry on a map; see docs/ros_interface.md."""

    def __init__(self, **options: Any) -> None:
        super().__init__('localization', **options)
        self.localization: Localization | None = None
        self.settings = Settings(self, self._follow_parameters)
        self.active = self._loading = False
        self._kept: Callable[[Session], None] | None = None
        self._create_services()
        take = self._take_initial_pose
        self.create_subscription(PoseWithCovarianceStamped, 'initialpose', take, 10)
        back = JumpThreshold(
            min_forward=None, min_backward=Duration(seconds=-1), on_clock_change=False
        )
        self._jump_handle = self.get_clock().create_jump_callback(
            back, post_callback=self._clock_jumped
        )
        self._log_special_settings()

    def _create_services(self) -> None:
        # of the default of ten, requests of many clients at once are lost without an answer
        create = partial(self.create_service, qos_profile=QoSProfile(depth=1000))
        create(Empty, 'reinitialize_global_localization', self._reinitialize)
        create(Empty, 'request_nomotion_update', self._request_update)
        set_initial_pose = optional_interface('nav2_msgs.srv', 'SetInitialPose')
        if set_initial_pose is not None:
            create(set_initial_pose, 'set_initial_pose', self._set_initial_pose)
        # rclpy holds the group of a callback that awaits: the node's own would block all others
        group = ReentrantCallbackGroup()
        for name in ('', *self.settings.config.maps):
            service = f'~/load_map/{name}' if name else '~/load_map'
            create(Trigger, service, partial(self._load_map, name), callback_group=group)

    def _log_special_settings(self) -> None:
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
        """Read the map and open the topics."""
        self._lasting = {*self.publishers, *self.subscriptions}
        try:
            self.localization = Localization(self, self.settings)
        except BaseException:
            self._close_topics()  # of several one may be refused when others are open
            raise

    @_transition
    def on_activate(self) -> None:
        """Begin to work."""
        self._configured().start()
        self.active = True
        self._start_as_kept()

    @_transition
    def on_deactivate(self) -> None:
        """Stop working, keeping map and belief."""
        self.active = False
        self._configured().stop()

    def clean_up(self) -> None:
        """Release everything that configuring and activating made."""
        self.active = False
        if self.localization is not None:
            self.localization.destroy()
            self.localization = None
            self._close_topics()
            gc.collect()  # its parts refer to each other, and Python would keep twenty maps

    on_cleanup = on_shutdown = on_error = _transition(clean_up)

    def _close_topics(self) -> None:
        for publisher in {*self.publishers} - self._lasting:
            self.destroy_publisher(publisher)
        for subscription in {*self.subscriptions} - self._lasting:
            self.destroy_subscription(subscription)

    def _configured(self) -> Localization:
        if self.localization is None:
            raise LocalizationError('the node has no map: configure it first')
        return self.localization

    def _follow_parameters(self, before: KbrConfig) -> None:
        if self.localization is not None and self.settings.filter != before:
            session = self.localization.session
            session.request(session.replace_tracker)

    def _clock_jumped(self, jump: Any) -> None:
        if self.localization is not None:
            self.localization.session.reset('the clock jumped back')

    def _start(self, begin: Callable[[Session], None]) -> str:
        """Start a belief now, or else say when."""
        if self.active and not self._loading:
            session = self._configured().session
            session.request(partial(begin, session))
            return ''
        self._kept = begin  # the last one counts
        return f', kept until {"the new map is read" if self._loading else "the node is active"}'

    def _start_as_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            self._start(kept)

    def _reinitialize(self, request: Empty.Request, response: Empty.Response) -> Empty.Response:
        when = self._start(Session.begin_globally)
        self.log('info', f'global localization asked for{when}', 1.0)
        return response

    def _request_update(self, request: Empty.Request, response: Empty.Response) -> Empty.Response:
        if self.active:
            session = self._configured().session
            session.request(session.tracker.localizer.request_update)
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
        except KbrError as error:
            self.log('warning', f'initial pose refused: {error}', 1.0)
            return
        when = self._start(lambda session: session.begin_from(given))
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
        # nobody knows a pose better than to 5 cm and 0.05 rad
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
        """Go on with another map; raises KbrError, and the map stays as it was."""
        if self._loading:
            raise MapError('another map is being read: call again when it is there')
        self._loading, self._kept = True, None
        try:
            localization = self._configured()
            read = partial(localization.read_map, name)
            loaded = cast(MapInUse, await _done(localization.background.submit, read))
            self._check_is_same(localization)
            self.settings.follow_map(loaded.kernel_map.filter_config)
            # until then poses on the old map may come
            session = localization.session
            switched = _done(session.request, partial(localization.use_map, loaded))
            if not self.active:
                session.do_requests()
            await switched
            self._check_is_same(localization)
        except KbrError as error:
            self._kept = None  # it was meant for that map
            raise MapError(f'the map stays as it was: {error}') from error
        finally:
            self._loading = False
            if self.localization is not None:  # the parameter names the map in use
                in_use = self.localization.growing.in_use.name
                self.set_parameters([Parameter('map_file', value=in_use)])
        self._start_as_kept()
        return f'{loaded.name}: {len(loaded.kernel_map)} images'

    def _check_is_same(self, localization: Localization) -> None:
        if self.localization is not localization:
            raise LocalizationError('the node was configured anew meanwhile: call again')


def _done(submit: Callable[[Callable[[], None]], Any], action: Callable[[], Any]) -> Future[Any]:
    """Have another thread do something; give the future of what it returns or raises."""
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
    """Run the localization node."""
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
