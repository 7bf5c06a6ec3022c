"""Will it work on this robot? One drive, split into a map and a test: `kbr try`."""

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
from kbr_localization.evaluation.metrics import run_metrics, same_place, SAME_PLACE_M
from kbr_localization.evaluation.report import best_match, record_run, run_data, RunRecord, tiles
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.localizer import contradiction, LOST_M
from kbr_localization.localization.map.build import build_map, unique_names
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.run_checks import odometry_fault
from kbr_localization.localization.mapping.align import align
from kbr_localization.localization.mapping.build import map_from_odometry
from kbr_localization.progress import tracked
from kbr_localization.se2 import FloatArray
from kbr_localization.trajectory import Trajectory
from kbr_localization.vision.preparation import evenly
import numpy as np
from numpy.typing import NDArray

AWAY_M = 5.0
"""Metres after which a robot that is at the same place again has come back to it."""
SHORTEST_M, STANDS_M = 3.0, 1.0
"""Metres of a test from which something can be said; of way up to which a robot stands."""
_MENTIONED, MOSTLY = 0.05, 0.8
"""Part of images or answers from which bad ones count; of frames localized, for the answer yes."""
_DRIVE_TWICE = (
    'drive every way twice, in the same direction, where the robot is to localize: the first time '
    'for the map, the second for the test; or give two drives, as in `kbr try FIRST SECOND`'
)
Values = dict[str, Any]
Advice = tuple[str, FloatArray]
"""What would make it better, and the places (k, 3) where."""
LOOKS: dict[str, tuple[str, Callable[[FloatArray], Any], str]] = {
    'brightness': ('{:.0%}', lambda of: of < 0.12, 'dark: more light, or a longer exposure'),
    'black or white': ('{:.0%}', lambda of: of > 0.3, 'partly black or white: auto exposure'),
    'width of edges': ('{:.1f} of 320 pixels', lambda of: of > 1.5, 'blurred: expose shorter'),
    'pixels on edges': ('{:.0%}', lambda of: of < 0.03, 'nearly bare: a wider lens sees more'),
}
"""What `_measure` gives by name: how it is written, which is bad, and what to do then."""


def try_drives(drives: Sequence[Dataset]) -> tuple[Values, Values, Trajectory]:
    """Map a part of a drive and localize the rest, or two drives: figures, page, trajectory."""
    for drive in drives:
        if (way := _metres(drive)) < STANDS_M:
            raise EvaluationError(
                f'{drive.name}: by its odometry the robot stands: {way:.2f} m of way over its '
                f'{len(drive)} images, expected at least {STANDS_M:g} m; {_DRIVE_TWICE}'
            )
    known = all(2 * sum(f.reference is not None for f in one) >= len(one) for one in drives)
    posed = drives if known else _posed_by_closures(drives)
    mapped, test = posed if len(posed) == 2 else _split(posed[0])
    test = part_of(test, list(test))  # what is left out of the test is counted by itself
    if known:
        kernel_map = build_map([mapped])
    else:
        made, _ = map_from_odometry([mapped])
        fixes = mapped.fixes
        assert fixes is not None
        kernel_map = align(made, fixes.stamps_ns, fixes.poses)[0]
    record = record_run(with_statistics(kernel_map), test)
    of_drive = len(test) / len(drives[0]) if len(drives) == 1 else None
    summary = _summary(record, mapped, of_drive, known)
    odometry = kernel_map.calibration.described().items()
    facts: Values = {
        'Topics': {},
        'Odometry: learnt, corrected': {n.replace('_', ' '): of['words'] for n, of in odometry},
    }
    advice = list(_advice(record))
    names = unique_names([drive.name for drive in drives])
    for name, drive, with_poses in zip(names, drives, posed, strict=True):
        of, whose = ('', '') if len(drives) == 1 else (f' of {name}', f'{name}: ')
        facts['Topics'][name] = '; '.join((*drive.sources, *drive.notes)) or 'a folder'
        if drive.others:
            facts['Topics'][f'{name}, not used'] = ', '.join(drive.others)
        facts[f'Stamps{of}'] = _stamps(drive)
        facts[f'Images{of}'], bad = _looks(with_poses)
        advice += [(f'{whose}{text}', where) for text, where in bad]
    return summary, _page(record, summary, facts, advice), record.trajectory


def _posed_by_closures(drives: Sequence[Dataset]) -> list[Dataset]:
    graph, _ = map_from_odometry(drives)
    if graph.mapping is None or not graph.mapping.kept.any():
        names = ' and '.join(drive.name for drive in drives)
        raise EvaluationError(
            f'{names}: no known poses, and its images show no place a second time: {_DRIVE_TWICE}'
        )
    parts: list[Dataset] = []
    for number, drive in enumerate(drives):
        mine = graph.run_index == number
        track = OdometryTrack(graph.stamps_ns[mine], graph.poses[mine])
        frames = [replace(f, reference=known_pose(track, f.stamp_ns)) for f in drive]
        parts.append(part_of(drive, frames))
    return parts


def _split(drive: Dataset) -> tuple[Dataset, Dataset]:
    frames = list(drive)
    known = np.flatnonzero([frame.reference is not None for frame in frames])
    poses = np.array([frames[number].reference for number in known])
    way, (start, stop) = se2.travelled(poses), best_stretch(first_visits(poses))
    if stop <= start or way[stop - 1] - way[start] < SHORTEST_M:
        raise EvaluationError(
            f'{drive.name}: {way[-1]:.0f} m of way, and no place is passed twice in the same '
            f'direction: nothing can be tested; {_DRIVE_TWICE}'
        )
    cut, end = known[start], known[stop - 1] + 1
    mapped = part_of(drive, frames[:cut])
    mapped.skipped = drive.skipped
    return mapped, part_of(drive, frames[cut:end])


def part_of(drive: Dataset, frames: Sequence[Frame]) -> Dataset:
    """Return a run of frames of a drive, with its odometry over their time."""
    track, ends = drive.odometry, (frames[0].stamp_ns, frames[-1].stamp_ns)
    first = max(int(np.searchsorted(track.stamps_ns, ends[0], side='right')) - 1, 0)
    last = int(np.searchsorted(track.stamps_ns, ends[1])) + 1
    resets = tuple(reset for reset in track.resets_ns if ends[0] < reset <= ends[1])
    odometry = OdometryTrack(track.stamps_ns[first:last], track.poses[first:last], resets)
    about = drive.reference_frame, drive.cameras, drive.notes, drive.sources
    return Dataset(drive.name, odometry, Skipped(), frames, None, *about)


def first_visits(poses: FloatArray) -> NDArray[np.intp]:
    """First pose at the place of each of (n, 3), if the robot left it and came back; else n."""
    way, never = se2.travelled(poses), len(poses)
    ends = np.searchsorted(way, way - AWAY_M, side='right')
    same = [same_place(poses[:end], pose) for end, pose in zip(ends, poses, strict=True)]
    return np.array([np.argmax(each) if each.any() else never for each in same], dtype=np.intp)


def best_stretch(first_seen: NDArray[np.intp]) -> tuple[int, int]:
    """Find the stretch with most poses seen before it, less others: (n, n) if there is none."""
    count = len(first_seen)
    best, found = 0, (count, count)
    for start in evenly(np.arange(count), 400).tolist():
        gains = np.cumsum(np.where(first_seen[start:] < start, 1, -1))
        length = int(np.argmax(gains))
        if gains[length] > best:
            best, found = int(gains[length]), (start, start + length + 1)
    return found


def _summary(record: RunRecord, mapped: Dataset, of_drive: float | None, known: bool) -> Values:
    test, trajectory, errors = record.dataset, record.trajectory, record.errors
    assert errors is not None
    milliseconds = 1000.0 * trajectory.seconds
    slowest = float(np.quantile(milliseconds, 0.95, method='higher'))
    again = _shown(record.reference.poses, record.kernel_map.poses)
    summary: Values = {
        'map_images': len(record.kernel_map),
        'map_m': _metres(mapped),
        'test_frames': len(test),
        'test_m': _metres(test),
        'test_of_drive': of_drive,
        'test_at_mapped_places': float(np.mean(again)),
        'localized': trajectory.statuses.count('localized') / len(test),
        'called_localized': int(errors.said.sum()),
        'called_localized_1m_off': int((errors.said & errors.lost).sum()),
        'errors_against': 'known poses' if known else 'the pose graph of all that was driven',
        **run_metrics(errors),
        'ms_per_frame': float(milliseconds.mean()),
        'ms_per_frame_95': slowest,
        'fastest_camera_hz': 1000.0 / slowest,
    }
    return {'verdict': verdict(summary), **summary}


def _metres(drive: Dataset) -> float:
    return float(se2.travelled(np.array([frame.odometry for frame in drive]))[-1])


def _stamps(drive: Dataset) -> dict[str, str]:
    rows = {}
    for name, stamps in (('images', drive.stamps_ns), ('odometry', drive.odometry.stamps_ns)):
        seconds = np.diff(stamps) * 1e-9
        rows[name] = f'{1.0 / np.median(seconds):.1f} Hz, longest gap {seconds.max():.2f} s'
    if drive.lateness_s:
        middle, most = np.quantile(drive.lateness_s, [0.5, 0.95])
        rows['images recorded after their stamps'] = f'{middle:.3f} s, 95% within {most:.3f} s'
    return rows


def _looks(drive: Dataset) -> tuple[dict[str, str], list[Advice]]:
    """Medians of what `LOOKS` names over up to 100 images of a drive, and what is bad of them."""
    numbers = evenly(np.arange(len(drive)), 100)
    poses, rows = [], []
    for number in tracked('looking at images', numbers.tolist()):
        frame = drive[number]
        with suppress(DatasetError):  # counted where it is described
            rows.append(_measure(side_by_side(frame.load_image())))
            poses.append(np.full(3, np.nan) if frame.reference is None else frame.reference)
    if not rows:
        return dict.fromkeys(LOOKS, 'none could be read'), []
    medians, advice, places = {}, [], np.array(poses)
    for (name, (form, is_bad, text)), values in zip(LOOKS.items(), np.array(rows).T, strict=True):
        medians[name], bad = form.format(np.median(values)), is_bad(values)
        if bad.mean() > _MENTIONED:
            advice.append((f'{bad.mean():.0%} of the images are {text}', places[bad]))
    return medians, advice


def _measure(image: NDArray[np.uint8]) -> tuple[float, float, float, float]:
    grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) if image.ndim == 3 else image
    small = cv2.resize(grey, (320, max(1, round(320 * grey.shape[0] / grey.shape[1]))))
    pixels = cv2.GaussianBlur(small, (0, 0), 1.0).astype(np.float32)
    slope = np.hypot(*(cv2.Sobel(pixels, -1, *axis, scale=0.125) for axis in ((1, 0), (0, 1))))
    bend = np.abs(cv2.Laplacian(pixels, -1))
    # of a step that a Gaussian of width s has blurred: slope 0.40 / s, bend 0.24 / s^2 at most
    width = 0.6 * np.quantile(slope, 0.98) / max(float(np.quantile(bend, 0.98)), 1e-6)
    clipped = np.mean((small < 6) | (small > 249))
    return float(small.mean()) / 255.0, float(clipped), float(width), float(np.mean(slope > 4.0))


def _advice(record: RunRecord) -> Iterator[Advice]:
    """Name ways that lack a pass, and where the test was wrong or not localized."""
    errors, tested, mapped = record.errors, record.reference.poses, record.kernel_map.poses
    assert errors is not None
    said, steps = errors.said, np.append(0.0, np.diff(se2.travelled(mapped)))
    # the ways there and back lie side by side
    one_way = ~_shown(mapped + np.array([0.0, 0.0, np.pi]), mapped, 2.0)
    for where, what in (
        (~_shown(mapped, tested), 'were not tested: drive there again'),
        (one_way, 'were driven in one direction only: drive there the other way, too, if the '
         'robot is to be localized when it comes that way'),
    ):  # fmt: skip
        if where.mean() > _MENTIONED:
            yield f'{steps[where].sum():.0f} m of the map {what}', mapped[where]
    if (wrong := said & errors.lost).any():
        worst = errors.position_m[wrong].max()
        radius = record.kernel_map.filter_config.localized_radius
        why = 'places look alike, or reference poses are wrong; drive there again for the map'
        if worst <= radius:
            why = f'localized means within {radius:g} m here, where images change little in metres'
        yield f'called localized, but up to {worst:.1f} m off: {why}', tested[wrong]
    yield from contradictions(record.dataset, record.trajectory)
    silent = ~said
    if said.mean() >= MOSTLY:  # the way to the first answer is as usual
        silent[: int(np.argmax(said))] = False
    if why := why_not_localized(record.kernel_map, record.dataset, record.trajectory):
        yield f'seldom localized: {why}', tested[~said]
    elif silent.mean() > _MENTIONED:
        text = f'not localized in {silent.mean():.0%} of the test: add a pass to the map here'
        yield text, tested[silent]


def _shown(
    poses: FloatArray, others: FloatArray, metres: float = SAME_PLACE_M
) -> NDArray[np.bool_]:
    """Tell which of some poses (n, 3) are at the place of one of others (m, 3)."""
    return np.array([same_place(others, pose, metres).any() for pose in poses])


def why_not_localized(kernel_map: KernelMap, dataset: Dataset, trajectory: Trajectory) -> str:
    """Say why less than half of a run was localized: its odometry stands or is of a wrong kind."""
    count = trajectory.statuses.count('localized')
    if 2 * count >= len(trajectory):
        return ''
    track = dataset.odometry.recorded or dataset.odometry  # with the jumps that were removed
    odometry = track.at(dataset.stamps_ns)
    if (np.abs(se2.difference(odometry, odometry[0])) < 0.1).all():  # metres and radians
        return (
            'by its odometry the robot stood still, and one image does not suffice; if it drove, '
            'choose another odometry: --odometry-topic for a bag'
        )
    way, pairs = se2.travelled(odometry), []
    places = np.arange(0.0, way[-1], max(1.0, way[-1] / 200.0))
    for number in np.unique(np.searchsorted(way, places)).tolist():
        pose = dataset[number].reference
        with suppress(DatasetError, VisionError):  # counted where it was localized
            if pose is None:
                pose = best_match(kernel_map, dataset[number]).map_pose
            pairs.append((odometry[number], pose))
    driven, seen = np.array(pairs).reshape(-1, 2, 3).transpose(1, 0, 2)
    step, leap = (np.hypot(*np.diff(poses[:, :2], axis=0).T) for poses in (driven, seen))
    wrong = leap > step + 1.0  # an image far from the ones before and after is taken for another
    right = ~(np.append(True, wrong) & np.append(wrong, True))[: len(seen)]
    fault = odometry_fault(driven[right], seen[right]) if right.sum() > 1 else ''
    if fault and not fault.startswith('does not move'):  # as where the map is of another place
        return f'its odometry {fault}'
    return '' if count else 'is this a map of that place, made with that camera?'


def contradictions(dataset: Dataset, trajectory: Trajectory) -> Iterator[Advice]:
    """Say at how many frames, and where, images contradicted the odometry of a localized run."""
    wrong = np.array([told.get('odometry_wrong', 0.0) for told in trajectory.reasons])
    odometry = np.array([frame.odometry for frame in dataset])
    poses = np.array([np.full(3, np.nan) if f.reference is None else f.reference for f in dataset])
    steps = np.abs(se2.steps(odometry)).max(axis=1)
    stands = np.append(False, steps < 1e-3)  # metres, radians
    for still in (True, False):
        found = (wrong > 0.5) & (stands == still)
        if found.mean() > _MENTIONED:
            text = f'at {found.sum()} of {len(found)} frames {contradiction(still)}'
            yield text, poses[found]


def _page(record: RunRecord, summary: Values, facts: Values, advice: list[Advice]) -> Values:
    data = run_data(record)
    marks = [[*at, n] for n, (_, where) in enumerate(advice, 1) for at in spread_out(where)]
    label = 'advice' if marks else ''
    layer = {'kind': 'marks', 'points': marks, 'colour': 'ink', 'label': label, 'width': 1.0}
    data['plans'][0]['layers'].append(layer)
    data['plans'][0]['layers'][1]['label'] = against = summary['errors_against']
    part, again = summary['test_of_drive'], summary['test_at_mapped_places']
    called, found = summary['called_localized'], [text for text, _ in advice]
    names = dict.fromkeys([record.dataset.name, *record.kernel_map.run_names])
    return data | {
        'title': f'Will it work? {" on a map of ".join(names)}',
        'verdict': summary['verdict'],
        'subtitle': f'{summary["map_images"]} images of {summary["map_m"]:.0f} m made the map, '
        f'{summary["test_frames"]} of {summary["test_m"]:.0f} m the test '
        f'({"another drive" if part is None else f"{part:.0%} of the drive"}), {again:.0%} of it '
        f'within 1 m and 30° of a map image; errors are against {against}',
        'tiles': tiles(
            summary,
            ('of the frames localized', 'localized', '%'),
            ('until first localized', 'localized_after_m', 'm'),
            ('median error', 'position_median_m', 'm'),
            ('of the errors inside the stated 2σ, of 95% expected', 'coverage_2sigma', '%'),
            (f'of {called} answers called localized > 1 m off', 'called_localized_1m_off', ''),
            ('processor time per frame, on average', 'ms_per_frame', 'ms'),
            ('95% of the frames within', 'ms_per_frame_95', 'ms'),
            ('camera rate with 95% in time', 'fastest_camera_hz', 'Hz'),
        ),
        'facts': facts,
        'advice': found or ['Nothing: the test covers the map; answers and images were good'],
    }


def spread_out(places: FloatArray) -> FloatArray:
    """Choose at most eight places (k, 2) all over (n, 3), 5 m or more from each other."""
    chosen = np.zeros((0, 2))
    for place in places[np.isfinite(places).all(axis=1), :2]:
        if (np.hypot(*(chosen - place).T) >= AWAY_M).all():
            chosen = np.vstack([chosen, place])
    return chosen[:: max(1, -(-len(chosen) // 8))]


def verdict(summary: Values) -> str:
    """Say in a sentence whether it works: yes, partly or not yet."""
    called, wrong = summary['called_localized'], summary['called_localized_1m_off']
    if not called:
        return 'Not yet: the robot was never localized.'
    share = summary['localized']
    seldom = share < 0.5 or wrong > _MENTIONED * called
    word = 'Not yet' if seldom else 'Yes' if share >= MOSTLY and not wrong else 'Partly'
    off = f'{wrong} of {called} answers' if wrong else 'no answer'
    return (
        f'{word}: {off} called localized {"were" if wrong > 1 else "was"} more than {LOST_M:g} m '
        f'off; localized in {share:.0%} of the frames, the first time after '
        f'{summary["localized_after_m"]:.1f} m.'
    )
