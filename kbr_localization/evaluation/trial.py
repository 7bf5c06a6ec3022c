"""The trial of `kbr try`: map a part of a drive, localize the rest, and give advice."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import cv2
from kbr_localization import se2
from kbr_localization.datasets import Dataset, Frame, OdometryTrack
from kbr_localization.datasets.frame import Skipped
from kbr_localization.datasets.multi_camera import side_by_side
from kbr_localization.datasets.tracks import known_pose
from kbr_localization.errors import DatasetError, EvaluationError, VisionError
from kbr_localization.evaluation import report
from kbr_localization.evaluation.metrics import LOST_M, run_metrics
from kbr_localization.evaluation.report import RunRecord
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.localizer import contradiction
from kbr_localization.localization.map.build import build_map, unique_names
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.run_checks import odometry_fault
from kbr_localization.localization.mapping.align import align
from kbr_localization.localization.mapping.build import map_from_odometry
from kbr_localization.progress import tracked
from kbr_localization.se2 import FloatArray
from kbr_localization.trajectory import Trajectory
from kbr_localization.vision.preparation import select_evenly
import numpy as np
from numpy.typing import NDArray

SAME_PLACE_M, SAME_PLACE_RAD = 1.0, float(np.radians(30.0))
"""Largest distance and angle between two poses at one place."""
AWAY_M = 5.0
"""A pose at the place of an earlier pose is a return after this distance."""
MIN_TEST_M, MIN_DRIVE_M = 3.0, 1.0
"""Shortest distance of a test, and of a drive."""
MENTIONED, MOSTLY = 0.05, 0.8
"""Fraction of bad images or answers that is reported; of localized frames for the verdict yes."""
_DRIVE_TWICE = (
    'drive each route twice in the same direction, first for the map, then for the test; or give '
    'two drives, as in `kbr try FIRST SECOND`'
)
Data = dict[str, Any]
Advice = tuple[str, FloatArray]
"""A text, and the poses (k, 3) that it is about."""
IMAGE_CHECKS: dict[str, tuple[str, Callable[[FloatArray], Any], str]] = {
    'brightness': ('{:.0%}', lambda x: x < 0.12, 'dark: add light, or expose longer'),
    'black or white': ('{:.0%}', lambda x: x > 0.3, 'partly black or white: use auto exposure'),
    'width of edges': ('{:.1f} of 320 pixels', lambda x: x > 1.5, 'blurred: expose shorter'),
    'pixels on edges': ('{:.0%}', lambda x: x < 0.03, 'almost bare: use a wider lens'),
}
"""Names of the values of `_measure_image`, with their format, which are bad, and advice."""


def try_drives(drives: Sequence[Dataset]) -> tuple[Data, Data, Trajectory]:
    """Map one part or drive and localize the other; return figures, page and trajectory."""
    for drive in drives:
        if (driven := _distance(drive)) < MIN_DRIVE_M:
            raise EvaluationError(
                f'{drive.name}: the odometry shows no motion: {driven:.2f} m over {len(drive)} '
                f'images, expected at least {MIN_DRIVE_M:g} m; if the robot drove, choose another '
                f'odometry (--odometry-topic of a bag); else {_DRIVE_TWICE}'
            )
    known = all(2 * sum(f.reference is not None for f in one) >= len(one) for one in drives)
    posed = drives if known else _with_graph_poses(drives)
    mapped, test = posed if len(posed) == 2 else _split(posed[0])
    test = part_of(test, list(test))  # has its own counts of skipped images
    if known:
        kernel_map = build_map([mapped])
    else:
        made, _ = map_from_odometry([mapped])
        fixes = mapped.fixes
        assert fixes is not None
        kernel_map = align(made, fixes.stamps_ns, fixes.poses)[0]
    record = report.record_run(with_statistics(kernel_map), test)
    of_drive = len(test) / len(drives[0]) if len(drives) == 1 else None
    summary = _summary(record, mapped, of_drive, known)
    odometry = kernel_map.calibration.described().items()
    facts: Data = {
        'Topics': {},
        'Odometry errors, corrected': {n.replace('_', ' '): of['words'] for n, of in odometry},
    }
    advice = list(_advice(record))
    names = unique_names([drive.name for drive in drives])
    for name, drive, with_poses in zip(names, drives, posed, strict=True):
        of, whose = ('', '') if len(drives) == 1 else (f' of {name}', f'{name}: ')
        facts['Topics'][name] = '; '.join((*drive.sources, *drive.notes)) or 'a folder'
        if drive.others:
            facts['Topics'][f'{name}, not used'] = ', '.join(drive.others)
        facts[f'Stamps{of}'] = _stamps(drive)
        facts[f'Images{of}'], bad = _check_images(with_poses)
        advice += [(f'{whose}{text}', where) for text, where in bad]
    return summary, _page(record, summary, facts, advice), record.trajectory


def _with_graph_poses(drives: Sequence[Dataset]) -> list[Dataset]:
    """Return the drives with poses of one pose graph as reference poses."""
    graph, _ = map_from_odometry(drives)
    if graph.mapping is None or not graph.mapping.kept.any():
        names = ' and '.join(drive.name for drive in drives)
        raise EvaluationError(
            f'{names}: no known poses, and the images show no place twice: {_DRIVE_TWICE}'
        )
    parts: list[Dataset] = []
    for number, drive in enumerate(drives):
        mine = graph.run_index == number
        track = OdometryTrack(graph.stamps_ns[mine], graph.poses[mine])
        frames = [replace(f, reference=known_pose(track, f.stamp_ns)) for f in drive]
        parts.append(part_of(drive, frames))
    return parts


def _split(drive: Dataset) -> tuple[Dataset, Dataset]:
    """Return the part of a drive to map and the part to localize."""
    frames = list(drive)
    known = np.flatnonzero([frame.reference is not None for frame in frames])
    poses = np.array([frames[number].reference for number in known])
    driven, (start, stop) = se2.travelled(poses), best_stretch(first_visits(poses))
    if stop <= start or driven[stop - 1] - driven[start] < MIN_TEST_M:
        raise EvaluationError(
            f'{drive.name}: no place is passed twice in the same direction in {driven[-1]:.0f} m: '
            f'there is nothing to test; {_DRIVE_TWICE}'
        )
    cut, end = known[start], known[stop - 1] + 1
    mapped = part_of(drive, frames[:cut])
    mapped.skipped = drive.skipped
    return mapped, part_of(drive, frames[cut:end])


def part_of(drive: Dataset, frames: Sequence[Frame]) -> Dataset:
    """Return a run of some frames of a drive, with the odometry over their time."""
    track, ends = drive.odometry, (frames[0].stamp_ns, frames[-1].stamp_ns)
    first = max(int(np.searchsorted(track.stamps_ns, ends[0], side='right')) - 1, 0)
    last = int(np.searchsorted(track.stamps_ns, ends[1])) + 1
    resets = tuple(reset for reset in track.resets_ns if ends[0] < reset <= ends[1])
    odometry = OdometryTrack(track.stamps_ns[first:last], track.poses[first:last], resets)
    about = drive.reference_frame, drive.cameras, drive.notes, drive.sources
    return Dataset(drive.name, odometry, Skipped(), frames, None, *about)


def first_visits(poses: FloatArray) -> NDArray[np.intp]:
    """Return the first pose at the place of each pose, if the robot left in between; else n."""
    driven, never = se2.travelled(poses), len(poses)
    ends = np.searchsorted(driven, driven - AWAY_M, side='right')
    place = SAME_PLACE_M, SAME_PLACE_RAD
    same = [se2.within(poses[:end], pose, *place) for end, pose in zip(ends, poses, strict=True)]
    return np.array([np.argmax(each) if each.any() else never for each in same], dtype=np.intp)


def best_stretch(first_seen: NDArray[np.intp]) -> tuple[int, int]:
    """Return the stretch with most poses at places seen before it, minus others; (n, n): none."""
    count = len(first_seen)
    best, found = 0, (count, count)
    for start in select_evenly(np.arange(count), 400).tolist():
        gains = np.cumsum(np.where(first_seen[start:] < start, 1, -1))
        length = int(np.argmax(gains))
        if gains[length] > best:
            best, found = int(gains[length]), (start, start + length + 1)
    return found


def _summary(record: RunRecord, mapped: Dataset, of_drive: float | None, known: bool) -> Data:
    test, trajectory, errors = record.dataset, record.trajectory, record.errors
    assert errors is not None
    milliseconds = 1000.0 * trajectory.seconds
    slowest = float(np.quantile(milliseconds, 0.95, method='higher'))
    at_mapped_place = _are_near(record.reference.poses, record.kernel_map.poses)
    summary: Data = {
        'map_images': len(record.kernel_map),
        'map_m': _distance(mapped),
        'test_frames': len(test),
        'test_m': _distance(test),
        'test_of_drive': of_drive,
        'test_at_mapped_places': float(np.mean(at_mapped_place)),
        'localized': trajectory.statuses.count('localized') / len(test),
        'called_localized': int(errors.called_localized.sum()),
        'called_localized_1m_off': int((errors.called_localized & errors.lost).sum()),
        'errors_against': 'known poses' if known else 'the pose graph of all images',
        **run_metrics(errors),
        'ms_per_frame': float(milliseconds.mean()),
        'ms_per_frame_95': slowest,
        'fastest_camera_hz': 1000.0 / slowest,
    }
    return {'verdict': verdict(summary), **summary}


def _distance(drive: Dataset) -> float:
    return float(se2.travelled(np.array([frame.odometry for frame in drive]))[-1])


def _stamps(drive: Dataset) -> dict[str, str]:
    rows = {}
    for name, stamps in (('images', drive.stamps_ns), ('odometry', drive.odometry.stamps_ns)):
        seconds = np.diff(stamps) * 1e-9
        rows[name] = f'{1.0 / np.median(seconds):.1f} Hz, longest gap {seconds.max():.2f} s'
    return rows


def _check_images(drive: Dataset) -> tuple[dict[str, str], list[Advice]]:
    """Return medians of `IMAGE_CHECKS` over up to 100 images of a drive, and advice."""
    numbers = select_evenly(np.arange(len(drive)), 100)
    poses, rows = [], []
    for number in tracked('checking images', numbers.tolist()):
        frame = drive[number]
        with suppress(DatasetError):  # counted when images are described
            rows.append(_measure_image(side_by_side(frame.load_image())))
            poses.append(np.full(3, np.nan) if frame.reference is None else frame.reference)
    if not rows:
        return dict.fromkeys(IMAGE_CHECKS, 'none could be read'), []
    medians, advice, places = {}, [], np.array(poses)
    checks = zip(IMAGE_CHECKS.items(), np.array(rows).T, strict=True)
    for (name, (form, is_bad, text)), values in checks:
        medians[name], bad = form.format(np.median(values)), is_bad(values)
        if bad.mean() > MENTIONED:
            advice.append((f'{bad.mean():.0%} of the images are {text}', places[bad]))
    return medians, advice


def _measure_image(image: NDArray[np.uint8]) -> tuple[float, float, float, float]:
    grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) if image.ndim == 3 else image
    small = cv2.resize(grey, (320, max(1, round(320 * grey.shape[0] / grey.shape[1]))))
    pixels = cv2.GaussianBlur(small, (0, 0), 1.0).astype(np.float32)
    slope = np.hypot(*(cv2.Sobel(pixels, -1, *axis, scale=0.125) for axis in ((1, 0), (0, 1))))
    bend = np.abs(cv2.Laplacian(pixels, -1))
    # a step blurred by a Gaussian of width s has slopes up to 0.40 / s, bends up to 0.24 / s^2
    width = 0.6 * np.quantile(slope, 0.98) / max(float(np.quantile(bend, 0.98)), 1e-6)
    clipped = np.mean((small < 6) | (small > 249))
    return float(small.mean()) / 255.0, float(clipped), float(width), float(np.mean(slope > 4.0))


def _advice(record: RunRecord) -> Iterator[Advice]:
    """Report places to drive again, and where the test was wrong or not localized."""
    errors, tested, mapped = record.errors, record.reference.poses, record.kernel_map.poses
    assert errors is not None
    localized, steps = errors.called_localized, np.append(0.0, np.diff(se2.travelled(mapped)))
    # the paths there and back lie side by side
    one_way = ~_are_near(mapped + np.array([0.0, 0.0, np.pi]), mapped, 2.0)
    for where, what in (
        (~_are_near(mapped, tested), 'were not tested: drive there again'),
        (one_way, 'were driven in one direction only: drive in the other direction too, if the '
         'robot will come that way'),
    ):  # fmt: skip
        if where.mean() > MENTIONED:
            yield f'{steps[where].sum():.0f} m of the map {what}', mapped[where]
    if (wrong := localized & errors.lost).any():
        worst = errors.position_m[wrong].max()
        radius = record.kernel_map.filter_config.localized_radius
        why = 'places look alike, or reference poses are wrong; drive there again for the map'
        if worst <= radius:
            why = f'on this map localized means within {radius:g} m: its images change slowly'
        yield f'called localized, but up to {worst:.1f} m off: {why}', tested[wrong]
    yield from contradictions(record.dataset, record.trajectory)
    missed = ~localized
    if localized.mean() >= MOSTLY:  # the distance until the first answer is normal
        missed[: int(np.argmax(localized))] = False
    if why := why_not_localized(record.kernel_map, record.dataset, record.trajectory):
        yield f'seldom localized: {why}', tested[~localized]
    elif missed.mean() > MENTIONED:
        text = f'not localized in {missed.mean():.0%} of the test: add a pass to the map here'
        yield text, tested[missed]


def _are_near(
    poses: FloatArray, others: FloatArray, metres: float = SAME_PLACE_M
) -> NDArray[np.bool_]:
    """Return whether each pose (n, 3) is at the place of one of the others (m, 3)."""
    near = [se2.within(others, pose, metres, SAME_PLACE_RAD).any() for pose in poses]
    return np.array(near)


def why_not_localized(kernel_map: KernelMap, dataset: Dataset, trajectory: Trajectory) -> str:
    """Return why less than half of a run was localized, as far as known, else ''."""
    count = trajectory.statuses.count('localized')
    if 2 * count >= len(trajectory):
        return ''
    track = dataset.odometry.recorded or dataset.odometry  # with jumps, if recorded
    odometry = track.at(dataset.stamps_ns)
    if (np.abs(se2.difference(odometry, odometry[0])) < 0.1).all():  # metres and radians
        return (
            'the odometry shows no motion, and one image is not enough; if the robot drove, '
            'choose another odometry: --odometry-topic for a bag'
        )
    driven, pairs = se2.travelled(odometry), []
    places = np.arange(0.0, driven[-1], max(1.0, driven[-1] / 200.0))
    for number in np.unique(np.searchsorted(driven, places)).tolist():
        pose = dataset[number].reference
        with suppress(DatasetError, VisionError):  # counted by `localize`
            if pose is None:
                pose = report.best_match(kernel_map, dataset[number]).map_pose
            pairs.append((odometry[number], pose))
    reported, seen = np.array(pairs).reshape(-1, 2, 3).transpose(1, 0, 2)
    step, leap = (np.hypot(*np.diff(poses[:, :2], axis=0).T) for poses in (reported, seen))
    wrong = leap > step + 1.0  # leave out images far from those before and after: mismatches
    right = ~(np.append(True, wrong) & np.append(wrong, True))[: len(seen)]
    fault = odometry_fault(reported[right], seen[right]) if right.sum() > 1 else ''
    if fault and not fault.startswith('does not move'):  # also on a map of another place
        return f'its odometry {fault}'
    return '' if count else 'is this a map of that place, made with that camera?'


def contradictions(dataset: Dataset, trajectory: Trajectory) -> Iterator[Advice]:
    """Report at how many frames of a localized run, and where, images contradict odometry."""
    wrong = np.array([reasons.get('odometry_wrong', 0.0) for reasons in trajectory.reasons])
    odometry = np.array([frame.odometry for frame in dataset])
    poses = np.array([np.full(3, np.nan) if f.reference is None else f.reference for f in dataset])
    steps = np.abs(se2.steps(odometry)).max(axis=1)
    stands = np.append(False, steps < 1e-3)  # metres, radians
    for still in (True, False):
        found = (wrong > 0.5) & (stands == still)
        if found.mean() > MENTIONED:
            text = f'at {found.sum()} of {len(found)} frames {contradiction(still)}'
            yield text, poses[found]


def _page(record: RunRecord, summary: Data, facts: Data, advice: list[Advice]) -> Data:
    data = report.run_data(record)
    marks = [[*at, n] for n, (_, where) in enumerate(advice, 1) for at in spread_out(where)]
    label = 'advice' if marks else ''
    data['plans'][0]['layers'].append(report.plan_layer('marks', marks, 'ink', label, 1.0))
    data['plans'][0]['layers'][1]['label'] = against = summary['errors_against']
    part, again = summary['test_of_drive'], summary['test_at_mapped_places']
    called, found = summary['called_localized'], [text for text, _ in advice]
    names = dict.fromkeys([record.dataset.name, *record.kernel_map.run_names])
    return data | {
        'title': f'Will it work? {" on a map of ".join(names)}',
        'verdict': summary['verdict'],
        'subtitle': f'map: {summary["map_images"]} images, {summary["map_m"]:.0f} m; '
        f'test: {summary["test_frames"]} images, {summary["test_m"]:.0f} m '
        f'({"another drive" if part is None else f"{part:.0%} of the drive"}), '
        f'{again:.0%} within 1 m and 30° of a map image; errors are against {against}',
        'tiles': report.tiles(
            summary,
            ('of the frames localized', 'localized', '%'),
            ('until first localized', 'localized_after_m', 'm'),
            ('median error', 'position_median_m', 'm'),
            ('of the errors inside the stated 2σ (expected: 95%)', 'coverage_2sigma', '%'),
            (f'of {called} answers called localized > 1 m off', 'called_localized_1m_off', ''),
            ('processor time per frame, on average', 'ms_per_frame', 'ms'),
            ('95% of the frames within', 'ms_per_frame_95', 'ms'),
            ('camera rate with 95% in time', 'fastest_camera_hz', 'Hz'),
        ),
        'facts': facts,
        'advice': found or ['Nothing: the test covers the map, and answers and images are good'],
    }


def spread_out(places: FloatArray) -> FloatArray:
    """Return up to eight of the positions (n, 3), at least `AWAY_M` apart: (k, 2)."""
    chosen = np.zeros((0, 2))
    for place in places[np.isfinite(places).all(axis=1), :2]:
        if (np.hypot(*(chosen - place).T) >= AWAY_M).all():
            chosen = np.vstack([chosen, place])
    return chosen[:: max(1, -(-len(chosen) // 8))]


def verdict(summary: Data) -> str:
    """Return a sentence that says whether it works: yes, partly or not yet."""
    called, wrong = summary['called_localized'], summary['called_localized_1m_off']
    if not called:
        return 'Not yet: the robot was never localized.'
    share = summary['localized']
    seldom = share < 0.5 or wrong > MENTIONED * called
    word = 'Not yet' if seldom else 'Yes' if share >= MOSTLY and not wrong else 'Partly'
    off = f'{wrong} of {called} answers' if wrong else 'no answer'
    return (
        f'{word}: {off} called localized {"were" if wrong > 1 else "was"} more than {LOST_M:g} m '
        f'off; localized in {share:.0%} of the frames, the first time after '
        f'{summary["localized_after_m"]:.1f} m.'
    )
