"""Write a run as a rosbag2 that `ros2 bag play` can replay."""

from __future__ import annotations

from collections.abc import Iterator
import math
from pathlib import Path
import sqlite3
from typing import Any, Literal

from kbr_localization.datasets.bag_reader import TYPESTORE
from kbr_localization.datasets.bag_topics import (
    COMPRESSED,
    drifts,
    ODOMETRY,
    POSE_WITH_COVARIANCE,
    RAW,
)
from kbr_localization.datasets.frame import Dataset, Frame, OdometryTrack
from kbr_localization.datasets.image_file import encoded_bytes
from kbr_localization.datasets.multi_camera import Source, sources_of
from kbr_localization.datasets.run_folder import leave_out_image, new_folder, write_notes
from kbr_localization.errors import DatasetError
from kbr_localization.progress import Progress
from kbr_localization.se2 import FloatArray
import numpy as np
from rosbags.interfaces import (
    Connection,
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import StoragePlugin, Writer

STORAGES = {'mcap': StoragePlugin.MCAP, 'sqlite3': StoragePlugin.SQLITE3}
TRANSPORTS = ('compressed', 'raw')
METADATA_VERSION: Literal[8] = 8
"""The newest that every distribution from Humble on can read."""
MAP_FRAME, ODOMETRY_FRAME, BASE_FRAME, CAMERA_FRAME = 'map', 'odom', 'base_footprint', 'camera'
REFERENCE_VARIANCE = 1e-6
TF = 'tf2_msgs/msg/TFMessage'
PNG_START = b'\x89PNG'

_FOREVER = QosTime(9223372036, 854775807)
_QOS = Qos(
    QosHistory.KEEP_LAST, 10, QosReliability.RELIABLE, QosDurability.VOLATILE, _FOREVER, _FOREVER,
    QosLiveliness.AUTOMATIC, _FOREVER, False,
)  # fmt: skip


def write_bag(
    dataset: Dataset,
    out: Path | str,
    storage: str = 'mcap',
    image_transport: str = 'compressed',
    tf: bool = False,
    progress: Progress | None = None,
) -> dict[str, int]:
    """
    Write a run as a rosbag2 folder, as a whole or not at all.

    Topics: `/image/compressed` (JPEG or PNG bytes of the run are copied) or `/image`, with several
    cameras `/<camera>/image/compressed` or `/<camera>/image`, `/odom` at full rate,
    `/reference_pose` where known, and with `tf` also `/tf` with odom -> base. The notes of the run
    go to a file in the folder. Messages are
    recorded at their stamps, so that a player keeps the run's time. Images that cannot be read are
    left out; returns their number by reason. `progress(what, done, total)` is called for every
    frame. Raises DatasetError when `out` exists, for an unknown storage or transport, and when no
    image can be read.
    """
    _check_choice('storage', storage, STORAGES)
    _check_choice('image_transport', image_transport, TRANSPORTS)
    try:
        with new_folder(out) as folder:
            # rosbags makes the folder itself
            folder.rmdir()
            with Writer(
                folder, version=METADATA_VERSION, storage_plugin=STORAGES[storage]
            ) as writer:
                bag = _BagWriter(
                    writer, image_transport, tf, dataset.cameras, dataset.reference_frame
                )
                _write_frames(bag, dataset, progress)
            write_notes(folder, dataset.notes)
    # of a full disk
    except sqlite3.Error as error:
        raise DatasetError(f'cannot write {out}: {error}') from error
    return bag.skipped


def _write_frames(bag: _BagWriter, dataset: Dataset, progress: Progress | None) -> None:
    for done, frame in _in_order_of_time(bag, dataset):
        bag.write_frame(frame)
        if progress:
            progress('writing bag', done, len(dataset))
    if bag.images == 0:
        raise DatasetError(f'cannot write a bag: no image of {dataset.name} can be read')


class _BagWriter:
    """Messages of a run into an open bag."""

    def __init__(
        self,
        writer: Writer,
        transport: str,
        tf: bool,
        cameras: tuple[str, ...],
        frame: str,
    ) -> None:
        # of a frame of odometry, whose poses somebody has chosen, readers would take none
        self._frame = frame if frame and not drifts(frame, ODOMETRY_FRAME) else MAP_FRAME
        self._writer, self._compressed = writer, transport == 'compressed'
        name, kind = ('image/compressed', COMPRESSED) if self._compressed else ('image', RAW)
        places = [f'/{camera}/{name}' for camera in cameras] or [f'/{name}']
        self._images = [self._topic(place, kind) for place in places]
        self._odometry = self._topic('/odom', ODOMETRY)
        self._tf = self._topic('/tf', TF) if tf else None
        self._reference: Connection | None = None
        self.images, self.skipped = 0, dict[str, int]()

    def write_odometry(self, track: OdometryTrack, part: slice) -> None:
        """Record odometry messages, and their transforms."""
        for stamp, pose in zip(track.stamps_ns[part].tolist(), track.poses[part], strict=True):
            self._write(
                self._odometry, stamp,
                header=_header(stamp, ODOMETRY_FRAME), child_frame_id=BASE_FRAME,
                pose=_pose_with_covariance(pose, 0.0), twist=_still(),
            )  # fmt: skip
            if self._tf:
                self._write(self._tf, stamp, transforms=[_transform(stamp, pose)])

    def write_frame(self, frame: Frame) -> None:
        """Record an image and, where known, the reference pose."""
        written = [
            self._write_image(topic, frame.stamp_ns, image, frame.name)
            for topic, image in zip(self._images, sources_of(frame), strict=True)
            if image is not None
        ]
        if any(written) and frame.reference is not None:
            # a topic without messages would be no reference
            self._reference = self._reference or self._topic(
                '/reference_pose', POSE_WITH_COVARIANCE
            )
            self._write(
                self._reference, frame.stamp_ns, header=_header(frame.stamp_ns, self._frame),
                pose=_pose_with_covariance(frame.reference, REFERENCE_VARIANCE),
            )  # fmt: skip

    def _write_image(self, topic: Connection, stamp_ns: int, image: Source, name: str) -> bool:
        try:
            fields = self._image_fields(image, name)
        except DatasetError as error:
            leave_out_image(self.skipped, name, error)
            return False
        self.images += 1
        self._write(topic, stamp_ns, header=_header(stamp_ns, CAMERA_FRAME), **fields)
        return True

    def _image_fields(self, image: Source, name: str) -> dict[str, Any]:
        if self._compressed:
            data = encoded_bytes(image, name)
            kind = 'png' if data.startswith(PNG_START) else 'jpeg'
            return {'format': kind, 'data': np.frombuffer(data, np.uint8)}
        pixels = np.ascontiguousarray(image() if callable(image) else image)
        return {
            'height': pixels.shape[0],
            'width': pixels.shape[1],
            'encoding': 'mono8' if pixels.ndim == 2 else 'bgr8',
            'is_bigendian': 0,
            'step': pixels.strides[0],
            'data': pixels.reshape(-1),
        }

    def _topic(self, name: str, type_name: str) -> Connection:
        return self._writer.add_connection(
            name, type_name, typestore=TYPESTORE, offered_qos_profiles=[_QOS]
        )

    def _write(self, connection: Connection, stamp_ns: int, **fields: Any) -> None:
        message = TYPESTORE.types[connection.msgtype](**fields)
        data = TYPESTORE.serialize_cdr(message, connection.msgtype)
        self._writer.write(connection, stamp_ns, data)


def _in_order_of_time(bag: _BagWriter, dataset: Dataset) -> Iterator[tuple[int, Frame]]:
    """Give the frames one by one, the odometry up to each being written before it."""
    track, written = dataset.odometry.recorded or dataset.odometry, 0
    for done, frame in enumerate(dataset, start=1):
        due = int(np.searchsorted(track.stamps_ns, frame.stamp_ns, side='right'))
        bag.write_odometry(track, slice(written, due))
        written = due
        yield done, frame
    bag.write_odometry(track, slice(written, None))


def _make(name: str, **fields: Any) -> Any:
    return TYPESTORE.types[name](**fields)


def _header(stamp_ns: int, frame_id: str) -> Any:
    stamp = _make('builtin_interfaces/msg/Time', sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
    return _make('std_msgs/msg/Header', stamp=stamp, frame_id=frame_id)


def _quaternion(heading: float) -> Any:
    return _make(
        'geometry_msgs/msg/Quaternion',
        x=0.0, y=0.0, z=math.sin(heading / 2), w=math.cos(heading / 2),
    )  # fmt: skip


def _pose_with_covariance(pose: FloatArray, variance: float) -> Any:
    x, y, heading = (float(value) for value in pose)
    covariance = np.zeros(36)
    # x, y and yaw of the row-major 6x6 matrix
    covariance[[0, 7, 35]] = variance
    point = _make('geometry_msgs/msg/Point', x=x, y=y, z=0.0)
    plain = _make('geometry_msgs/msg/Pose', position=point, orientation=_quaternion(heading))
    return _make('geometry_msgs/msg/PoseWithCovariance', pose=plain, covariance=covariance)


def _still() -> Any:
    zero = _make('geometry_msgs/msg/Vector3', x=0.0, y=0.0, z=0.0)
    twist = _make('geometry_msgs/msg/Twist', linear=zero, angular=zero)
    return _make('geometry_msgs/msg/TwistWithCovariance', twist=twist, covariance=np.zeros(36))


def _transform(stamp_ns: int, pose: FloatArray) -> Any:
    x, y, heading = (float(value) for value in pose)
    translation = _make('geometry_msgs/msg/Vector3', x=x, y=y, z=0.0)
    transform = _make(
        'geometry_msgs/msg/Transform', translation=translation, rotation=_quaternion(heading)
    )
    return _make(
        'geometry_msgs/msg/TransformStamped',
        header=_header(stamp_ns, ODOMETRY_FRAME), child_frame_id=BASE_FRAME, transform=transform,
    )  # fmt: skip


def _check_choice(name: str, value: str, choices: Any) -> None:
    if value not in choices:
        raise DatasetError(f'{name} {value!r}: expected one of {", ".join(choices)}')
