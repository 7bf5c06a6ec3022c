"""The kernel Bayes filter: belief, likelihood, hypotheses, estimate."""
