"""Which image is next, and with which odometry: the rules between buffer and queue. No rclpy."""

from __future__ import annotations

from dataclasses import dataclass
import math
import time

from kbr_localization import se2
from kbr_localization.ros.parameters.node_config import NodeConfig
from kbr_localization.ros.session.image_queue import ImageQueue, QueuedImage
from kbr_localization.ros.session.odometry_buffer import Coverage, OdometryBuffer

SECOND = 1_000_000_000


@dataclass(frozen=True)
class OdometryAt:
    """
    The odometry at a moment: the pose (3,) as it came, and as if no driver had been reset.

    `resets`: how often time or odometry had been reset by then.
    """

    raw: se2.FloatArray
    continued: se2.FloatArray
    resets: int


class Feed:
    """
    Images and the odometry that they wait for.

    An image waits until the odometry has reached its stamp, so that answers are the same as
    offline. But when the next image is there already, or when images come more often than
    `max_extrapolation_ns` and half the time to the next one is over, the odometry is
    extrapolated, by that much at most. `prepared`: the waiting image that is described already.
    """

    def __init__(
        self,
        buffer: OdometryBuffer | None = None,
        queue: ImageQueue | None = None,
        max_extrapolation_ns: int = 100_000_000,
    ) -> None:
        # not `or`: an empty one is false
        self.buffer = OdometryBuffer() if buffer is None else buffer
        self.queue = ImageQueue(16) if queue is None else queue
        self._max_extrapolation_ns = max_extrapolation_ns
        self.prepared: QueuedImage | None = None

    @staticmethod
    def configured(config: NodeConfig) -> Feed:
        """Make a feed with the buffer and the queue that the parameters of a node say."""
        return Feed(
            OdometryBuffer(round(config.odometry_buffer * SECOND), max_speed=config.max_speed),
            ImageQueue(config.image_queue, config.image_backlog),
            round(config.max_extrapolation * SECOND),
        )

    def take(self) -> QueuedImage | None:
        """Next image that can be used, or None."""
        return self.queue.take(self._coverage)

    def unprepared(self) -> QueuedImage | None:
        """Image that waits longest, if nothing has been done about it yet."""
        waiting = self.queue.peek()
        return None if waiting is self.prepared else waiting

    def patience(self) -> float:
        """Seconds for which the image that waits longest may still wait for odometry."""
        image = self.queue.peek()
        if image is None or not 0 < self.queue.period_ns < self._max_extrapolation_ns:
            return math.inf
        return image.received + 0.5e-9 * self.queue.period_ns - time.monotonic()

    def odometry_at(self, stamp_ns: int) -> OdometryAt | None:
        """Odometry at the stamp of an image that was taken; None after a jump."""
        state = self.buffer.coverage(stamp_ns)
        if state is Coverage.READY:
            return self._moment(self.buffer.at(stamp_ns))
        return self.guess(stamp_ns) if self._is_near(stamp_ns, state) else None

    def guess(self, stamp_ns: int) -> OdometryAt | None:
        """Odometry at a stamp still to come, as far as can be told; None without any."""
        return self._moment(self.buffer.extrapolated(stamp_ns)) if len(self.buffer) else None

    def _moment(self, raw: se2.FloatArray) -> OdometryAt:
        return OdometryAt(raw, self.buffer.continued(raw), self.buffer.resets)

    def _coverage(self, stamp_ns: int) -> Coverage:
        state = self.buffer.coverage(stamp_ns)
        newest_ns = self.queue.newest_ns
        hurried = newest_ns is not None and (newest_ns > stamp_ns or self.patience() <= 0.0)
        return Coverage.READY if hurried and self._is_near(stamp_ns, state) else state

    def _is_near(self, stamp_ns: int, state: Coverage) -> bool:
        odometry_ns = self.buffer.newest_ns
        return (
            state is Coverage.EARLY
            and odometry_ns is not None
            and stamp_ns - odometry_ns <= self._max_extrapolation_ns
        )
