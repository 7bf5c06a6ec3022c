"""Runs recorded as rosbag2: images, odometry and, where there is one, a reference pose."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
import logging
from pathlib import Path
from typing import Any, TypeVar

from kbr_localization import se2
from kbr_localization.datasets.bag_reader import Bag, deserialize, Topic
from kbr_localization.datasets.bag_topics import (
    choose_image,
    choose_odometry,
    choose_reference,
    COMPRESSED,
    drifts,
    NO_REFERENCE,
    reference_candidates,
)
from kbr_localization.datasets.bag_transforms import BagTransforms, TF
from kbr_localization.datasets.bag_writer import write_bag
from kbr_localization.datasets.frame import Dataset, Frame, Image, OdometryTrack
from kbr_localization.datasets.image_file import decode_image
from kbr_localization.datasets.image_message import check_compressed_format, decode_raw_image
from kbr_localization.datasets.odometry_jumps import (
    pause_notes,
    refuse_beginning_over,
    without_jumps,
)
from kbr_localization.datasets.pose_message import (
    header_frame,
    header_stamp_ns,
    odometry_pose,
    reference_pose,
)
from kbr_localization.datasets.run_folder import read_notes, with_notes
from kbr_localization.datasets.selection import (
    make_track,
    not_covered,
    of_another_clock,
    ReferenceTrack,
    select_frames,
)
from kbr_localization.errors import DatasetError
import numpy as np

__all__ = ['BagRun', 'write_bag']

LOG = logging.getLogger(__name__)
Message = TypeVar('Message')


@dataclass(frozen=True)
class _Recorded:
    """Where an image is in the bag: time of recording, ordinal among equal times; its stamp."""

    time_ns: int
    ordinal: int
    stamp_ns: int


@dataclass(frozen=True)
class RawBagImage:
    """A lazy image of a topic of sensor_msgs/Image."""

    bag: Bag
    topic: Topic
    time_ns: int
    ordinal: int

    def message(self) -> Any:
        """Read the message; raises DatasetError."""
        return deserialize(
            self.bag.message(self.topic.name, self.time_ns, self.ordinal), self.topic.message_type
        )

    def __call__(self) -> Image:
        """Read and convert the message; raises DatasetError."""
        m = self.message()
        return decode_raw_image(
            m.encoding, m.height, m.width, m.step, m.data, str(self), bool(m.is_bigendian)
        )

    def __str__(self) -> str:
        """Name the image in messages."""
        return f'{self.topic.name} at {self.time_ns * 1e-9:.6f} s of {self.bag.path}'


class CompressedBagImage(RawBagImage):
    """A lazy image of a topic of sensor_msgs/CompressedImage."""

    def __call__(self) -> Image:
        """Read and decode the message; raises DatasetError."""
        return decode_image(self.encoded(), str(self))

    def encoded(self) -> bytes:
        """JPEG or PNG bytes of the message; raises DatasetError."""
        message = self.message()
        check_compressed_format(message.format, str(self))
        return bytes(message.data)


class BagRun(Dataset):
    """
    A rosbag2 (sqlite3 or mcap; a folder, or one file of it) as a dataset.

    Topics that are not given are found by their types: Image or CompressedImage, Odometry, and
    for the reference PoseWithCovarianceStamped, PoseStamped or a second Odometry; several
    candidates are refused unless one has a customary name, and what is in the frame of the
    odometry is no reference unless it is given. Without such topics the poses are taken from /tf:
    odom -> base_link, map -> base_link or map -> odom -> base_link. `sources` says which topics
    are used. Times are those of the headers (of the recording where a header has none, unless the
    other headers of its topic go by another clock). Images are read when asked for; the reference
    is interpolated to their stamps, None where it is unknown. `skipped` counts by reason what was
    left out. Raises DatasetError when the bag cannot be read or lacks images or odometry.
    """

    def __init__(
        self,
        path: Path | str,
        image_topic: str | None = None,
        odometry_topic: str | None = None,
        reference_topic: str | None = None,
    ) -> None:
        self.path = Path(path)
        self.name = self.path.resolve().name
        self.skipped: dict[str, int] = {}
        self._bad: dict[str, str] = {}
        self.notes = read_notes(self.path if self.path.is_dir() else self.path.parent)
        self._bag = Bag(self.path)
        topics = self._bag.topics
        self.image_topic = choose_image(self._bag.path, topics, image_topic)
        transforms = BagTransforms(self._bag)
        self.odometry_topic = choose_odometry(
            self._bag.path, topics, odometry_topic, transforms.odometry_topic
        )
        if self.odometry_topic.message_type != TF:
            transforms = BagTransforms(self._bag, self.odometry_topic)
        self._transforms = transforms
        others = [topic for topic in topics if topic != self.odometry_topic]
        drifting = self._drifting(reference_candidates(others))
        self.reference_topic = choose_reference(
            self._bag.path, others, reference_topic, drifting, transforms.reference_topic
        )
        self.reference_frame = self._reference_frame()
        images, poses = self._scan()
        self.sources = self._sources(drifting, poses)
        self._refuse_beginning_over(images, poses)
        self.odometry = self._odometry_track(poses)
        self._reference = self._reference_track(poses)
        self._select(sorted(images, key=lambda image: image.stamp_ns))

    def __len__(self) -> int:
        """Count the frames."""
        return len(self._images)

    @property
    def fixes(self) -> OdometryTrack | None:
        """Return the reference poses as they were recorded, however few, or None."""
        return self._reference.track if self._reference else None

    def __getitem__(self, index: int) -> Frame:
        """Return one frame; its image is read when asked for."""
        recorded = self._images[index]
        load = CompressedBagImage if self.image_topic.message_type == COMPRESSED else RawBagImage
        return Frame(
            stamp_ns=recorded.stamp_ns,
            image=load(self._bag, self.image_topic, recorded.time_ns, recorded.ordinal),
            odometry=self._odometry_poses[index],
            reference=self._reference.at(recorded.stamp_ns) if self._reference else None,
            name=f'{self.name} frame {range(len(self))[index]}',
        )

    def _frame(self, topic: Topic) -> str:
        return next((header_frame(data) for *_, data in self._bag.messages([topic.name])), '')

    def _reference_frame(self) -> str:
        topic = self.reference_topic
        if topic is None:
            return ''
        if topic.message_type == TF:
            return self._transforms.reference_way[0]
        return self._frame(topic)

    def _drifting(self, topics: list[Topic]) -> list[Topic]:
        """Those in the frame of the odometry: a fused odometry looks like a ground truth."""
        odometry_frame = self._frame(self.odometry_topic)
        return [topic for topic in topics if drifts(self._frame(topic), odometry_frame)]

    def _sources(
        self, drifting: list[Topic], poses: dict[str, list[tuple[int, se2.FloatArray]]]
    ) -> tuple[str, ...]:
        """Say which topics are used, and which might have been."""
        reference, odometry = f'no reference poses ({NO_REFERENCE})', str(self.odometry_topic.name)
        if self.odometry_topic.message_type == TF:
            odometry = f'/tf ({" -> ".join(self._transforms.odometry_way)})'
        if self.reference_topic is not None and self.reference_topic.message_type == TF:
            reference = f'reference poses on /tf ({" -> ".join(self._transforms.reference_way)})'
        elif self.reference_topic is not None and not poses[self.reference_topic.name]:
            name = self.reference_topic.name
            reference = f'no reference poses ({self._bad.get(name, f"none on {name}")})'
        elif self.reference_topic is not None:
            frame = self.reference_frame or 'without a name'
            reference = f'reference poses on {self.reference_topic.name} (frame {frame})'
        elif drifting:
            names = ', '.join(topic.name for topic in drifting)
            reference = (
                f'no reference poses (in the frame of the odometry: {names}; see '
                '--reference-topic)'
            )
        return (
            f'images on {self.image_topic.name}',
            f'odometry on {odometry}',
            reference,
        )

    def _scan(self) -> tuple[list[_Recorded], dict[str, list[tuple[int, se2.FloatArray]]]]:
        """Read the bag once: places and stamps of the images, stamped poses by topic."""
        images: list[_Recorded] = []
        at = Counter[int]()
        pose_topics = {
            topic.name: topic
            for topic in (self.odometry_topic, self.reference_topic)
            if topic and topic.message_type != TF
        }
        poses: dict[str, list[tuple[int, se2.FloatArray]]] = {name: [] for name in pose_topics}
        unstamped = defaultdict[str, set[int]](set)
        for name, time_ns, data in self._bag.messages([self.image_topic.name, *pose_topics]):
            if name not in pose_topics:
                at[time_ns] += 1
            try:
                stamp_ns = header_stamp_ns(data)
                if not stamp_ns:
                    stamp_ns = time_ns
                    unstamped[name].add(time_ns)
                if name in pose_topics:
                    message = deserialize(data, pose_topics[name].message_type)
                    read = odometry_pose if name == self.odometry_topic.name else reference_pose
                    poses[name].append((stamp_ns, read(message)))
                else:
                    images.append(_Recorded(time_ns, at[time_ns] - 1, stamp_ns))
            except DatasetError as error:
                first = f'bad message on {name} (the first: {error})'
                self._count(self._bad.setdefault(name, first), 1)
                LOG.debug('%s at %d ns skipped: %s', name, time_ns, error)
        for name, times in unstamped.items():
            if name in poses:
                stamps = [stamp_ns for stamp_ns, _ in poses[name]]
                poses[name] = self._of_one_clock(name, poses[name], stamps, times)
            else:
                stamps = [image.stamp_ns for image in images]
                images = self._of_one_clock(name, images, stamps, times)
        return images, poses

    def _of_one_clock(
        self, name: str, messages: list[Message], stamps_ns: list[int], unstamped_ns: set[int]
    ) -> list[Message]:
        """Leave out messages of a topic whose times of recording are no stamps of it."""
        stamped = [stamp_ns for stamp_ns in stamps_ns if stamp_ns not in unstamped_ns]
        foreign = of_another_clock(stamped, unstamped_ns)
        pairs = zip(messages, stamps_ns, strict=True)
        kept = [message for message, stamp_ns in pairs if stamp_ns not in foreign]
        self._count(f'message without a stamp on {name}', len(messages) - len(kept))
        return kept

    def _refuse_beginning_over(
        self, images: list[_Recorded], poses: dict[str, list[tuple[int, se2.FloatArray]]]
    ) -> None:
        """Raise DatasetError for a topic of two times."""
        stamps = {name: [stamp_ns for stamp_ns, _ in stamped] for name, stamped in poses.items()}
        stamps[self.image_topic.name] = [image.stamp_ns for image in images]
        for topic in (self.odometry_topic, self.image_topic, self.reference_topic):
            if topic:
                what = f'bag {self.path}: the stamps of {topic}'
                refuse_beginning_over(what, stamps.get(topic.name, ()))

    def _count(self, reason: str, number: int) -> None:
        if number:
            self.skipped[reason] = self.skipped.get(reason, 0) + number

    def _track(
        self, poses: dict[str, list[tuple[int, se2.FloatArray]]], topic: Topic
    ) -> OdometryTrack:
        stamped = poses[topic.name]
        if not stamped:
            bad = f', but {self._bad[topic.name]}' if topic.name in self._bad else ''
            raise DatasetError(f'bag {self.path}: expected finite poses on {topic}, got none{bad}')
        track, repeated = make_track(*zip(*stamped, strict=True))
        self._count(f'repeated stamp on {topic.name}', repeated)
        return track

    def _odometry_track(self, poses: dict[str, list[tuple[int, se2.FloatArray]]]) -> OdometryTrack:
        if self.odometry_topic.message_type == TF:
            track = self._transforms.track(self._transforms.odometry_way)
        else:
            track = self._track(poses, self.odometry_topic)
        track, notes = without_jumps(track)
        self.notes = with_notes(self.notes, notes)
        return track

    def _reference_track(
        self, poses: dict[str, list[tuple[int, se2.FloatArray]]]
    ) -> ReferenceTrack | None:
        topic = self.reference_topic
        if topic and topic.message_type == TF:
            return ReferenceTrack(self._transforms.track(self._transforms.reference_way))
        return ReferenceTrack(self._track(poses, topic)) if topic and poses[topic.name] else None

    def _select(self, images: list[_Recorded]) -> None:
        stamps = np.array([image.stamp_ns for image in images], dtype=np.int64)
        if stamps.size == 0:
            raise DatasetError(f'bag {self.path}: no image on {self.image_topic} can be read')
        kept, left_out = select_frames(stamps, self.odometry)
        self.skipped |= left_out
        if kept.size == 0:
            raise DatasetError(not_covered(str(self.path), stamps, self.odometry))
        self.notes = with_notes(self.notes, pause_notes(self.odometry, stamps[kept]))
        self._images = [images[index] for index in kept]
        self._odometry_poses = se2.interpolate(
            self.odometry.stamps_ns, self.odometry.poses, stamps[kept]
        )
