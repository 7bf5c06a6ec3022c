"""A localization that runs on a node: made when it is configured, taken down at cleanup."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
import dataclasses
import hashlib
from pathlib import Path
import time

from kbr_localization.errors import ConfigurationError, RosError
from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.kernel_map import KernelMap
from kbr_localization.localization.pipeline import make_localizer, Tracker
from kbr_localization.ros import persistence
from kbr_localization.ros.answer import Answer, Beginning, GivenPose
from kbr_localization.ros.feed import Feed
from kbr_localization.ros.image_queue import ImageQueue
from kbr_localization.ros.inputs import Inputs
from kbr_localization.ros.node_config import InitialPose, NodeConfig
from kbr_localization.ros.odometry_buffer import OdometryBuffer
from kbr_localization.ros.outputs import is_known, Outputs
from kbr_localization.ros.reporter import Reporter
from kbr_localization.ros.session import Session
from kbr_localization.ros.settings import Settings
from kbr_localization.ros.telling import Teller
from kbr_localization.ros.worker import Worker
import numpy as np
from rclpy.node import Node

SECOND = 1_000_000_000


class Localization:
    """
    Map, session, worker, inputs and outputs of a configured node.

    Raises MapError when the map cannot be read, ConfigurationError when none is named.
    """

    def __init__(self, node: Node, settings: Settings, tell: Teller) -> None:
        self._node, self._settings, self._tell = node, settings, tell
        config = settings.config
        self.kernel_map = self.read_map()
        self.pose_file = _pose_file(config, node)
        self.session = Session(
            self._tracker_maker(),
            self._beginning(),
            tell,
            self._forget_outputs,
            Feed(
                OdometryBuffer(duration_ns=round(config.odometry_buffer * SECOND)),
                ImageQueue(config.image_queue, config.image_backlog),
                round(config.max_extrapolation * SECOND),
            ),
        )
        self.outputs = Outputs(node, config, self.kernel_map)
        self.inputs = Inputs(node, config, self.session, tell, self.outputs.resend_transform)
        self._reporter: Reporter | None = None
        self._worker: Worker[Answer] | None = None
        self._saved = time.monotonic()
        # saving waits for the disk, loading a map for more: neither in a callback
        self.background = ThreadPoolExecutor(1, thread_name_prefix='background')

    def read_map(self) -> KernelMap:
        """Read the map that `map_file` names and take its filter parameters."""
        path = self._settings.config.map_file
        if not path:
            raise ConfigurationError(
                "parameter 'map_file' is empty: give a map made by `kbr map build`"
            )
        started = time.monotonic()
        kernel_map = KernelMap.load(path)
        self._tell(
            'info',
            f'map {path}: {len(kernel_map)} images of {kernel_map.image_shape[1]}x'
            f'{kernel_map.image_shape[0]} pixels, read in {time.monotonic() - started:.1f} s',
        )
        return kernel_map

    def start(self) -> None:
        """Begin to work."""
        config = self._settings.config
        if config.always_reset_initial_pose and self.session.has_belief:
            self.session.forget_belief()
        self._reporter = Reporter(
            self._node,
            lambda: self._settings.config,
            self.session,
            self.inputs,
            self.outputs,
            self._tell,
        )
        self._worker = Worker(self.session, self._publish, self._tell)
        self._worker.start()
        self.inputs.active = True

    def stop(self) -> None:
        """Stop working, keeping the belief; save the pose."""
        self.inputs.active = False
        if self._worker is None:
            return
        self._worker.stop()
        self._worker = None
        if self._reporter is not None:
            self._reporter.destroy()
            self._reporter = None
        if self.session.last is not None:
            self._save(self.session.last)
        self._sum_up()

    def _sum_up(self) -> None:
        used, dropped = self.session.used, self.session.dropped
        reasons = ', '.join(f'{count} {reason}' for reason, count in dropped.items())
        self._tell('info', f'images used: {used}, dropped: {reasons or "none"}', 0.0)

    def destroy(self) -> None:
        """Take everything down."""
        self.stop()
        self.background.shutdown()
        self.inputs.destroy()
        self.outputs.destroy()

    def reset(self, reason: str) -> None:
        """Forget everything but the map, as when time jumps."""
        self.session.reset(reason)

    def switch_map(self, kernel_map: KernelMap) -> None:
        """Go on with another map and no belief, but for a pose that is given from now on."""
        self._settings.follow_map(kernel_map.filter_config)
        self.kernel_map = kernel_map
        self.session.beginning = dataclasses.replace(
            self.session.beginning, given=None, saved=None
        )
        self.session.replace_tracker(self._tracker_maker(), keep_belief=False)
        self.outputs.forget()
        self.outputs.show_map(kernel_map)

    def follow_settings(self, before: FilterConfig) -> None:
        """Use changed parameters from now on."""
        self.outputs.config = self._settings.config
        if self._settings.filter != before:
            self.session.replace_tracker(self._tracker_maker(), keep_belief=True)

    def _forget_outputs(self) -> None:
        self.outputs.forget()

    def _tracker_maker(self) -> Callable[[], Tracker]:
        config = self._settings.config
        kernel_map = dataclasses.replace(self.kernel_map, filter_config=self._settings.filter)
        return lambda: Tracker(
            kernel_map, make_localizer(config.method, kernel_map, config.random_seed)
        )

    def _beginning(self) -> Beginning:
        config = self._settings.config
        given = _given(self._settings.initial_pose) if config.set_initial_pose else None
        saved = None
        try:
            saved = persistence.load_pose(self.pose_file)
        except RosError as error:
            self._tell('warning', str(error))
        if saved is not None and saved.map_id != map_id(self.kernel_map):
            saved = None
        return Beginning(given, saved, config.saved_pose_max_age, config.initialize_globally)

    def _publish(self, answer: Answer) -> None:
        self.outputs.localizer = self.session.localizer
        self.outputs.publish(answer)
        rate = self._settings.config.save_pose_rate
        if rate > 0.0 and time.monotonic() - self._saved > 1.0 / rate:
            self._saved = time.monotonic()
            self.background.submit(self._save, answer)

    def _save(self, answer: Answer) -> None:
        if self._settings.config.save_pose_rate == 0.0 or not is_known(answer):
            return
        if answer.estimate.status != 'localized':
            return
        saved = persistence.SavedPose(
            answer.stamp_ns,
            answer.estimate.pose,
            answer.estimate.covariance,
            answer.odometry,
            map_id(self.kernel_map),
        )
        try:
            persistence.save_pose(self.pose_file, saved)
        except RosError as error:
            self._tell.once('warning', str(error))


def map_id(kernel_map: KernelMap) -> str:
    """Short name of a map's contents, by which a saved pose knows where it belongs."""
    return hashlib.sha256(np.ascontiguousarray(kernel_map.poses).tobytes()).hexdigest()[:16]


def _pose_file(config: NodeConfig, node: Node) -> Path:
    if config.pose_file:
        return Path(config.pose_file).expanduser()
    return persistence.default_pose_file(node.get_fully_qualified_name())


def _given(pose: InitialPose) -> GivenPose:
    variances = [pose.std_xy**2, pose.std_xy**2, pose.std_yaw**2]
    return GivenPose(np.array([pose.x, pose.y, pose.yaw]), np.diag(variances))
