"""One HTML page about a run or a map, with everything in it: it opens without a network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import resources
import json
from pathlib import Path
from typing import Any

import cv2
from kbr_localization import __version__, se2
from kbr_localization.configuration import to_mapping
from kbr_localization.errors import EvaluationError, MapError
from kbr_localization.evaluation.metrics import frame_note, run_metrics
from kbr_localization.evaluation.record import ImagePair, RunRecord
from kbr_localization.files import write_text
from kbr_localization.localization.calibration_report import described
from kbr_localization.localization.localizer import UNKNOWN_VARIANCE
from kbr_localization.localization.map.kernel_map import KernelMap, MappingRecord
from kbr_localization.localization.mapping.align import described_point, fit, moved
from kbr_localization.localization.mapping.odometry_model import NAMES
from kbr_localization.localization.methods.registry import method_config
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

PLACE = '"the data goes here"'
DIAGNOSTICS = {
    'best_similarity': 'kernel value of the most similar map image, 1 for the same image',
    'effective_points': 'effective number of belief points: 1 / sum of squared weights',
    'elsewhere': 'probability of the hypotheses of other places',
    'evidence': 'log odds of this place against all wrong places, in nats',
    'evidence_limit': 'evidence above which a pose is called localized: no wrong place reaches it',
    'frozen_images': 'images left out because the camera repeated the one before',
    'log_likelihood': 'mean log likelihood of recent images at the estimated pose',
    'map_confirmed': '1 when images have confirmed that the robot is on this map',
    'mass_in_radius': 'fraction of the belief near the estimated pose: the confidence',
    'odometry_wrong': 'probability that the odometry contradicts the images',
    'recoveries': 'how often the belief was spread over the map again',
    'restarts': 'how often the belief was started again',
    'updates': 'images used so far',
}
"""What the numbers behind a status mean, shown as tooltips."""


def write_run_report(path: str | Path, record: RunRecord) -> None:
    """Write the page of a localized run; raises OSError."""
    write_page(path, run_data(record))


def write_map_report(path: str | Path, kernel_map: KernelMap, name: str) -> None:
    """Write the page of a map of odometry and images; raises OSError, EvaluationError."""
    if kernel_map.mapping is None:
        raise EvaluationError(
            f'{name} was built of known poses: give a run to localize on it, as in '
            '`kbr report MAP RUN`'
        )
    write_page(path, map_data(kernel_map, kernel_map.mapping, name))


def write_page(path: str | Path, data: dict[str, Any]) -> None:
    """Write a page of what `run_data`, `map_data` or `trial_data` collected; raises OSError."""
    template = resources.files('kbr_localization.evaluation').joinpath('report.html')
    page = template.read_text(encoding='utf-8')
    written = datetime.now(timezone.utc).strftime('%Y-%m-%d %H:%M UTC')
    data |= {'written': written, 'version': __version__}
    write_text(path, page.replace(PLACE, script_json(data)))


def script_json(values: Any) -> str:
    """JSON that may stand in a script element, which no text inside can end or comment out."""
    data = json.dumps(values, allow_nan=False, separators=(',', ':'))
    return data.replace('</', '<\\/').replace('<!', '\\u003c!')


def run_data(record: RunRecord) -> dict[str, Any]:
    """Collect what the page of a run shows; unknown numbers are None."""
    kernel_map, trajectory = record.kernel_map, record.trajectory
    note = frame_note(kernel_map, record.dataset)
    subtitle = (
        f'method {record.method}, {len(trajectory)} frames, map of {len(kernel_map)} images '
        f'({", ".join(kernel_map.run_names)})'
    )
    layers = [_layer('arrows', kernel_map.poses, 'map', 'map images')]
    if len(record.reference):
        layers.append(_layer('path', record.reference.poses, 'truth', 'ground truth', 7))
    return {
        'title': record.dataset.name,
        'subtitle': '; '.join([subtitle, *record.dataset.notes, *([note] if note else [])]),
        'tiles': _tiles(record),
        'plans': [{'title': '', 'layers': layers}],
        'frames': _frame_data(record),
        'explained': {name: _explained(name) for reasons in record.reasons for name in reasons},
        'pairs': {number: _pair_data(pair) for number, pair in record.pairs.items()},
        'worst': list(record.worst),
        'histograms': [
            {
                'title': 'Latency per frame',
                'values': _rounded(_milliseconds(record), 2),
                'unit': 'ms',
                'from_zero': True,
            }
        ],
        'pair_groups': [],
        'tables': _parameters(record),
    }


def _explained(name: str) -> str:
    if name in DIAGNOSTICS or not name.startswith('odometry_'):
        return DIAGNOSTICS.get(name, '')
    deviation = 'standard deviation of the ' if name.endswith('_sd') else ''
    return f'{deviation}estimated systematic error of the odometry'


def _milliseconds(record: RunRecord) -> FloatArray:
    seconds = record.trajectory.seconds
    return np.zeros(0) if seconds is None else 1000.0 * seconds


def _tiles(record: RunRecord) -> list[list[Any]]:
    metrics = {} if record.errors is None else run_metrics(record.errors)
    times = _milliseconds(record)
    tiles: list[tuple[str, Any, str]] = [
        ('position RMSE', metrics.get('position_rmse_m'), 'm'),
        ('median', metrics.get('position_median_m'), 'm'),
        ('heading median', metrics.get('heading_median_deg'), '°'),
        ('lost (> 1 m)', metrics.get('lost_fraction'), '%'),
        ('localized after', metrics.get('localized_after_m'), 'm'),
        ('error below 1 m after', metrics.get('below_1m_after_m'), 'm'),
        ('RMSE from then on', metrics.get('rmse_once_below_1m_m'), 'm'),
        ('inside 2σ', metrics.get('coverage_2sigma'), '%'),
        ('time per frame', float(times.mean()) if times.size else None, 'ms'),
    ]
    return [
        [name, 100 * value if unit == '%' and value is not None else value, unit]
        for name, value, unit in tiles
    ]


def _layer(
    kind: str, points: FloatArray, colour: str, label: str, width: float = 1.6
) -> dict[str, Any]:
    """Describe what a plan shows: `arrows` or a `path` (n, 3), or `links` (n, 4) of two ends."""
    return {
        'kind': kind,
        'points': _rounded(points, 3),
        'colour': colour,
        'label': label,
        'width': width,
    }


def _frame_data(record: RunRecord) -> dict[str, Any]:
    trajectory, count = record.trajectory, len(record.trajectory)
    seconds = (trajectory.stamps_ns - trajectory.stamps_ns[0]) * 1e-9
    position, heading, truth = (np.full((count, *shape), np.nan) for shape in ((), (), (3,)))
    if record.errors is not None:
        known = np.isin(trajectory.stamps_ns, record.errors.stamps_ns)
        position[known], heading[known] = record.errors.position_m, record.errors.heading_deg
        truth[known] = record.reference.poses
    names = sorted({name for reasons in record.reasons for name in reasons})
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
        'beliefs': [_rounded(points[:, :2], 2) for points in record.beliefs],
        'reasons': {
            name: _rounded(np.array([r.get(name, np.nan) for r in record.reasons]), 4)
            for name in names
        },
    }


def _position_sigma(covariances: FloatArray | None, count: int) -> FloatArray:
    """Root of the largest eigenvalue of the position's covariance, NaN where unknown."""
    if covariances is None:
        return np.full(count, np.nan)
    variance = np.linalg.eigvalsh(covariances[:, :2, :2])[:, -1]
    known = (variance > 0) & (variance < UNKNOWN_VARIANCE)
    return np.where(known, np.sqrt(np.where(known, variance, 1.0)), np.nan)


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
    odometry = described(kernel_map.calibration, kernel_map.mapping is not None)
    return {
        'filter': to_mapping(method_config(record.method, kernel_map)),
        'motion noise': {
            name: np.asarray(value).tolist() for name, value in noise.items() if value is not None
        },
        'odometry of the map': {name: facts['words'] for name, facts in odometry.items()},
        'map': {
            'image size': ' x '.join(str(side) for side in reversed(kernel_map.image_shape)),
            'descriptor': kernel_map.describer.kind,
            'descriptor size': int(kernel_map.describer.size),
        },
        'skipped': record.trajectory.skipped,
    }


def map_data(kernel_map: KernelMap, record: MappingRecord, name: str) -> dict[str, Any]:
    """Collect what the page of a map shows: its closures, and how well they fit."""
    used, rejected = record.kept == 1, rejected_closures(record)
    separate = kernel_map.poses.copy()
    runs = [kernel_map.run_index == run for run in range(len(kernel_map.run_names))]
    for members in runs:
        separate[members] = _onto(record.odometry[members], separate[members])
    before = [_layer('path', separate[m], 'truth', '') for m in runs]
    after = [_layer('path', kernel_map.poses[m], 'accent', '') for m in runs]
    before[0]['label'], after[0]['label'] = 'odometry', 'map'
    for chosen, colour, label in (
        (rejected, 'bad', 'closures that contradict the others'),
        (np.flatnonzero(used), 'belief', 'closures that were used'),
    ):
        ends = kernel_map.poses[record.closures[chosen], :2].reshape(-1, 4)
        after.append(_layer('links', ends, colour, label))
    missed = record.misses[used] * np.array([1.0, 1.0, 180.0 / np.pi])
    return {
        'title': name,
        'subtitle': f'map of {len(kernel_map)} images, poses of the {described_point(record)}',
        'tiles': [
            ['closures used', int(used.sum()), ''],
            ['sequences of them', len(np.unique(record.chain[used])), ''],
            ['sequences that contradict', len(rejected), ''],
            ['uncertainty of the poses', record.deviation_m, 'm'],
        ],
        'plans': [
            {'title': 'Odometry alone, each run for itself', 'layers': before},
            {'title': 'The map', 'layers': after},
        ],
        'frames': None,
        'histograms': [
            {
                'title': f'Errors of closures {title}',
                'values': _rounded(missed[:, axis], 3),
                'unit': unit,
                'from_zero': False,
            }
            for axis, (title, unit) in enumerate(
                (('along', 'm'), ('across', 'm'), ('in heading', '°'))
            )
        ],
        'pair_groups': [
            {
                'title': title,
                'pairs': [_closure_data(kernel_map, record, index) for index in chosen],
            }
            for title, chosen in (
                ('Taken for one place, the worst first', worst_closures(record)[:24]),
                ('Look alike, but contradict the others: not used', rejected[:12]),
            )
        ],
        'tables': {
            f'odometry of run {run + 1}': dict(zip(NAMES, values.tolist(), strict=True))
            for run, values in enumerate(np.asarray(record.parameters))
        },
    }


def worst_closures(record: MappingRecord) -> NDArray[np.intp]:
    """Closures (k,) that were used, the largest error first, one of each sequence leading."""
    used = np.flatnonzero(record.kept == 1)
    # a radian is as bad as two metres
    badness = np.linalg.norm(record.misses[used] * np.array([1.0, 1.0, 2.0]), axis=1)
    order = used[np.argsort(-badness, kind='stable')]
    leading = np.zeros(len(order), dtype=bool)
    leading[np.unique(record.chain[order], return_index=True)[1]] = True
    return np.concatenate([order[leading], order[~leading]])


def rejected_closures(record: MappingRecord) -> NDArray[np.intp]:
    """Middle closure (k,) of each sequence that was not used, the strongest sequence first."""
    _, chain = np.unique(record.chain, return_inverse=True)
    score, used = np.bincount(chain, record.score), np.bincount(chain, record.kept) > 0
    members = [
        np.flatnonzero(chain == n) for n in np.argsort(-score, kind='stable') if not used[n]
    ]
    return np.array([of[len(of) // 2] for of in members], dtype=np.intp)


def _onto(odometry: FloatArray, poses: FloatArray) -> FloatArray:
    """Odometry (n, 3) of a run, moved onto its poses in the map."""
    if not len(poses):
        return odometry
    try:
        return moved(odometry, fit(odometry, poses)[0])
    except MapError:  # a run in one place has no direction
        return se2.compose(se2.compose(poses[0], se2.inverse(odometry[0])), odometry)


def _closure_data(kernel_map: KernelMap, record: MappingRecord, index: int) -> dict[str, Any]:
    ends: Sequence[int] = record.closures[index].tolist()
    along, across, turn = record.misses[index]
    where = []
    for image in ends:
        run = int(kernel_map.run_index[image])
        begin = kernel_map.stamps_ns[kernel_map.run_index == run].min()
        seconds = (kernel_map.stamps_ns[image] - begin) * 1e-9
        where.append(f'{kernel_map.run_names[run]} {seconds:.1f} s')
    return {
        'images': [_encoded(kernel_map.thumbnails[n]) for n in ends if kernel_map.thumbnails],
        'caption': f'{" and ".join(where)}: error {along:+.2f} m along, {across:+.2f} m across, '
        f'{np.degrees(turn):+.1f}°; score {record.score[index]:.1f}',
    }


def _data_uri(image: NDArray[np.uint8]) -> str:
    width = min(240, image.shape[1])
    height = max(1, round(image.shape[0] * width / image.shape[1]))
    small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return _encoded(cv2.imencode('.jpg', small, [cv2.IMWRITE_JPEG_QUALITY, 70])[1].tobytes())


def _encoded(jpeg: bytes) -> str:
    return 'data:image/jpeg;base64,' + base64.b64encode(jpeg).decode('ascii')


def _rounded(values: FloatArray | None, digits: int) -> list[Any]:
    """Nested lists with few digits, None where there is no finite number."""
    if values is None:
        return []
    if values.ndim > 1:
        return [_rounded(row, digits) for row in values]
    numbers = np.round(values, digits).tolist()
    return [number if np.isfinite(number) else None for number in numbers]
