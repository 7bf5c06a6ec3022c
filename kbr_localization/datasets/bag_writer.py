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
    RAW,
    TF,
    TYPESTORE,
)
from kbr_localization.datasets.frame import Dataset, Frame, OdometryTrack, Skipped
from kbr_localization.datasets.images import encoded_bytes
from kbr_localization.datasets.multi_camera import Source, sources_of
from kbr_localization.datasets.run_folder import leave_out_image, new_folder, write_notes
from kbr_localization.errors import DatasetError
from kbr_localization.progress import Progress
from kbr_localization.se2 import FloatArray
import numpy as np
from rosbags.interfaces import Connection, Nodetype
from rosbags.rosbag2 import StoragePlugin, Writer

STORAGES = {'mcap': StoragePlugin.MCAP, 'sqlite3': StoragePlugin.SQLITE3}
MAP_FRAME, ODOMETRY_FRAME, BASE_FRAME, CAMERA_FRAME = 'map', 'odom', 'base_footprint', 'camera'


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
    `/reference_pose` where known, and with `tf` also `/tf` with odom -> base. Messages are
    recorded at their stamps. Images that cannot be read are left out; returns their number by
    reason. `progress(what, done, total)` is called for every frame. Raises DatasetError when `out`
    exists, for an unknown storage or transport, and when no image can be read.
    """
    for given, known in ((storage, STORAGES), (image_transport, ('compressed', 'raw'))):
        if given not in known:
            raise DatasetError(f'{given!r}: expected one of {", ".join(known)}')
    try:
        with new_folder(out) as folder:
            # rosbags makes the folder itself
            folder.rmdir()
            # the newest version that every distribution from Humble on can read
            with Writer(folder, version=8, storage_plugin=STORAGES[storage]) as writer:
                bag = _BagWriter(writer, dataset, image_transport == 'compressed', tf)
                bag.write(dataset, progress)
            write_notes(folder, dataset.notes)
    # of a full disk
    except sqlite3.Error as error:
        raise DatasetError(f'cannot write {out}: {error}') from error
    return bag.skipped


class _BagWriter:
    """Messages of a run into an open bag."""

    def __init__(self, writer: Writer, dataset: Dataset, compressed: bool, tf: bool) -> None:
        frame = dataset.reference_frame
        # readers take no reference poses in a frame of odometry, as somebody may have chosen
        self._frame = frame if frame and not drifts(frame, ODOMETRY_FRAME) else MAP_FRAME
        self._writer, self._compressed = writer, compressed
        name, kind = ('image/compressed', COMPRESSED) if compressed else ('image', RAW)
        places = [f'/{camera}/{name}' for camera in dataset.cameras] or [f'/{name}']
        self._images = [self._topic(place, kind) for place in places]
        self._odometry = self._topic('/odom', ODOMETRY)
        self._tf = self._topic('/tf', TF) if tf else None
        self._reference: Connection | None = None
        self.skipped = Skipped()

    def write(self, dataset: Dataset, progress: Progress | None) -> None:
        """Write the frames one by one, the odometry up to each before it."""
        track, written, images = dataset.odometry.recorded or dataset.odometry, 0, 0
        for done, frame in enumerate(dataset, start=1):
            due = int(np.searchsorted(track.stamps_ns, frame.stamp_ns, side='right'))
            self._write_odometry(track, slice(written, due))
            written = due
            images += self._write_frame(frame)
            if progress:
                progress('writing bag', done, len(dataset))
        self._write_odometry(track, slice(written, None))
        if images == 0:
            raise DatasetError(f'cannot write a bag: no image of {dataset.name} can be read')

    def _write_odometry(self, track: OdometryTrack, part: slice) -> None:
        for stamp, pose in zip(track.stamps_ns[part].tolist(), track.poses[part], strict=True):
            place = {'header': _header(stamp, ODOMETRY_FRAME), 'child_frame_id': BASE_FRAME}
            self._write(self._odometry, stamp, **place, pose=_with_covariance(pose, 0.0))
            if self._tf:
                at = _pose(pose)
                moved = {'translation': at['position'], 'rotation': at['orientation']}
                sent = _make('geometry_msgs/msg/TransformStamped', {**place, 'transform': moved})
                self._write(self._tf, stamp, transforms=[sent])

    def _write_frame(self, frame: Frame) -> int:
        """Record the images and, where known, the reference pose; return how many images."""
        stamp_ns, written = frame.stamp_ns, 0
        for topic, image in zip(self._images, sources_of(frame), strict=True):
            try:
                fields = {} if image is None else self._image_fields(image, frame.name)
            except DatasetError as error:
                leave_out_image(self.skipped, frame.name, error)
                continue
            if fields:
                self._write(topic, stamp_ns, header=_header(stamp_ns, CAMERA_FRAME), **fields)
                written += 1
        if written and frame.reference is not None:
            # a topic without messages would be no reference
            self._reference = self._reference or self._topic(
                '/reference_pose', POSE_WITH_COVARIANCE
            )
            pose = _with_covariance(frame.reference, 1e-6)
            self._write(
                self._reference, stamp_ns, header=_header(stamp_ns, self._frame), pose=pose
            )
        return written

    def _image_fields(self, image: Source, name: str) -> dict[str, Any]:
        if self._compressed:
            data = encoded_bytes(image, name)
            kind = 'png' if data.startswith(b'\x89PNG') else 'jpeg'
            return {'format': kind, 'data': np.frombuffer(data, np.uint8)}
        pixels = np.ascontiguousarray(image() if callable(image) else image)
        return {
            'height': pixels.shape[0],
            'width': pixels.shape[1],
            'encoding': 'mono8' if pixels.ndim == 2 else 'bgr8',
            'step': pixels.strides[0],
            'data': pixels.reshape(-1),
        }

    def _topic(self, name: str, type_name: str) -> Connection:
        return self._writer.add_connection(name, type_name, typestore=TYPESTORE)

    def _write(self, connection: Connection, stamp_ns: int, **fields: Any) -> None:
        message = _make(connection.msgtype, fields)
        data = TYPESTORE.serialize_cdr(message, connection.msgtype)
        self._writer.write(connection, stamp_ns, data)


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


def _header(stamp_ns: int, frame_id: str) -> dict[str, Any]:
    stamp = {'sec': stamp_ns // 10**9, 'nanosec': stamp_ns % 10**9}
    return {'stamp': stamp, 'frame_id': frame_id}


def _pose(pose: FloatArray) -> dict[str, Any]:
    x, y, heading = (float(value) for value in pose)
    orientation = {'z': math.sin(heading / 2), 'w': math.cos(heading / 2)}
    return {'position': {'x': x, 'y': y}, 'orientation': orientation}


def _with_covariance(pose: FloatArray, variance: float) -> dict[str, Any]:
    # x, y and yaw of the row-major 6x6 matrix
    covariance = np.zeros(36)
    covariance[[0, 7, 35]] = variance
    return {'pose': _pose(pose), 'covariance': covariance}
