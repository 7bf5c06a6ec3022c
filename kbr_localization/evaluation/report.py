"""One HTML page about a run, with everything in it: it opens without a network, anywhere."""

from __future__ import annotations

import base64
from datetime import datetime, timezone
import json
from pathlib import Path
from typing import Any

import cv2
from kbr_localization import __version__
from kbr_localization.configuration import to_mapping
from kbr_localization.evaluation.frame_note import frame_note
from kbr_localization.evaluation.matches import ImagePair
from kbr_localization.evaluation.metrics import summarize
from kbr_localization.evaluation.page import write_page
from kbr_localization.evaluation.record import RunRecord
from kbr_localization.localization.calibration_words import described
from kbr_localization.localization.localizer import UNKNOWN_VARIANCE
from kbr_localization.localization.methods.method_configs import method_config
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

TEMPLATE = 'report.html'
PLACE = '"the data goes here"'
PICTURE_WIDTH, PICTURE_QUALITY = 240, 70


def write_report(path: str | Path, record: RunRecord) -> None:
    """Write the page; raises OSError when that fails."""
    write_page(path, TEMPLATE, PLACE, script_json(report_data(record)))


def script_json(values: Any) -> str:
    """
    JSON of values that may stand in a script element.

    No text of a run may end it, nor begin what HTML hides: `<!--<script>` would take the rest of
    the page along.
    """
    data = json.dumps(values, allow_nan=False, separators=(',', ':'))
    return data.replace('</', '<\\/').replace('<!', '\\u003c!')


def report_data(record: RunRecord) -> dict[str, Any]:
    """Collect what the page shows, in plain values; unknown numbers are None."""
    return {
        'title': record.dataset.name,
        'method': record.method,
        'written': datetime.now(timezone.utc).strftime('%Y-%m-%d %H:%M UTC'),
        'version': __version__,
        'metrics': {} if record.errors is None else summarize(record.errors),
        'skipped': record.trajectory.skipped,
        'notes': _notes(record),
        'map': _map_data(record),
        'frames': _frame_data(record),
        'beliefs': [_rounded(points[:, :2], 2) for points in record.beliefs],
        'reasons': _reasons(record),
        'pairs': {number: _pair_data(pair) for number, pair in record.pairs.items()},
        'worst': list(record.worst),
        'parameters': _parameters(record),
    }


def _notes(record: RunRecord) -> list[str]:
    note = frame_note(record.kernel_map, [record.dataset])
    return [*record.dataset.notes, *([note] if note else [])]


def _map_data(record: RunRecord) -> dict[str, Any]:
    kernel_map = record.kernel_map
    return {
        'poses': _rounded(kernel_map.poses, 3),
        'runs': list(kernel_map.run_names),
        'reference': _rounded(record.reference.poses, 3),
    }


def _frame_data(record: RunRecord) -> dict[str, Any]:
    trajectory, count = record.trajectory, len(record.trajectory)
    seconds = (trajectory.stamps_ns - trajectory.stamps_ns[0]) * 1e-9
    position, heading, truth = (np.full((count, *shape), np.nan) for shape in ((), (), (3,)))
    if record.errors is not None:
        known = np.isin(trajectory.stamps_ns, record.errors.stamps_ns)
        position[known], heading[known] = record.errors.position_m, record.errors.heading_deg
        truth[known] = record.reference.poses
    return {
        'seconds': _rounded(seconds, 3),
        'poses': _rounded(trajectory.poses, 3),
        'truth': _rounded(truth, 3),
        'error_m': _rounded(position, 4),
        'error_deg': _rounded(heading, 3),
        'sigma_m': _rounded(_position_sigma(trajectory.covariances, count), 4),
        'confidence': _rounded(trajectory.confidences, 3),
        'status': list(trajectory.statuses),
        'updated': [] if trajectory.updated is None else trajectory.updated.astype(int).tolist(),
        'ms': _rounded(None if trajectory.seconds is None else 1000 * trajectory.seconds, 2),
    }


def _position_sigma(covariances: FloatArray | None, count: int) -> FloatArray:
    """Return the root of the largest eigenvalue of the position's covariance, NaN if unknown."""
    if covariances is None:
        return np.full(count, np.nan)
    variance = np.linalg.eigvalsh(covariances[:, :2, :2])[:, -1]
    known = (variance > 0) & (variance < UNKNOWN_VARIANCE)
    return np.where(known, np.sqrt(np.where(known, variance, 1.0)), np.nan)


def _reasons(record: RunRecord) -> dict[str, list[Any]]:
    names = sorted({name for reasons in record.reasons for name in reasons})
    return {
        name: _rounded(np.array([r.get(name, np.nan) for r in record.reasons]), 4)
        for name in names
    }


def _pair_data(pair: ImagePair) -> dict[str, Any]:
    distance = pair.distance_m
    return {
        'frame': _data_uri(pair.frame),
        'match': None if pair.match is None else _data_uri(pair.match),
        'similarity': round(pair.similarity, 3),
        'distance_m': None if np.isnan(distance) else round(distance, 2),
        'map_pose': _rounded(pair.map_pose, 3),
    }


def _parameters(record: RunRecord) -> dict[str, Any]:
    kernel_map = record.kernel_map
    noise = to_mapping(kernel_map.motion_noise)
    return {
        'filter': to_mapping(method_config(record.method, kernel_map)),
        'motion noise': {
            name: np.asarray(value).tolist() for name, value in noise.items() if value is not None
        },
        'odometry of the map': {
            name: facts['words']
            for name, facts in described(
                kernel_map.calibration, kernel_map.mapping is not None
            ).items()
        },
        'map': {
            'images': len(kernel_map),
            'runs': ', '.join(kernel_map.run_names),
            'image size': ' x '.join(str(side) for side in reversed(kernel_map.image_shape)),
            'descriptor': kernel_map.describer.kind,
            'descriptor size': int(kernel_map.describer.size),
        },
    }


def _data_uri(image: NDArray[np.uint8]) -> str:
    width = min(PICTURE_WIDTH, image.shape[1])
    height = max(1, round(image.shape[0] * width / image.shape[1]))
    small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    encoded = cv2.imencode('.jpg', small, [cv2.IMWRITE_JPEG_QUALITY, PICTURE_QUALITY])[1]
    return 'data:image/jpeg;base64,' + base64.b64encode(encoded.tobytes()).decode('ascii')


def _rounded(values: FloatArray | None, digits: int) -> list[Any]:
    """Nested lists with few digits, None where there is no finite number."""
    if values is None:
        return []
    if values.ndim > 1:
        return [_rounded(row, digits) for row in values]
    numbers = np.round(values, digits).tolist()
    return [number if np.isfinite(number) else None for number in numbers]
