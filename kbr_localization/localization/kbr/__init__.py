"""
The kernel Bayes filter: belief, likelihood, hypotheses, estimate.

What each constant of these modules is worth is measured by `python -m benchmarks.constants`; a
table is in `benchmarks/README.md`, with the commit that it is of.
"""
