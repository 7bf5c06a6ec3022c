"""Camera localization by kernel Bayesian inference."""

__version__ = '0.1.0'
