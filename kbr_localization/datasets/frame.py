"""What every dataset provides: frames, and the odometry they were taken along."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from kbr_localization import se2
from kbr_localization.errors import DatasetError, KbrError
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
FARTHEST_M = 1e7
"""A pose farther away is a broken number; coordinates of maps of countries are nearer."""


@dataclass(frozen=True)
class Frame:
    """
    One image of a run with the poses that belong to its stamp.

    `stamp_ns`: integer nanoseconds. `image`: (height, width) or (height, width, 3) BGR uint8, or a
    function that loads it; with several cameras the function gives a `MultiImage`. `odometry`:
    (3,) pose of the base in the odometry frame at that stamp. `reference`: (3,) ground-truth pose
    of the base in the map frame, or None. `name`: what messages call the frame. `label`: the
    place's name where a dataset has one.
    """

    stamp_ns: int
    image: Image | Callable[[], Image] = field(repr=False)
    odometry: se2.FloatArray
    reference: se2.FloatArray | None = None
    name: str = ''
    label: str = ''

    def load_image(self) -> Image:
        """Return the image; raises DatasetError when a lazy image cannot be read."""
        return self.image() if callable(self.image) else self.image


@dataclass(frozen=True)
class OdometryTrack:
    """
    The odometry of a run at full rate: `stamps_ns` (m,) increasing, `poses` (m, 3).

    `resets_ns`: stamps of samples at which it began again and was made to go on, without motion.
    `recorded`: the track before that, where it was another: what copies of a run have.
    """

    stamps_ns: se2.StampArray
    poses: se2.FloatArray
    resets_ns: tuple[int, ...] = ()
    recorded: OdometryTrack | None = field(default=None, repr=False)

    def at(self, stamp_ns: int) -> se2.FloatArray:
        """Pose (3,) at a stamp; raises DatasetError outside of the track."""
        try:
            return se2.interpolate(self.stamps_ns, self.poses, stamp_ns)
        except KbrError as error:
            raise DatasetError(f'no odometry: {error}') from error


@runtime_checkable
class Dataset(Protocol):
    """
    A run: a sequence of frames in order of time, and the odometry at full rate.

    `skipped` counts the images that were left out, by reason: a broken file, no odometry, a bad
    line. Lazy images that turn out broken are counted by whoever loads them.

    A class that inherits from this has the rest by default. `notes`: what to know about the run, a
    line each, as that its odometry was made. `sources`: what it was read from, as the topics of a
    bag. `cameras`: their names where there are several. `reference_frame`: the frame id of the
    reference poses, empty where none is told. `fixes`: known poses at their own stamps.
    """

    name: str
    odometry: OdometryTrack
    skipped: dict[str, int]
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    cameras: tuple[str, ...] = ()
    reference_frame: str = ''

    @property
    def fixes(self) -> OdometryTrack | None:
        """Known poses at their own stamps, by default those of the frames, or None."""
        known = [f for f in self if f.reference is not None]
        if not known:
            return None
        stamps = np.array([frame.stamp_ns for frame in known], dtype=np.int64)
        return OdometryTrack(stamps, np.array([frame.reference for frame in known]))

    def __len__(self) -> int:
        """Count the frames."""
        ...

    def __getitem__(self, index: int) -> Frame:
        """Return one frame."""
        ...

    def __iter__(self) -> Iterator[Frame]:
        """Iterate over the frames in order of time."""
        return (self[index] for index in range(len(self)))
