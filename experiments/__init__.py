"""The papers' experiments, one module each; `python -m experiments` runs them all."""
