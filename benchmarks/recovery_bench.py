"""
Global starts, kidnappings and false alarms: `python -m benchmarks.recovery_bench`.

A start begins anywhere in the test runs. A kidnapped robot drives 15 m, is then somewhere else,
at least 3 m away, and drives on there; the odometry either notices nothing or jumps wildly. It
counts as localized where the error is the last time above 1 m. A false alarm is a recovery in an
undisturbed run while the error is below 1 m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import results, workload
from kbr_localization import se2
from kbr_localization.evaluation.described import DescribedRun, on_described_run
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.kbr.leave_out import with_statistics
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.pipeline import Tracker
from kbr_localization.se2 import FloatArray
import numpy as np

BEFORE_M, AFTER_M, WITHIN_M, APART_M = 15.0, 12.0, 5.0, 3.0


@dataclass
class Drive:
    """A test run with the way (m,) driven up to each frame, m."""

    run: DescribedRun
    kernel_map: KernelMap
    way: FloatArray

    @staticmethod
    def of(run: DescribedRun, kernel_map: KernelMap) -> Drive:
        """Measure the way and let the map know the run's images."""
        references = [frame.reference for frame in run]
        if missing := sum(reference is None for reference in references):
            raise SystemExit(
                f'recovery_bench: {missing} of {len(run)} frames of {run.name} have no reference '
                'pose: expected one of each, as a robot is put at any of them; cut the run'
            )
        poses = np.array(references)
        known = with_statistics(on_described_run(kernel_map, run))
        return Drive(run, known, se2.travelled(poses))

    def stretch(self, metres: float, rng: np.random.Generator) -> range:
        """Frames of a stretch of that length that begins anywhere."""
        start = int(rng.integers(np.searchsorted(self.way, self.way[-1] - metres)))
        return range(start, int(np.searchsorted(self.way, self.way[start] + metres)))


def follow(
    tracker: Tracker, drive: Drive, frames: range, moved: FloatArray | None = None
) -> FloatArray:
    """Localize frames; returns the errors in metres. `moved` is put before their odometry."""
    origin = np.zeros(3) if moved is None else moved
    errors = []
    for index in frames:
        frame = drive.run[index]
        estimate = tracker.process(
            frame.stamp_ns, frame.load_image, se2.compose(origin, frame.odometry)
        )
        assert frame.reference is not None
        errors.append(float(np.hypot(*(estimate.pose - frame.reference)[:2])))
    return np.array(errors)


def settled_after(drive: Drive, frames: range, errors: FloatArray) -> float:
    """Metres after which the error stays below 1 m; infinite when it ends above."""
    wrong = np.flatnonzero(errors > 1.0)
    if wrong.size == 0:
        return 0.0
    if wrong[-1] == len(errors) - 1:
        return float('inf')
    return float(drive.way[frames[int(wrong[-1]) + 1]] - drive.way[frames[0]])


def start(drive: Drive, seed: int) -> float:
    """Metres that a global start takes."""
    rng = np.random.default_rng(seed)
    frames = drive.stretch(AFTER_M, rng)
    tracker = Tracker(drive.kernel_map, KernelBayesFilter(drive.kernel_map, rng=rng))
    tracker.initialize_globally()
    return settled_after(drive, frames, follow(tracker, drive, frames))


def kidnapping(drive: Drive, seed: int, noticed: bool) -> float:
    """Metres that the recovery from a kidnapping takes."""
    rng = np.random.default_rng(seed)
    before, after = drive.stretch(BEFORE_M, rng), drive.stretch(AFTER_M, rng)
    while _apart(drive, before[-1], after[0]) < APART_M:
        after = drive.stretch(AFTER_M, rng)
    tracker = Tracker(drive.kernel_map, KernelBayesFilter(drive.kernel_map, rng=rng))
    first = drive.run[before[0]].reference
    assert first is not None
    tracker.initialize(first, np.diag([0.01, 0.01, 0.01]))
    follow(tracker, drive, before)
    jump = rng.normal(0.0, [2.0, 2.0, 1.5]) if noticed else np.zeros(3)
    there = se2.compose(drive.run[before[-1]].odometry, jump)
    # the new stretch's odometry, moved so that it goes on where the wheels believe to be
    moved = se2.compose(there, se2.between(drive.run[after[0]].odometry, np.zeros(3)))
    return settled_after(drive, after, follow(tracker, drive, after, moved))


def false_alarms(drive: Drive, seed: int) -> tuple[int, float]:
    """Recoveries while the error was below 1 m, and the minutes of the run."""
    localizer = KernelBayesFilter(drive.kernel_map, rng=np.random.default_rng(seed))
    tracker = Tracker(drive.kernel_map, localizer)
    first = drive.run[0].reference
    assert first is not None
    tracker.initialize(first, np.diag([0.01, 0.01, 0.01]))
    alarms, before = 0, 0.0
    for index in range(len(drive.run)):
        count = localizer.diagnostics['recoveries']
        error = follow(tracker, drive, range(index, index + 1))[0]
        alarms += int(localizer.diagnostics['recoveries'] > count and before < 1.0)
        before = error
    stamps = [drive.run[index].stamp_ns for index in (0, -1)]
    return alarms, (stamps[1] - stamps[0]) * 1e-9 / 60.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; put the table into the page when a section is named."""
    parser = workload.parser(__doc__ or '')
    parser.add_argument('--trials', type=int, default=100, help='starts, and kidnappings')
    parser.add_argument('--minutes', type=float, default=30.0, help='of undisturbed driving')
    options = parser.parse_args(arguments)
    kernel_map, runs, name = workload.measured_on(options)
    drives = [Drive.of(run, kernel_map) for run in runs]
    seeds = [(drives[k % len(drives)], options.seed + k) for k in range(options.trials)]
    settled = {
        'global start': [start(*case) for case in seeds],
        'kidnapped, odometry notices nothing': [kidnapping(*case, False) for case in seeds],
        'kidnapped, odometry jumps': [kidnapping(*case, True) for case in seeds],
    }
    alarms, minutes, seed = 0, 0.0, options.seed
    while minutes < options.minutes:
        found, driven = false_alarms(drives[seed % len(drives)], seed)
        alarms, minutes, seed = alarms + found, minutes + driven, seed + 1
    rows = [
        [what, float(np.mean(np.array(way) <= WITHIN_M)), float(np.median(way))]
        for what, way in settled.items()
    ]
    header = ['case', f'localized within {WITHIN_M:g} m', 'median m']
    text = (
        f'### Global starts and recovery ({name}, map of {len(kernel_map)} images)\n\n'
        f'{options.trials} of each; localized within 1 m and staying there.\n\n'
        f'{results.table(header, rows)}\n\n'
        f'False alarms in {minutes:.0f} minutes of undisturbed driving: {alarms}.'
    )
    results.publish(text, options.section)


def _apart(drive: Drive, first: int, second: int) -> float:
    one, other = drive.run[first].reference, drive.run[second].reference
    assert one is not None and other is not None
    return float(np.hypot(*(one - other)[:2]))


if __name__ == '__main__':
    main()
