"""The pose that a restarted node goes on from: when it is written, and by whom. No rclpy here."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
import threading
import time

from kbr_localization.errors import RosError
from kbr_localization.ros.common.node_logger import NodeLogger
from kbr_localization.ros.parameters.node_config import NodeConfig
from kbr_localization.ros.session import persistence
from kbr_localization.ros.session.answer import Answer
from kbr_localization.ros.session.registry import MapInUse


class PoseKeeper:
    """
    The last pose on disk, in the file `path`.

    `look` belongs to the worker's thread; `background` writes for it. A pose never takes the
    place of a newer one, however long the disk takes. `clock` names the clock of the stamps.
    """

    def __init__(
        self,
        path: Path,
        config: Callable[[], NodeConfig],
        background: Executor,
        log: NodeLogger,
        clock: Callable[[], str] = lambda: '',
    ) -> None:
        self._path, self._config, self._clock = path, config, clock
        self._background, self._log = background, log
        self._writing = threading.Lock()
        self._newest: persistence.SavedPose | None = None
        self._written: persistence.SavedPose | None = None
        self._looked = time.monotonic()

    def look(self, answer: Answer, in_use: MapInUse) -> None:
        """Have an answer's pose written if it is time to."""
        rate = self._config().save_pose_rate
        if rate > 0.0 and time.monotonic() - self._looked > 1.0 / rate:
            self._looked = time.monotonic()
            self._take(answer, in_use)
            self._background.submit(self._write)

    def save(self, answer: Answer, in_use: MapInUse) -> None:
        """Write an answer's pose now, in place of any that still waits to be written."""
        self._take(answer, in_use)
        self._write()

    def _take(self, answer: Answer, in_use: MapInUse) -> None:
        estimate = answer.estimate
        if self._config().save_pose_rate == 0.0 or estimate.status != 'localized':
            return
        self._newest = persistence.SavedPose(
            answer.stamp_ns,
            estimate.pose,
            estimate.covariance,
            answer.odometry,
            in_use.map_id,
            in_use.name,
            self._clock(),
            estimate.odometry,
        )

    def _write(self) -> None:
        with self._writing:
            newest = self._newest
            if newest is None or newest is self._written:
                return
            try:
                persistence.save_pose(self._path, newest)
            except RosError as error:
                self._log.once('warning', str(error))
            self._written = newest
