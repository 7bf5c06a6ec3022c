"""The parts of a configured localization node: map, session, inputs and outputs."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
import secrets
import time

from kbr_localization.errors import KbrError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.registry import make_localizer
from kbr_localization.localization.pipeline import Tracker
from kbr_localization.ros.diagnostics import Reporter
from kbr_localization.ros.inputs import Inputs, TransformListener
from kbr_localization.ros.maps import GrowingMap, MapInUse, open_map
from kbr_localization.ros.outputs import Bond, Outputs, TransformBroadcaster
from kbr_localization.ros.parameters import ParameterNode, Settings
from kbr_localization.ros.running import format_counts
from kbr_localization.ros.saved_pose import pose_file, recent_pose, save_pose, SavedPose
from kbr_localization.ros.session import Answer, GivenPose, Session
import numpy as np


class Localization:
    """Made when the node is configured, destroyed when it is cleaned up."""

    def __init__(self, node: ParameterNode, settings: Settings) -> None:
        self._node, self.settings, self._log = node, settings, node.log
        config, log = settings.config, node.log
        self._pose_file = pose_file(config, node.get_fully_qualified_name())
        self._pose_saved = time.monotonic()
        self._unsaved: SavedPose | None = None
        saved = recent_pose(self._pose_file, config, log)
        in_use = self._first_map(saved)
        settings.follow_map(in_use.kernel_map.filter_config)
        # a thread for the disk, so that neither callbacks nor the worker wait for it
        self.background = ThreadPoolExecutor(1, thread_name_prefix='background')
        self.growing = GrowingMap(in_use, lambda: settings.config, self.background, log)
        if saved is not None and saved.map_id != in_use.map_id:
            log('info', 'saved pose not used: it belongs to another map')
            saved = None
        listener, start = TransformListener(node, config), self._start(saved)
        self.transforms = TransformBroadcaster(node, settings, listener)
        self.outputs = Outputs(node, settings, in_use.kernel_map)
        self.session = Session(self._make_tracker, config, log, self.transforms, start, saved)
        self.inputs = Inputs(node, config, self.session, listener)
        self._bond = Bond(node, config.bond_heartbeat_period)
        self._reporter: Reporter | None = None

    def start(self) -> None:
        if self.settings.config.always_reset_initial_pose:
            self.session.forget_belief()
        self._reporter = Reporter(self._node, self)
        self.session.start(self._publish)
        self.inputs.active = True
        if not self.settings.config.autostart:
            self._bond.start()

    def stop(self) -> None:
        """Stop, but keep the belief; save pose and map."""
        self._bond.stop()
        self.inputs.stop()
        if self._reporter is None:
            return
        self.session.stop()
        self.transforms.clear()
        self._reporter.destroy()
        self._reporter, session = None, self.session
        session.queue.clear('when the node was deactivated')
        session.run_requests()
        self.background.submit(self._write_pose).result()
        self.background.submit(self.growing.save).result()
        counts = f'images answered: {session.answered}, used: {session.used}'
        self._log('info', f'{counts}, dropped: {format_counts(self.inputs.dropped)}', 0.0)

    def destroy(self) -> None:
        """Stop and save; the node removes the topics."""
        self.stop()
        self.background.shutdown()
        self.growing.close()

    def open_map(self, name: str) -> MapInUse:
        """Open a map of `map_files`, for '' the map `map_file`; in the background thread."""
        self.growing.save()  # the file may be the one that is in use
        config = self.settings.config
        in_use = open_map(name or config.map_file, config, self._log)
        kernel_map = in_use.kernel_map
        # raises if the method cannot use the map
        self._tracker_on(kernel_map, self.settings.filter_on(kernel_map.filter_config))
        return in_use

    def use_map(self, in_use: MapInUse) -> None:
        """Switch to another map; for `Session.request`."""
        self.growing = self.growing.switch_to(in_use)
        self.session.start_on_new_map()
        self.transforms.clear()
        self.outputs.show_map(in_use.kernel_map)

    def _publish(self, answer: Answer) -> None:
        session, estimate, in_use = self.session, answer.estimate, self.growing.in_use
        rate = self.settings.config.save_pose_rate
        self.outputs.publish(answer, session.tracker)
        grown = self.growing.process(answer)
        if grown is not None:
            session.follow_map(replace(grown, filter_config=self.settings.filter))
        if rate > 0.0 and estimate.localized:
            known = (answer.stamp_ns, estimate.pose, estimate.covariance, answer.odometry)
            self._unsaved = SavedPose(*known, in_use.map_id, in_use.name, estimate.odometry)
            if time.monotonic() - self._pose_saved > 1.0 / rate:
                self._pose_saved = time.monotonic()
                self.background.submit(self._write_pose)

    def _make_tracker(self) -> Tracker:
        return self._tracker_on(self.growing.in_use.kernel_map, self.settings.filter)

    def _tracker_on(self, kernel_map: KernelMap, filter_config: KbrConfig) -> Tracker:
        config = self.settings.config
        configured = replace(kernel_map, filter_config=filter_config)
        seed = config.random_seed if config.random_seed >= 0 else secrets.randbits(32)
        return Tracker(configured, make_localizer(config.method, configured, seed))

    def _write_pose(self) -> None:
        """Write the newest unsaved pose; in the background thread."""
        saved, self._unsaved = self._unsaved, None
        if saved is not None:
            save_pose(self._pose_file, saved, self._log)

    def _first_map(self, saved: SavedPose | None) -> MapInUse:
        """Open the map on which the robot was last, or else `map_file`."""
        config, log = self.settings.config, self._log
        last = saved.map_name if saved else ''
        if last in config.maps and last != config.map_file:
            log('info', f'starting on map {last}, where the robot was last')
            try:
                return open_map(last, config, log)
            except KbrError as error:
                log('error', f'not starting there: {error}')
        return open_map(config.map_file, config, log)

    def _start(self, saved: SavedPose | None) -> GivenPose | None:
        """Return the pose of the parameters, unless the saved pose comes first as in nav2_amcl."""
        config, pose = self.settings.config, self.settings.initial_pose
        if not config.set_initial_pose or (config.initialize_at_saved_pose and saved is not None):
            return None
        return GivenPose(np.array([pose.x, pose.y, pose.yaw]), pose.covariance)
