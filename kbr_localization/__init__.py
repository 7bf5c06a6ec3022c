"""Camera localization by kernel Bayesian inference; docs/architecture.md shows its rooms."""

import importlib


def __getattr__(name: str) -> str:
    # the manifest is read by whoever asks, not with every import
    if name == '__version__':
        return str(importlib.import_module('importlib.metadata').version(__name__))
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
