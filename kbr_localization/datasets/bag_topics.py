"""Which topics of a bag hold images, odometry and the reference pose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from kbr_localization.datasets.bag_reader import Topic
from kbr_localization.datasets.camera_names import camera_name
from kbr_localization.errors import DatasetError

RAW, COMPRESSED = 'sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage'
ODOMETRY = 'nav_msgs/msg/Odometry'
POSE, POSE_WITH_COVARIANCE = (
    'geometry_msgs/msg/PoseStamped',
    'geometry_msgs/msg/PoseWithCovarianceStamped',
)
REFERENCE_TYPES = (POSE_WITH_COVARIANCE, POSE, ODOMETRY)
# names by which a topic is meant when there are several of its type, the surest first
IMAGE_NAMES = ('image', 'image/compressed', 'image_raw', 'image_raw/compressed')
ODOMETRY_NAMES = ('odom', 'odometry')
REFERENCE_NAMES = ('reference_pose', 'ground_truth', 'ground_truth_pose', 'amcl_pose', 'pose')
CHOICE = {
    'image': 'one or several with --cameras',
    'odometry': 'one with --odometry-topic',
    'reference': 'one with --reference-topic',
}
"""How a user chooses a topic, by what it is for."""
# what people send to a robot, not where it is
COMMANDS = ('initialpose', 'goal_pose', 'goal', 'goal_update', 'clicked_pose')


OnTf = Callable[[], Topic | None]
NO_REFERENCE = (
    'expected geometry_msgs/PoseWithCovarianceStamped, PoseStamped or nav_msgs/Odometry in the '
    'map frame, chosen with --reference-topic, or map -> base_link on /tf'
)
"""What may hold the reference poses, for messages."""


def _nothing() -> None:
    return None


def choose_image(path: Path, topics: Sequence[Topic], wanted: str | None) -> Topic:
    """
    Choose the topic of the images, `wanted` by its name or by that of its camera.

    Raises DatasetError when it is missing or unclear.
    """
    candidates = [topic for topic in topics if topic.message_type in (RAW, COMPRESSED)]
    if wanted is not None and not _listed_as(candidates, wanted):
        of_camera = [t for t in candidates if camera_name(t.name) == camera_name(wanted)]
        # an image that comes raw and compressed is the same image
        wanted = min((t.name for t in of_camera), key=len, default=wanted)
    chosen = _choose(path, 'image', topics, candidates, IMAGE_NAMES, wanted)
    if chosen is None:
        raise _missing(path, 'images', 'sensor_msgs/Image or sensor_msgs/CompressedImage', topics)
    return chosen


def choose_odometry(
    path: Path, topics: Sequence[Topic], wanted: str | None, on_tf: OnTf = _nothing
) -> Topic:
    """
    Choose the topic of the odometry; raises DatasetError when it is missing or unclear.

    `on_tf`: looks for it among the transforms, where there is no such topic or /tf is `wanted`.
    """
    if _is_tf(wanted):
        return _found_on_tf(path, 'odom -> base_link', on_tf)
    candidates = [topic for topic in topics if topic.message_type == ODOMETRY]
    if wanted is None:
        # a ground truth is often sent as odometry too
        plain = [topic for topic in candidates if not _has_name(topic, REFERENCE_NAMES)]
        candidates = plain or candidates
    chosen = _choose(path, 'odometry', topics, candidates, ODOMETRY_NAMES, wanted) or on_tf()
    if chosen is None:
        types = 'nav_msgs/Odometry, or odom -> base_link on /tf'
        raise _missing(path, 'odometry', types, topics)
    return chosen


def choose_reference(
    path: Path,
    topics: Sequence[Topic],
    wanted: str | None,
    drifting: Collection[Topic] = (),
    on_tf: OnTf = _nothing,
) -> Topic | None:
    """
    Choose the topic of the reference pose, None where there is none.

    `drifting`: topics in the frame of the odometry, which are taken only if they are `wanted`.
    `on_tf`: looks for it among the transforms, where there is no such topic or /tf is `wanted`.
    """
    if _is_tf(wanted):
        return _found_on_tf(path, 'map -> base_link or map -> odom -> base_link', on_tf)
    candidates = [topic for topic in topics if topic.message_type in REFERENCE_TYPES]
    if wanted is None:
        candidates = [topic for topic in reference_candidates(topics) if topic not in drifting]
    return _choose(path, 'reference', topics, candidates, REFERENCE_NAMES, wanted) or on_tf()


def reference_candidates(topics: Sequence[Topic]) -> list[Topic]:
    """Topics that may hold the reference pose, by their types and names."""
    return [t for t in topics if t.message_type in REFERENCE_TYPES and not _has_name(t, COMMANDS)]


def drifts(frame: str, odometry_frame: str) -> bool:
    """Tell whether poses in a frame are odometry, which drifts, and not poses in a map."""
    return frame != '' and (frame == odometry_frame or 'odom' in frame.rpartition('/')[2])


def _is_tf(wanted: str | None) -> bool:
    return wanted is not None and wanted.strip('/') == 'tf'


def _found_on_tf(path: Path, way: str, on_tf: OnTf) -> Topic:
    topic = on_tf()
    if topic is None:
        raise DatasetError(
            f'bag {path}: expected transforms {way} on /tf that overlap in time, got none'
        )
    return topic


def _choose(
    path: Path,
    role: str,
    topics: Sequence[Topic],
    candidates: Sequence[Topic],
    names: Sequence[str],
    wanted: str | None,
) -> Topic | None:
    if wanted is not None:
        return _wanted(path, role, topics, candidates, wanted)
    if len(candidates) <= 1:
        return candidates[0] if candidates else None
    for name in names:
        named = [topic for topic in candidates if _has_name(topic, (name,))]
        if len(named) == 1:
            return named[0]
    raise DatasetError(
        f'bag {path}: expected one {role} topic, got {_listed(candidates)}: choose {CHOICE[role]}'
    )


def _wanted(
    path: Path, role: str, topics: Sequence[Topic], candidates: Sequence[Topic], wanted: str
) -> Topic:
    for topic in candidates:
        if topic.name.strip('/') == wanted.strip('/'):
            return topic
    raise DatasetError(
        f'bag {path}: no {role} topic {wanted!r}: expected one of {_listed(candidates or topics)}'
    )


def _missing(path: Path, what: str, types: str, topics: Sequence[Topic]) -> DatasetError:
    return DatasetError(
        f'no {what} in bag {path}: expected a topic of {types}, got {_listed(topics)}'
    )


def _listed_as(topics: Sequence[Topic], wanted: str) -> bool:
    return any(topic.name.strip('/') == wanted.strip('/') for topic in topics)


def _has_name(topic: Topic, names: Sequence[str]) -> bool:
    return any(topic.name == f'/{name}' or topic.name.endswith(f'/{name}') for name in names)


def _listed(topics: Sequence[Topic]) -> str:
    return ', '.join(map(str, topics)) or 'no messages'
