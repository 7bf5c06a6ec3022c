"""Camera localization by kernel Bayesian inference; see docs/architecture.md."""

import importlib


def __getattr__(name: str) -> str:
    # reading the metadata at every import would be slow
    if name == '__version__':
        return str(importlib.import_module('importlib.metadata').version(__name__))
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
