"""Where a belief starts from: poses that people give, the saved one, or nothing. No rclpy here."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses

from kbr_localization import se2
from kbr_localization.ros.session.answer import GivenPose, InitialPoseSources
from kbr_localization.ros.session.odometry_buffer import Coverage, OdometryBuffer
from kbr_localization.ros.session.persistence import SavedPose, too_old

_AHEAD_NS = 2_000_000_000
"""By which a pose may be newer than an odometry of the same clock that is a little late."""


class InitialPoses:
    """
    Poses to start from, the newest first. Its owner keeps threads apart.

    `given`: what somebody said and nobody used yet. `kept`: the belief of a tracker that was
    replaced. `sources`: what there was at the start.
    """

    def __init__(self, sources: InitialPoseSources, log: Callable[[str, str], None]) -> None:
        self.sources, self._log = sources, log
        self.given: GivenPose | None = None
        self.kept: GivenPose | None = None

    @property
    def is_given(self) -> bool:
        """Whether a pose waits for the next image."""
        return (self.given or self.kept or self.sources.given) is not None

    def forget(self, begun_ns: int | None = None) -> None:
        """Forget the poses that wait to be used, but one of the time that has begun anew."""
        stamp_ns = None if self.given is None else self.given.stamp_ns
        if begun_ns is None or stamp_ns is None or stamp_ns - begun_ns > _AHEAD_NS:
            self.given = None
        self.kept = None

    def forget_map(self) -> None:
        """Forget all poses: they mean nothing on another map."""
        self.forget()
        self.sources = dataclasses.replace(self.sources, given=None, saved=None)

    def take(
        self, has_belief: bool, stamp_ns: int, odometry: se2.FloatArray, buffer: OdometryBuffer
    ) -> GivenPose | None:
        """Pose to start from at a stamp with that odometry (3,); None to go on, or for none."""
        given = self.given or self.kept
        self.forget()
        if given is None and not has_belief:
            given = self._first_pose(stamp_ns, odometry)
        if given is None:
            return None
        return dataclasses.replace(given, pose=self._carried(given, odometry, buffer))

    def _first_pose(self, stamp_ns: int, odometry: se2.FloatArray) -> GivenPose | None:
        sources = self.sources
        if sources.given is not None or sources.saved is None:
            return sources.given
        pose = self._resumed(sources.saved, stamp_ns, odometry)
        if pose is None and not sources.saved_anyway:
            return None
        pose = sources.saved.pose if pose is None else pose
        self._log('info', f'going on from the saved pose, now {_words(pose)}')
        return GivenPose(pose, sources.saved.covariance)

    def _resumed(
        self, saved: SavedPose, stamp_ns: int, odometry: se2.FloatArray
    ) -> se2.FloatArray | None:
        """Give the saved pose (3,) carried to a stamp; None when it is old or of another clock."""
        sources = self.sources
        if saved.clock != sources.clock():
            if not sources.saved_anyway:
                self._log('info', 'saved pose not used: it is of another run of the clock')
            return None
        pose = saved.resumed(stamp_ns, odometry, sources.saved_max_age, sources.max_speed)
        if pose is None and not sources.saved_anyway:
            self._log('info', too_old((stamp_ns - saved.stamp_ns) * 1e-9, sources.saved_max_age))
        return pose

    def _carried(
        self, given: GivenPose, odometry: se2.FloatArray, buffer: OdometryBuffer
    ) -> se2.FloatArray:
        """Pose (3,) moved by the odometry between its stamp and now."""
        if given.stamp_ns is None:
            return given.pose
        state = buffer.coverage(given.stamp_ns)
        if state is Coverage.READY:
            then = buffer.continued(buffer.at(given.stamp_ns))
            return se2.compose(given.pose, se2.between(then, odometry))
        if given.odometry is not None:
            # of an answer that may be older than all that the buffer has: no image came meanwhile
            return se2.compose(given.pose, se2.between(given.odometry, odometry))
        ahead_ns = given.stamp_ns - (buffer.newest_ns or 0)
        if state is not Coverage.EARLY or ahead_ns > _AHEAD_NS:
            self._log('warning', f'initial pose is {state.value}: taken as if it were new')
        return given.pose


def _words(pose: se2.FloatArray) -> str:
    return f'x {pose[0]:.2f} m, y {pose[1]:.2f} m, heading {pose[2]:.2f} rad'
