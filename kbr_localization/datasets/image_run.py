"""Runs of image files with true poses from a file beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kbr_localization import se2
from kbr_localization.datasets.frame import Dataset, Frame, OdometryTrack
from kbr_localization.datasets.image_file import ImageFile
from kbr_localization.datasets.odometry_jumps import pause_notes, without_jumps
from kbr_localization.datasets.odometry_noise import made_odometry, odometry_note
from kbr_localization.datasets.selection import not_covered, ReferenceTrack, select_frames
from kbr_localization.errors import DatasetError
import numpy as np


@dataclass(frozen=True)
class Listing:
    """
    What a folder of a public dataset holds.

    `images`: stamps in nanoseconds and files. `reference`: the true poses on the floor.
    `odometry`: None where there is none. `skipped`: what was left out, by reason. `truth`: name
    of the file of the true poses, for messages.
    """

    name: str
    images: Sequence[tuple[int, Path]]
    reference: OdometryTrack
    odometry: OdometryTrack | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    truth: str = 'true poses'


class ImageRun(Dataset):
    """
    A run of a public dataset.

    Where it has no odometry that is made from the true poses, with errors that follow from
    `odometry_seed`, and `notes` says so. Images are read when asked for; those that are missing or
    lie outside of the odometry are counted in `skipped`. Raises DatasetError when none is left.
    """

    def __init__(self, listing: Listing, odometry_seed: int = 0) -> None:
        self.name, self.skipped = listing.name, dict(listing.skipped)
        if listing.odometry is None:
            self.notes = (odometry_note(odometry_seed),)
            self.odometry = made_odometry(listing.reference, listing.name, odometry_seed)
        else:
            self.odometry, self.notes = without_jumps(listing.odometry)
        self._reference = ReferenceTrack(listing.reference)
        self._select(listing)

    @property
    def fixes(self) -> OdometryTrack:
        """Return the true poses at their own stamps."""
        return self._reference.track

    def __len__(self) -> int:
        """Count the frames."""
        return len(self._files)

    def __getitem__(self, index: int) -> Frame:
        """Return one frame; its image is read when asked for."""
        stamp_ns, file = int(self.stamps_ns[index]), self._files[index]
        return Frame(
            stamp_ns=stamp_ns,
            image=ImageFile(file),
            odometry=self._odometry_poses[index],
            reference=self._reference.at(stamp_ns),
            name=file.name,
        )

    def _select(self, listing: Listing) -> None:
        """Keep one image per stamp that is there, in order of time, within the odometry."""
        found = sorted(image for image in listing.images if image[1].is_file())
        if not found:
            raise DatasetError(self._nothing_found(listing))
        if missing := len(listing.images) - len(found):
            self.skipped['listed but missing'] = missing
        made = listing.odometry is None
        stamps = np.array([stamp for stamp, _ in found], dtype=np.int64)
        kept, left_out = select_frames(stamps, self.odometry)
        self.skipped |= {
            'no true pose' if made and reason == 'no odometry' else reason: count
            for reason, count in left_out.items()
        }
        if kept.size == 0:
            poses = listing.truth if made else 'odometry'
            raise DatasetError(not_covered(self.name, stamps, self.odometry, poses))
        self.stamps_ns = stamps[kept]
        self.notes += pause_notes(listing.reference if made else self.odometry, self.stamps_ns)
        self._files = [found[index][1] for index in kept]
        self._odometry_poses = se2.interpolate(
            self.odometry.stamps_ns, self.odometry.poses, self.stamps_ns
        )

    @staticmethod
    def _nothing_found(listing: Listing) -> str:
        first = f', the first being {listing.images[0][1]}' if listing.images else ''
        return (
            f'no images of {listing.name}: {len(listing.images)} are listed{first}: '
            'are the images unpacked?'
        )
