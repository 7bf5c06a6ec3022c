"""
Test claims of the papers by paired differences.

A claim is a set of differences that must all be positive, each over independent replicates (trials
with their own data). It holds if every mean is significantly positive by a one-sided t test at
5 %. It is within noise if all means are positive but not all are significant, and it does not
hold if a mean is not positive.
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
    A finding of the paper, and whether our numbers confirm it.

    `state`: one of the four above; `detail`: the decisive difference, with its standard error.
    """

    text: str
    state: str
    detail: str


@dataclass(frozen=True)
class Paired:
    """
    Paired differences of `count` replicates: their mean and its standard error `error`.

    `label`: the setting in which they were measured.
    """

    label: str
    mean: float
    error: float
    count: int

    @classmethod
    def of(cls, label: str, differences: Any) -> Paired:
        values = np.asarray(differences, dtype=np.float64)
        count = len(values)
        error = float(values.std(ddof=1) / np.sqrt(count)) if count > 1 else np.nan
        return cls(label, float(values.mean()) if count else np.nan, error, count)

    @property
    def significance(self) -> float:
        """Mean divided by the threshold of the t test: significant above one."""
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
    Test a claim by differences whose means must all be positive.

    `differences`: (replicates,), or such arrays by setting.
    """
    by_setting = differences if isinstance(differences, Mapping) else {'': differences}
    found = [Paired.of(label, values) for label, values in by_setting.items()]
    found = [one for one in found if one.count]
    if not found:
        return Claim(text, NOT_RUN, '')
    failed = [one for one in found if not one.mean > 0]
    if failed:
        return Claim(text, FAILS, '; '.join(map(str, failed)))
    weakest = min(found, key=lambda one: one.significance)
    return Claim(text, HOLDS if weakest.significance > 1.0 else NOISE, str(weakest))


def below(text: str, lower: Mapping[str, Any] | Any, upper: Mapping[str, Any] | Any) -> Claim:
    """Test whether `lower` is below `upper`: paired arrays, or such arrays by setting."""
    if not isinstance(lower, Mapping):
        lower, upper = {'': lower}, {'': upper}
    return claim(text, {at: np.asarray(upper[at]) - np.asarray(lower[at]) for at in lower})


def within(text: str, one: Mapping[str, Any], other: Mapping[str, Any], margin: float) -> Claim:
    """Test whether the means differ by less than a fraction `margin` of the mean of `other`."""
    differences = {}
    for setting in one:
        first, second = np.asarray(one[setting]), np.asarray(other[setting])
        at = f'{setting}, ' if setting else ''
        differences[f'{at}above'] = (1.0 + margin) * second - first
        differences[f'{at}below'] = first - (1.0 - margin) * second
    return claim(text, differences)


def verdict(claims: Iterable[Claim]) -> str:
    """List the claims by state, with standard errors, as one line of Markdown."""
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
