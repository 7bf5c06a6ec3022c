"""Bags written message by message, for the tests of what reads them."""

from helpers import textured_image
from kbr_localization.datasets.bag_reader import TYPESTORE
import numpy as np
from rosbags import rosbag1
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import get_typestore, Stores

NOETIC = get_typestore(Stores.ROS1_NOETIC)

STORAGES = {'mcap': StoragePlugin.MCAP, 'sqlite3': StoragePlugin.SQLITE3}
IMAGE, COMPRESSED = 'sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage'
ODOMETRY = 'nav_msgs/msg/Odometry'
POSE, POSE_COVARIANCE = (
    'geometry_msgs/msg/PoseStamped',
    'geometry_msgs/msg/PoseWithCovarianceStamped',
)
SECOND = 10**9


def make(name, **fields):
    return TYPESTORE.types[name](**fields)


def header(stamp_ns, frame='odom'):
    stamp = make('builtin_interfaces/msg/Time', sec=stamp_ns // SECOND, nanosec=stamp_ns % SECOND)
    return make('std_msgs/msg/Header', stamp=stamp, frame_id=frame)


def pose_of(x, y=0.0, heading=0.0):
    q = [0.0, 0.0, np.sin(heading / 2), np.cos(heading / 2)]
    return make(
        'geometry_msgs/msg/Pose',
        position=make('geometry_msgs/msg/Point', x=x, y=y, z=0.0),
        orientation=make('geometry_msgs/msg/Quaternion', **dict(zip('xyzw', q, strict=True))),
    )


def with_covariance(pose, variance=0.0):
    covariance = np.zeros(36)
    covariance[[0, 7, 35]] = variance
    return make('geometry_msgs/msg/PoseWithCovariance', pose=pose, covariance=covariance)


def odometry(stamp_ns, x, frame='odom'):
    zero = make('geometry_msgs/msg/Vector3', x=0.0, y=0.0, z=0.0)
    twist = make('geometry_msgs/msg/Twist', linear=zero, angular=zero)
    return make(
        ODOMETRY,
        header=header(stamp_ns, frame),
        child_frame_id='base',
        pose=with_covariance(pose_of(x)),
        twist=make('geometry_msgs/msg/TwistWithCovariance', twist=twist, covariance=np.zeros(36)),
    )


def image(stamp_ns, pixels=None, encoding='mono8'):
    pixels = textured_image(1, (8, 10)) if pixels is None else pixels
    return make(
        IMAGE,
        header=header(stamp_ns),
        height=pixels.shape[0],
        width=pixels.shape[1],
        encoding=encoding,
        is_bigendian=0,
        step=pixels.nbytes // pixels.shape[0],
        data=np.ascontiguousarray(pixels).view(np.uint8).reshape(-1),
    )


def compressed(stamp_ns, data):
    return make(
        COMPRESSED, header=header(stamp_ns), format='jpeg', data=np.frombuffer(data, np.uint8)
    )


def pose_stamped(stamp_ns, x, frame='map'):
    return make(POSE, header=header(stamp_ns, frame), pose=pose_of(x))


def pose_covariance(stamp_ns, x, variance=0.01):
    pose = with_covariance(pose_of(x), variance)
    return make(POSE_COVARIANCE, header=header(stamp_ns, 'map'), pose=pose)


def odometry_in_map(stamp_ns, x):
    return odometry(stamp_ns, x, 'map')


def write_messages(path, messages, storage='mcap'):
    """Write (topic, message, recorded) in the order given; recorded None: at the header stamp."""
    with Writer(path, version=9, storage_plugin=STORAGES[storage]) as writer:
        connections = {}
        for topic, message, recorded in messages:
            name = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, name, typestore=TYPESTORE)
            time_ns = stamp_of(message) if recorded is None else recorded
            data = TYPESTORE.serialize_cdr(message, name)
            writer.write(connections[topic], time_ns, data)
    return path


def write_ros1(path, messages, compression=None):
    """Write (topic, message, recorded) as a bag of ROS 1, at the header stamps."""
    writer = rosbag1.Writer(path)
    if compression:
        writer.set_compression(rosbag1.Writer.CompressionFormat[compression.upper()])
    with writer:
        connections = {}
        for topic, message, _ in messages:
            name = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, name, typestore=NOETIC)
            data = TYPESTORE.cdr_to_ros1(TYPESTORE.serialize_cdr(message, name), name)
            writer.write(connections[topic], stamp_of(message), data)
    return path


def stamp_of(message):
    return message.header.stamp.sec * SECOND + message.header.stamp.nanosec


def drive(seconds=3.0, topic='/odom', frame='odom'):
    stamps = np.arange(0, int(seconds * 20) + 1) * 50_000_000 + SECOND
    return [(topic, odometry(int(s), 0.5 * (s - SECOND) / SECOND, frame), None) for s in stamps]


def images(count=3, topic='/image', shape=(8, 10)):
    pixels = [textured_image(i, shape) for i in range(count)]
    return [(topic, image((i + 2) * SECOND, p), None) for i, p in enumerate(pixels)]


def at_times(messages):
    return sorted(messages, key=lambda m: (m[1].header.stamp.sec, m[1].header.stamp.nanosec))


def bag(path, *groups, storage='mcap'):
    return write_messages(path, at_times([m for group in groups for m in group]), storage)
