"""Kernel Bayesian inference with NumPy and SciPy only; it knows nothing of robots or images."""
