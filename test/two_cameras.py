"""A tiny robot with two cameras: one sees the wall, the other its mirror image."""

from dataclasses import replace

from helpers import tiny_odometry
from kbr_localization.datasets import cold
from kbr_localization.datasets.images import encode_jpeg
from kbr_localization.datasets.multi_camera import join_cameras
from kbr_localization.datasets.tables import format_pose
from map_helpers import TinyRun
import numpy as np

CAMERAS = ('front', 'rear')


def mirrored(image):
    return np.ascontiguousarray(image[:, ::-1])


def two_camera_run(frames=30):
    """Make a run in memory; the rear camera is 5 ms late."""
    front, rear = TinyRun(frames), TinyRun(frames)
    rear.frames = [
        replace(frame, image=mirrored(frame.image), stamp_ns=frame.stamp_ns + 5_000_000)
        for frame in rear.frames
    ]
    return join_cameras(CAMERAS, [front, rear])


def write_two_camera_cold_run(path, frames=30):
    """Write the run as the recorder would; return its path."""
    track, run = tiny_odometry(frames), two_camera_run(frames)
    recording = cold.ColdRecording(path, *CAMERAS)
    for sample in zip(track.stamps_ns.tolist(), track.poses, strict=True):
        recording.add(cold.ODOMETRY_FILE, cold.format_odometry(*sample))
    for frame in run:
        recording.add(cold.POSES_FILE, format_pose(frame.stamp_ns, frame.reference))
        encoded = [encode_jpeg(image, 'x') for image in frame.load_image()]
        recording.append_image(frame.stamp_ns, encoded)
    return path
