"""What the runs of [KBR] Fig. 3 say: error over the number of simulations, and over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments import common
from experiments.claims import below, Claim, claim
from experiments.records import Records, Size
from matplotlib import pyplot
import numpy as np

REGIONS = (0.05, 0.1, 0.2, 0.3, 0.5)
"""Acceptance regions of ABC, as parts of the median distance between observations."""
KERNEL_METHODS = ('KBR', 'COND', 'KBR (CV)', 'COND (CV)')


@dataclass(frozen=True)
class Panel:
    """
    Errors of one dimension by method and number of simulations, (replicates,) each.

    Of ABC the acceptance region of the lowest mean error for every number; `regions`: which;
    `ranks`: of G_Y by the size n of KBR's sample.
    """

    errors: dict[str, dict[int, Any]]
    ranks: dict[int, float]
    regions: dict[int, float]

    @classmethod
    def of(cls, values: Sequence[Any], size: Size) -> Panel:
        """Collect the values of all replicates."""
        found = {name: np.array([one['errors'][name] for one in values]) for name in _names()}
        kernel_sizes, abc_sizes = size.fixed['kernel_sizes'], size.fixed['abc_sizes']
        errors = {name: _by_size(kernel_sizes, found[name].T) for name in KERNEL_METHODS}
        every = np.array([found[f'ABC {region}'] for region in REGIONS])
        best = every.mean(axis=1).argmin(axis=0)
        errors['ABC'] = {n: every[best[i], :, i] for i, n in enumerate(abc_sizes)}
        ranks = np.mean([one['ranks']['KBR'] for one in values], axis=0)
        regions = {n: REGIONS[best[i]] for i, n in enumerate(abc_sizes)}
        return cls(errors, _by_size(kernel_sizes, ranks), regions)

    def seconds(
        self, times: Sequence[Mapping[str, Any]], size: Size
    ) -> dict[str, dict[int, float]]:
        """Mean CPU seconds by method and number of simulations."""
        found = {name: np.mean([one[name] for one in times], axis=0) for name in _names()}
        result = {m: _by_size(size.fixed['kernel_sizes'], found[m]) for m in KERNEL_METHODS}
        result['ABC'] = {
            n: found[f'ABC {self.regions[n]}'][i] for i, n in enumerate(size.fixed['abc_sizes'])
        }
        return result


def panels(records: Records, size: Size) -> Iterator[tuple[int, Panel]]:
    """Yield every dimension that has been run."""
    for d in size.axes['d']:
        values = records.at(d=d)
        if values:
            yield d, Panel.of(values, size)


def judge(records: Records, size: Size) -> common.Outcome:
    """Errors over the number of simulations."""
    found = dict(panels(records, size))
    rows = [
        common.row(method, values, d=d, n=n)
        for d, panel in found.items()
        for method, by_size in panel.errors.items()
        for n, values in by_size.items()
    ]
    ours = '; '.join(_summary(d, panel) for d, panel in found.items())
    claims = [one for d, panel in found.items() for one in _claims(d, panel)]
    return common.Outcome(rows, ours, claims, lambda: _draw(rows, 'n', 'simulations'))


def judge_times(records: Records, size: Size) -> common.Outcome:
    """Errors over CPU time, and the cost of a simulation from which a kernel method is faster."""
    rows: list[common.Row] = []
    claims, texts = [], []
    for d, panel in panels(records, size):
        seconds = panel.seconds(records.seconds(d=d), size)
        for method, by_size in panel.errors.items():
            for n, values in by_size.items():
                rows.append(common.row(method, values, d=d, n=n, seconds=seconds[method][n]))
        for method in KERNEL_METHODS:
            text = f'd = {d}: {method} better than ABC of no less time, at every n'
            claims.append(_better(text, panel, method, seconds))
        costs = [f'{m} {_worth(_break_even(panel, m, seconds))}' for m in KERNEL_METHODS]
        texts.append(f'd = {d}: faster than ABC of the same error: {", ".join(costs)}')
    draw = _draw
    return common.Outcome(
        rows, '; '.join(texts), claims, lambda: draw(rows, 'seconds', 'CPU time [s]')
    )


def _names() -> list[str]:
    return [*KERNEL_METHODS, *(f'ABC {region}' for region in REGIONS)]


def _by_size(sizes: Sequence[int], values: Any) -> dict[int, Any]:
    return dict(zip(sizes, values, strict=True))


def _summary(d: int, panel: Panel) -> str:
    last = {method: max(by_size) for method, by_size in panel.errors.items()}
    texts = [f'{m} {panel.errors[m][n].mean():.3g} (n = {n})' for m, n in last.items()]
    ranks = ', '.join(f'{rank:.0f} at n = {n}' for n, rank in panel.ranks.items())
    return f'd = {d}: MSE {", ".join(texts)}; ranks {ranks}'


def _claims(d: int, panel: Panel) -> list[Claim]:
    simulations = {m: {n: float(n) for n in by_size} for m, by_size in panel.errors.items()}
    claims = [
        _better(
            f'd = {d}: {method} better than ABC of no fewer simulations, at every n',
            panel,
            method,
            simulations,
        )
        for method in KERNEL_METHODS
    ]
    for suffix in ('', ' (CV)'):
        first, second = (
            {f'n = {n}': values for n, values in panel.errors[f'{name}{suffix}'].items()}
            for name in ('COND', 'KBR')
        )
        claims.append(below(f'd = {d}: COND{suffix} below KBR{suffix} at every n', first, second))
    return claims


def _better(
    text: str, panel: Panel, method: str, costs: Mapping[str, Mapping[int, float]]
) -> Claim:
    """Judge a method of every size against the cheapest ABC run of no less cost."""
    abc = sorted(costs['ABC'], key=lambda n: costs['ABC'][n])
    differences = {}
    for n, values in panel.errors[method].items():
        enough = (one for one in abc if costs['ABC'][one] >= costs[method][n])
        rival = next(enough, abc[-1])
        differences[f'n = {n} against {rival}'] = panel.errors['ABC'][rival] - values
    return claim(text, differences)


def _break_even(panel: Panel, method: str, seconds: Mapping[str, Mapping[int, float]]) -> float:
    """Return the cost in seconds of one simulation from which a kernel method is the faster."""
    n, abc = max(panel.errors[method]), panel.errors['ABC']
    error = panel.errors[method][n].mean()
    rival = next((one for one in sorted(abc) if abc[one].mean() <= error), max(abc))
    saved = rival - n
    lost = max(seconds[method][n] - seconds['ABC'][rival], 0.0)
    return lost / saved if saved > 0 else np.inf


def _worth(cost: float) -> str:
    if np.isinf(cost):
        return 'at no cost of a simulation'
    return 'at any cost of a simulation' if cost == 0 else f'from {1e6 * cost:.1g} µs a simulation'


def _draw(rows: Sequence[common.Row], x: str, label: str) -> Any:
    dimensions = list(dict.fromkeys(row['d'] for row in rows))
    figure, grid = pyplot.subplots(
        1, len(dimensions), figsize=(8.5, 3.8), constrained_layout=True, squeeze=False
    )
    for axes, d in zip(grid.flat, dimensions, strict=True):
        chosen = [row for row in rows if row['d'] == d]
        common.curves(axes, chosen, x)
        axes.set(title=f'd = {d}', xlabel=label, ylabel='MSE', xscale='log', yscale='log')
    return figure
