"""
Claims of the papers, judged by the mean of paired differences and its standard error.

A claim is a set of differences that must all be positive, each over independent replicates (a
trial with data of its own). It holds if every mean is positive by more than its standard error
explains: one-sided t test at 5 %, for each of them. A mean that is positive but not so sure is
within noise, one that is not positive does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

LEVEL = 0.05
HOLDS, NOISE, FAILS, NOT_RUN = 'holds', 'within noise', 'does not hold', 'not run'


@dataclass(frozen=True)
class Claim:
    """
    A sentence that the paper supports, and what our numbers say of it.

    `state`: one of the four above; `detail`: the difference it rests on, with standard error.
    """

    text: str
    state: str
    detail: str


@dataclass(frozen=True)
class Paired:
    """
    Mean of paired differences.

    `label`: where they were taken; `mean`, `error`: with its standard error; `count`: replicates.
    """

    label: str
    mean: float
    error: float
    count: int

    @classmethod
    def of(cls, label: str, differences: Any) -> Paired:
        """Mean and standard error of differences (replicates,)."""
        values = np.asarray(differences, dtype=np.float64)
        count = len(values)
        error = float(values.std(ddof=1) / np.sqrt(count)) if count > 1 else np.nan
        return cls(label, float(values.mean()) if count else np.nan, error, count)

    @property
    def sureness(self) -> float:
        """Mean in units of what the t test asks for: sure above one."""
        if self.count < 2 or not self.mean > 0:
            return min(np.sign(self.mean), 0.0) if self.count else np.nan
        needed = self.error * stats.t.ppf(1.0 - LEVEL, self.count - 1)
        return float(self.mean / needed) if needed > 0 else np.inf

    def __str__(self) -> str:
        error = '?' if np.isnan(self.error) else f'{self.error:.2g}'
        where = f'{self.label}: ' if self.label else ''
        return f'{where}{self.mean:.3g} ± {error}, {self.count} runs'


def claim(text: str, differences: Mapping[str, Any] | Any) -> Claim:
    """
    Judge a sentence by differences that must all be positive in the mean.

    `differences`: (replicates,), or such arrays by the place where they were taken.
    """
    by_place = differences if isinstance(differences, Mapping) else {'': differences}
    found = [Paired.of(label, values) for label, values in by_place.items()]
    found = [one for one in found if one.count]
    if not found:
        return Claim(text, NOT_RUN, '')
    failed = [one for one in found if not one.mean > 0]
    if failed:
        return Claim(text, FAILS, '; '.join(map(str, failed)))
    weakest = min(found, key=lambda one: one.sureness)
    return Claim(text, HOLDS if weakest.sureness > 1.0 else NOISE, str(weakest))


def below(text: str, lower: Mapping[str, Any] | Any, upper: Mapping[str, Any] | Any) -> Claim:
    """Judge that `lower` is below `upper`: paired arrays, or such arrays by place."""
    if not isinstance(lower, Mapping):
        lower, upper = {'': lower}, {'': upper}
    pairs = {place: np.asarray(upper[place]) - np.asarray(lower[place]) for place in lower}
    return claim(text, pairs)


def within(text: str, one: Mapping[str, Any], other: Mapping[str, Any], margin: float) -> Claim:
    """Judge that two means differ by less than a part of the other one, either way."""
    differences = {}
    for place in one:
        first, second = np.asarray(one[place]), np.asarray(other[place])
        at = f'{place}, ' if place else ''
        differences[f'{at}above'] = (1.0 + margin) * second - first
        differences[f'{at}below'] = first - (1.0 - margin) * second
    return claim(text, differences)


def verdict(claims: Iterable[Claim]) -> str:
    """Return what holds, what is within noise and what does not hold, with standard errors."""
    given = list(claims)
    parts = []
    for state in (HOLDS, NOISE, FAILS, NOT_RUN):
        chosen = [
            f'{one.text} ({one.detail})' if one.detail else one.text
            for one in given
            if one.state == state
        ]
        if chosen:
            mark = '' if state == HOLDS else '**'
            parts.append(f'{mark}{state}: {"; ".join(chosen)}{mark}')
    return '. '.join(parts)
