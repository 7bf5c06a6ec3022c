"""A localization that runs on a node: made when it is configured, taken down at cleanup."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
import dataclasses
import secrets
import traceback

from kbr_localization import se2
from kbr_localization.errors import KbrError, MapError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.registry import make_localizer
from kbr_localization.localization.pipeline import Tracker
from kbr_localization.ros.common.clock_source import ClockSource
from kbr_localization.ros.common.node_logger import listed, NodeLogger
from kbr_localization.ros.common.worker import Worker
from kbr_localization.ros.inputs.inputs import InputConfig, Inputs
from kbr_localization.ros.maps.map_keeper import MapKeeper
from kbr_localization.ros.maps.pose_keeper import PoseKeeper
from kbr_localization.ros.node.outputs import Outputs
from kbr_localization.ros.node.reporter import Reporter
from kbr_localization.ros.parameters.node_config import NodeConfig
from kbr_localization.ros.parameters.settings import Settings
from kbr_localization.ros.session import initial_pose_sources
from kbr_localization.ros.session.answer import Answer
from kbr_localization.ros.session.feed import Feed
from kbr_localization.ros.session.registry import MapInUse, MapRegistry
from kbr_localization.ros.session.session import Session
from rclpy.node import Node


class Localization:
    """
    Map, session, worker, inputs and outputs of a configured node.

    Raises MapError when the map cannot be read, ConfigurationError when none is named.
    """

    def __init__(self, node: Node, settings: Settings, log: NodeLogger) -> None:
        self._node, self._settings, self._log = node, settings, log
        config = settings.config
        self.pose_file = initial_pose_sources.pose_file(config, node)
        self._registry = MapRegistry(
            config.map_files, config.grow_into, log, config.image_topics, config.grow_in_place
        )
        saved = initial_pose_sources.saved_pose(self.pose_file, config, log)
        in_use = initial_pose_sources.first_map(saved, self._registry, config.map_file, log)
        settings.follow_map(in_use.kernel_map.filter_config)
        # saving waits for the disk, loading a map for more: neither in a callback
        self._background = ThreadPoolExecutor(1, thread_name_prefix='background')
        self.keeper = MapKeeper(in_use, lambda: settings.config, self._background, log)
        self._clock = ClockSource(node)
        self._poses = PoseKeeper(
            self.pose_file, lambda: settings.config, self._background, log, self._clock
        )
        self._feed = Feed.configured(config)
        sources = initial_pose_sources.gather(settings, saved, in_use, self._clock, log)
        self.session = Session(self._make_tracker, sources, log, self._forget_outputs, self._feed)
        self.outputs = Outputs(node, config, in_use.kernel_map)
        if not self.outputs.has_nav2:
            log.once(
                'info',
                'nav2_msgs is not installed: particle_cloud is a geometry_msgs/PoseArray, and '
                'there is no service set_initial_pose',
            )
        self.inputs = Inputs(
            node, _input_config(config), self.session, log, self.outputs.follow_odometry
        )
        self._reporter: Reporter | None = None
        self._worker: Worker[Answer] | None = None
        self._switching = False

    @property
    def at_work(self) -> bool:
        """Whether the worker runs."""
        return self._worker is not None

    def check_is_near(self, pose: se2.FloatArray) -> None:
        """Raise RosError when a pose (3,) is far off the map; warn when it is off at all."""
        initial_pose_sources.check_is_near(self.keeper.in_use, pose, self._log)

    def in_background(self, action: Callable[[], None]) -> None:
        """Have the thread for slow things do something."""
        self._background.submit(action)

    def read_map(self, name: str = '') -> MapInUse:
        """
        Read the map of a name out of `map_files`, by default the one that `map_file` says.

        For the background. Raises KbrError when it cannot be read, or not be used.
        """
        # the file may be the one that is in use and grows
        self._save_map()
        in_use = self._registry.read(name or self._settings.config.map_file)
        kernel_map = in_use.kernel_map
        # what the method cannot use must not take the place of what it can
        self._tracker_on(kernel_map, self._settings.filter_on(kernel_map.filter_config))
        return in_use

    def follow_map(self, in_use: MapInUse) -> None:
        """Take the filter parameters of a map that will be in use."""
        self._switching = True
        try:
            self._settings.follow_map(in_use.kernel_map.filter_config)
        finally:
            self._switching = False

    def use_map(self, in_use: MapInUse) -> None:
        """Go on with another map; for `Session.switch_map`."""
        self.keeper.use(in_use)
        self.outputs.forget()
        self.outputs.show_map(in_use.kernel_map)

    def add_current(self) -> str:
        """
        Add the last image to the map; say what was added. For the worker.

        Raises KbrError when there is no image, or its pose is not sure.
        """
        answer = self.session.last
        kernel_map = self.keeper.add(answer)
        self._use_grown(kernel_map)
        x, y, heading = kernel_map.poses[-1]
        return f'image {len(kernel_map)} at x {x:.2f} m, y {y:.2f} m, heading {heading:.2f} rad'

    def _use_grown(self, kernel_map: KernelMap) -> None:
        configured = dataclasses.replace(kernel_map, filter_config=self._settings.filter)
        self.session.follow_map(configured)
        self.outputs.follow_map(kernel_map)

    def start(self) -> None:
        """Begin to work."""
        config = self._settings.config
        if config.always_reset_initial_pose and self.session.tracking.has_belief:
            self.session.forget_belief()
            self.outputs.forget()
        self._reporter = Reporter(
            self._node,
            lambda: self._settings.config,
            self.session,
            self.inputs,
            self.outputs,
            self.keeper,
            self._log,
        )
        self._worker = Worker(
            self.session,
            self._publish,
            self._log,
            lambda answer: self.session.withdraw(answer, stopped=True),
        )
        self._worker.start()
        self.inputs.active = True

    def stop(self) -> None:
        """Stop working, keeping the belief; save the pose."""
        self.inputs.active = False
        if self._worker is None:
            return
        self._worker.stop()
        self._worker = None
        # nobody else is there: no worker, and no image is handed on
        self._feed.queue.clear('when the node was deactivated')
        self.do_requests()
        if self._reporter is not None:
            self._reporter.destroy()
            self._reporter = None
        if self.session.last is not None:
            self._poses.save(self.session.last, self.keeper.in_use)
        self._save_map()
        self._sum_up()

    def do_requests(self) -> None:
        """Do what was requested, where no worker does: one that fails leaves others alone."""
        while True:
            try:
                return self.session.do_requests()
            except KbrError as error:
                self._log('error', str(error), 0.0)
            except Exception:
                self._log('error', f'internal error:\n{traceback.format_exc()}', 0.0)

    def _save_map(self) -> None:
        try:
            self.keeper.save()
        except MapError:
            return  # told there

    def _sum_up(self) -> None:
        session = self.session
        dropped = listed(session.dropped + self.inputs.cameras.dropped)
        counts = f'images answered: {session.answered}, used: {session.used}, dropped: {dropped}'
        self._log('info', counts, 0.0)

    def destroy(self) -> None:
        """Take everything down."""
        self.stop()
        self._background.shutdown()
        self.keeper.close()
        self.inputs.destroy()
        self.outputs.destroy()

    def reset(self, reason: str) -> None:
        """Forget everything but the map, as when time jumps."""
        self.session.reset(reason)

    def follow_settings(self, before: KbrConfig) -> None:
        """Use changed parameters from now on."""
        self.outputs.follow_config(self._settings.config)
        if self._settings.filter != before and not self._switching:
            self.session.replace_tracker()

    def _forget_outputs(self) -> None:
        self.outputs.forget()

    def _make_tracker(self) -> Tracker:
        return self._tracker_on(self.keeper.in_use.kernel_map, self._settings.filter)

    def _tracker_on(self, kernel_map: KernelMap, filter_config: KbrConfig) -> Tracker:
        config = self._settings.config
        configured = dataclasses.replace(kernel_map, filter_config=filter_config)
        seed = config.random_seed if config.random_seed >= 0 else secrets.randbits(32)
        localizer = make_localizer(config.method, configured, seed)
        return Tracker(configured, localizer)

    def _publish(self, answer: Answer) -> None:
        self.outputs.localizer = self.session.tracking.tracker.localizer
        if not self.outputs.publish(answer, lambda: answer.resets == self._feed.buffer.resets):
            self.session.withdraw(answer)
            return
        grown = self.keeper.look(answer)
        if grown is not None:
            self._use_grown(grown)
        self._poses.look(answer, self.keeper.in_use)


def _input_config(config: NodeConfig) -> InputConfig:
    return InputConfig(
        config.image_transport,
        config.image_topics,
        config.sync_tolerance,
        config.odom_frame_id,
        config.base_frame_id,
        config.allow_parameter_qos_overrides,
    )
