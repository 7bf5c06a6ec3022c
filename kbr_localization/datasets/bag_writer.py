"""Write a run as a rosbag2 that `ros2 bag play` can replay."""

from __future__ import annotations

import math
from pathlib import Path
import sqlite3
from typing import Any

from kbr_localization.datasets.bag_reader import (
    COMPRESSED,
    drifts,
    ODOMETRY,
    POSE_WITH_COVARIANCE,
    TYPESTORE,
)
from kbr_localization.datasets.frame import Dataset, Frame, OdometryTrack, Skipped
from kbr_localization.datasets.images import encoded_bytes
from kbr_localization.datasets.multi_camera import sources_of
from kbr_localization.datasets.run_folder import leave_out_image, new_folder, write_notes
from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray
import numpy as np
from rosbags.interfaces import Connection, Nodetype
from rosbags.rosbag2 import StoragePlugin, Writer

STORAGES = {'mcap': StoragePlugin.MCAP, 'sqlite3': StoragePlugin.SQLITE3}
MAP_FRAME, ODOMETRY_FRAME, BASE_FRAME, CAMERA_FRAME = 'map', 'odom', 'base_footprint', 'camera'


def write_bag(dataset: Dataset, out: Path | str, storage: str = 'mcap') -> dict[str, int]:
    """
    Write a run as a rosbag2 folder, as a whole or not at all.

    Topics: `/image/compressed` (JPEG or PNG bytes of the run are copied), with several cameras
    `/<camera>/image/compressed`, `/odom` at full rate, `/reference_pose` where known. Messages are
    recorded at their stamps. Images that cannot be read are left out; returns their number by
    reason. `storage`: one of STORAGES. Raises DatasetError when `out` exists, and when no image
    can be read.
    """
    try:
        with new_folder(out) as folder:
            # rosbags makes the folder itself
            folder.rmdir()
            # the newest version that every distribution from Humble on can read
            with Writer(folder, version=8, storage_plugin=STORAGES[storage]) as writer:
                bag = _BagWriter(writer, dataset)
                bag.write(dataset)
            write_notes(folder, dataset.notes)
    # of a full disk
    except sqlite3.Error as error:
        raise DatasetError(f'cannot write {out}: {error}') from error
    return bag.skipped


class _BagWriter:
    """Messages of a run into an open bag."""

    def __init__(self, writer: Writer, dataset: Dataset) -> None:
        frame = dataset.reference_frame
        # readers take no reference poses in a frame of odometry, as somebody may have chosen
        self._frame = frame if frame and not drifts(frame, ODOMETRY_FRAME) else MAP_FRAME
        self._writer = writer
        places = [f'/{camera}/image/compressed' for camera in dataset.cameras]
        places = places or ['/image/compressed']
        self._images = [self._topic(place, COMPRESSED) for place in places]
        self._odometry = self._topic('/odom', ODOMETRY)
        self._reference: Connection | None = None
        self.skipped = Skipped()

    def write(self, dataset: Dataset) -> None:
        """Write the frames one by one, the odometry up to each before it."""
        track, written, images = dataset.odometry.recorded or dataset.odometry, 0, 0
        for frame in dataset:
            due = int(np.searchsorted(track.stamps_ns, frame.stamp_ns, side='right'))
            self._write_odometry(track, slice(written, due))
            written = due
            images += self._write_frame(frame)
        self._write_odometry(track, slice(written, None))
        if images == 0:
            raise DatasetError(f'cannot write a bag: no image of {dataset.name} can be read')

    def _write_odometry(self, track: OdometryTrack, part: slice) -> None:
        for stamp, pose in zip(track.stamps_ns[part].tolist(), track.poses[part], strict=True):
            fields = {'child_frame_id': BASE_FRAME, 'pose': _with_covariance(pose, 0.0)}
            self._write(self._odometry, stamp, ODOMETRY_FRAME, fields)

    def _write_frame(self, frame: Frame) -> int:
        """Record the images and, where known, the reference pose; return how many images."""
        stamp_ns, written = frame.stamp_ns, 0
        for topic, image in zip(self._images, sources_of(frame), strict=True):
            if image is None:
                continue
            try:
                data = encoded_bytes(image, frame.name)
            except DatasetError as error:
                leave_out_image(self.skipped, frame.name, error)
                continue
            kind = 'png' if data.startswith(b'\x89PNG') else 'jpeg'
            fields = {'format': kind, 'data': np.frombuffer(data, np.uint8)}
            self._write(topic, stamp_ns, CAMERA_FRAME, fields)
            written += 1
        if written and frame.reference is not None:
            # a topic without messages would be no reference
            topic = self._reference or self._topic('/reference_pose', POSE_WITH_COVARIANCE)
            self._reference = topic
            pose = _with_covariance(frame.reference, 1e-6)
            self._write(topic, stamp_ns, self._frame, {'pose': pose})
        return written

    def _topic(self, name: str, type_name: str) -> Connection:
        return self._writer.add_connection(name, type_name, typestore=TYPESTORE)

    def _write(self, topic: Connection, stamp_ns: int, frame: str, fields: dict[str, Any]) -> None:
        stamp = {'sec': stamp_ns // 10**9, 'nanosec': stamp_ns % 10**9}
        message = _make(topic.msgtype, {'header': {'stamp': stamp, 'frame_id': frame}, **fields})
        self._writer.write(topic, stamp_ns, TYPESTORE.serialize_cdr(message, topic.msgtype))


def _make(type_name: str, fields: dict[str, Any]) -> Any:
    """Build a message from nested fields; those that are not given are zero."""
    values = dict(fields)
    definition: Any = TYPESTORE.fielddefs[type_name]
    for name, (kind, description) in definition[1]:
        if kind == Nodetype.NAME:
            values[name] = _make(description, fields.get(name, {}))
        elif kind == Nodetype.BASE:
            values.setdefault(name, 0)
        elif kind == Nodetype.ARRAY:
            values.setdefault(name, np.zeros(description[1]))
    return TYPESTORE.types[type_name](**values)


def _with_covariance(pose: FloatArray, variance: float) -> dict[str, Any]:
    """Fields of a PoseWithCovariance of a pose (3,)."""
    x, y, heading = pose.tolist()
    # x, y and yaw of the row-major 6x6 matrix
    covariance = np.zeros(36)
    covariance[[0, 7, 35]] = variance
    orientation = {'z': math.sin(heading / 2), 'w': math.cos(heading / 2)}
    return {
        'pose': {'position': {'x': x, 'y': y}, 'orientation': orientation},
        'covariance': covariance,
    }
