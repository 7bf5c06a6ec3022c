"""
Will it work on this robot? One drive, split into a map and a test: `kbr try`.

What a drive shows first becomes the map; the stretch in which it comes back to mapped places is
localized on it. The poses are the known ones or, for a drive without, those that its own odometry
and loop closures give over all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
from kbr_localization import se2
from kbr_localization.datasets import Dataset, Frame, OdometryTrack
from kbr_localization.datasets.frame import Skipped
from kbr_localization.datasets.multi_camera import one_picture
from kbr_localization.datasets.selection import ReferenceTrack
from kbr_localization.errors import DatasetError, EvaluationError
from kbr_localization.evaluation.metrics import run_metrics, RunErrors, same_place
from kbr_localization.evaluation.record import record_run, RunRecord
from kbr_localization.evaluation.report import run_data, write_page
from kbr_localization.localization.calibration_report import described
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.mapping.align import align
from kbr_localization.localization.mapping.build import map_from_odometry
from kbr_localization.progress import Progress
from kbr_localization.se2 import FloatArray
from kbr_localization.workers import Workers
import numpy as np
from numpy.typing import NDArray

AWAY_M = 5.0
"""Metres after which a robot that is at the same place again has come back to it."""
SHORTEST_M = 3.0
"""Metres of a test from which something can be said."""
STANDS_M = 1.0
"""Metres of way up to which a robot stands."""
LOOKED_AT = 100
"""Images of a drive whose light, blur and texture are measured."""
_MENTIONED = 0.05
"""Part of the images that has to be bad before it is mentioned."""
Mask = NDArray[np.bool_]
Advice = tuple[str, FloatArray]
"""What would make it better, and the places (k, 3) where."""
_DRIVE_TWICE = (
    'drive every way twice, in the same direction, where the robot is to localize: the first time '
    'for the map, the second for the test; or give another drive with --twice'
)


class Part(Dataset):
    """
    Frames of a run from `start` to `stop`, with its odometry over their time.

    `reference`: poses that take the place of the run's own, or None.
    """

    def __init__(
        self, dataset: Dataset, start: int, stop: int, reference: ReferenceTrack | None = None
    ) -> None:
        self._dataset, self._start, self._stop = dataset, start, stop
        self._reference = reference
        self.name, self.notes, self.cameras = dataset.name, dataset.notes, dataset.cameras
        self.sources, self.reference_frame = dataset.sources, dataset.reference_frame
        self.skipped = Skipped()
        track, ends = dataset.odometry, (dataset[start].stamp_ns, dataset[stop - 1].stamp_ns)
        first = max(int(np.searchsorted(track.stamps_ns, ends[0], side='right')) - 1, 0)
        last = int(np.searchsorted(track.stamps_ns, ends[1])) + 1
        resets = tuple(reset for reset in track.resets_ns if ends[0] < reset <= ends[1])
        stamps, poses = track.stamps_ns[first:last], track.poses[first:last]
        self.odometry = OdometryTrack(stamps, poses, resets)

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, index: int) -> Frame:
        frame = self._dataset[self._start + range(len(self))[index]]
        if self._reference is None:
            return frame
        return replace(frame, reference=self._reference.at(frame.stamp_ns))

    def between(self, start: int, stop: int) -> Part:
        """Return the part of the frames from one on to another."""
        return Part(self._dataset, self._start + start, self._start + stop, self._reference)


@dataclass(frozen=True)
class Trial:
    """
    A test on a map of the same drive, or of another one.

    `summary`: figures by name, with all of `run_metrics`. `facts`: rows of name and text by title.
    """

    record: RunRecord
    summary: dict[str, Any]
    facts: dict[str, dict[str, str]]
    advice: tuple[Advice, ...]


def try_drives(drives: Sequence[Dataset], workers: Workers, progress: Progress) -> Trial:
    """
    Map what a drive shows first and localize the rest, or of two drives map one, localize one.

    Raises EvaluationError for a drive that stands or never comes back to a place that it showed.
    """
    for one in drives:
        _refuse_standing(one)
    known = all(_is_known(one) for one in drives)
    posed = [Part(one, 0, len(one)) for one in drives]
    if not known:
        posed = _posed_by_closures(drives, workers, progress)
    mapped, test = (posed[0], posed[1]) if len(posed) == 2 else _split(posed[0])
    if known:
        kernel_map = build_map([mapped], progress=progress, workers=workers)
    else:
        made = map_from_odometry([mapped], progress=progress, workers=workers).kernel_map
        fixes = mapped.fixes
        assert fixes is not None
        kernel_map = align(made, fixes.stamps_ns, fixes.poses)[0]
    kernel_map = with_statistics(kernel_map)
    record = record_run(kernel_map, test, progress=progress)
    looked = _look(posed[0], progress)
    return _judge(drives, mapped, record, looked, known)


def _refuse_standing(drive: Dataset) -> None:
    metres = float(se2.travelled(drive.odometry.poses)[-1])
    if metres < STANDS_M:
        raise EvaluationError(
            f'{drive.name}: by its odometry the robot stands: {metres:.2f} m of way, expected at '
            f'least {STANDS_M:g} m; {_DRIVE_TWICE}'
        )


def _is_known(drive: Dataset) -> bool:
    """Whether at least half of the frames have a reference pose."""
    return 2 * sum(frame.reference is not None for frame in drive) >= len(drive)


def _posed_by_closures(
    drives: Sequence[Dataset], workers: Workers, progress: Progress
) -> list[Part]:
    """Give drives the poses of a pose graph over all of them."""
    whole = map_from_odometry(drives, progress=progress, workers=workers)
    record = whole.kernel_map.mapping
    if record is None or not record.kept.any():
        names = ' and '.join(drive.name for drive in drives)
        raise EvaluationError(
            f'{names}: no known poses, and its images show no place a second time: {_DRIVE_TWICE}'
        )
    graph, parts = whole.kernel_map, []
    for number, drive in enumerate(drives):
        mine = graph.run_index == number
        track = OdometryTrack(graph.stamps_ns[mine], graph.poses[mine])
        parts.append(Part(drive, 0, len(drive), ReferenceTrack(track)))
    return parts


def _split(drive: Part) -> tuple[Part, Part]:
    """Split a drive into what is mapped and the stretch after it that comes back to it."""
    frames = list(drive)
    known = np.array([n for n, frame in enumerate(frames) if frame.reference is not None])
    poses = np.array([frames[number].reference for number in known])
    way, first_seen = se2.travelled(poses), first_visits(poses)
    start, stop = best_stretch(first_seen)
    metres = float(way[stop - 1] - way[start]) if stop > start else 0.0
    if metres < SHORTEST_M:
        raise EvaluationError(
            f'{drive.name}: {way[-1]:.0f} m of way, and no place is passed twice in the same '
            f'direction: nothing can be tested; {_DRIVE_TWICE}'
        )
    cut, end = int(known[start]), int(known[stop - 1]) + 1
    return drive.between(0, cut), drive.between(cut, end)


def first_visits(poses: FloatArray) -> NDArray[np.intp]:
    """
    Find the first pose at the place of each pose (n, 3), from which the robot has come back.

    The index is n where it was never there before.
    """
    way = se2.travelled(poses)
    found = np.full(len(poses), len(poses), dtype=np.intp)
    for number, pose in enumerate(poses):
        before = poses[: np.searchsorted(way, way[number] - AWAY_M, side='right')]
        same = same_place(before, pose)
        if same.any():
            found[number] = np.argmax(same)
    return found


def best_stretch(first_seen: NDArray[np.intp]) -> tuple[int, int]:
    """
    Find the stretch with the most poses seen before it began, less those that were not.

    `first_seen`: (n,) as `first_visits` has them. Returns its first pose and the one after its
    last; both are n where nothing is seen twice.
    """
    best, found = 0, (len(first_seen), len(first_seen))
    back = first_seen < len(first_seen)
    begins = np.flatnonzero(back & ~np.concatenate([[False], back[:-1]]))
    spread = np.linspace(0, len(first_seen) - 1, 200).astype(int)
    for start in np.unique(np.concatenate([begins, spread])):
        gains = np.cumsum(np.where(first_seen[start:] < start, 1, -1))
        length = int(np.argmax(gains))
        if gains[length] > best:
            best, found = int(gains[length]), (int(start), int(start) + length + 1)
    return found


def _judge(
    drives: Sequence[Dataset],
    mapped: Dataset,
    record: RunRecord,
    looked: tuple[FloatArray, FloatArray],
    known: bool,
) -> Trial:
    errors, test, kernel_map = record.errors, record.dataset, record.kernel_map
    assert errors is not None and record.trajectory.seconds is not None
    metrics, statuses = run_metrics(errors), record.trajectory.statuses
    said = errors.said if errors.said is not None else np.zeros(len(statuses), dtype=bool)
    again = np.array([same_place(kernel_map.poses, p).any() for p in record.reference.poses])
    slowest = 1000.0 * float(np.quantile(record.trajectory.seconds, 0.95))
    summary: dict[str, Any] = {
        'map_images': len(kernel_map),
        'map_m': _metres(mapped),
        'test_frames': len(test),
        'test_m': _metres(test),
        'test_of_drive': len(test) / len(drives[0]) if len(drives) == 1 else 1.0,
        'test_at_mapped_places': float(again.mean()),
        'localized': statuses.count('localized') / len(statuses),
        'localized_and_wrong': float(errors.lost[said].mean()) if said.any() else 0.0,
        **metrics,
        'ms_per_frame': 1000.0 * float(record.trajectory.seconds.mean()),
        'ms_per_frame_95': slowest,
        'fastest_camera_hz': 1000.0 / slowest,
    }
    facts = {
        'Topics': _topics(drives),
        'Poses': {'reference': _reference_words(test, known)},
        'Stamps': _stamps(drives[0]),
        'Odometry': {
            name.replace('_', ' '): values['words']
            for name, values in described(kernel_map.calibration, not known).items()
        },
        'Images': {
            name: form.format(np.median(values))
            for (name, (form, *_)), values in zip(LOOKS.items(), looked[1].T, strict=True)
        },
    }
    advice = [
        *_advice_of_passes(kernel_map, record.reference.poses),
        *_advice_of_failures(errors, record.reference.poses, said),
        *_advice_of_looks(*looked),
    ]
    return Trial(record, summary, facts, tuple(advice))


def _metres(drive: Dataset) -> float:
    return float(se2.travelled(np.array([frame.odometry for frame in drive]))[-1])


def _topics(drives: Sequence[Dataset]) -> dict[str, str]:
    """Say what was read of each drive, and which other topics of the kinds there are."""
    rows = {}
    for drive in drives:
        rows[drive.name] = '; '.join((*drive.sources, *drive.notes)) or 'a folder'
        if others := getattr(drive, 'others', ()):
            rows[f'{drive.name}, not used'] = ', '.join(others)
    return rows


def _reference_words(test: Dataset, known: bool) -> str:
    if not known:
        return 'none, or few: errors are against the pose graph of the whole drive'
    frame = f' in the frame {test.reference_frame}' if test.reference_frame else ''
    return f'known poses{frame}'


def _stamps(drive: Dataset) -> dict[str, str]:
    stamps = np.array([frame.stamp_ns for frame in drive])
    seconds, ticks = np.diff(stamps) * 1e-9, np.diff(drive.odometry.stamps_ns) * 1e-9
    rows = {
        'images': f'{1.0 / np.median(seconds):.1f} Hz, longest gap {seconds.max():.2f} s',
        'odometry': f'{1.0 / np.median(ticks):.1f} Hz, longest gap {ticks.max():.2f} s',
    }
    late = getattr(drive, 'lateness_s', np.zeros(0))
    if late.size:
        middle, most = np.quantile(late, [0.5, 0.95])
        rows['images recorded after their stamps'] = f'{middle:.3f} s, 95% within {most:.3f} s'
    return rows


LOOKS: dict[str, tuple[str, Callable[[FloatArray], Any], str]] = {
    'brightness': ('{:.0%}', lambda of: of < 0.12, 'dark: more light, or a longer exposure'),
    'black or white pixels': (
        '{:.0%}',
        lambda of: of > 0.3,
        'black or white in large parts: turn on auto exposure',
    ),
    'width of edges, of an image 320 pixels wide': (
        '{:.1f} pixels',
        lambda of: of > 1.5,
        'blurred: a shorter exposure, or slower turns',
    ),
    'pixels on edges': (
        '{:.0%}',
        lambda of: of < 0.03,
        'nearly bare: a wider lens that sees more than walls',
    ),
}
"""What `_measure` gives by name: how it is written, which is bad, and what to do then."""


def _look(drive: Dataset, progress: Progress) -> tuple[FloatArray, FloatArray]:
    """Poses (k, 3), NaN where unknown, and measures (k, 4) of some images of a drive."""
    numbers = np.unique(np.linspace(0, len(drive) - 1, LOOKED_AT).astype(int))
    poses, rows = [], []
    for done, number in enumerate(numbers, start=1):
        frame = drive[number]
        try:
            rows.append(_measure(one_picture(frame.load_image())))
        except DatasetError:  # counted where it is described
            continue
        poses.append(np.full(3, np.nan) if frame.reference is None else frame.reference)
        progress('looking at images', done, len(numbers))
    return np.array(poses).reshape(-1, 3), np.array(rows).reshape(-1, len(LOOKS))


def _measure(image: NDArray[np.uint8]) -> tuple[float, float, float, float]:
    """Return what `LOOKS` names of an image."""
    grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) if image.ndim == 3 else image
    small = cv2.resize(grey, (320, max(1, round(320 * grey.shape[0] / grey.shape[1]))))
    pixels = cv2.GaussianBlur(small, (0, 0), 1.0).astype(np.float32)
    slope = np.hypot(*(cv2.Sobel(pixels, -1, *axis, scale=0.125) for axis in ((1, 0), (0, 1))))
    bend = np.abs(cv2.Laplacian(pixels, -1))
    edges = slope > 4.0
    # of a step that a Gaussian of width s has blurred: slope 0.40 / s, bend 0.24 / s^2 at most
    width = 0.6 * np.quantile(slope, 0.98) / max(float(np.quantile(bend, 0.98)), 1e-6)
    clipped = np.mean((small < 6) | (small > 249))
    return float(small.mean()) / 255.0, float(clipped), float(width), float(edges.mean())


def _advice_of_passes(kernel_map: KernelMap, tested: FloatArray) -> list[Advice]:
    """Name ways of the map that were not tested, and those driven in one direction only."""
    poses, turn = kernel_map.poses, np.array([0.0, 0.0, np.pi])
    step, found = float(np.median(np.hypot(*np.diff(poses[:, :2], axis=0).T))), []
    once = np.array([not same_place(tested, pose).any() for pose in poses])
    # the ways there and back lie side by side
    one_way = np.array([not same_place(poses, pose + turn, 2.0).any() for pose in poses])
    for where, what in (
        (once, 'were not tested: drive there again'),
        (one_way, 'were driven in one direction only: drive there the other way, too, if the '
         'robot is to be localized when it comes that way'),
    ):  # fmt: skip
        if where.mean() > _MENTIONED:
            found.append((f'{where.sum() * step:.0f} m of the map {what}', poses[where]))
    return found


def _advice_of_looks(poses: FloatArray, looks: FloatArray) -> list[Advice]:
    found = []
    for (_, is_bad, text), values in zip(LOOKS.values(), looks.T, strict=True):
        bad = is_bad(values)
        if bad.mean() > _MENTIONED:
            found.append((f'{bad.mean():.0%} of the images are {text}', poses[bad]))
    return found


def _advice_of_failures(errors: RunErrors, poses: FloatArray, said: Mask) -> list[Advice]:
    """Name where the test was wrong and called localized, and where it was not localized."""
    found, wrong, silent = [], said & errors.lost, ~said
    silent[: int(np.argmax(said)) if said.any() else 0] = False
    if wrong.any():
        text = (
            f'called localized, but up to {errors.position_m[wrong].max():.1f} m off: places look '
            'alike, or reference poses are wrong; drive there again for the map'
        )
        found.append((text, poses[wrong]))
    if silent.mean() > _MENTIONED:
        text = f'not localized in {silent.mean():.0%} of the test: add a pass to the map here'
        found.append((text, poses[silent]))
    return found


def write_trial(path: Path, trial: Trial) -> None:
    """Write the page of a trial; raises OSError."""
    write_page(path, trial_data(trial))


def trial_data(trial: Trial) -> dict[str, Any]:
    """Collect what the page of a trial shows: its test, figures, facts and advice."""
    data = run_data(trial.record)
    marks = [
        [*place[:2].tolist(), number]
        for number, (_, places) in enumerate(trial.advice, start=1)
        for place in _apart(places)
    ]
    data['plans'][0]['layers'].append(
        {'kind': 'marks', 'points': marks, 'colour': 'ink', 'label': '', 'width': 1.0}
    )
    return data | {
        'title': f'Will it work? {trial.record.dataset.name}',
        'subtitle': verdict(trial.summary),
        'tiles': tiles(trial.summary),
        'facts': trial.facts,
        'advice': [text for text, _ in trial.advice],
    }


def _apart(places: FloatArray) -> list[FloatArray]:
    """Choose at most eight places, each 5 m or more from the others."""
    chosen: list[FloatArray] = []
    for place in places[np.isfinite(places).all(axis=1)]:
        if len(chosen) < 8 and all(np.hypot(*(place - one)[:2]) >= AWAY_M for one in chosen):
            chosen.append(place)
    return chosen


def verdict(summary: dict[str, Any]) -> str:
    """Say in a sentence what was tested and what came out."""
    after, error = summary['localized_after_m'], summary['position_median_m']
    found = 'never localized' if after is None else f'localized after {after:.1f} m'
    if after is not None and error is not None:
        found += f' and in {summary["localized"]:.0%} of the frames; median error {error:.2f} m'
    return (
        f'{summary["map_images"]} images of {summary["map_m"]:.0f} m made the map, '
        f'{summary["test_frames"]} of {summary["test_m"]:.0f} m the test '
        f'({summary["test_of_drive"]:.0%} of the drive): {found}'
    )


def tiles(summary: dict[str, Any]) -> list[list[Any]]:
    """Name, value and unit of the figures at the top of the page."""
    rows = (
        ('of the drive tested', 'test_of_drive', '%'),
        ('localized', 'localized', '%'),
        ('localized after', 'localized_after_m', 'm'),
        ('median error', 'position_median_m', 'm'),
        ('inside 2σ', 'coverage_2sigma', '%'),
        ('of localized off > 1 m', 'localized_and_wrong', '%'),
        ('per frame', 'ms_per_frame', 'ms'),
        ('fastest camera', 'fastest_camera_hz', 'Hz'),
    )
    found = [(name, summary[key], unit) for name, key, unit in rows]
    return [
        [name, 100.0 * value if unit == '%' and value is not None else value, unit]
        for name, value, unit in found
    ]
