"""Strings as observations: which language is a name from, under a prior of one's own."""

from collections import Counter

from kbr_localization.kernels import (
    GaussianKernel,
    KernelBayesRule,
    KernelMean,
    PrecomputedKernel,
)
import numpy as np

ENGLISH = (
    'birmingham leeds sheffield bradford bristol wakefield coventry nottingham leicester '
    'sunderland newcastle brighton plymouth wolverhampton southampton portsmouth northampton '
    'huddersfield middlesbrough rotherham bournemouth oxford cambridge ipswich norwich'
)
GERMAN = (
    'hamburg frankfurt stuttgart dortmund bremen dresden hannover nuernberg duisburg bochum '
    'wuppertal bielefeld muenster karlsruhe mannheim augsburg wiesbaden moenchengladbach '
    'braunschweig magdeburg freiburg oberhausen erfurt regensburg heidelberg'
)
NEW = ('nottingley', 'offenburg', 'manheim', 'bonn')


def spectrum(a, b, length):
    """Cosine of the counts of substrings of one length (Leslie, Eskin, Noble 2002)."""
    left, right = (Counter(s[i : i + length] for i in range(len(s) - length + 1)) for s in (a, b))
    shared = sum(count * right[part] for part, count in left.items())
    sizes = (sum(count**2 for count in counts.values()) for counts in (left, right))
    return shared / np.sqrt(np.prod(list(sizes)))


def likeness(a, b):
    """Sum over pairs of letters, with the ends of the name, and over triples."""
    return spectrum(f'^{a}$', f'^{b}$', 2) + spectrum(a, b, 3)


names = [*ENGLISH.split(), *GERMAN.split(), *NEW]
letters = PrecomputedKernel([[likeness(a, b) for b in names] for a in names])
indicator = GaussianKernel(0.1, normalised=False)
is_german, rows = np.repeat([[0.0], [1.0]], 25, axis=0), letters.points()
# the prior speaks where strings resemble each other within delta: it is chosen large here
rule = KernelBayesRule(indicator, letters, is_german, rows[:50], 1e-4, delta=0.05, method='pKBR')

for share in (0.5, 0.1):
    prior = KernelMean(indicator, [[0.0], [1.0]], [1.0 - share, share])
    for name, row in zip(NEW, rows[50:], strict=True):
        chance = rule.posterior(prior, row).normalised().mean()[0]
        print(f'prior {share:.1f}  {name:<12} German: {chance:.2f}')
