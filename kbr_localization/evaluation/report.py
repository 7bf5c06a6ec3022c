"""A self-contained HTML page about a run or a map, which opens without a network."""

import base64
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import cv2
from kbr_localization import __version__, se2
from kbr_localization.datasets import Dataset, Frame
from kbr_localization.datasets.images import decode_image
from kbr_localization.datasets.multi_camera import side_by_side
from kbr_localization.errors import DatasetError, EvaluationError, VisionError
from kbr_localization.evaluation import metrics
from kbr_localization.files import json_text, new_file, write_text
from kbr_localization.localization.calibration import NAMES
from kbr_localization.localization.localizer import Localizer, PoseEstimate, UNKNOWN_VARIANCE
from kbr_localization.localization.map.kernel_map import KernelMap, MappingRecord
from kbr_localization.localization.mapping.align import describe_point
from kbr_localization.localization.methods.registry import method_config
from kbr_localization.localization.pipeline import localize
from kbr_localization.progress import tracked
from kbr_localization.se2 import FloatArray
from kbr_localization.trajectory import Trajectory
from kbr_localization.vision.preparation import resize_to_width
import numpy as np
from numpy.typing import NDArray


class ImagePair(NamedTuple):
    """A frame, its true pose (3,) or None, and the most similar map image with its pose."""

    frame: NDArray[np.uint8]
    match: NDArray[np.uint8] | None  # None in a map without thumbnails
    pose: FloatArray | None
    map_pose: FloatArray
    similarity: float


@dataclass(frozen=True)
class RunRecord:
    """
    A localized run.

    `errors`: None for a run without reference poses. `beliefs`: poses (k, 3) drawn from the
    belief at each frame, empty for localizers without belief. `worst`: numbers of the frame with
    the largest error and of other bad frames, apart from each other. `pairs`: images by frame
    number, of these frames and others.
    """

    kernel_map: KernelMap
    dataset: Dataset
    method: str
    trajectory: Trajectory
    reference: Trajectory
    errors: metrics.RunErrors | None
    beliefs: list[FloatArray]
    worst: list[int]
    pairs: dict[int, ImagePair]


def record_run(
    kernel_map: KernelMap, dataset: Dataset, method: str = 'kbr', init: str = 'global'
) -> RunRecord:
    """Localize a run and record the results; raises what `localize` raises."""
    beliefs: list[FloatArray] = []

    def observe(localizer: Localizer, estimate: PoseEstimate) -> None:
        beliefs.append(localizer.particles(60))

    trajectory = localize(kernel_map, dataset, method, init, observe=observe)
    reference = metrics.reference_trajectory(dataset)
    errors = metrics.run_errors(reference, trajectory) if len(reference) else None
    worst = [] if errors is None else _worst_frames(errors, trajectory)
    spread = np.linspace(0, len(dataset) - 1, min(60, len(dataset))).round().astype(int)
    pictured, pairs = sorted({*spread.tolist(), *worst}), {}
    for number in tracked('looking up best matches', pictured):
        with suppress(DatasetError, VisionError):  # a broken image has no picture
            pairs[number] = best_match(kernel_map, dataset[number])
    found = trajectory, reference, errors, beliefs, worst, pairs
    return RunRecord(kernel_map, dataset, method, *found)


def best_match(kernel_map: KernelMap, frame: Frame) -> ImagePair:
    """Find the most similar map image; raises what reading and describing the frame raise."""
    image, match = frame.load_image(), None
    index, similarity = kernel_map.best_match(kernel_map.describer.describe(image))
    if kernel_map.thumbnails:
        match = decode_image(kernel_map.thumbnails[index], f'{index} of the map')
    pose = kernel_map.poses[index]
    shown = _shrunk(side_by_side(image), 640)  # a record holds dozens
    return ImagePair(shown, match, frame.reference, pose, similarity)


def _worst_frames(errors: metrics.RunErrors, trajectory: Trajectory) -> list[int]:
    """Return the worst frame and up to 11 other bad ones, at least 5 frames apart."""
    order = np.argsort(-errors.position_m, kind='stable')
    bad = [n for n in order if errors.position_m[n] > metrics.THRESHOLDS[0][0]]
    chosen: list[int] = []
    for entry in bad or order[:1]:
        frame = int(np.searchsorted(trajectory.stamps_ns, errors.stamps_ns[entry]))
        if all(abs(frame - other) >= 5 for other in chosen):
            chosen.append(frame)
    return chosen[:12]


def write_page(path: str | Path, data: dict[str, Any]) -> None:
    """Write the page for data from `run_data`, `map_data` or `try_drives`; raises OSError."""
    template = resources.files('kbr_localization.evaluation').joinpath('report.html')
    written = datetime.now(timezone.utc).strftime('%Y-%m-%d %H:%M UTC')
    data = {'written': written, 'version': __version__, 'pair_groups': [], 'worst': []} | data
    # escape text that would end or comment out the script element around it
    text = json_text(data, digits=6, separators=(',', ':'))
    text = text.replace('</', '<\\/').replace('<!', '\\u003c!')
    page = template.read_text(encoding='utf-8').replace('"the data goes here"', text)
    write_text(path, page)


def run_data(record: RunRecord) -> dict[str, Any]:
    """Return the data for the page of a run; unknown numbers are NaN or None."""
    kernel_map, trajectory, run = record.kernel_map, record.trajectory, record.dataset
    names, note = ', '.join(kernel_map.run_names), metrics.frame_note(kernel_map, run)
    layers = [plan_layer('arrows', kernel_map.poses, 'map', 'map images')]
    if len(record.reference):
        layers.append(plan_layer('path', record.reference.poses, 'truth', 'known poses', 7))
    figures = {} if record.errors is None else metrics.run_metrics(record.errors)
    milliseconds = 1000.0 * trajectory.seconds
    noise, odometry = vars(kernel_map.motion_noise), kernel_map.calibration.described()
    return {
        'title': run.name,
        'subtitle': f'method {record.method}, {len(trajectory)} frames, map of {len(kernel_map)} '
        f'images ({names})' + ''.join(f'; {text}' for text in (*run.notes, note) if text),
        'tiles': tiles(
            figures | {'ms_per_frame': float(milliseconds.mean())},
            ('position RMSE', 'position_rmse_m', 'm'),
            ('median', 'position_median_m', 'm'),
            ('heading median', 'heading_median_deg', '°'),
            ('lost (> 1 m)', 'lost_fraction', '%'),
            ('localized after', 'localized_after_m', 'm'),
            ('error below 1 m after', 'below_1m_after_m', 'm'),
            ('RMSE from then on', 'rmse_once_below_1m_m', 'm'),
            ('inside 2σ', 'coverage_2sigma', '%'),
            ('time per frame', 'ms_per_frame', 'ms'),
        ),
        'plans': [{'title': '', 'layers': layers}],
        'frames': _frame_data(record),
        'pairs': {number: _pair_data(pair) for number, pair in record.pairs.items()},
        'worst': record.worst,
        'histograms': [{'title': 'Time per frame', 'values': milliseconds, 'unit': 'ms'}],
        'tables': {
            'filter': vars(method_config(record.method, kernel_map)),
            'motion noise': {n: x for n, x in noise.items() if x is not None},
            'odometry of the map': {name: facts['words'] for name, facts in odometry.items()},
            'map': {
                'image size': ' x '.join(str(side) for side in reversed(kernel_map.image_shape)),
                'descriptor': kernel_map.describer.kind,
                'descriptor size': kernel_map.describer.size,
            },
            'skipped': trajectory.skipped,
        },
    }


def tiles(figures: dict[str, Any], *shown: tuple[str, str, str]) -> list[list[Any]]:
    """Return name, value and unit of figures at the top of a page, fractions as percentages."""
    found = [(name, figures.get(key), unit) for name, key, unit in shown]
    return [
        [name, 100.0 * value if unit == '%' and value is not None else value, unit]
        for name, value, unit in found
    ]


def plan_layer(
    kind: str, points: Any, colour: str, label: str, width: float = 1.6
) -> dict[str, Any]:
    """Return a layer: `arrows`, `path` (n, 3), `links` (n, 4), or `marks` (n, 3) x, y, number."""
    return {'kind': kind, 'points': points, 'colour': colour, 'label': label, 'width': width}


def _frame_data(record: RunRecord) -> dict[str, Any]:
    trajectory, count = record.trajectory, len(record.trajectory)
    position, heading, truth = (np.full((count, *shape), np.nan) for shape in ((), (), (3,)))
    if record.errors is not None:
        known = np.isin(trajectory.stamps_ns, record.errors.stamps_ns)
        position[known], heading[known] = record.errors.position_m, record.errors.heading_deg
        truth[known] = record.reference.poses
    variance = np.linalg.eigvalsh(trajectory.covariances[:, :2, :2])[:, -1]
    stated = (variance > 0) & (variance < UNKNOWN_VARIANCE)
    names = sorted({name for reasons in trajectory.reasons for name in reasons})
    return {
        'seconds': (trajectory.stamps_ns - trajectory.stamps_ns[0]) * 1e-9,
        'poses': trajectory.poses,
        'truth': truth,
        'error_m': position,
        'error_deg': heading,
        'sigma_m': np.sqrt(np.where(stated, variance, np.nan)),
        'confidence': trajectory.confidences,
        'status': trajectory.statuses,
        'updated': trajectory.updated,
        'beliefs': [points[:, :2] for points in record.beliefs],
        'reasons': {name: [r.get(name) for r in trajectory.reasons] for name in names},
    }


def _pair_data(pair: ImagePair) -> dict[str, Any]:
    return {
        'frame': _image_uri(pair.frame),
        'match': None if pair.match is None else _image_uri(pair.match),
        'similarity': pair.similarity,
        'distance_m': None if pair.pose is None else np.hypot(*(pair.pose - pair.map_pose)[:2]),
        'map_pose': pair.map_pose,
    }


def map_data(kernel_map: KernelMap, name: str) -> dict[str, Any]:
    """Return the data for the page of a map from odometry; raises EvaluationError for others."""
    record = kernel_map.mapping
    if record is None:
        raise EvaluationError(
            f'{name} was built from known poses: give a run to localize on it, as in '
            '`kbr report MAP RUN`'
        )

    def one_of_each_sequence(closures: NDArray[np.intp], value: FloatArray) -> NDArray[np.intp]:
        order = closures[np.argsort(-value[closures], kind='stable')]
        return order[np.sort(np.unique(record.chain[order], return_index=True)[1])]

    used = np.flatnonzero(record.kept == 1)
    others = np.flatnonzero(~np.isin(record.chain, record.chain[used]))
    # count a radian as two metres
    worst = one_of_each_sequence(used, np.linalg.norm(record.misses * [1.0, 1.0, 2.0], axis=1))
    rejected = one_of_each_sequence(others, record.score)
    before, after = [], []
    for number in range(len(kernel_map.run_names)):
        members = kernel_map.run_index == number
        poses, odometry = kernel_map.poses[members], record.odometry[members]
        if len(poses):
            odometry = se2.compose(poses[0], se2.between(odometry[0], odometry))
        before.append(plan_layer('path', odometry, 'truth', '' if number else 'odometry'))
        after.append(plan_layer('path', poses, 'accent', '' if number else 'map'))
    for chosen, colour, label in (
        (rejected, 'bad', 'closures that contradict the others'),
        (used, 'belief', 'closures that were used'),
    ):
        ends = kernel_map.poses[record.closures[chosen], :2].reshape(-1, 4)
        after.append(plan_layer('links', ends, colour, label))
    return {
        'title': name,
        'subtitle': f'map of {len(kernel_map)} images, poses of the {describe_point(record)}',
        'tiles': [
            ['closures used', len(used), ''],
            ['sequences of these closures', len(np.unique(record.chain[used])), ''],
            ['contradictory sequences', len(rejected), ''],
            ['uncertainty of the poses', record.deviation_m, 'm'],
        ],
        'plans': [
            {'title': 'Odometry only, each run separately', 'layers': before},
            {'title': 'The map', 'layers': after},
        ],
        'frames': None,
        'histograms': [],
        'pair_groups': [
            {'title': title, 'pairs': [_closure_data(kernel_map, record, n) for n in chosen[:24]]}
            for title, chosen in (
                ('Used as one place, the worst pair of each sequence first', worst),
                ('Similar images that contradict the others: not used', rejected),
            )
        ],
        'tables': {
            f'odometry of run {run + 1}': dict(zip(NAMES, values, strict=True))
            for run, values in enumerate(record.parameters)
        },
    }


def _closure_data(kernel_map: KernelMap, record: MappingRecord, index: int) -> dict[str, Any]:
    along, across, turn = record.misses[index]
    where, pictures = [], []
    for image in record.closures[index].tolist():
        run = int(kernel_map.run_index[image])
        begin = kernel_map.stamps_ns[kernel_map.run_index == run].min()
        seconds = (kernel_map.stamps_ns[image] - begin) * 1e-9
        where.append(f'{kernel_map.run_names[run]} {seconds:.1f} s')
        pictures += [_jpeg_uri(kernel_map.thumbnails[image])] if kernel_map.thumbnails else []
    return {
        'images': pictures,
        'caption': f'{" and ".join(where)}: error {along:+.2f} m along, {across:+.2f} m across, '
        f'{np.degrees(turn):+.1f}°; score {record.score[index]:.1f}',
    }


def _shrunk(image: NDArray[np.uint8], most: int) -> NDArray[np.uint8]:
    return resize_to_width(image, min(most, image.shape[1]))


def _image_uri(image: NDArray[np.uint8]) -> str:
    small = _shrunk(image, 240)
    return _jpeg_uri(cv2.imencode('.jpg', small, [cv2.IMWRITE_JPEG_QUALITY, 70])[1].tobytes())


def _jpeg_uri(jpeg: bytes) -> str:
    return 'data:image/jpeg;base64,' + base64.b64encode(jpeg).decode('ascii')


def write_recording(path: str | Path, record: RunRecord) -> None:
    """Write an .rrd file for the rerun viewer: map, poses, beliefs, images, errors."""
    import rerun as rr  # noqa: PLC0415  (an optional package)

    trajectory, errors = record.trajectory, record.errors
    flip = np.array([1.0, -1.0])  # y points down in the viewer, up in the map
    grey, dark, teal, violet = [160, 174, 192], [90, 105, 120], [11, 114, 133], [103, 65, 217]
    name = f'{record.dataset.name} {record.method}'
    stream = rr.RecordingStream('kbr_localization', recording_id=name)

    def arrows(poses: FloatArray, colour: list[int]) -> Any:
        directions = np.stack([np.cos(poses[:, 2]), np.sin(poses[:, 2])], axis=-1)
        ends = {'origins': poses[:, :2] * flip, 'vectors': 0.3 * flip * directions}
        return rr.Arrows2D(**ends, colors=[colour])

    def line(poses: FloatArray, colour: list[int]) -> Any:
        return rr.LineStrips2D([poses[:, :2] * flip], colors=[colour])

    with new_file(path) as part:
        stream.save(str(part))
        stream.log('plan/map', arrows(record.kernel_map.poses, grey), static=True)
        stream.log('plan/truth', line(record.reference.poses, dark), static=True)
        stream.log('plan/estimate', line(trajectory.poses, teal), static=True)
        known = {} if errors is None else {int(t): n for n, t in enumerate(errors.stamps_ns)}
        for number, stamp in enumerate(trajectory.stamps_ns.tolist()):
            stream.set_time('frame', sequence=number)
            stream.set_time('stamp', timestamp=np.datetime64(stamp, 'ns'))
            stream.log('plan/pose', arrows(trajectory.poses[[number]], teal))
            belief = record.beliefs[number][:, :2] * flip
            stream.log('plan/belief', rr.Points2D(belief, colors=[violet], radii=0.06))
            series = {f'diagnostics/{key}': x for key, x in trajectory.reasons[number].items()}
            series['confidence'] = trajectory.confidences[number]
            if errors is not None and stamp in known:
                series['error/position_m'] = errors.position_m[known[stamp]]
                series['error/heading_deg'] = errors.heading_deg[known[stamp]]
            for key, value in series.items():
                stream.log(key, rr.Scalars(float(value)))
            pair = record.pairs.get(number)
            for what, image in (('camera', pair.frame), ('match', pair.match)) if pair else ():
                if image is not None:
                    model = rr.ColorModel.L if image.ndim == 2 else rr.ColorModel.BGR
                    shown = rr.Image(image, color_model=model).compress(jpeg_quality=80)
                    stream.log(f'images/{what}', shown)
        stream.flush()
        stream.disconnect()
