"""A run: frames, odometry, and counts of what was left out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kbr_localization import se2
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]


@dataclass(frozen=True)
class Frame:
    """
    One image of a run with the poses at its stamp.

    `image`: (height, width) or (height, width, 3) BGR uint8, or a function that loads it, with
    several cameras a `MultiImage`. `odometry`: (3,) pose of the base in the odometry frame, NaN
    until `make_run`. `reference`: (3,) known pose of the base in the map frame, or None. `name`:
    used in messages.
    """

    stamp_ns: int
    image: Image | Callable[[], Image] = field(repr=False)
    odometry: se2.FloatArray = field(default_factory=lambda: np.full(3, np.nan))
    reference: se2.FloatArray | None = None
    name: str = ''

    def load_image(self) -> Image:
        """Return the image, loaded if need be; raises DatasetError."""
        return self.image() if callable(self.image) else self.image


@dataclass(frozen=True)
class OdometryTrack:
    """
    Odometry at full rate, or other poses: `stamps_ns` (m,) increasing, `poses` (m, 3).

    `resets_ns`: stamps of jumps that were removed. `recorded`: the track with its jumps, which
    copies of the run contain, or None if it has none.
    """

    stamps_ns: se2.StampArray
    poses: se2.FloatArray
    resets_ns: tuple[int, ...] = ()
    recorded: 'OdometryTrack | None' = field(default=None, repr=False)

    def at(self, stamp_ns: int | se2.StampArray) -> se2.FloatArray:
        """Interpolate the pose (3,) at a stamp or (n, 3) at stamps; raises KbrError outside."""
        return se2.interpolate(self.stamps_ns, self.poses, stamp_ns)


class Skipped(dict[str, int]):
    """Counts of lines, messages and images left out of a run, by reason."""

    def __init__(self) -> None:
        super().__init__()
        self._reasons: dict[str, str] = {}

    def add(self, kind: str, error: object = None, count: int = 1) -> None:
        """Add `count` items of a kind; its reason quotes the first error."""
        if count:
            reason = kind if error is None else f'{kind} (the first: {error})'
            reason = self._reasons.setdefault(kind, reason)
            self[reason] = self.get(reason, 0) + count

    def reason(self, kind: str) -> str:
        """Return the reason under which a kind is counted; empty if none was."""
        return self._reasons.get(kind, '')


@dataclass(eq=False, repr=False)
class Dataset:
    """
    A run: its frames by time, and the odometry at full rate.

    `skipped`: counts of what was left out, by reason; the caller counts images that fail to load.
    `notes`: lines for the user, as that the odometry is synthetic. `sources`, `others`: topics
    that were read, and that could have been. `cameras`: their names if there are several.
    `reference_frame`: frame id of the reference poses, empty if unknown. A subclass may generate
    frames on demand.
    """

    name: str
    odometry: OdometryTrack
    skipped: dict[str, int]
    frames: Sequence[Frame]
    reference: OdometryTrack | None = None
    reference_frame: str = ''
    cameras: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def stamps_ns(self) -> se2.StampArray:
        return np.array([frame.stamp_ns for frame in self], dtype=np.int64)

    @property
    def fixes(self) -> OdometryTrack | None:
        """Known poses at their own stamps: `reference`, else those of the frames, or None."""
        if self.reference is not None:
            return self.reference
        known = [frame for frame in self if frame.reference is not None]
        if not known:
            return None
        stamps = np.array([frame.stamp_ns for frame in known], dtype=np.int64)
        return OdometryTrack(stamps, np.array([frame.reference for frame in known]))

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Frame:
        return self.frames[index]

    def __iter__(self) -> Iterator[Frame]:
        return (self[index] for index in range(len(self)))
