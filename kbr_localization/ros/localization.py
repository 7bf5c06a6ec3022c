"""What runs on a configured node: map, session, worker, inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
import secrets
import time
import traceback

from kbr_localization import se2
from kbr_localization.errors import KbrError, MapError, RosError
from kbr_localization.files import expanded
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.registry import make_localizer
from kbr_localization.localization.pipeline import Tracker
from kbr_localization.ros.config import NodeConfig, parse_map_files
from kbr_localization.ros.diagnostics import Reporter
from kbr_localization.ros.growing import GrowingMap
from kbr_localization.ros.image_queue import Feed, ImageQueue
from kbr_localization.ros.inputs import Inputs
from kbr_localization.ros.maps import MapInUse, read_map
from kbr_localization.ros.odometry_buffer import OdometryBuffer, SECOND
from kbr_localization.ros.outputs import Outputs
from kbr_localization.ros.parameters import Settings
from kbr_localization.ros.running import Durations, format_counts, NodeLogger, Worker
from kbr_localization.ros.saved_pose import (
    ClockName,
    default_pose_file,
    load_pose,
    PoseSaver,
    SavedPose,
    too_old,
)
from kbr_localization.ros.session import Answer, GivenPose, InitialPoseSources, Session
from kbr_localization.ros.transforms import TransformListener
import numpy as np
from rclpy.node import Node


class Localization:
    """
    Parts of a configured node: made when it is configured, destroyed at cleanup.

    Raises MapError when the map cannot be read, ConfigurationError when none is named.
    """

    def __init__(
        self, node: Node, settings: Settings, log: NodeLogger, callback_durations: Durations
    ) -> None:
        self._node, self.settings, self._log = node, settings, log
        self.callback_durations = callback_durations
        config = settings.config
        path = pose_file(config, node)
        saved = recent_pose(path, config, log)
        in_use = self._first_map(saved)
        settings.follow_map(in_use.kernel_map.filter_config)
        # callbacks wait neither for the disk nor for a map
        self._background = ThreadPoolExecutor(1, thread_name_prefix='background')
        self.in_background = self._background.submit
        self.growing = GrowingMap(in_use, lambda: settings.config, self._background, log)
        self._clock = ClockName(node)
        self._poses = PoseSaver(
            path, lambda: settings.config.save_pose_rate, self._background, log
        )
        self._feed = Feed(
            OdometryBuffer(round(config.odometry_buffer * SECOND), config.max_speed),
            ImageQueue(config.image_queue, config.image_backlog),
            round(config.max_extrapolation * SECOND),
        )
        self._listener = TransformListener(node, config, log)
        self.outputs = Outputs(node, config, in_use.kernel_map, self._listener)
        if not self.outputs.has_nav2:
            log.once(
                'info',
                'nav2_msgs is not installed: particle_cloud is a geometry_msgs/PoseArray, and '
                'there is no service set_initial_pose',
            )
        sources = self._initial_pose_sources(saved)
        self.session = Session(
            self._make_tracker, sources, log, self.outputs.transforms.forget, self._feed
        )
        self.inputs = Inputs(
            node, config, self.session, log, self._listener, self.outputs.transforms.send
        )
        self._reporter: Reporter | None = None
        self._worker: Worker | None = None
        self._switching = False

    @property
    def is_working(self) -> bool:
        """Whether the worker runs."""
        return self._worker is not None

    def start(self) -> None:
        """Begin to work."""
        if self.settings.config.always_reset_initial_pose and self.session.has_belief:
            self.session.forget_belief()
            self.outputs.transforms.forget()
        self._reporter = Reporter(self._node, self, self._log)
        self._worker = Worker(
            self.session,
            self._publish,
            self._log,
            lambda answer: self.session.withdraw(answer, 'when the node was deactivated'),
        )
        self._worker.start()
        self.inputs.active = True

    def stop(self) -> None:
        """Stop working, keeping the belief; save pose and map."""
        self.inputs.active = False
        if self._worker is None or self._reporter is None:
            return
        self._worker.stop()
        self._reporter.destroy()
        self._worker = self._reporter = None
        self._feed.queue.clear('when the node was deactivated')
        self.do_requests()
        last = self.session.last
        self._poses.save(None if last is None else self._saved_pose(last))
        with suppress(MapError):  # logged there
            self.growing.save()
        session = self.session
        dropped = format_counts(session.dropped + self.inputs.dropped)
        counts = f'images answered: {session.answered}, used: {session.used}, dropped: {dropped}'
        self._log('info', counts, 0.0)

    def destroy(self) -> None:
        """Stop working and release everything."""
        self.stop()
        self._background.shutdown()
        self.growing.close()
        self._listener.destroy()
        self.inputs.destroy()
        self.outputs.destroy()

    def do_requests(self) -> None:
        """Do what was requested of a worker that does not run; an error ends one request only."""
        while True:
            try:
                return self.session.do_requests()
            except KbrError as error:
                self._log('error', str(error), 0.0)
            except Exception:
                self._log('error', f'internal error:\n{traceback.format_exc()}', 0.0)

    def follow_settings(self, before: KbrConfig) -> None:
        """Use changed parameters."""
        self.outputs.follow_config(self.settings.config)
        if self.settings.filter != before and not self._switching:
            self.session.replace_tracker()

    def check_is_near(self, pose: se2.FloatArray) -> None:
        """Raise RosError when a pose (3,) is far off the map; warn when it is off at all."""
        distance = self.growing.in_use.distance(pose)
        text = (
            f'x {pose[0]:.2f} m, y {pose[1]:.2f} m is {distance:.0f} m from the nearest image of '
            'the map'
        )
        if distance > 100.0:
            raise RosError(f'{text}: give a pose on it, or load the map of that place')
        if distance > 10.0:
            self._log('warning', f'initial pose {text}: the robot may not be found there', 0.0)

    def read_map(self, name: str = '') -> MapInUse:
        """
        Read the map of a name out of `map_files`, by default the one that `map_file` says.

        For the background. Raises KbrError when it cannot be read, or not be used by the method.
        """
        with suppress(MapError):  # the file may be the one that is in use and grows
            self.growing.save()
        config = self.settings.config
        in_use = read_map(name or config.map_file, config, self._log)
        kernel_map = in_use.kernel_map
        self._tracker_on(kernel_map, self.settings.filter_on(kernel_map.filter_config))
        return in_use

    def follow_map(self, in_use: MapInUse) -> None:
        """Take the filter parameters of a map that will be in use."""
        self._switching = True
        try:
            self.settings.follow_map(in_use.kernel_map.filter_config)
        finally:
            self._switching = False

    def use_map(self, in_use: MapInUse) -> None:
        """Go on with another map; for `Session.switch_map`."""
        self.growing.use(in_use)
        self.outputs.transforms.forget()
        self.outputs.show_map(in_use.kernel_map)

    def add_current(self) -> str:
        """
        Add the last image to the map; say what was added. For the worker.

        Raises KbrError when there is no image, or its pose is not sure.
        """
        kernel_map = self.growing.add(self.session.last)
        self._use_grown(kernel_map)
        x, y, heading = kernel_map.poses[-1]
        return f'image {len(kernel_map)} at x {x:.2f} m, y {y:.2f} m, heading {heading:.2f} rad'

    def _publish(self, answer: Answer) -> None:
        self.outputs.localizer = self.session.tracker.localizer
        resets = answer.odometry.resets
        if not self.outputs.publish(answer, lambda: resets == self._feed.buffer.resets):
            self.session.withdraw(answer, 'before a reset')
            return
        grown = self.growing.look(answer)
        if grown is not None:
            self._use_grown(grown)
        self._poses.offer(lambda: self._saved_pose(answer))

    def _use_grown(self, kernel_map: KernelMap) -> None:
        self.session.follow_map(replace(kernel_map, filter_config=self.settings.filter))
        self.outputs.map = kernel_map

    def _make_tracker(self) -> Tracker:
        return self._tracker_on(self.growing.in_use.kernel_map, self.settings.filter)

    def _tracker_on(self, kernel_map: KernelMap, filter_config: KbrConfig) -> Tracker:
        config = self.settings.config
        configured = replace(kernel_map, filter_config=filter_config)
        seed = config.random_seed if config.random_seed >= 0 else secrets.randbits(32)
        return Tracker(configured, make_localizer(config.method, configured, seed))

    def _saved_pose(self, answer: Answer) -> SavedPose | None:
        estimate, in_use = answer.estimate, self.growing.in_use
        if not estimate.localized:
            return None
        return SavedPose(
            answer.stamp_ns,
            estimate.pose,
            estimate.covariance,
            answer.odometry.raw,
            in_use.map_id,
            in_use.name,
            self._clock(),
            estimate.odometry,
        )

    def _first_map(self, saved: SavedPose | None) -> MapInUse:
        """Read the map that the robot was on a moment ago, or the one of the parameters."""
        config, log = self.settings.config, self._log
        known = parse_map_files(config.map_files)
        if saved is not None and saved.map_name in known and saved.map_name != config.map_file:
            log('info', f'going on with map {saved.map_name}, where the robot was last')
            try:
                return read_map(saved.map_name, config, log)
            except KbrError as error:
                log('error', f'not going on there: {error}')
        return read_map(config.map_file, config, log)

    def _initial_pose_sources(self, saved: SavedPose | None) -> InitialPoseSources:
        config, pose = self.settings.config, self.settings.initial_pose
        if saved is not None and saved.map_id != self.growing.in_use.map_id:
            self._log('info', 'saved pose not used: it is of another map')
            saved = None
        if saved is not None and not self._is_on_map(saved.pose, 'saved pose'):
            saved = None
        anyway = config.initialize_at_saved_pose
        start = GivenPose(np.array([pose.x, pose.y, pose.yaw]), pose.covariance)
        # like nav2_amcl, prefer the saved pose
        wanted = config.set_initial_pose and not (anyway and saved is not None)
        usable = wanted and self._is_on_map(start.pose, 'parameter initial_pose')
        return InitialPoseSources(
            start if usable else None,
            saved,
            config.saved_pose_max_age,
            config.max_speed,
            config.initialize_globally,
            anyway,
            self._clock,
        )

    def _is_on_map(self, pose: se2.FloatArray, name: str) -> bool:
        try:
            self.check_is_near(pose)
        except RosError as error:
            self._log('warning', f'{name} not used: {error}')
            return False
        return True


def pose_file(config: NodeConfig, node: Node) -> Path:
    """Return the file that a pose is saved in."""
    if config.pose_file:
        return expanded(config.pose_file)
    if config.saved_pose_filepath:
        # nav2_amcl writes its own format there
        return expanded(f'{config.saved_pose_filepath.removesuffix(".json")}.json')
    return default_pose_file(node.get_fully_qualified_name())


def recent_pose(
    path: Path, config: NodeConfig, log: Callable[[str, str], None]
) -> SavedPose | None:
    """Return the saved pose unless its file is old, whatever the stamps say."""
    try:
        saved = load_pose(path)
        if saved is None or config.initialize_at_saved_pose:
            return saved
        age = time.time() - path.stat().st_mtime
    except (RosError, OSError) as error:
        log('warning', str(error))
        return None
    if age <= config.saved_pose_max_age:
        return saved
    log('info', too_old(age, config.saved_pose_max_age))
    return None
