"""
Rates of convergence over n: [KBR] Theorems 6 and 7, [MbKSR] Proposition 1.

Theorems 6 and 7 assume that the density ratio of the priors and the posterior expectation lie in
ranges of covariance operators. On finite sets of states and of observations with strictly positive
definite kernels every function does, the posterior is a table, and incomplete Cholesky of full
rank makes the rule exact at n = 100000. Regularisation is as the theorems have it, with constants
as they leave them open. The slope of log error over log n is measured for every seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments import common
from experiments.claims import below, Claim, claim
from experiments.mbksr_fig3 import A, KERNEL, linear_model, Mixture, SIGMA, training_pairs
from experiments.records import Records, Size
from kbr_localization.kernels import (
    GaussianKernel,
    KernelBayesRule,
    KernelMean,
    NonparametricModel,
    squared_bayes_rule,
)
from matplotlib import pyplot
import numpy as np
from numpy.typing import ArrayLike

STATES = 5
"""Of x and of y: the points 0..4 of the line."""
ALPHA = 0.5
"""Rate of the prior's kernel mean of an independent sample."""
RATES = {'Theorem 6': 8.0 * ALPHA / 27.0, 'Theorem 7': ALPHA / 3.0}
CONSTANTS = {'c = 1': (1.0, 1.0), 'c small': (1e-3, 1e-4)}
"""Of ε = c_1 n^(-2α/3) and of δ = c_2 n^(-rate): as printed, and as one would choose them."""
BIAS_SIZES = 10.0 ** np.array([2, 3, 4, 5, 10, 20, 40, 50])
POINTS = np.arange(float(STATES))[:, np.newaxis]


def tables(rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Law of x in the sample (5,), prior (5,), and p(y | x) (5, 5), all far from zero."""
    sample, prior = (rng.dirichlet(np.full(STATES, 5.0)) for _ in range(2))
    likelihood = np.exp(-0.5 * (POINTS - POINTS.T) ** 2) + rng.uniform(0.0, 0.2, (STATES, STATES))
    floor = 0.05
    laws = [(1.0 - floor) * law + floor / STATES for law in (sample, prior)]
    return laws[0], laws[1], likelihood / likelihood.sum(axis=1, keepdims=True)


def bayes_errors(
    rng: np.random.Generator, n: int, constants: tuple[float, float], rate: float
) -> dict[str, float]:
    """
    Error of E[f(Z) | W = y] with f = k(., 2): at y = 3, and in the norm of L2(Q_Y).

    `rate`: the exponent of δ; that of ε is 2α/3 in both theorems.
    """
    law, prior, likelihood = tables(np.random.default_rng(int(rng.integers(2**32))))
    x = rng.choice(STATES, n, p=law)
    drawn = np.cumsum(likelihood, axis=1)[x] < rng.random(n)[:, np.newaxis]
    y = np.minimum(drawn.sum(axis=1), STATES - 1)
    kernel = GaussianKernel(1.0, normalised=False)
    epsilon, delta = constants[0] * n ** (-2.0 * ALPHA / 3.0), constants[1] * n**-rate
    rule = KernelBayesRule(kernel, kernel, POINTS[x], POINTS[y], epsilon, delta, 'squared', 1e-12)
    embedded = KernelMean(
        kernel, POINTS, np.bincount(rng.choice(STATES, n, p=prior), minlength=5) / n
    )
    weights = rule.posterior_weights(embedded, POINTS)
    f = kernel.gram(POINTS)[2]
    found = f[x] @ weights
    joint = prior[:, np.newaxis] * likelihood
    exact = f @ (joint / joint.sum(axis=0))
    squared = (found - exact) ** 2
    return {'at y': float(np.sqrt(squared[3])), 'L2': float(np.sqrt(joint.sum(axis=0) @ squared))}


def bias(rng: np.random.Generator, n: float, theorem: str) -> float:
    """
    Error of the rule for the exact law in place of a sample: what δ_n alone costs, with c = 1.

    The pairs are all 25 states of (x, y), their prior weights the joint probabilities.
    """
    _, prior, likelihood = tables(rng)
    joint = prior[:, np.newaxis] * likelihood
    gram = GaussianKernel(1.0, normalised=False).gram(POINTS)
    y, delta = np.tile(np.arange(STATES), STATES), n ** -RATES[theorem]
    weights = squared_bayes_rule(gram[np.ix_(y, y)], joint.ravel(), gram[y], delta)
    found = np.repeat(gram[2], STATES) @ weights
    errors = np.abs(found - gram[2] @ (joint / joint.sum(axis=0)))
    return float(errors[3] if theorem == 'Theorem 6' else np.sqrt(joint.sum(axis=0) @ errors**2))


def sum_rule_errors(rng: np.random.Generator, n: int) -> dict[str, float]:
    """RKHS errors of the prior's sample of n points and of both sum rules applied to it."""
    law = Mixture.random(rng)
    prior = KernelMean.of_sample(KERNEL, law.sample(rng, n))
    error = law.through(A).embedding().mmd
    pairs = training_pairs(A, n, rng)
    learnt = NonparametricModel(KERNEL, KERNEL, *pairs, 1e-3 * n ** (-2.0 * ALPHA / 3.0))
    return {
        'input': law.embedding().mmd(prior),
        'Mb-KSR': error(linear_model(A, SIGMA).push(prior)),
        'NP-KSR': error(learnt.push(prior)),
    }


def trial(
    rng: np.random.Generator, sizes: Sequence[int], model_sizes: Sequence[int], repeats: int
) -> dict[str, Any]:
    """Root mean squared errors over `repeats` problems for every n."""
    measures = {'Theorem 6': 'at y', 'Theorem 7': 'L2'}
    errors: dict[str, list[float]] = {}
    for theorem, name in CONSTANTS_OF:
        key, rate = f'{theorem}, {name}', RATES[theorem]
        errors[key] = [
            _root(
                [
                    bayes_errors(rng, n, CONSTANTS[name], rate)[measures[theorem]]
                    for _ in range(repeats)
                ]
            )
            for n in sizes
        ]
    runs = [[sum_rule_errors(rng, n) for _ in range(repeats)] for n in model_sizes]
    for key in runs[0][0]:
        errors[key] = [_root([one[key] for one in part]) for part in runs]
    for theorem in RATES:
        seeds = rng.integers(2**32, size=repeats).tolist()
        errors[f'{theorem}, bias'] = [
            _root([bias(np.random.default_rng(seed), n, theorem) for seed in seeds])
            for n in BIAS_SIZES
        ]
    return errors


CONSTANTS_OF = [(theorem, name) for theorem in RATES for name in CONSTANTS]


def slope(sizes: ArrayLike, errors: Any) -> Any:
    """Least-squares slopes of log error over log n: (r, sizes) -> (r,)."""
    logs = np.log(np.asarray(errors, dtype=np.float64))
    return np.polynomial.polynomial.polyfit(np.log(sizes), logs.T, 1)[1]


def judge(records: Records, size: Size) -> common.Outcome:
    """Slopes of all seeds against the exponents of the theorems."""
    found = {name: records.column(name) for name in records.at()[0]}
    sizes = {name: size.fixed['sizes' if 'Theorem' in name else 'model_sizes'] for name in found}
    sizes |= {f'{theorem}, bias': BIAS_SIZES for theorem in RATES}
    slopes = {name: slope(sizes[name], values) for name, values in found.items()}
    for name in (f'{theorem}, bias' for theorem in RATES):
        slopes[name] = slope(BIAS_SIZES[-2:], found[name][:, -2:])
    rows = [
        row
        for name, values in found.items()
        for row in common.rows_over('n', [float(n) for n in sizes[name]], {name: values})
    ]
    final = {name: slope(sizes[name][-2:], values[:, -2:]) for name, values in found.items()}
    ours = 'slopes of log error over log n (between the two largest n): ' + ', '.join(
        f'{name} {_with_error(slopes[name])} ({final[name].mean():.3f})' for name in slopes
    )
    return common.Outcome(rows, ours, _claims(slopes), lambda: _draw(rows))


def _claims(slopes: dict[str, Any]) -> list[Claim]:
    claims = [
        claim(
            f'[KBR] {theorem}, {name}: error falls at least as n^-{RATES[theorem]:.3f}',
            -slopes[f'{theorem}, {name}'] - RATES[theorem],
        )
        for theorem, name in CONSTANTS_OF
    ]
    for theorem, rate in RATES.items():
        gap = slopes[f'{theorem}, bias'] + rate
        text = (
            f'[KBR] {theorem}: the bias of c = 1 falls as n^-{rate:.3f} (within 0.01) in the end'
        )
        claims.append(claim(text, {'slower by less': 0.01 - gap, 'faster by less': 0.01 + gap}))
    difference = slopes['Mb-KSR'] - slopes['input']
    return [
        *claims,
        claim(
            '[MbKSR] Prop. 1: Mb-KSR falls at the rate of its input (exponents within 0.05)',
            {'slower by less': 0.05 - difference, 'faster by less': 0.05 + difference},
        ),
        claim(
            '[MbKSR] Prop. 1: the input falls as n^-1/2 (within 0.05)',
            {
                'slower by less': 0.05 - (slopes['input'] + 0.5),
                'faster by less': 0.05 + (slopes['input'] + 0.5),
            },
        ),
        below('NP-KSR falls more slowly than Mb-KSR', slopes['Mb-KSR'], slopes['NP-KSR']),
    ]


def _with_error(values: Any) -> str:
    return f'{values.mean():.3f} ± {values.std(ddof=1) / len(values) ** 0.5:.2g}'


def _root(errors: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


def _draw(rows: Sequence[common.Row]) -> Any:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.0, 3.8), constrained_layout=True)
    for axes, theorem in ((left, True), (right, False)):
        shown = [row for row in rows if row['n'] < 1e6]
        chosen = [row for row in shown if ('Theorem' in row['method']) == theorem]
        common.curves(axes, chosen, 'n')
        axes.set(xscale='log', yscale='log', xlabel='n', ylabel='error')
    left.set_title('[KBR] Theorems 6 and 7: rates 0.148 and 0.167')
    right.set_title('[MbKSR] Proposition 1: rate 1/2')
    return figure


EXPERIMENT = common.Experiment(
    name='convergence',
    source='[KBR] Theorems 6 and 7, [MbKSR] Proposition 1',
    paper='with ε = n^(-2α/3) the error of a posterior expectation falls as n^(-8α/27) for every '
    'y with δ = n^(-8α/27), and as n^(-α/3) in L2 with δ = n^(-α/3); α = 1/2 here. Mb-KSR keeps '
    'the rate of its input, NP-KSR is slower',
    settings='five states and five observations on a line, where all assumptions of both theorems '
    'hold; laws drawn for every problem; f = k(., 2), y = 3. The theorems leave constants open: '
    'c = 1 as printed, and c = 1e-3 (ε) and 1e-4 (δ). With c = 1, δ still is 0.2 at n = 100000 '
    'and the error nearly all bias, so that these n are too small to see a bound for n → ∞: the '
    'bias alone, that of the rule for the exact law, takes on the exponent of the theorem between '
    'n = 10^40 and 10^50. Prop. 1 on the mixtures of [MbKSR] Fig. 3, NP-KSR with as many pairs as '
    'points of the prior and ε = 1e-3 n^(-1/3).',
    sizes={
        'tiny': Size(1, {}, {'sizes': (100, 400), 'model_sizes': (50, 100), 'repeats': 3}),
        'reduced': Size(
            1,
            {},
            {
                'sizes': (100, 400, 1600, 6400, 25600),
                'model_sizes': (50, 100, 200, 400, 800),
                'repeats': 8,
            },
        ),
        'full': Size(
            1,
            {},
            {
                'sizes': (100, 400, 1600, 6400, 25600, 102400),
                'model_sizes': (50, 100, 200, 400, 800, 1600, 3200),
                'repeats': 12,
            },
        ),
    },
    trial=trial,
    judge=judge,
)
