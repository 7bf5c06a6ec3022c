"""Which topics of a bag hold images, odometry and the reference pose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from kbr_localization.datasets.bag_reader import Topic
from kbr_localization.datasets.multi_camera import camera_name
from kbr_localization.errors import DatasetError

RAW, COMPRESSED = 'sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage'
ODOMETRY = 'nav_msgs/msg/Odometry'
POSE = 'geometry_msgs/msg/PoseStamped'
POSE_WITH_COVARIANCE = 'geometry_msgs/msg/PoseWithCovarianceStamped'
REFERENCE_TYPES = (POSE_WITH_COVARIANCE, POSE, ODOMETRY)
REFERENCE_NAMES = ('reference_pose', 'ground_truth', 'ground_truth_pose', 'amcl_pose', 'pose')
USUAL_NAMES = {
    'image': ('image', 'image/compressed', 'image_raw', 'image_raw/compressed'),
    'odometry': ('odom', 'odometry'),
    'reference': REFERENCE_NAMES,
}
"""Names that are preferred among several topics of a type, the surest first."""
OPTIONS = {
    'image': 'one or several with --cameras',
    'odometry': 'one with --odometry-topic',
    'reference': 'one with --reference-topic',
}
COMMANDS = ('initialpose', 'goal_pose', 'goal', 'goal_update', 'clicked_pose')
"""Poses that people send to a robot."""
NO_REFERENCE = (
    'expected geometry_msgs/PoseWithCovarianceStamped, PoseStamped or nav_msgs/Odometry in the '
    'map frame, chosen with --reference-topic, or map -> base_link on /tf'
)

OnTf = Callable[[], Topic | None]


def choose_image(
    path: Path, topics: Sequence[Topic], wanted: str | None, guess: bool = False
) -> Topic:
    """
    Choose the topic of the images, `wanted` by its name or by its camera name.

    `guess`: of several the likeliest is taken. Raises DatasetError when it is missing or unclear.
    """
    candidates = [topic for topic in topics if topic.message_type in (RAW, COMPRESSED)]
    if wanted is not None and not any(_is_named(topic, wanted) for topic in candidates):
        of_camera = [t.name for t in candidates if camera_name(t.name) == camera_name(wanted)]
        # raw and compressed, it is the same image
        wanted = min(of_camera, key=len, default=wanted)
    chosen = _choose(path, 'image', topics, candidates, wanted, guess)
    if chosen is None:
        raise _missing(path, 'images', 'sensor_msgs/Image or sensor_msgs/CompressedImage', topics)
    return chosen


def choose_odometry(
    path: Path,
    topics: Sequence[Topic],
    wanted: str | None,
    on_tf: OnTf,
    guess: bool = False,
) -> Topic:
    """
    Choose the topic of the odometry; raises DatasetError when it is missing or unclear.

    `on_tf`: looks for it among the transforms, where there is no such topic or /tf is `wanted`.
    `guess`: as for the images.
    """
    if _is_tf(wanted):
        return _found_on_tf(path, 'odom -> base_link', on_tf)
    candidates = [topic for topic in topics if topic.message_type == ODOMETRY]
    if wanted is None:
        # a ground truth is often sent as odometry too
        candidates = [t for t in candidates if not _ends_with(t, REFERENCE_NAMES)] or candidates
    chosen = _choose(path, 'odometry', topics, candidates, wanted, guess) or on_tf()
    if chosen is None:
        types = 'nav_msgs/Odometry, or odom -> base_link on /tf'
        raise _missing(path, 'odometry', types, topics)
    return chosen


def choose_reference(
    path: Path,
    topics: Sequence[Topic],
    wanted: str | None,
    drifting: Collection[Topic],
    on_tf: OnTf,
    guess: bool = False,
) -> Topic | None:
    """
    Choose the topic of the reference pose, None where there is none.

    `drifting`: topics in the frame of the odometry, which are taken only if they are `wanted`.
    `on_tf`, `guess`: as for the others.
    """
    if _is_tf(wanted):
        return _found_on_tf(path, 'map -> base_link or map -> odom -> base_link', on_tf)
    candidates = [topic for topic in topics if topic.message_type in REFERENCE_TYPES]
    if wanted is None:
        candidates = [topic for topic in reference_candidates(topics) if topic not in drifting]
    return _choose(path, 'reference', topics, candidates, wanted, guess) or on_tf()


def reference_candidates(topics: Sequence[Topic]) -> list[Topic]:
    """Topics that may hold the reference pose, by their types and names."""
    return [t for t in topics if t.message_type in REFERENCE_TYPES and not _ends_with(t, COMMANDS)]


def drifts(frame: str, odometry_frame: str) -> bool:
    """Tell whether poses in a frame are odometry, which drifts, and not poses in a map."""
    return frame != '' and (frame == odometry_frame or 'odom' in frame.rpartition('/')[2])


def _is_tf(wanted: str | None) -> bool:
    return wanted is not None and wanted.strip('/') == 'tf'


def _found_on_tf(path: Path, chain: str, on_tf: OnTf) -> Topic:
    topic = on_tf()
    if topic is None:
        raise DatasetError(
            f'bag {path}: expected transforms {chain} on /tf that overlap in time, got none'
        )
    return topic


def _choose(
    path: Path,
    role: str,
    topics: Sequence[Topic],
    candidates: Sequence[Topic],
    wanted: str | None,
    guess: bool,
) -> Topic | None:
    if wanted is not None:
        named = [topic for topic in candidates if _is_named(topic, wanted)]
        if not named:
            listed = _listed(candidates or topics)
            raise DatasetError(f'bag {path}: no {role} topic {wanted!r}: expected one of {listed}')
        return named[0]
    if guess:
        candidates = [topic for topic in candidates if not _is_depth(topic)] or candidates
    if len(candidates) <= 1:
        return candidates[0] if candidates else None
    for name in USUAL_NAMES[role]:
        named = [topic for topic in candidates if _ends_with(topic, (name,))]
        if len(named) == 1:
            return named[0]
    if guess:
        return min(candidates, key=lambda topic: (-topic.count, topic.name))
    raise DatasetError(
        f'bag {path}: expected one {role} topic, got {_listed(candidates)}: choose {OPTIONS[role]}'
    )


def _is_depth(topic: Topic) -> bool:
    return any(word in topic.name for word in ('depth', 'infra', 'disparity', 'mask'))


def _missing(path: Path, what: str, types: str, topics: Sequence[Topic]) -> DatasetError:
    return DatasetError(
        f'no {what} in bag {path}: expected a topic of {types}, got {_listed(topics)}'
    )


def _is_named(topic: Topic, wanted: str) -> bool:
    return topic.name.strip('/') == wanted.strip('/')


def _ends_with(topic: Topic, names: Sequence[str]) -> bool:
    return any(topic.name.endswith(f'/{name}') for name in names)


def _listed(topics: Sequence[Topic]) -> str:
    return ', '.join(map(str, topics)) or 'no messages'
