"""Runs recorded as bags: images, odometry and, where there is one, a reference pose."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
import itertools
from pathlib import Path
from typing import Any, NamedTuple

from kbr_localization import se2
from kbr_localization.datasets.bag_reader import (
    Bag,
    COMPRESSED,
    drifts,
    ODOMETRY,
    POSE,
    POSE_WITH_COVARIANCE,
    RAW,
    stamp_of,
    TF,
    Topic,
)
from kbr_localization.datasets.frame import Frame, Image, OdometryTrack, Skipped
from kbr_localization.datasets.images import MessageImage
from kbr_localization.datasets.multi_camera import camera_name
from kbr_localization.datasets.run_folder import read_notes
from kbr_localization.datasets.tables import floor_pose
from kbr_localization.datasets.tracks import make_track, refuse_repeated_times, Run, StampedRows
from kbr_localization.errors import DatasetError
import numpy as np

BASE_FRAMES = ('base_footprint', 'base_link', 'base')
Edge = tuple[str, str]
Tracks = dict[Topic, OdometryTrack | None]


class Role(NamedTuple):
    """
    What a topic may hold: types of its messages, and usual names, the surest first.

    `option`: how a user chooses one. `missing`: what is expected where there is none.
    """

    name: str
    types: tuple[str, ...]
    usual: tuple[str, ...]
    option: str
    missing: str


IMAGE = Role(
    'image',
    (RAW, COMPRESSED),
    ('image', 'image/compressed', 'image_raw', 'image_raw/compressed'),
    'one or several with --cameras',
    'a topic of sensor_msgs/Image or sensor_msgs/CompressedImage',
)
WHEELS = Role(
    'odometry',
    (ODOMETRY,),
    ('odom', 'odometry'),
    'one with --odometry-topic',
    'a topic of nav_msgs/Odometry, or odom -> base_link on /tf',
)
REFERENCE = Role(
    'reference',
    (POSE_WITH_COVARIANCE, POSE, ODOMETRY),
    ('reference_pose', 'ground_truth', 'ground_truth_pose', 'amcl_pose', 'pose'),
    'one with --reference-topic',
    'geometry_msgs/PoseWithCovarianceStamped, PoseStamped or nav_msgs/Odometry in the map frame, '
    'chosen with --reference-topic, or map -> base_link on /tf',
)
COMMANDS = ('initialpose', 'goal_pose', 'goal', 'goal_update', 'clicked_pose')
"""Poses that people send to a robot."""
NO_PICTURES = ('depth', 'infra', 'disparity', 'mask')


@dataclass(frozen=True)
class BagImage:
    """
    A lazy image of a bag.

    `time_ns`: time of recording; `ordinal`: number among the messages recorded at that time.
    """

    bag: Bag
    topic: Topic
    time_ns: int
    ordinal: int

    def message(self) -> MessageImage:
        """Read the message; raises DatasetError."""
        name = f'{self.topic.name} at {self.time_ns * 1e-9:.6f} s of {self.bag.path}'
        return MessageImage(self.bag.message(self.topic, self.time_ns, self.ordinal), name)

    def __call__(self) -> Image:
        """Read and decode the message; raises DatasetError."""
        return self.message()()

    def encoded(self, quality: int = 95) -> bytes:
        """Return the JPEG or PNG bytes of the message, else a new JPEG; raises DatasetError."""
        return self.message().encoded(quality)


class BagRun(Run):
    """
    A bag of ROS 2 (mcap or sqlite3; a folder, or one file of it) or ROS 1 as a dataset.

    Topics that are not given are found by their types: Image or CompressedImage, Odometry, and
    for the reference PoseWithCovarianceStamped, PoseStamped or a second Odometry. Of several
    candidates one needs a customary name, and poses in the frame of the odometry are no reference
    unless chosen; `guess` takes the likeliest in place of a refusal. Without such topics the poses
    are taken from /tf: odom -> base_link, map -> base_link or map -> odom -> base_link. `sources`
    says which topics are used, `others` which are not. Times come from the headers, or from the
    recording where a header has none, if it is by the same clock. Images are read when asked for;
    the reference is interpolated to their stamps, None where it is unknown. Raises DatasetError
    when the bag cannot be read or lacks images or odometry.
    """

    def __init__(
        self,
        path: Path | str,
        image_topic: str | None = None,
        odometry_topic: str | None = None,
        reference_topic: str | None = None,
        guess: bool = False,
    ) -> None:
        self._bag, skipped = Bag(Path(path)), Skipped()
        images = choose_topic(self._bag, IMAGE, image_topic, guess)
        if images is None:
            raise _missing(self._bag, 'images', IMAGE)
        wheels, known = None, None
        if not _is_tf(odometry_topic):
            wheels = choose_topic(self._bag, WHEELS, odometry_topic, guess)
        drifting = self._drifting(wheels)
        if not _is_tf(reference_topic):
            unfit = [wheels, *(() if reference_topic else drifting)]
            known = choose_topic(self._bag, REFERENCE, reference_topic, guess, unfit)
        found, tree = _scan(self._bag, images, wheels, known, skipped)
        stamps_ns, self._recorded = found.pop(images)
        if not stamps_ns.size:
            raise DatasetError(f'bag {path}: no image on {images} can be read')
        tracks = {
            topic: make_track(stamps, poses, skipped, f'on {topic.name}') if stamps.size else None
            for topic, (stamps, poses) in found.items()
        }
        self._images, self.sources = images, (f'images on {images.name}',)
        odometry = self._find_odometry(wheels, tracks, tree, skipped)
        reference = self._find_reference(known, tracks, tree, skipped, drifting)
        if reference is None and _is_tf(reference_topic):
            raise DatasetError(
                f'bag {path}: expected transforms map -> base_link or map -> odom -> base_link on '
                '/tf that overlap in time, got none'
            )
        unused = [t for t in self._bag.topics if t not in (images, wheels, known)]
        kinds = (*IMAGE.types, *REFERENCE.types)
        self.others = tuple(str(topic) for topic in unused if topic.message_type in kinds)
        folder = self._bag.path if self._bag.path.is_dir() else self._bag.path.parent
        name, notes = Path(path).resolve().name, read_notes(folder)
        super().__init__(name, stamps_ns, odometry, skipped, reference, notes)

    def _drifting(self, wheels: Topic | None) -> list[Topic]:
        """Topics that look like a ground truth and are in the frame of the odometry."""
        odometry_frame, _ = _frames_of(self._bag, wheels)
        return [
            topic
            for topic in self._bag.topics
            if topic.message_type in REFERENCE.types
            and topic != wheels
            and drifts(_frames_of(self._bag, topic)[0], odometry_frame)
        ]

    def _find_odometry(
        self, wheels: Topic | None, tracks: Tracks, tree: TransformTree, skipped: Skipped
    ) -> OdometryTrack:
        if wheels is None:
            way, track = tree.track('odom', BASE_FRAMES)
            source = f'/tf ({" -> ".join(way)})'
            if track is None:
                raise _missing(self._bag, 'odometry', WHEELS)
        else:
            source, track = wheels.name, tracks[wheels]
            if track is None:
                reason = skipped.reason(f'bad message on {source}')
                raise DatasetError(
                    f'bag {self._bag.path}: expected finite poses on {wheels}, got none'
                    + (f', but {reason}' if reason else '')
                )
            tree.add_odometry(*_frames_of(self._bag, wheels), track)
        self.sources += (f'odometry on {source}',)
        return track

    def _find_reference(
        self,
        known: Topic | None,
        tracks: Tracks,
        tree: TransformTree,
        skipped: Skipped,
        drifting: Sequence[Topic],
    ) -> OdometryTrack | None:
        """Return the poses of a topic, or else of /tf; `sources` says which, or why none."""
        if known is not None:
            self.reference_frame, track = _frames_of(self._bag, known)[0], tracks[known]
            source = f'{known.name} (frame {self.reference_frame or "without a name"})'
            lacking = skipped.reason(f'bad message on {known.name}') or f'none on {known.name}'
        else:
            way, track = tree.track('map', (tree.base, *BASE_FRAMES))
            source, self.reference_frame = f'/tf ({" -> ".join(way)})', way[0] if track else ''
            lacking = f'expected {REFERENCE.missing}'
            if drifting:
                names = ', '.join(topic.name for topic in drifting)
                lacking = f'in the frame of the odometry: {names}; see --reference-topic'
        without = f'no reference poses ({lacking})'
        self.sources += (without if track is None else f'reference poses on {source}',)
        return track

    @property
    def lateness_s(self) -> se2.FloatArray:
        """Seconds (n,) from the stamp of each image to its recording."""
        return np.asarray((self._recorded[self._places, 0] - self.stamps_ns) * 1e-9)

    def _frame(self, place: int, **known: Any) -> Frame:
        image = BagImage(self._bag, self._images, *self._recorded[place].tolist())
        return Frame(image=image, name=f'{self.name} frame {place}', **known)


def choose_topic(
    bag: Bag,
    role: Role,
    wanted: str | None,
    guess: bool = False,
    without: Collection[Topic | None] = (),
) -> Topic | None:
    """
    Choose the topic of a role, `wanted` by its name (of images: or that of the camera).

    None where there is none. `without`: topics of another role. `guess`: of several the likeliest
    is taken. Raises DatasetError when none is called as wanted, or when it is unclear.
    """
    found = [t for t in bag.topics if t.message_type in role.types and t not in without]
    if wanted is not None:
        named = [t for t in found if t.name.strip('/') == wanted.strip('/')]
        if role is IMAGE and not named:
            # raw and compressed, it is the same image
            same = (t for t in found if camera_name(t.name) == camera_name(wanted))
            named = sorted(same, key=lambda t: len(t.name))
        if not named:
            raise DatasetError(
                f'bag {bag.path}: no {role.name} topic {wanted!r}: '
                f'expected one of {_listed(found)}'
            )
        return named[0]
    if role is WHEELS:  # a ground truth is often sent as odometry too
        found = [t for t in found if not t.ends_with(REFERENCE.usual)] or found
    elif role is REFERENCE:
        found = [t for t in found if not t.ends_with(COMMANDS)]
    if guess:
        found = [t for t in found if not any(w in t.name for w in NO_PICTURES)] or found
    if len(found) <= 1:
        return found[0] if found else None
    for name in role.usual:
        usual = [t for t in found if t.ends_with([name])]
        if len(usual) == 1:
            return usual[0]
    if guess:
        return min(found, key=lambda t: (-t.count, t.name))
    raise DatasetError(
        f'bag {bag.path}: expected one {role.name} topic, got {_listed(found)}: '
        f'choose {role.option}'
    )


def _missing(bag: Bag, what: str, role: Role) -> DatasetError:
    got = _listed(bag.topics)
    return DatasetError(f'no {what} in bag {bag.path}: expected {role.missing}, got {got}')


def _listed(topics: Sequence[Topic]) -> str:
    return ', '.join(map(str, topics)) or 'no messages'


def _is_tf(wanted: str | None) -> bool:
    return wanted is not None and wanted.strip('/') == 'tf'


def _frames_of(bag: Bag, topic: Topic | None) -> tuple[str, str]:
    """Frame of the first message of a topic, and of its child; empty where it has none."""
    for *_, message in bag.messages([topic], Skipped()) if topic else ():
        child = getattr(message, 'child_frame_id', '')
        return message.header.frame_id.strip('/'), child.strip('/')
    return '', ''


def _scan(
    bag: Bag, images: Topic, wheels: Topic | None, known: Topic | None, skipped: Skipped
) -> tuple[dict[Topic, Sequence[np.ndarray]], TransformTree]:
    """
    Read the bag once: by topic the stamps (n,) with poses (n, 3), and the transforms if needed.

    Images have their time of recording and their number among those of that time.
    """
    topics = [topic for topic in (images, wheels, known) if topic]
    rows = {topic: StampedRows('q' if topic == images else 'd') for topic in topics}
    if len(topics) < 3:
        topics += [topic for topic in bag.topics if topic.message_type == TF]
    tree, last_ns, ordinal = TransformTree(), -1, 0
    for topic, time_ns, message in bag.messages(topics, skipped):
        if topic == images:
            last_ns, ordinal = time_ns, ordinal + 1 if time_ns == last_ns else 0
        for part in message.transforms if topic.message_type == TF else (message,):
            try:
                if topic == images:
                    rows[topic].add(stamp_of(message), time_ns, (time_ns, ordinal))
                elif topic.message_type == TF:
                    tree.add(part, time_ns, fixed=topic.name.endswith('tf_static'))
                else:
                    pose = _pose(topic, message, is_reference=topic == known)
                    rows[topic].add(stamp_of(message), time_ns, pose)
            except DatasetError as error:
                skipped.add(f'bad message on {topic.name}', error)
    found = dict[Topic, Sequence[np.ndarray]]()
    for topic, added in rows.items():
        stamps_ns, values, foreign = added.read()
        found[topic] = stamps_ns, values
        skipped.add(f'message without a stamp on {topic.name}', number=foreign)
        refuse_repeated_times(f'bag {bag.path}: the stamps of {topic}', stamps_ns)
    return found, tree


def _pose(topic: Topic, message: Any, is_reference: bool) -> se2.FloatArray:
    """Pose (3,) of a message; raises DatasetError for a reference that says it is unknown."""
    pose = message.pose
    if topic.message_type != POSE:
        variances = pose.covariance[[0, 7]].tolist()
        # AMCL and we send 9999 for an unknown pose; the variance of odometry always grows
        if is_reference and not all(variance < 1000.0 for variance in variances):
            raise DatasetError(f'expected a known pose, got variances of x, y {variances}')
        pose = pose.pose
    return floor_pose(pose.position, pose.orientation)


class TransformTree:
    """
    Planar poses of the frames of a bag in each other, over time.

    Of a frame with several parents the last one counts, as in tf2. A transform that was sent once
    holds for all times. `base`: the frame that the odometry moves, where its messages name it.
    """

    def __init__(self) -> None:
        self.base = ''
        self._parents: dict[str, str] = {}
        self._rows: dict[Edge, StampedRows] = {}
        self._tracks: dict[Edge, OdometryTrack] = {}

    def add(self, sent: Any, time_ns: int, fixed: bool) -> None:
        """Take in a geometry_msgs/TransformStamped; raises DatasetError."""
        edge = sent.header.frame_id.strip('/'), sent.child_frame_id.strip('/')
        if not all(edge):
            return
        pose = floor_pose(sent.transform.translation, sent.transform.rotation)
        stamp_ns = time_ns if fixed else stamp_of(sent)
        if fixed or edge not in self._rows:
            self._rows[edge] = StampedRows()
        self._rows[edge].add(stamp_ns, time_ns, pose)
        self._parents[edge[1]] = edge[0]

    def add_odometry(self, frame: str, base: str, track: OdometryTrack) -> None:
        """Let messages of odometry stand for a transform that is not sent."""
        self.base = base
        if frame and base and base not in self._parents:
            self._parents[base], self._tracks[frame, base] = frame, track

    def track(self, top: str, bases: Sequence[str]) -> tuple[list[str], OdometryTrack | None]:
        """
        Return the frames from `top` down to one of `bases`, the first that has a way, and poses.

        A name stands for the frame of any robot that ends with it (`robot1/base_link`). The poses
        are at the stamps of the quickest transform of the way; None where there is no way, or
        where its transforms do not overlap in time.
        """
        for base in filter(None, bases):
            called = [frame for frame in self._parents if _is_called(frame, base)]
            for frame in sorted(called, key=lambda frame: (frame != base, frame)):
                way = [frame]
                # stop where a circle closes
                while (parent := self._parents.get(way[-1])) and parent not in way:
                    way.append(parent)
                    if _is_called(parent, top):
                        return way[::-1], self._along(way[::-1])
        return [], None

    def _along(self, way: Sequence[str]) -> OdometryTrack | None:
        """Poses of the last of some frames, of which each is the parent of the next."""
        edges = list(itertools.pairwise(way))
        for edge in edges:
            if edge not in self._tracks:
                stamps_ns, poses, _ = self._rows[edge].read()
                self._tracks[edge] = make_track(stamps_ns, poses, Skipped(), '')
        tracks = [self._tracks[edge] for edge in edges]
        moving = [t.stamps_ns for t in tracks if len(t.stamps_ns) > 1] or [tracks[-1].stamps_ns]
        start, end = max(stamps[0] for stamps in moving), min(stamps[-1] for stamps in moving)
        quickest = max(moving, key=len)
        stamps_ns = quickest[(quickest >= start) & (quickest <= end)]
        poses = np.zeros((stamps_ns.size, 3))
        for track in tracks if stamps_ns.size else ():
            if len(track.stamps_ns) > 1:
                step = se2.interpolate(track.stamps_ns, track.poses, stamps_ns)
            else:
                step = track.poses[0]
            poses = se2.compose(poses, step)
        return OdometryTrack(stamps_ns, poses) if stamps_ns.size else None


def _is_called(frame: str, name: str) -> bool:
    return frame == name or frame.rpartition('/')[2] == name
