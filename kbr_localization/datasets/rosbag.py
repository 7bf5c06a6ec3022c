"""Runs recorded as bags: images, odometry and, where there is one, a reference pose."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kbr_localization.datasets.bag_reader import Bag, header_frame, header_stamp_ns, TF, Topic
from kbr_localization.datasets.bag_topics import (
    choose_image,
    choose_odometry,
    choose_reference,
    COMPRESSED,
    drifts,
    NO_REFERENCE,
    POSE,
    RAW,
    reference_candidates,
    REFERENCE_TYPES,
)
from kbr_localization.datasets.bag_transforms import BagTransforms
from kbr_localization.datasets.bag_writer import write_bag
from kbr_localization.datasets.frame import Dataset, Frame, Image, OdometryTrack, Skipped
from kbr_localization.datasets.images import (
    check_compressed_format,
    decode_image,
    decode_raw_image,
)
from kbr_localization.datasets.odometry_jumps import (
    pause_notes,
    refuse_repeated_times,
    without_jumps,
)
from kbr_localization.datasets.poses import planar_pose
from kbr_localization.datasets.run_folder import read_notes, with_notes
from kbr_localization.datasets.selection import (
    foreign_stamps,
    make_track,
    ReferenceTrack,
    select_images,
)
from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray
import numpy as np

__all__ = ['BagRun', 'write_bag']

Item = TypeVar('Item')


@dataclass(frozen=True)
class RawBagImage:
    """
    A lazy image of a topic of sensor_msgs/Image.

    `time_ns`: time of recording; `ordinal`: number among the messages recorded at that time.
    """

    bag: Bag
    topic: Topic
    time_ns: int
    ordinal: int

    def message(self) -> Any:
        """Read the message; raises DatasetError."""
        return self.bag.message(self.topic, self.time_ns, self.ordinal)

    def __call__(self) -> Image:
        """Read and convert the message; raises DatasetError."""
        m = self.message()
        return decode_raw_image(
            m.encoding, m.height, m.width, m.step, m.data, str(self), bool(m.is_bigendian)
        )

    def __str__(self) -> str:
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
    A bag of ROS 2 (mcap or sqlite3; a folder, or one file of it) or ROS 1 as a dataset.

    Topics that are not given are found by their types: Image or CompressedImage, Odometry, and
    for the reference PoseWithCovarianceStamped, PoseStamped or a second Odometry. Of several
    candidates one needs a customary name, and poses in the frame of the odometry are no reference
    unless chosen; `guess` takes the likeliest in place of a refusal. Without such topics the poses
    are taken from /tf: odom -> base_link, map -> base_link or map -> odom -> base_link. `sources`
    says which topics are used. Times come from the headers, or from the recording where a header
    has none, if it is by the same clock. Images are read when asked for; the reference is
    interpolated to their stamps, None where it is unknown. Raises DatasetError when the bag cannot
    be read or lacks images or odometry.
    """

    def __init__(
        self,
        path: Path | str,
        image_topic: str | None = None,
        odometry_topic: str | None = None,
        reference_topic: str | None = None,
        guess: bool = False,
    ) -> None:
        self.path = Path(path)
        self.name = self.path.resolve().name
        self.skipped = Skipped()
        self.notes = read_notes(self.path if self.path.is_dir() else self.path.parent)
        self._bag = Bag(self.path)
        self._choose_topics(image_topic, odometry_topic, reference_topic, guess)
        images, poses = self._scan()
        reference = self._track(self.reference_topic, poses, is_reference=True)
        self._reference = None if reference is None else ReferenceTrack(reference)
        self.sources = self._sources()
        odometry = self._track(self.odometry_topic, poses)
        if odometry is None:
            reason = self.skipped.reason(f'bad message on {self.odometry_topic.name}')
            raise DatasetError(
                f'bag {self.path}: expected finite poses on {self.odometry_topic}, got none'
                + (f', but {reason}' if reason else '')
            )
        if not images:
            raise DatasetError(f'bag {self.path}: no image on {self.image_topic} can be read')
        self.odometry, notes = without_jumps(odometry)
        self._images, self.stamps_ns, self._odometry_poses = select_images(
            str(self.path), images, self.odometry, self.skipped
        )
        notes += pause_notes(self.odometry, self.stamps_ns)
        self.notes = with_notes(self.notes, notes)

    def __len__(self) -> int:
        return len(self._images)

    @property
    def others(self) -> tuple[str, ...]:
        """Topics of images, odometry and poses that are not used."""
        used = (self.image_topic, self.odometry_topic, self.reference_topic)
        kinds = (RAW, COMPRESSED, *REFERENCE_TYPES)
        found = (t for t in self._bag.topics if t.message_type in kinds and t not in used)
        return tuple(map(str, found))

    @property
    def lateness_s(self) -> FloatArray:
        """Seconds (n,) from the stamp of each image to its recording."""
        recorded = np.array([time_ns for time_ns, _ in self._images], dtype=np.int64)
        return np.asarray((recorded - self.stamps_ns) * 1e-9)

    @property
    def fixes(self) -> OdometryTrack | None:
        """Return the reference poses as they were recorded, however few, or None."""
        return self._reference.track if self._reference else None

    def __getitem__(self, index: int) -> Frame:
        stamp_ns = int(self.stamps_ns[index])
        load = CompressedBagImage if self.image_topic.message_type == COMPRESSED else RawBagImage
        return Frame(
            stamp_ns=stamp_ns,
            image=load(self._bag, self.image_topic, *self._images[index]),
            odometry=self._odometry_poses[index],
            reference=self._reference.at(stamp_ns) if self._reference else None,
            name=f'{self.name} frame {range(len(self))[index]}',
        )

    def _choose_topics(
        self, image: str | None, odometry: str | None, ref: str | None, guess: bool
    ) -> None:
        path, topics = self._bag.path, self._bag.topics
        self.image_topic = choose_image(path, topics, image, guess)
        transforms = BagTransforms(self._bag, self.skipped)
        self.odometry_topic = choose_odometry(
            path, topics, odometry, transforms.odometry_topic, guess
        )
        if self.odometry_topic.message_type != TF:
            transforms = BagTransforms(self._bag, self.skipped, self.odometry_topic)
        self._transforms = transforms
        others = [topic for topic in topics if topic != self.odometry_topic]
        # a fused odometry looks like a ground truth
        frame = self._frame(self.odometry_topic)
        candidates = reference_candidates(others)
        self._drifting = [topic for topic in candidates if drifts(self._frame(topic), frame)]
        self.reference_topic = choose_reference(
            path, others, ref, self._drifting, transforms.reference_topic, guess
        )
        self.reference_frame = ''
        if self.reference_topic and self.reference_topic.message_type == TF:
            self.reference_frame = transforms.reference_chain[0]
        elif self.reference_topic:
            self.reference_frame = self._frame(self.reference_topic)

    def _frame(self, topic: Topic) -> str:
        try:
            data = next((data for *_, data in self._bag.messages([topic])), b'')
            return header_frame(self._bag.cdr(topic, data))
        except DatasetError:
            return ''

    def _sources(self) -> tuple[str, ...]:
        """Say which topics are used, and which might have been."""
        odometry, reference = self.odometry_topic.name, f'no reference poses ({NO_REFERENCE})'
        if self.odometry_topic.message_type == TF:
            odometry = f'/tf ({" -> ".join(self._transforms.odometry_chain)})'
        topic = self.reference_topic
        if topic is not None and topic.message_type == TF:
            chain = ' -> '.join(self._transforms.reference_chain)
            reference = f'reference poses on /tf ({chain})'
        elif topic is not None and self._reference is None:
            reason = self.skipped.reason(f'bad message on {topic.name}')
            reference = f'no reference poses ({reason or f"none on {topic.name}"})'
        elif topic is not None:
            frame = self.reference_frame or 'without a name'
            reference = f'reference poses on {topic.name} (frame {frame})'
        elif self._drifting:
            names = ', '.join(drifting.name for drifting in self._drifting)
            reference = (
                f'no reference poses (in the frame of the odometry: {names}; see '
                '--reference-topic)'
            )
        return f'images on {self.image_topic.name}', f'odometry on {odometry}', reference

    def _scan(
        self,
    ) -> tuple[list[tuple[int, tuple[int, int]]], dict[str, list[tuple[int, FloatArray]]]]:
        """Read the bag once: stamps and places of the images, stamped poses by topic."""
        chosen = (self.image_topic, self.odometry_topic, self.reference_topic)
        topics = {topic.name: topic for topic in chosen if topic and topic.message_type != TF}
        found: dict[str, list[tuple[int, Any]]] = {name: [] for name in topics}
        unstamped = defaultdict[str, set[int]](set)
        at = Counter[int]()
        for name, time_ns, data in self._bag.messages(list(topics.values())):
            topic, place = topics[name], (time_ns, at[time_ns])
            at[time_ns] += topic == self.image_topic
            try:
                stamp_ns = header_stamp_ns(self._bag.cdr(topic, data))
                item = place if topic == self.image_topic else self._pose(topic, data)
            except DatasetError as error:
                self.skipped.add(f'bad message on {name}', error)
                continue
            if not stamp_ns:
                stamp_ns = time_ns
                unstamped[name].add(time_ns)
            found[name].append((stamp_ns, item))
        for name, times in unstamped.items():
            found[name] = self._of_one_clock(name, found[name], times)
        for name, topic in topics.items():
            stamps = [stamp_ns for stamp_ns, _ in found[name]]
            refuse_repeated_times(f'bag {self.path}: the stamps of {topic}', stamps)
        return found.pop(self.image_topic.name), found

    def _pose(self, topic: Topic, data: bytes) -> FloatArray:
        """Pose (3,) of a message; raises DatasetError for a reference that says it is unknown."""
        pose = self._bag.deserialize(topic, data).pose
        if topic.message_type != POSE:
            variances = np.asarray(pose.covariance, dtype=np.float64)[[0, 7]]
            # AMCL and we send 9999 for an unknown pose; the variance of odometry always grows
            if topic != self.odometry_topic and not np.all(variances < 1000.0):
                raise DatasetError(
                    f'expected a known pose, got variances of x, y {variances.tolist()}'
                )
            pose = pose.pose
        return planar_pose(pose)

    def _of_one_clock(
        self, name: str, messages: Sequence[tuple[int, Item]], unstamped_ns: set[int]
    ) -> list[tuple[int, Item]]:
        """Leave out messages of a topic whose times of recording cannot stand for stamps."""
        stamped = [stamp_ns for stamp_ns, _ in messages if stamp_ns not in unstamped_ns]
        foreign = foreign_stamps(stamped, unstamped_ns)
        kept = [message for message in messages if message[0] not in foreign]
        self.skipped.add(f'message without a stamp on {name}', number=len(messages) - len(kept))
        return kept

    def _track(
        self,
        topic: Topic | None,
        poses: dict[str, list[tuple[int, FloatArray]]],
        is_reference: bool = False,
    ) -> OdometryTrack | None:
        if topic is not None and topic.message_type == TF:
            tf = self._transforms
            return tf.track(tf.reference_chain if is_reference else tf.odometry_chain)
        if topic is None or not poses[topic.name]:
            return None
        return make_track(poses[topic.name], self.skipped, f'on {topic.name}')
