"""
How often the stated uncertainties of the odometry's errors cover the truth.

Robots are drawn whose wheels differ as `calibration.UNLIKE` says, drive along corridors and slip
now and then. Once their errors are measured against the true poses, as when a map is built; once
they are learnt while driving, from what another rig had, by a belief whose images tell the pose to
a few centimetres. Printed is the fraction of the robots whose error lies within 1.96 stated
standard deviations, which should be 0.95, and the median of these.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.results import table
from kbr_localization import se2
from kbr_localization.datasets.odometry_noise import OdometryNoise, reported_steps
from kbr_localization.localization.calibration import (
    Calibration,
    moved,
    NAMES,
    reported,
    SIZE,
    UNLIKE,
)
from kbr_localization.localization.calibration_fit import calibrate_run, Track
from kbr_localization.localization.calibration_words import described
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.odometry import OdometryCalibration
from kbr_localization.localization.motion import measure_odometry
from kbr_localization.se2 import FloatArray
from matplotlib.figure import Figure
import numpy as np

METRES, STEP = 100.0, 0.1
STEP_NS = 125_000_000
"""Nanoseconds of a step of 10 cm at 0.8 m/s."""
SLIPPING = OdometryNoise(yaw_bias=0.0, slip_rate=0.03)
SEEN = np.array([0.05, 0.05, 0.02])
"""Standard deviations of what an image tells of the pose: m, m, rad."""
UPDATE_STEPS, POINTS = 4, 500
DIFFERENTIAL = np.arange(SIZE) != NAMES.index('lateral_scale')
COLUMNS = ['error', 'covered, map built', 'its sd', 'covered, learnt', 'its sd']


def corridors(rng: np.random.Generator, metres: float = METRES) -> FloatArray:
    """Drive along corridors: true motions (m, 3), ahead and round corners."""
    count = int(metres / STEP)
    steps = np.zeros((count, 3))
    steps[:, 0] = STEP
    first = 20
    while first < count:
        length = int(rng.integers(10, 20))
        last = first + length
        steps[first:last, 2] = rng.choice([-1.0, 1.0]) * np.pi / 2 / length
        first += length + int(rng.integers(20, 60))
    return steps


def odometry_of(steps: FloatArray, values: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Increments (m, 3) that wheels with errors of values (7,) report of motions (m, 3)."""
    noise = reported_steps(steps, STEP_NS, SLIPPING, rng) - steps
    return np.asarray(reported(steps, values) + noise)


def mapping_run(values: FloatArray, rng: np.random.Generator) -> Track:
    """Odometry and true poses of a drive."""
    steps = corridors(rng)
    track = se2.chain(np.zeros(3), odometry_of(steps, values, rng))
    return track, se2.chain(np.zeros(3), steps)


def measured(rng: np.random.Generator) -> tuple[FloatArray, Calibration]:
    """Errors of a robot, and what its mapping run tells of them."""
    values = rng.standard_normal(SIZE) * UNLIKE * DIFFERENTIAL
    found = calibrate_run(*mapping_run(values, rng))
    assert found is not None
    return values, found


def learnt(rng: np.random.Generator) -> tuple[FloatArray, Calibration]:
    """Errors of a robot, and what it learns of them while it drives on the map of another."""
    others = rng.standard_normal(SIZE) * UNLIKE * DIFFERENTIAL
    known, noise = measure_odometry([mapping_run(others, rng)])
    values = rng.standard_normal(SIZE) * UNLIKE * DIFFERENTIAL
    steps = corridors(rng)
    calibration = OdometryCalibration(noise, known, 1.0, 'learnt')
    truth = np.zeros(3)
    belief = Belief.gaussian(truth, np.diag(SEEN**2), POINTS, rng)
    calibration.begin([belief])
    for index, report in enumerate(odometry_of(steps, values, rng)):
        truth = se2.compose(truth, steps[index])
        calibration.predict(report, [belief])
        if index % UPDATE_STEPS == UPDATE_STEPS - 1:
            belief = _seen(calibration, belief, truth, rng)
    return values, calibration.law(belief)


def _seen(
    calibration: OdometryCalibration, belief: Belief, truth: FloatArray, rng: np.random.Generator
) -> Belief:
    """Take in an image that tells the pose with errors of `SEEN`."""
    calibration.disperse([belief], rng)
    apart = se2.between(truth + rng.standard_normal(3) * SEEN, belief.points) / SEEN
    squares = np.sum(apart**2, axis=1)
    belief.reweigh(np.exp(-0.5 * (squares - squares.min())))
    calibration.pool(belief)
    return belief.resampled(POINTS, rng) if belief.effective_size() < POINTS / 2 else belief


def coverage(
    found: Sequence[tuple[FloatArray, Calibration]],
) -> tuple[FloatArray, FloatArray]:
    """Fractions (7,) of robots whose errors are within 1.96 sd, and medians (7,) of the sd."""
    covered = [np.abs(law.values - values) < 1.96 * law.deviations for values, law in found]
    return np.mean(covered, axis=0), np.median([law.deviations for _, law in found], axis=0)


def draw(path: Path) -> None:
    """Draw a drive as it was, by its odometry, and by that without its errors; print these."""
    rng = np.random.default_rng(3)
    values, found = measured(rng)
    steps = corridors(rng)
    told = odometry_of(steps, values, rng)
    figure = Figure(figsize=(6.0, 3.6), layout='constrained')
    axes = figure.subplots()
    for name, motions, style in (
        ('true', steps, 'k-'),
        ('odometry as it is', told, 'C3-'),
        ('without the errors that another run told', moved(told, found.values), 'C0--'),
    ):
        axes.plot(*se2.chain(np.zeros(3), motions)[:, :2].T, style, label=name, linewidth=1.2)
    axes.set_aspect('equal', adjustable='datalim')
    axes.set_xlabel('x [m]')
    axes.set_ylabel('y [m]')
    axes.legend(fontsize=8, loc='lower right')
    figure.savefig(path, dpi=90)
    for name, facts in described(found).items():
        print(f'{name:<14} {facts["words"]}')


def main() -> None:
    """Simulate the robots and print what is covered."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--robots', type=int, default=100, help='how many are simulated')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument(
        '--picture',
        type=Path,
        help='only draw a drive before and after, and print what was taken out',
    )
    options = parser.parse_args()
    if options.picture is not None:
        draw(options.picture)
        return
    ways: tuple[Callable[[np.random.Generator], tuple[FloatArray, Calibration]], ...]
    ways = (measured, learnt)
    figures: list[FloatArray] = []
    for way in ways:
        seeds = np.random.default_rng(options.seed).spawn(options.robots)
        figures += coverage([way(rng) for rng in seeds])
    rows = [
        [name, *(float(figure[index]) for figure in figures)] for index, name in enumerate(NAMES)
    ]
    print(table(COLUMNS, rows))


if __name__ == '__main__':
    main()
