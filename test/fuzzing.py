"""How much is tried by fuzz tests, and how data is damaged."""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get('KBR_FUZZ_EXAMPLES', '0'))
"""Examples per test; 0: few, and the same ones in every run."""


def budget(default):
    """Try `default` examples with fixed seeds, or KBR_FUZZ_EXAMPLES random ones."""
    return settings(
        max_examples=EXAMPLES or default,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def damaged(data, draw):
    """Cut, overwrite, insert or flip a piece of some bytes."""
    at = draw(st.integers(0, len(data)))
    kind = draw(st.sampled_from(['cut', 'overwrite', 'insert', 'flip']))
    piece = draw(st.binary(min_size=1, max_size=64))
    if kind == 'cut':
        return data[:at]
    if kind == 'insert':
        return data[:at] + piece + data[at:]
    if kind == 'flip' and at < len(data):
        return data[:at] + bytes([data[at] ^ piece[0]]) + data[at + 1 :]
    return data[:at] + piece + data[at + len(piece) :]
