"""Write a run as a rosbag2, for `ros2 bag play`."""

import functools
import math
from pathlib import Path
import sqlite3
from typing import Any

from kbr_localization.datasets import bag_reader
from kbr_localization.datasets.bag_reader import is_odometry_frame, TYPESTORE
from kbr_localization.datasets.frame import Dataset, Skipped
from kbr_localization.datasets.images import encoded_bytes
from kbr_localization.datasets.multi_camera import sources_of
from kbr_localization.datasets.run_folder import count_broken_image, new_folder, write_notes
from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray
import numpy as np
from rosbags.interfaces import Connection, Nodetype
from rosbags.rosbag2 import StoragePlugin, Writer

STORAGES = {'mcap': StoragePlugin.MCAP, 'sqlite3': StoragePlugin.SQLITE3}
MAP_FRAME, ODOMETRY_FRAME, BASE_FRAME, CAMERA_FRAME = 'map', 'odom', 'base_footprint', 'camera'


def write_bag(dataset: Dataset, out: Path | str, storage: str = 'mcap') -> dict[str, int]:
    """
    Write a run as a rosbag2 folder, which appears only when it is complete.

    Topics: `/image/compressed` (a copy of the JPEG or PNG bytes), with several cameras
    `/<camera>/image/compressed`, `/odom` at full rate, `/reference_pose` where known. The time of
    recording of a message is its stamp. `storage`: one of STORAGES. Returns the number of images
    that could not be read, by reason. Raises DatasetError when `out` exists, and when no image can
    be read.
    """
    skipped = Skipped()
    try:
        with new_folder(out) as folder:
            folder.rmdir()  # rosbags refuses an existing folder
            # version 8 is the newest that every distribution since Humble can read
            with Writer(folder, version=8, storage_plugin=STORAGES[storage]) as writer:
                _write_messages(writer, dataset, skipped)
            write_notes(folder, dataset.notes)
    except sqlite3.Error as error:  # a full disk
        raise DatasetError(f'cannot write {out}: {error}') from error
    return skipped


def _write_messages(writer: Writer, dataset: Dataset, skipped: Skipped) -> None:

    @functools.cache
    def connection(topic: str, kind: str) -> Connection:
        return writer.add_connection(topic, kind, typestore=TYPESTORE)

    def write(topic: str, kind: str, stamp_ns: int, frame_id: str, **fields: Any) -> None:
        stamp = {'sec': stamp_ns // 10**9, 'nanosec': stamp_ns % 10**9}
        message = make_message(kind, {'header': {'stamp': stamp, 'frame_id': frame_id}, **fields})
        data = TYPESTORE.serialize_cdr(message, kind)
        writer.write(connection(topic, kind), stamp_ns, data)

    def write_odometry(part: slice) -> None:
        for stamp_ns, pose in zip(track.stamps_ns[part].tolist(), track.poses[part], strict=True):
            fields = {'child_frame_id': BASE_FRAME, 'pose': _pose_with_covariance(pose, 0.0)}
            write('/odom', bag_reader.ODOMETRY, stamp_ns, ODOMETRY_FRAME, **fields)

    # users may choose reference poses in an odometry frame, which readers would ignore
    named = dataset.reference_frame
    map_frame = named if named and not is_odometry_frame(named, ODOMETRY_FRAME) else MAP_FRAME
    topics = [f'/{camera}/image/compressed' for camera in dataset.cameras]
    topics = topics or ['/image/compressed']
    track, done, images = dataset.odometry.recorded or dataset.odometry, 0, 0
    for frame in dataset:
        due = int(np.searchsorted(track.stamps_ns, frame.stamp_ns, side='right'))
        write_odometry(slice(done, due))
        done, before = due, images
        for topic, image in zip(topics, sources_of(frame), strict=True):
            try:
                data = b'' if image is None else encoded_bytes(image, frame.name)
            except DatasetError as error:
                count_broken_image(skipped, frame.name, error)
                continue
            if data:
                encoding = 'png' if data.startswith(b'\x89PNG') else 'jpeg'
                fields = {'format': encoding, 'data': np.frombuffer(data, np.uint8)}
                write(topic, bag_reader.COMPRESSED, frame.stamp_ns, CAMERA_FRAME, **fields)
                images += 1
        if images > before and frame.reference is not None:
            kind = bag_reader.POSE_WITH_COVARIANCE
            pose = _pose_with_covariance(frame.reference, 1e-6)
            write('/reference_pose', kind, frame.stamp_ns, map_frame, pose=pose)
    write_odometry(slice(done, None))
    if images == 0:
        raise DatasetError(f'cannot write a bag: no image of {dataset.name} can be read')


def make_message(type_name: str, fields: dict[str, Any]) -> Any:
    """Build a message from nested fields; missing fields are zero."""
    values = dict(fields)
    definition: Any = TYPESTORE.fielddefs[type_name]
    for name, (kind, description) in definition[1]:
        if kind == Nodetype.NAME:
            values[name] = make_message(description, fields.get(name, {}))
        elif kind == Nodetype.BASE:
            values.setdefault(name, 0)
        elif kind == Nodetype.ARRAY:
            values.setdefault(name, np.zeros(description[1]))
    return TYPESTORE.types[type_name](**values)


def _pose_with_covariance(pose: FloatArray, variance: float) -> dict[str, Any]:
    x, y, heading = pose.tolist()
    covariance = np.zeros(36)
    covariance[[0, 7, 35]] = variance  # x, y and yaw in the row-major 6x6 matrix
    orientation = {'z': math.sin(heading / 2), 'w': math.cos(heading / 2)}
    return {
        'pose': {'position': {'x': x, 'y': y}, 'orientation': orientation},
        'covariance': covariance,
    }
