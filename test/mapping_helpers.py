"""Drives round a ring of corridors, whose odometry has errors, for the tests of mapping."""

from dataclasses import dataclass, field
import hashlib

from helpers import FRAME_NS, START_NS, wall_image
from kbr_localization import se2
from kbr_localization.datasets import Dataset, Frame, OdometryTrack
from kbr_localization.localization.mapping.align import fit_motion
from kbr_localization.vision import VisionConfig
from kbr_localization.vision.turning import follow
import numpy as np

VISION = VisionConfig(words=30, vocabulary_samples=3000, scale_up=False)
SIDES = (14.0, 8.0)
"""Metres of the two sides of the ring."""
ROUND = 2.0 * sum(SIDES)
STEP = 0.3


def on_ring(metres):
    """Pose (3,) so far along the ring; the last half metre of a side turns into the next one."""
    ends = np.cumsum([SIDES[0], SIDES[1], SIDES[0], SIDES[1]])
    corners = np.array([[0, 0], [SIDES[0], 0], [*SIDES], [0, SIDES[1]], [0, 0]])
    way = metres % ROUND
    side = int(np.searchsorted(ends, way, side='right'))
    place = [np.interp(way, [0.0, *ends], corners[:, axis]) for axis in (0, 1)]
    turned = max(0.0, 1.0 - (ends[side] - way) / 0.5)
    return np.array([*place, float(se2.wrap_angle(0.5 * np.pi * (side + turned)))])


@dataclass(eq=False)
class RingRun(Dataset):
    """
    A drive along the ring: an image every `STEP` metres, by an odometry with errors.

    `begin`, `metres`: of the way. `drift`: rad/m. `wall`: which building it is. `reset`: metres
    after which the odometry begins again at `origin` after a `pause` of seconds, `carried`: metres
    after which the robot is carried by so much way unnoticed. `known`: in which frame, a pose,
    the true poses are known.
    """

    metres: float = 2.5 * ROUND
    begin: float = 0.0
    drift: float = 0.01
    wall: int = 0
    name: str = 'ring'
    seed: int = 0
    reset: float | None = None
    origin: tuple[float, float, float] = (0.0, 0.0, 0.0)
    pause: float = 0.0
    carried: tuple[float, float] | None = None
    known: tuple[float, float, float] | None = None
    skipped: dict = field(default_factory=dict)
    odometry: OdometryTrack = field(init=False)
    frames: list = field(init=False)

    def __post_init__(self):
        way = self.begin + np.arange(0.0, self.metres, STEP)
        self.ways = way.copy()
        if self.carried is not None:
            self.ways[way - self.begin >= self.carried[0]] += self.carried[1]
        self.true = np.array([on_ring(metres) for metres in self.ways])
        stamps = START_NS + FRAME_NS * np.arange(len(way), dtype=np.int64)
        steps = se2.between(self.true[:-1], self.true[1:])
        if self.carried is not None:
            steps[np.hypot(steps[:, 0], steps[:, 1]) > 2.0 * STEP] = 0.0
        rng = np.random.default_rng(self.seed)
        steps += rng.normal(size=steps.shape) * np.array([0.003, 0.001, 0.002])
        steps[:, 2] += self.drift * np.abs(steps[:, 0])
        poses = se2.chain(np.array([3.0, -2.0, 1.0]), steps)
        if self.reset is not None:
            after = way - self.begin >= self.reset
            begun = se2.between(poses[after][0], poses[after])
            poses[after] = se2.compose(np.array(self.origin), begun)
            stamps[after] += round(self.pause * 1e9)
        self.odometry = OdometryTrack(stamps, poses)

    def __len__(self):
        return len(self.ways)

    def __getitem__(self, index):
        image = wall_image(self.ways[index] % ROUND + 0.5, pixels_per_metre=24.0)
        if self.wall:
            image = 255 - image[:, ::-1] if self.wall == 1 else image[::-1]
        return Frame(
            int(self.odometry.stamps_ns[index]),
            np.ascontiguousarray(image),
            self.odometry.poses[index],
            None if self.known is None else se2.compose(np.array(self.known), self.true[index]),
            f'{self.name} {index}',
        )


class FollowedOnce:
    """Follow points between two small images, those of a pair that was seen before as before."""

    def __init__(self):
        self._flows = {}

    def __call__(self, first, second):
        pair = tuple((each.shape, hashlib.sha1(each).digest()) for each in (first, second))
        if pair not in self._flows:
            self._flows[pair] = follow(first, second)
        return self._flows[pair].copy()


def trajectory_error(poses, truth):
    """Root mean square distance in metres after rigid alignment."""
    return fit_motion(poses, truth).rms
