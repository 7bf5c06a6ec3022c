"""Read runs from bags: images, odometry and, if present, reference poses."""

from array import array
from collections.abc import Collection, Iterable, Sequence
import functools
import itertools
from pathlib import Path
from typing import Any, NamedTuple

from kbr_localization import se2
from kbr_localization.datasets import bag_reader
from kbr_localization.datasets.bag_reader import Bag, is_odometry_frame, stamp_of, Topic
from kbr_localization.datasets.frame import Dataset, Frame, OdometryTrack, Skipped
from kbr_localization.datasets.images import MessageImage
from kbr_localization.datasets.multi_camera import camera_name
from kbr_localization.datasets.run_folder import read_notes
from kbr_localization.datasets.tables import floor_pose
from kbr_localization.datasets.tracks import make_run, make_track, refuse_repeated_times
from kbr_localization.errors import DatasetError
import numpy as np

BASE_FRAMES = ('base_footprint', 'base_link', 'base')


class Role(NamedTuple):
    """
    A use of topics: the types of their messages, and usual names by priority.

    `unlikely`: names of topics of these types for other uses. `option`: how a user chooses a
    topic. `missing`: the expected topics, for messages.
    """

    name: str
    types: tuple[str, ...]
    usual: tuple[str, ...]
    unlikely: tuple[str, ...]
    option: str
    missing: str


REFERENCE_NAMES = ('reference_pose', 'ground_truth', 'ground_truth_pose', 'amcl_pose', 'pose')
IMAGE_ROLE = Role(
    'image',
    (bag_reader.RAW, bag_reader.COMPRESSED),
    ('image', 'image/compressed', 'image_raw', 'image_raw/compressed'),
    (),
    'one or several with --cameras',
    'a topic of sensor_msgs/Image or sensor_msgs/CompressedImage',
)
ODOMETRY_ROLE = Role(
    'odometry',
    (bag_reader.ODOMETRY,),
    ('odom', 'odometry'),
    REFERENCE_NAMES,  # often sent as odometry too
    'one with --odometry-topic',
    'a topic of nav_msgs/Odometry, or odom -> base_link on /tf',
)
REFERENCE_ROLE = Role(
    'reference',
    (bag_reader.POSE_WITH_COVARIANCE, bag_reader.POSE, bag_reader.ODOMETRY),
    REFERENCE_NAMES,
    ('initialpose', 'goal_pose', 'goal', 'goal_update', 'clicked_pose'),  # sent by users
    'one with --reference-topic',
    'geometry_msgs/PoseWithCovarianceStamped, PoseStamped or nav_msgs/Odometry in the map frame, '
    'chosen with --reference-topic, or map -> base_link on /tf',
)
UNLIKELY_IMAGE_WORDS = ('depth', 'infra', 'disparity', 'mask')


def read_bag(
    path: Path | str,
    image_topic: str | None = None,
    odometry_topic: str | None = None,
    reference_topic: str | None = None,
    guess: bool = False,
) -> Dataset:
    """
    Read a bag of ROS 2 (mcap or sqlite3; a folder, or one file of it) or ROS 1.

    Topics that are not given are found by type and, if there are several, by usual names.
    `guess`: choose the likeliest where that is not enough. Poses in the frame of the odometry are
    no reference unless chosen. Without a topic, poses are read from /tf. If a topic has no
    stamps, times of recording are used. Raises DatasetError when the bag cannot be read, or has
    no images or odometry.
    """
    bag, skipped = Bag(Path(path)), Skipped()
    topics, why_none = choose_topics(bag, image_topic, odometry_topic, reference_topic, guess)
    name = Path(path).resolve().name
    frames, sent, tree = _read_messages(bag, topics, name, skipped)
    if not frames:
        why = skipped.reason(f'bad message on {topics.images.name}') or 'there is none'
        raise DatasetError(f'bag {bag.path}: no image on {topics.images} can be read: {why}')
    for topic, samples in sent.items():
        stamps_ns = [stamp_ns for stamp_ns in samples.times_ns() if stamp_ns >= 0]
        refuse_repeated_times(f'bag {path}: the stamps of {topic}', stamps_ns)

    def poses_on(topic: Topic) -> BagPoses:
        track = sent[topic].track(skipped, f'on {topic.name}')
        reason = skipped.reason(f'bad message on {topic.name}') or f'none on {topic.name}'
        return BagPoses(track, topic.name, bag.frames_of(topic)[0], reason)

    frame, base = bag.frames_of(topics.odometry)
    if topics.odometry:
        odometry = poses_on(topics.odometry)
        tree.add_odometry(frame, base, sent[topics.odometry])
    else:
        odometry = tree.poses('odom', BASE_FRAMES, skipped.reason('bad message on /tf'))
    if odometry.track is None:
        raise _missing(bag, 'odometry', ODOMETRY_ROLE, odometry.why_none)
    if topics.reference:
        reference = poses_on(topics.reference)
    else:
        reference = tree.poses('map', (base, *BASE_FRAMES), why_none)
    if reference.track is None and _is_tf(reference_topic):
        raise _missing(bag, 'reference poses', REFERENCE_ROLE)
    notes = read_notes(bag.path if bag.path.is_dir() else bag.path.parent)
    run = make_run(name, frames, odometry.track, skipped, reference.track, notes)
    run.reference_frame, poses = reference.frame, f'reference poses on {reference.source}'
    if reference.track is None:
        poses = f'no reference poses ({reference.why_none})'
    elif topics.reference:
        poses += f' (frame {reference.frame or "without a name"})'
    run.sources = (f'images on {topics.images.name}', f'odometry on {odometry.source}', poses)
    kinds = (*IMAGE_ROLE.types, *REFERENCE_ROLE.types)
    run.others = tuple(str(t) for t in bag.topics if t.message_type in kinds and t not in topics)
    return run


class RunTopics(NamedTuple):
    images: Topic
    odometry: Topic | None
    reference: Topic | None


def choose_topics(
    bag: Bag, images: str | None, odometry: str | None, reference: str | None, guess: bool
) -> tuple[RunTopics, str]:
    """Return topics, and why there are no reference poses; raises DatasetError."""
    image = choose_topic(bag, IMAGE_ROLE, images, guess)
    if image is None:
        raise _missing(bag, 'images', IMAGE_ROLE)
    wheels = choose_topic(bag, ODOMETRY_ROLE, odometry, guess)
    frame, _ = bag.frames_of(wheels)
    drifting = [
        topic
        for topic in bag.topics
        if topic.message_type in REFERENCE_ROLE.types
        and topic != wheels
        and is_odometry_frame(bag.frames_of(topic)[0], frame)
    ]
    unfit = (wheels, *(() if reference else drifting))
    why_none = f'expected {REFERENCE_ROLE.missing}'
    if drifting:
        names = ', '.join(topic.name for topic in drifting)
        why_none = f'in the frame of the odometry: {names}; see --reference-topic'
    known = choose_topic(bag, REFERENCE_ROLE, reference, guess, unfit)
    return RunTopics(image, wheels, known), why_none


def choose_topic(
    bag: Bag,
    role: Role,
    wanted: str | None,
    guess: bool = False,
    without: Collection[Topic | None] = (),
) -> Topic | None:
    """Return the topic `wanted`, else the usual one or None; raises DatasetError if unclear."""
    found = [t for t in bag.topics if t.message_type in role.types and t not in without]
    if _is_tf(wanted):
        return None
    if wanted is not None:
        named = [t for t in found if t.name.strip('/') == wanted.strip('/')]
        if role is IMAGE_ROLE and not named:
            # a name of the camera, or the topic of its raw or compressed images
            same = (t for t in found if camera_name(t.name) == camera_name(wanted))
            named = sorted(same, key=lambda t: len(t.name))
        if not named:
            raise DatasetError(
                f'bag {bag.path}: no {role.name} topic {wanted!r}: '
                f'expected one of {_listed(found)}'
            )
        return named[0]
    likely = [t for t in found if not t.ends_with(role.unlikely)]
    # goals of users are never a reference
    found = likely if role is REFERENCE_ROLE else likely or found
    if guess:
        found = [t for t in found if not any(w in t.name for w in UNLIKELY_IMAGE_WORDS)] or found
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


def _missing(bag: Bag, what: str, role: Role, why: str = '') -> DatasetError:
    got = f'{_listed(bag.topics)}{why and f"; {why}"}'
    return DatasetError(f'no {what} in bag {bag.path}: expected {role.missing}, got {got}')


def _listed(topics: Sequence[Topic]) -> str:
    return ', '.join(map(str, topics)) or 'no messages'


def _is_tf(wanted: str | None) -> bool:
    return wanted is not None and wanted.strip('/') == 'tf'


class BagPoses(NamedTuple):
    """Poses in a bag with their topic or transforms and frame, or why there are none."""

    track: OdometryTrack | None
    source: str
    frame: str = ''
    why_none: str = ''


class StampedPoses:
    """Stamps and poses (3,) in the order of a bag, in arrays that can hold millions."""

    def __init__(self) -> None:
        self._stamps_ns, self._recorded_ns, self._poses = array('q'), array('q'), array('d')

    def add(self, stamp_ns: int, recorded_ns: int, pose: Iterable[float] = ()) -> None:
        """Add a pose, or the stamp of an image; 0 means no stamp unless recorded at time 0."""
        self._stamps_ns.append(stamp_ns if stamp_ns or not recorded_ns else -1)
        self._recorded_ns.append(recorded_ns)
        self._poses.extend(pose)

    def times_ns(self) -> list[int]:
        """Return stamps, -1 if missing, or the times of recording if all stamps are missing."""
        stamped = max(self._stamps_ns, default=-1) >= 0
        return list(self._stamps_ns if stamped else self._recorded_ns)

    def track(self, skipped: Skipped, where: str = '') -> OdometryTrack | None:
        """Return the poses with a stamp as a track, None if there are none."""
        if not self._stamps_ns:
            return None
        rows = zip(self.times_ns(), np.reshape(self._poses, (-1, 3)), strict=True)
        stamped = [row for row in rows if row[0] >= 0]
        skipped.add(f'message without a stamp {where}', count=len(self._stamps_ns) - len(stamped))
        return make_track(stamped, skipped, where)


def _read_messages(
    bag: Bag, chosen: RunTopics, run: str, skipped: Skipped
) -> tuple[list[Frame], dict[Topic, StampedPoses], 'TransformTree']:
    """Return lazy images, stamped poses, and transforms if needed."""
    topics, (images, _, reference) = [topic for topic in chosen if topic], chosen
    sources, sent = list[MessageImage](), {topic: StampedPoses() for topic in topics}
    if len(topics) < 3:
        topics += [topic for topic in bag.topics if topic.message_type == bag_reader.TF]
    tree, last_ns, ordinal = TransformTree(), -1, 0
    for topic, time_ns, message in bag.messages(topics, skipped):
        if topic == images:
            last_ns, ordinal = time_ns, ordinal + 1 if time_ns == last_ns else 0
        for part in message.transforms if topic.message_type == bag_reader.TF else (message,):
            try:
                if topic.message_type == bag_reader.TF:
                    tree.add(part, time_ns, fixed=topic.name.endswith('tf_static'))
                elif topic == images:
                    sent[topic].add(stamp_of(message), time_ns)
                    load = functools.partial(bag.message, topic, time_ns, ordinal)
                    name = f'{topic.name} at {time_ns * 1e-9:.6f} s of {bag.path}'
                    sources.append(MessageImage(load, name))
                else:
                    pose = _pose(topic, message, is_reference=topic == reference)
                    sent[topic].add(stamp_of(message), time_ns, pose)
            except DatasetError as error:
                skipped.add(f'bad message on {topic.name}', error)
    frames = [
        Frame(stamp_ns, source, name=f'{run} frame {number}')
        for number, (stamp_ns, source) in enumerate(
            zip(sent[images].times_ns(), sources, strict=True)
        )
        if stamp_ns >= 0
    ]
    skipped.add(f'message without a stamp on {images.name}', count=len(sources) - len(frames))
    return frames, sent, tree


def _pose(topic: Topic, message: Any, is_reference: bool) -> se2.FloatArray:
    """Return the pose (3,) of a message; raises DatasetError if a reference is unknown."""
    pose = message.pose
    if topic.message_type != bag_reader.POSE:
        variances = pose.covariance[[0, 7]].tolist()
        # AMCL and this package send 9999 for unknown poses; the variance of odometry always grows
        if is_reference and not all(variance < 1000.0 for variance in variances):
            raise DatasetError(f'expected a known pose, got variances of x, y {variances}')
        pose = pose.pose
    return floor_pose(pose.position, pose.orientation)


class TransformTree:
    """
    Planar transforms between the frames of a bag, over time.

    A frame may have several parents. A transform that was sent once is valid at all times.
    """

    def __init__(self) -> None:
        self._poses: dict[tuple[str, str], StampedPoses] = {}  # by parent and child

    def add(self, sent: Any, time_ns: int, fixed: bool) -> None:
        """Add a geometry_msgs/TransformStamped; raises DatasetError."""
        edge = sent.header.frame_id.strip('/'), sent.child_frame_id.strip('/')
        if not all(edge):
            return
        pose = floor_pose(sent.transform.translation, sent.transform.rotation)
        stamp_ns = time_ns if fixed else stamp_of(sent)
        if fixed or edge not in self._poses:
            self._poses[edge] = StampedPoses()
        self._poses[edge].add(stamp_ns, time_ns, pose)

    def add_odometry(self, frame: str, base: str, sent: StampedPoses) -> None:
        """Use odometry messages as the transform of the base if /tf has none."""
        if frame and base and not any(child == base for _, child in self._poses):
            self._poses[frame, base] = sent

    def poses(self, top: str, bases: Sequence[str], why_none: str = '') -> BagPoses:
        """
        Return the poses in the frame `top` of the first of `bases` that has a path to it.

        A name also matches frames that end with it (`robot1/base_link`). The poses are at the
        stamps of the most frequent transform of the path. The track is None if there is no path,
        or if its transforms do not overlap in time.
        """
        for base in filter(None, bases):
            matches = {frame for _, frame in self._poses if _is_called(frame, base)}
            for frame in sorted(matches, key=lambda frame: (frame != base, frame)):
                if path := self._find_path(top, frame):
                    track, source = self._compose(path), f'/tf ({" -> ".join(path)})'
                    return BagPoses(track, source, path[0] if track else '', why_none)
        return BagPoses(None, '/tf', '', why_none)

    def _find_path(self, top: str, frame: str) -> list[str]:
        """Return the shortest path from a frame called `top` down to a frame; empty if none."""
        paths, seen = [[frame]], {frame}
        for path in paths:
            if len(path) > 1 and _is_called(path[0], top):
                return path
            parents = [p for p, child in self._poses if child == path[0] and p not in seen]
            paths += [[parent, *path] for parent in parents]
            seen.update(parents)
        return []

    def _compose(self, path: Sequence[str]) -> OdometryTrack | None:
        """Return the poses of the last frame of a path in the first, None without overlap."""
        sent = (self._poses[edge].track(Skipped()) for edge in itertools.pairwise(path))
        tracks = [track for track in sent if track]
        moving = [t.stamps_ns for t in tracks if len(t.stamps_ns) > 1] or [tracks[-1].stamps_ns]
        start, end = max(stamps[0] for stamps in moving), min(stamps[-1] for stamps in moving)
        densest = max(moving, key=len)
        stamps_ns = densest[(densest >= start) & (densest <= end)]
        if not stamps_ns.size:
            return None
        poses = np.zeros((stamps_ns.size, 3))
        for track in tracks:
            is_static = len(track.stamps_ns) == 1
            poses = se2.compose(poses, track.poses[0] if is_static else track.at(stamps_ns))
        return OdometryTrack(stamps_ns, poses)


def _is_called(frame: str, name: str) -> bool:
    return frame == name or frame.rpartition('/')[2] == name
