"""Bags written message by message, for the tests of what reads them."""

from helpers import textured_image
from kbr_localization.datasets.bag_reader import (
    NOETIC,
    ODOMETRY,
    POSE,
    POSE_WITH_COVARIANCE,
    RAW,
    stamp_of,
    TF,
    TYPESTORE,
)
from kbr_localization.datasets.bag_writer import make_message, STORAGES
import numpy as np
from rosbags import rosbag1
from rosbags.rosbag2 import Writer

SECOND = 10**9


def stamped(kind, stamp_ns, frame, **fields):
    stamp = {'sec': stamp_ns // SECOND, 'nanosec': stamp_ns % SECOND}
    return make_message(kind, {'header': {'stamp': stamp, 'frame_id': frame}, **fields})


def pose_of(x, y=0.0, heading=0.0):
    orientation = {'z': np.sin(heading / 2), 'w': np.cos(heading / 2)}
    return {'position': {'x': x, 'y': y}, 'orientation': orientation}


def with_covariance(x, variance):
    covariance = np.zeros(36)
    covariance[[0, 7, 35]] = variance
    return {'pose': pose_of(x), 'covariance': covariance}


def odometry(stamp_ns, x, frame='odom'):
    pose = with_covariance(x, 0.0)
    return stamped(ODOMETRY, stamp_ns, frame, child_frame_id='base', pose=pose)


def pose_stamped(stamp_ns, x, frame='map'):
    return stamped(POSE, stamp_ns, frame, pose=pose_of(x))


def pose_covariance(stamp_ns, x, variance=0.01):
    return stamped(POSE_WITH_COVARIANCE, stamp_ns, 'map', pose=with_covariance(x, variance))


def image(stamp_ns, pixels=None, encoding='mono8'):
    pixels = textured_image(1, (8, 10)) if pixels is None else pixels
    size = {'height': pixels.shape[0], 'width': pixels.shape[1], 'encoding': encoding}
    data = np.ascontiguousarray(pixels).view(np.uint8).reshape(-1)
    return stamped(RAW, stamp_ns, 'camera', **size, step=data.size // len(pixels), data=data)


def drive(seconds=3.0, topic='/odom', frame='odom'):
    """Messages (topic, message, None: recorded at its stamp) at 20 Hz, half a metre a second."""
    stamps = np.arange(0, int(seconds * 20) + 1) * 50_000_000 + SECOND
    return [(topic, odometry(int(s), 0.5 * (s - SECOND) / SECOND, frame), None) for s in stamps]


def images(count=3, topic='/image', shape=(8, 10)):
    pixels = [textured_image(i, shape) for i in range(count)]
    return [(topic, image((i + 2) * SECOND, p), None) for i, p in enumerate(pixels)]


def transforms(parent, child, poses, topic='/tf', every=50_000_000, start=SECOND):
    """Messages (topic, message, recorded) of one transform over time."""
    sent = []
    for index, (x, y, heading) in enumerate(poses):
        stamp_ns, pose = start + index * every, pose_of(float(x), float(y), float(heading))
        fields = {'translation': pose['position'], 'rotation': pose['orientation']}
        kind = 'geometry_msgs/msg/TransformStamped'
        one = stamped(kind, stamp_ns, parent, child_frame_id=child, transform=fields)
        sent.append((topic, make_message(TF, {'transforms': [one]}), stamp_ns))
    return sent


def recorded_at(sent):
    _, message, recorded_ns = sent
    return stamp_of(message) if recorded_ns is None else recorded_ns


def at_times(messages):
    return sorted(messages, key=recorded_at)


def write_messages(path, messages, storage='mcap', compression=None):
    """Write (topic, message, recorded) in the order given; a path that ends with .bag is ROS 1."""
    if path.suffix == '.bag':
        writer, store = rosbag1.Writer(path), NOETIC
        if compression:
            writer.set_compression(rosbag1.Writer.CompressionFormat[compression.upper()])
    else:
        writer, store = Writer(path, version=9, storage_plugin=STORAGES[storage]), TYPESTORE
    with writer:
        connections = {}
        for topic, message, recorded_ns in messages:
            name = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, name, typestore=store)
            data = TYPESTORE.serialize_cdr(message, name)
            if store is NOETIC:
                data = TYPESTORE.cdr_to_ros1(data, name)
            writer.write(connections[topic], recorded_at((topic, message, recorded_ns)), data)
    return path


def bag(path, *groups, storage='mcap'):
    """Write groups of messages in the order of time."""
    return write_messages(path, at_times([m for group in groups for m in group]), storage)
