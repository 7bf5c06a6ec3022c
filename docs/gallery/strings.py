"""Strings as observations: which language is a name from, under a prior of one's own."""

from kbr_localization.kernels import (
    GaussianKernel,
    KernelBayesRule,
    KernelMean,
    ObjectKernel,
    spectrum,
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

letters = ObjectKernel(lambda a, b: spectrum(f'^{a}$', f'^{b}$', 2) + spectrum(a, b, 3))
indicator = GaussianKernel(0.1, normalised=False)
names = f'{ENGLISH} {GERMAN}'.split()
is_german = np.repeat([[0.0], [1.0]], 25, axis=0)
# the prior speaks where strings resemble each other within delta: it is chosen large here
rule = KernelBayesRule(indicator, letters, is_german, names, 1e-4, delta=0.05, method='pKBR')

for share in (0.5, 0.1):
    prior = KernelMean(indicator, [[0.0], [1.0]], [1.0 - share, share])
    for name in ('nottingley', 'offenburg', 'manheim', 'bonn'):
        chance = rule.posterior(prior, name).normalised().mean()[0]
        print(f'prior {share:.1f}  {name:<12} German: {chance:.2f}')
