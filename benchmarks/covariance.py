"""
The numbers of the stated covariance: `python -m benchmarks.covariance`.

`localization/kbr/estimate.py` states (a + e exp(-2 z)) C + ... for the covariance C of the points.
Here a and e are those with the highest mean log likelihood of the errors over groups of cases,
real and rendered, less a penalty for every case with fewer than 87% of the truths inside of 2
sigma, and a small one above 99.2%. All frames count whose answer is right and has a covariance,
called localized or not: that another place is meant is for the status to say.
Numbers that fit every other case show what a fit is worth on cases that it has not seen, and
multiples of the whole covariance how many cases then have too few or too many of the truths
inside. `--numbers` tries others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
import sys
from typing import Any
from unittest.mock import patch

from benchmarks import cases, results
from kbr_localization import se2
from kbr_localization.evaluation import associate, reference_trajectory, TOLERANCE_S
from kbr_localization.localization.kbr import estimate
from kbr_localization.localization.localizer import Localizer, PoseEstimate, sigma_region
from kbr_localization.localization.pipeline import localize
from kbr_localization.se2 import FloatArray
import numpy as np
from scipy.optimize import minimize

_RIM = sigma_region(2.0, 2)
LOWEST, HIGHEST = 0.87, 0.992
ASKED = (0.85, 0.995)
"""2 sigma that every case should have."""
COLUMNS = ['fitted to', 'a', 'e', 'log score', 'least 2 sigma', f'below {ASKED[0]}']
COLUMNS += [f'above {ASKED[1]}']
_TIMES = (0.5, 0.7, 1.4)
_FEWEST = 20  # frames
_BELOW, _ABOVE = 100.0, 10.0  # penalties per unit of coverage
_FAR = 25.0  # squared distance from which an error counts by its logarithm


@dataclass(frozen=True)
class Recorded:
    """
    The frames of a case with an answer that is right, in the axes of the robot.

    `errors`: (n, 2) along and across. `spreads`: (n, 2, 2) of the points. `likelihoods`: (n,) mean
    log likelihoods relative to places that face alike. `spacing`, `cross_track`: metres between
    images of the map, and across between its runs.
    """

    group: str
    errors: FloatArray
    spreads: FloatArray
    likelihoods: FloatArray
    spacing: float
    cross_track: float

    def stated(self, values: FloatArray) -> FloatArray:
        """Covariances (n, 2, 2) with a and e of `values` (2,)."""
        independent, shared = values
        factors = independent + shared * np.exp(-2.0 * np.maximum(self.likelihoods, 0.0))
        found: FloatArray = factors[:, np.newaxis, np.newaxis] * self.spreads
        found[:, 0, 0] += self.spacing**2 / 12.0
        found[:, 1, 1] = np.maximum(found[:, 1, 1], self.cross_track**2 / 4.0)
        return found

    def scores(self, values: FloatArray, times: float = 1.0) -> tuple[float, float, float]:
        """
        Mean log likelihood of the errors, fraction inside of 2 sigma, sharpness.

        Of the covariance with these values, times a factor.
        """
        stated = times * self.stated(values)
        solved = np.linalg.solve(stated, self.errors[:, :, np.newaxis])[:, :, 0]
        squared = np.sum(self.errors * solved, axis=1)
        far = np.log1p(np.maximum(squared - _FAR, 0.0))
        score = -0.5 * (np.minimum(squared, _FAR) + far + np.linalg.slogdet(stated)[1])
        deviation = np.sqrt(np.trace(stated, axis1=1, axis2=2)).mean()
        sharpness = float(deviation / np.hypot(*self.errors.T).mean())
        return float(score.mean()), float(np.mean(squared <= _RIM)), sharpness


def record(case: cases.Case) -> Recorded | None:
    """Localize the run of a case; None where hardly any answer is right."""
    seen: list[tuple[FloatArray, estimate.Proof]] = []
    kept: dict[int, tuple[FloatArray, estimate.Proof]] = {}
    frames = count()
    calibrated = estimate.calibrated

    def noted(spread: FloatArray, *rest: Any) -> FloatArray:
        seen.append((estimate.in_map_axes(spread, -rest[1]), rest[-1]))
        return calibrated(spread, *rest)

    def observe(_: Localizer, answer: PoseEstimate) -> None:
        frame = next(frames)
        if answer.has_pose and seen and seen[-1][1].log_likelihood is not None:
            kept[frame] = seen[-1]

    with patch.object(estimate, 'calibrated', noted):
        trajectory = localize(case.kernel_map, case.run, 'kbr', seed=0, observe=observe)
    reference = reference_trajectory(case.run)
    at = associate(trajectory.stamps_ns, reference.stamps_ns, TOLERANCE_S)
    known = np.array([frame for frame in kept if at[frame] >= 0], dtype=np.intp)
    errors = se2.between(reference.poses[at[known]], trajectory.poses[known])[:, :2]
    right = np.hypot(*errors.T) <= case.right_m
    known, errors = known[right], errors[right]
    if len(known) < _FEWEST:
        return None
    proofs = [kept[frame][1] for frame in known]
    return Recorded(
        case.group,
        errors,
        np.array([kept[frame][0][:2, :2] for frame in known]),
        np.array([proof.log_likelihood for proof in proofs]),
        proofs[0].spacing,
        proofs[0].cross_track,
    )


def fitted(recorded: Sequence[Recorded]) -> FloatArray:
    """Find a and e (2,)."""
    starts = ([0.2, 2.0], [0.3, 6.0])
    found = [
        minimize(
            lambda logs: _loss(np.exp(logs), recorded),
            np.log(start),
            method='Nelder-Mead',
            options={'maxiter': 300, 'xatol': 1e-2, 'fatol': 1e-5},
        )
        for start in starts
    ]
    return np.asarray(np.exp(min(found, key=lambda one: float(one.fun)).x))


def _loss(values: FloatArray, recorded: Sequence[Recorded]) -> float:
    scores = [one.scores(values) for one in recorded]
    covered = np.array([coverage for _, coverage, _ in scores])
    below, above = np.maximum(LOWEST - covered, 0.0), np.maximum(covered - HIGHEST, 0.0)
    return float(np.mean(_BELOW * below + _ABOVE * above)) - _log_score(scores, recorded)


def _groups(recorded: Sequence[Recorded]) -> list[str]:
    return list(dict.fromkeys(one.group for one in recorded))


def _log_score(
    scores: Sequence[tuple[float, float, float]], recorded: Sequence[Recorded]
) -> float:
    """Mean over the groups of those of their cases."""
    of: dict[str, list[float]] = {}
    for (score, _, _), one in zip(scores, recorded, strict=True):
        of.setdefault(one.group, []).append(score)
    return float(np.mean([np.mean(group) for group in of.values()]))


def _row(
    name: str, values: FloatArray, recorded: Sequence[Recorded], times: float = 1.0
) -> list[Any]:
    """Tell how good covariances are: log score of the groups, 2 sigma of the cases."""
    scores = [one.scores(values, times) for one in recorded]
    covered = np.array([coverage for _, coverage, _ in scores])
    low, high = ASKED
    counts = [int(np.sum(covered < low)), int(np.sum(covered > high))]
    return [name, *values, _log_score(scores, recorded), float(covered.min()), *counts]


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit to all cases and to halves of them; print what each case has then."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    cases.add_options(parser)
    parser.add_argument(
        '--numbers', nargs=2, type=float, action='append', default=[], metavar=('A', 'E')
    )
    parser.add_argument('--section', help='name of the section of benchmarks/README.md to replace')
    options = parser.parse_args(arguments)
    recorded = []
    for case in cases.given(options):
        found = record(case)
        told = 'hardly ever right: left out' if found is None else 'recorded'
        print(f'{case.group}: {told}', file=sys.stderr, flush=True)
        recorded += [] if found is None else [found]
    if not recorded:
        raise SystemExit('covariance: no case has enough frames whose answer is right')
    text = described(recorded, options.numbers)
    results.publish(text, options.section)


def described(recorded: Sequence[Recorded], others: Sequence[Sequence[float]] = ()) -> str:
    """Lay out what the cases have with today's numbers, with those that fit them, and others."""
    today = np.array([estimate._INDEPENDENT, estimate._SHARED])
    fits = {'today': today, 'all cases': fitted(recorded)}
    if len(recorded) > 3:
        fits['every other case'] = fitted(recorded[::2])
    fits |= {f'given {number}': np.array(values) for number, values in enumerate(others, 1)}
    numbers = [_row(name, values, recorded) for name, values in fits.items()]
    numbers += [_row(f'today, times {times}', today, recorded, times) for times in _TIMES]
    rows: list[list[Any]] = []
    for group in _groups(recorded):
        row: list[Any] = [group]
        for values in fits.values():
            scores = [one.scores(values) for one in recorded if one.group == group]
            covered = [coverage for _, coverage, _ in scores]
            row.append(f'{min(covered):.3f} to {max(covered):.3f}')
            row.append(float(np.mean([sharpness for _, _, sharpness in scores])))
        rows.append(row)
    header = ['case']
    for name in fits:
        header += [f'2 sigma, {name}', 'stated / error']
    return (
        f'### The stated covariance\n\n{len(recorded)} cases.\n\n'
        + results.table(COLUMNS, numbers)
        + f'\n\n{results.table(header, rows)}'
    )


if __name__ == '__main__':
    main()
