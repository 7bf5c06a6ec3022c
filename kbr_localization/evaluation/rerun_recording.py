"""A recording of a run for the rerun viewer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kbr_localization.evaluation.report import RunRecord
from kbr_localization.files import new_file
from kbr_localization.se2 import FloatArray
import numpy as np
import rerun as rr

_UP = np.array([1.0, -1.0])  # the viewer's second axis points down, a map's points up
_GREY, _TRUTH, _ESTIMATE, _BELIEF = [160, 174, 192], [90, 105, 120], [11, 114, 133], [103, 65, 217]


def write_recording(path: str | Path, record: RunRecord) -> None:
    """Write an .rrd file: the map, and over time the poses, the belief, the images, the errors."""
    name = f'{record.dataset.name} {record.method}'
    stream = rr.RecordingStream('kbr_localization', recording_id=name)
    with new_file(path) as part:
        stream.save(str(part))
        try:
            _log(stream, record)
        finally:
            stream.flush()
            stream.disconnect()


def _log(stream: rr.RecordingStream, record: RunRecord) -> None:
    trajectory, errors = record.trajectory, record.errors
    stream.log('plan/map', _arrows(record.kernel_map.poses, _GREY), static=True)
    for name, whole, colour in (
        ('plan/truth', record.reference, _TRUTH),
        ('plan/estimate', trajectory, _ESTIMATE),
    ):
        line = rr.LineStrips2D([whole.poses[:, :2] * _UP], colors=[colour])
        stream.log(name, line, static=True)
    for number, stamp in enumerate(trajectory.stamps_ns.tolist()):
        stream.set_time('frame', sequence=number)
        stream.set_time('stamp', timestamp=np.datetime64(stamp, 'ns'))
        stream.log('plan/pose', _arrows(trajectory.poses[[number]], _ESTIMATE))
        belief = record.beliefs[number][:, :2] * _UP
        stream.log('plan/belief', rr.Points2D(belief, colors=[_BELIEF], radii=0.06))
        if trajectory.confidences is not None:
            stream.log('confidence', rr.Scalars(float(trajectory.confidences[number])))
        for name, value in record.reasons[number].items():
            stream.log(f'diagnostics/{name}', rr.Scalars(float(value)))
        if number in record.pairs:
            pair = record.pairs[number]
            for name, image in (('camera', pair.frame), ('match', pair.match)):
                if image is not None:
                    model = rr.ColorModel.L if image.ndim == 2 else rr.ColorModel.BGR
                    shown = rr.Image(image, color_model=model).compress(jpeg_quality=80)
                    stream.log(f'images/{name}', shown)
    stream.reset_time()
    for index, stamp in enumerate([] if errors is None else errors.stamps_ns.tolist()):
        assert errors is not None
        stream.set_time('stamp', timestamp=np.datetime64(stamp, 'ns'))
        stream.log('error/position_m', rr.Scalars(float(errors.position_m[index])))
        stream.log('error/heading_deg', rr.Scalars(float(errors.heading_deg[index])))


def _arrows(poses: FloatArray, colour: list[int]) -> Any:
    directions = np.stack([np.cos(poses[:, 2]), np.sin(poses[:, 2])], axis=-1)
    return rr.Arrows2D(origins=poses[:, :2] * _UP, vectors=0.3 * _UP * directions, colors=[colour])
