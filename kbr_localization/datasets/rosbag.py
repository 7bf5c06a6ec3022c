"""Runs recorded as bags: images, odometry and, where there is one, a reference pose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
import itertools
from pathlib import Path
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets.bag_reader import (
    Bag,
    choose_topic,
    drifts,
    IMAGE,
    missing_topic,
    POSE,
    RAW,
    REFERENCE,
    stamp_of,
    TF,
    Topic,
    WHEELS,
)
from kbr_localization.datasets.frame import Dataset, Frame, Image, OdometryTrack, Skipped
from kbr_localization.datasets.images import (
    check_compressed_format,
    decode_image,
    decode_raw_image,
)
from kbr_localization.datasets.run_folder import read_notes, with_notes
from kbr_localization.datasets.tables import floor_pose, planar_pose
from kbr_localization.datasets.tracks import (
    known_pose,
    make_track,
    pause_notes,
    refuse_repeated_times,
    select_images,
    StampedRows,
    without_jumps,
)
from kbr_localization.errors import DatasetError
import numpy as np

MAP_FRAMES, ODOMETRY_FRAMES = ('map',), ('odom',)
BASE_FRAMES = ('base_footprint', 'base_link', 'base')
Edge = tuple[str, str]


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
        self._bag = Bag(self.path)
        images = choose_topic(self._bag, IMAGE, image_topic, guess)
        if images is None:
            raise missing_topic(self._bag, IMAGE, 'images')
        self.image_topic = images
        wheels = None
        if not _is_tf(odometry_topic):
            wheels = choose_topic(self._bag, WHEELS, odometry_topic, guess)
        self._frame, self._child = self._frames_of(wheels)
        known, drifting = self._choose_reference(reference_topic, wheels, guess)
        places, tracks = self._scan(wheels, known)

        self._tree: TransformTree | None = None
        odometry = self._odometry(wheels, tracks)
        on_tf = _is_tf(reference_topic)
        self._reference = self._known_poses(known, tracks, odometry, on_tf, drifting)
        if not places:
            raise DatasetError(f'bag {self.path}: no image on {self.image_topic} can be read')
        self.odometry, notes = without_jumps(odometry)
        self._images, self.stamps_ns, self._odometry_poses = select_images(
            str(self.path), places, self.odometry, self.skipped
        )
        own = read_notes(self.path if self.path.is_dir() else self.path.parent)
        self.notes = with_notes(own, notes + pause_notes(self.odometry, self.stamps_ns))

    def __len__(self) -> int:
        return len(self._images)

    @property
    def others(self) -> tuple[str, ...]:
        """Topics of images, odometry and poses that are not used."""
        used = (self.image_topic, self.odometry_topic, self.reference_topic)
        kinds = (*IMAGE.types, *REFERENCE.types)
        found = (t for t in self._bag.topics if t.message_type in kinds and t not in used)
        return tuple(map(str, found))

    @property
    def lateness_s(self) -> se2.FloatArray:
        """Seconds (n,) from the stamp of each image to its recording."""
        recorded = np.array([time_ns for time_ns, _ in self._images], dtype=np.int64)
        return np.asarray((recorded - self.stamps_ns) * 1e-9)

    @property
    def fixes(self) -> OdometryTrack | None:
        """Return the reference poses as they were recorded, however few, or None."""
        return self._reference

    def __getitem__(self, index: int) -> Frame:
        stamp_ns = int(self.stamps_ns[index])
        load = RawBagImage if self.image_topic.message_type == RAW else CompressedBagImage
        return Frame(
            stamp_ns=stamp_ns,
            image=load(self._bag, self.image_topic, *self._images[index].tolist()),
            odometry=self._odometry_poses[index],
            reference=known_pose(self._reference, stamp_ns) if self._reference else None,
            name=f'{self.name} frame {range(len(self))[index]}',
        )

    def _frames_of(self, topic: Topic | None) -> tuple[str, str]:
        """Frame of the first message of a topic, and of its child; empty where it has none."""
        for *_, message in self._bag.messages([topic], Skipped()) if topic else ():
            child = getattr(message, 'child_frame_id', '')
            return message.header.frame_id.strip('/'), child.strip('/')
        return '', ''

    def _choose_reference(
        self, wanted: str | None, wheels: Topic | None, guess: bool
    ) -> tuple[Topic | None, list[Topic]]:
        """Choose the topic of the reference; name those that were not as their frame drifts."""
        if _is_tf(wanted):
            return None, []
        others = [t for t in self._bag.topics if t.message_type in REFERENCE.types and t != wheels]
        # a fused odometry looks like a ground truth
        drifting = [t for t in others if drifts(self._frames_of(t)[0], self._frame)]
        without = [topic for topic in (wheels, *(() if wanted else drifting)) if topic]
        return choose_topic(self._bag, REFERENCE, wanted, guess, without), drifting

    def _scan(
        self, wheels: Topic | None, known: Topic | None
    ) -> tuple[list[tuple[int, Any]], dict[str, OdometryTrack | None]]:
        """Read the bag once: stamps and places of the images, tracks of the poses by topic."""
        topics = [self.image_topic, *(topic for topic in (wheels, known) if topic)]
        rows = {topic: StampedRows('q' if topic == self.image_topic else 'd') for topic in topics}
        at = Counter[int]()
        for topic, time_ns, message in self._bag.messages(topics, self.skipped):
            try:
                row: Any = (time_ns, at[time_ns])
                if topic == self.image_topic:
                    at[time_ns] += 1
                else:
                    row = _pose(topic, message, is_reference=topic == known)
                rows[topic].add(stamp_of(message), time_ns, row)
            except DatasetError as error:
                self.skipped.add(f'bad message on {topic.name}', error)
        found = {}
        for topic in topics:
            found[topic.name], foreign = rows[topic].of_one_clock()
            self.skipped.add(f'message without a stamp on {topic.name}', number=foreign)
            stamps = [stamp_ns for stamp_ns, _ in found[topic.name]]
            refuse_repeated_times(f'bag {self.path}: the stamps of {topic}', stamps)
        places = found.pop(self.image_topic.name)
        return places, {
            name: make_track(samples, self.skipped, f'on {name}') if samples else None
            for name, samples in found.items()
        }

    def _odometry(
        self, topic: Topic | None, tracks: dict[str, OdometryTrack | None]
    ) -> OdometryTrack:
        where, track = topic and topic.name, tracks[topic.name] if topic else None
        if topic is None:
            tree = self._transforms()
            chain = tree.chain(ODOMETRY_FRAMES, BASE_FRAMES)
            if not (chain and tree.topic):
                raise missing_topic(self._bag, WHEELS, 'odometry')
            topic, track = tree.topic, tree.track(chain)
            where = f'/tf ({" -> ".join(chain)})'
        self.odometry_topic = topic
        if track is None:
            reason = self.skipped.reason(f'bad message on {topic.name}')
            raise DatasetError(
                f'bag {self.path}: expected finite poses on {topic}, got none'
                + (f', but {reason}' if reason else '')
            )
        self.sources = f'images on {self.image_topic.name}', f'odometry on {where}'
        return track

    def _known_poses(
        self,
        topic: Topic | None,
        tracks: dict[str, OdometryTrack | None],
        odometry: OdometryTrack,
        on_tf: bool,
        drifting: list[Topic],
    ) -> OdometryTrack | None:
        """Return the reference, from its topic or else from /tf; `sources` says which."""
        self.reference_topic, track = topic, None
        if topic is not None:
            track, self.reference_frame = tracks[topic.name], self._frames_of(topic)[0]
            source = f'{topic.name} (frame {self.reference_frame or "without a name"})'
            bad = self.skipped.reason(f'bad message on {topic.name}')
            lacking = bad or f'none on {topic.name}'
        else:
            tree = self._transforms()
            tree.add_odometry(self._frame, self._child, odometry)
            bases = (self._child, *BASE_FRAMES) if self._child else BASE_FRAMES
            chain = tree.chain(MAP_FRAMES, bases)
            if tree.topic and chain:
                self.reference_topic, track = tree.topic, tree.track(chain)
                self.reference_frame = chain[0]
                source = f'/tf ({" -> ".join(chain)})'
            elif on_tf:
                raise DatasetError(
                    f'bag {self.path}: expected transforms map -> base_link or map -> odom -> '
                    'base_link on /tf that overlap in time, got none'
                )
            lacking = f'expected {REFERENCE.missing}'
            if drifting:
                names = ', '.join(topic.name for topic in drifting)
                lacking = f'in the frame of the odometry: {names}; see --reference-topic'
        without = f'no reference poses ({lacking})'
        self.sources += (without if track is None else f'reference poses on {source}',)
        return track

    def _transforms(self) -> TransformTree:
        self._tree = self._tree or TransformTree(self._bag, self.skipped)
        return self._tree


def _is_tf(wanted: str | None) -> bool:
    return wanted is not None and wanted.strip('/') == 'tf'


def _pose(topic: Topic, message: Any, is_reference: bool) -> se2.FloatArray:
    """Pose (3,) of a message; raises DatasetError for a reference that says it is unknown."""
    pose = message.pose
    if topic.message_type != POSE:
        x, _, _, _, _, _, _, y = pose.covariance[:8].tolist()
        # AMCL and we send 9999 for an unknown pose; the variance of odometry always grows
        if is_reference and not (x < 1000.0 and y < 1000.0):
            raise DatasetError(f'expected a known pose, got variances of x, y {[x, y]}')
        pose = pose.pose
    return planar_pose(pose)


class TransformTree:
    """
    Planar poses of the frames of a bag in each other, over time.

    Of a frame with several parents the last one counts, as in tf2. `topic`: where they come from,
    or None.
    """

    def __init__(self, bag: Bag, skipped: Skipped) -> None:
        self._parents: dict[str, str] = {}
        self._fixed: dict[Edge, se2.FloatArray] = {}
        self._moving: dict[Edge, StampedRows] = {}
        self._tracks: dict[Edge, OdometryTrack] = {}
        topics = [topic for topic in bag.topics if topic.message_type == TF]
        self.topic = topics[0] if topics else None
        for topic, time_ns, message in bag.messages(topics, skipped) if topics else ():
            for sent in message.transforms:
                try:
                    self._add(topic, time_ns, sent)
                except DatasetError as error:
                    skipped.add(f'bad message on {topic.name}', error)

    def _add(self, topic: Topic, time_ns: int, sent: Any) -> None:
        edge = sent.header.frame_id.strip('/'), sent.child_frame_id.strip('/')
        if not all(edge):
            return
        pose = floor_pose(sent.transform.translation, sent.transform.rotation)
        if topic.name.endswith('tf_static'):
            self._fixed[edge] = pose
        else:
            self._moving.setdefault(edge, StampedRows('d')).add(stamp_of(sent), time_ns, pose)
        self._parents[edge[1]] = edge[0]

    def add_odometry(self, frame: str, child: str, track: OdometryTrack) -> None:
        """Let messages of odometry stand for a transform that is not sent."""
        if frame and child and child not in self._parents:
            self._parents[child] = frame
            self._tracks[frame, child] = track

    def chain(self, above: Sequence[str], below: Sequence[str]) -> tuple[str, ...]:
        """
        Frames from one of `above` down to one of `below`, both in order of preference.

        A name stands for the frame of any robot that ends with it (`robot1/base_link`). Empty
        where there is no such chain, or where its transforms do not overlap in time.
        """
        for name in below:
            called = [frame for frame in sorted(self._parents) if _is_called(frame, name)]
            for frame in [name] if name in called else called:
                upward = self._up(frame)
                tops = [f for top in above for f in upward[1:] if _is_called(f, top)]
                if tops:
                    chain = tuple(upward[: upward.index(tops[0]) + 1][::-1])
                    return chain if self._stamps(chain).size else ()
        return ()

    def track(self, chain: Sequence[str]) -> OdometryTrack:
        """Poses of the last frame of a chain in its first, at stamps of its quickest transform."""
        stamps = self._stamps(chain)
        poses = np.zeros((stamps.size, 3))
        for edge in itertools.pairwise(chain):
            track = self._track(edge)
            step = track.poses[-1]
            if not self._is_constant(edge):
                step = se2.interpolate(track.stamps_ns, track.poses, stamps)
            poses = se2.compose(poses, step)
        return OdometryTrack(stamps, poses)

    def _stamps(self, chain: Sequence[str]) -> se2.StampArray:
        """Stamps of the quickest transform of a chain at which all of them are known."""
        edges = list(itertools.pairwise(chain))
        moving = [edge for edge in edges if not self._is_constant(edge)] or edges[-1:]
        tracks = [self._track(edge).stamps_ns for edge in moving]
        start, end = max(t[0] for t in tracks), min(t[-1] for t in tracks)
        quickest = max(tracks, key=len)
        return np.asarray(quickest[(quickest >= start) & (quickest <= end)])

    def _track(self, edge: Edge) -> OdometryTrack:
        if edge in self._fixed:
            return OdometryTrack(np.zeros(1, dtype=np.int64), self._fixed[edge][np.newaxis])
        if edge not in self._tracks:
            samples, _ = self._moving[edge].of_one_clock()
            self._tracks[edge] = make_track(samples, Skipped(), '')
        return self._tracks[edge]

    def _is_constant(self, edge: Edge) -> bool:
        """Whether a transform holds for all times: a fixed one, or one that was sent once."""
        return edge in self._fixed or len(self._track(edge).stamps_ns) == 1

    def _up(self, frame: str) -> list[str]:
        chain = [frame]
        # stop where a circle closes
        while chain[-1] in self._parents and self._parents[chain[-1]] not in chain:
            chain.append(self._parents[chain[-1]])
        return chain


def _is_called(frame: str, name: str) -> bool:
    return frame == name or frame.rpartition('/')[2] == name
