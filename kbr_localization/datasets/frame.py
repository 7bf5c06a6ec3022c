"""A run: frames, the odometry along them, and what was left out."""

from __future__ import annotations

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

    `stamp_ns`: integer nanoseconds. `image`: (height, width) or (height, width, 3) BGR uint8, or a
    function that loads it; with several cameras the function gives a `MultiImage`. `odometry`:
    (3,) pose of the base in the odometry frame at that stamp, NaN until `make_run`. `reference`:
    (3,) ground-truth pose of the base in the map frame, or None. `name`: used in messages.
    """

    stamp_ns: int
    image: Image | Callable[[], Image] = field(repr=False)
    odometry: se2.FloatArray = field(default_factory=lambda: np.full(3, np.nan))
    reference: se2.FloatArray | None = None
    name: str = ''

    def load_image(self) -> Image:
        """Return the image; raises DatasetError when a lazy image cannot be read."""
        return self.image() if callable(self.image) else self.image


@dataclass(frozen=True)
class OdometryTrack:
    """
    The odometry of a run at full rate: `stamps_ns` (m,) increasing, `poses` (m, 3).

    `resets_ns`: stamps at which it restarted and was continued without motion. `recorded`: the
    track as it was recorded, where jumps were removed from it; copies of a run keep this one.
    """

    stamps_ns: se2.StampArray
    poses: se2.FloatArray
    resets_ns: tuple[int, ...] = ()
    recorded: OdometryTrack | None = field(default=None, repr=False)

    def at(self, stamp_ns: int | se2.StampArray) -> se2.FloatArray:
        """Pose (3,) at a stamp, (n, 3) at stamps (n,); raises KbrError outside of them."""
        return se2.interpolate(self.stamps_ns, self.poses, stamp_ns)


class Skipped(dict[str, int]):
    """Lines, messages and images that were left out of a run, counted by reason."""

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
    A run: its frames in order of time, and the odometry at full rate.

    `skipped` counts what was left out, by reason; lazy images that turn out broken are counted by
    whoever loads them. A class that inherits from this may make its frames when they are asked
    for. `notes`: lines for the user, such as that the odometry is synthetic. `sources`, `others`:
    the topics that were read, and those that were not. `cameras`: their names where there are
    several. `reference_frame`: frame id of the reference poses, empty where unknown.
    `lateness_s`: seconds from the stamp of each image to its recording, empty where unknown.
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
    lateness_s: tuple[float, ...] = ()

    @property
    def stamps_ns(self) -> se2.StampArray:
        """Stamps (n,) of the frames."""
        return np.array([frame.stamp_ns for frame in self], dtype=np.int64)

    @property
    def fixes(self) -> OdometryTrack | None:
        """Known poses at their own stamps: `reference`, else those of the frames, or None."""
        known = [] if self.reference else [f for f in self if f.reference is not None]
        if not known:
            return self.reference
        stamps = np.array([frame.stamp_ns for frame in known], dtype=np.int64)
        return OdometryTrack(stamps, np.array([frame.reference for frame in known]))

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Frame:
        return self.frames[index]

    def __iter__(self) -> Iterator[Frame]:
        return (self[index] for index in range(len(self)))
