"""A recording of a run for the rerun viewer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kbr_localization.evaluation.record import RunRecord
from kbr_localization.files import new_file
from kbr_localization.se2 import FloatArray
import numpy as np
import rerun as rr

APPLICATION = 'kbr_localization'
GREY, TRUTH, ESTIMATE, BELIEF = [160, 174, 192], [90, 105, 120], [11, 114, 133], [103, 65, 217]


def write_recording(path: str | Path, record: RunRecord) -> None:
    """Write an .rrd file: the map, and over time the poses, the belief, the images, the errors."""
    stream = rr.RecordingStream(APPLICATION, recording_id=f'{record.dataset.name} {record.method}')
    with new_file(path) as part:
        stream.save(str(part))
        try:
            _log(stream, record)
        finally:
            stream.flush()
            stream.disconnect()


def _log(stream: rr.RecordingStream, record: RunRecord) -> None:
    _log_map(stream, record)
    for number in range(len(record.trajectory)):
        stream.set_time('frame', sequence=number)
        stamp = np.datetime64(int(record.trajectory.stamps_ns[number]), 'ns')
        stream.set_time('stamp', timestamp=stamp)
        _log_frame(stream, record, number)
    _log_errors(stream, record)


def _log_map(stream: rr.RecordingStream, record: RunRecord) -> None:
    poses = record.kernel_map.poses
    stream.log('plan/map', _arrows(poses, GREY), static=True)
    if len(record.reference):
        path = _up(record.reference.poses[:, :2])
        stream.log('plan/truth', rr.LineStrips2D([path], colors=[TRUTH]), static=True)
    stream.log('plan/estimate', _line(record), static=True)


def _log_frame(stream: rr.RecordingStream, record: RunRecord, number: int) -> None:
    trajectory = record.trajectory
    stream.log('plan/pose', _arrows(trajectory.poses[slice(number, number + 1)], ESTIMATE))
    belief = _up(record.beliefs[number][:, :2])
    stream.log('plan/belief', rr.Points2D(belief, colors=[BELIEF], radii=0.06))
    if trajectory.confidences is not None:
        stream.log('confidence', rr.Scalars(float(trajectory.confidences[number])))
    for name, value in record.reasons[number].items():
        stream.log(f'diagnostics/{name}', rr.Scalars(float(value)))
    pair = record.pairs.get(number)
    if pair is not None:
        stream.log('images/camera', _image(pair.frame))
        if pair.match is not None:
            stream.log('images/match', _image(pair.match))


def _log_errors(stream: rr.RecordingStream, record: RunRecord) -> None:
    if record.errors is None:
        return
    for stamp, metres, degrees in zip(
        record.errors.stamps_ns,
        record.errors.position_m,
        record.errors.heading_deg,
        strict=True,
    ):
        stream.reset_time()
        stream.set_time('stamp', timestamp=np.datetime64(int(stamp), 'ns'))
        stream.log('error/position_m', rr.Scalars(float(metres)))
        stream.log('error/heading_deg', rr.Scalars(float(degrees)))


def _line(record: RunRecord) -> Any:
    return rr.LineStrips2D([_up(record.trajectory.poses[:, :2])], colors=[ESTIMATE])


def _arrows(poses: FloatArray, colour: list[int]) -> Any:
    directions = np.stack([np.cos(poses[:, 2]), np.sin(poses[:, 2])], axis=-1)
    return rr.Arrows2D(origins=_up(poses[:, :2]), vectors=0.3 * _up(directions), colors=[colour])


def _up(points: FloatArray) -> FloatArray:
    """Mirror y: the viewer's second axis points down, a map's points up."""
    return np.asarray(points * np.array([1.0, -1.0]))


def _image(image: np.ndarray) -> Any:
    model = rr.ColorModel.L if image.ndim == 2 else rr.ColorModel.BGR
    return rr.Image(image, color_model=model).compress(jpeg_quality=80)
