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
    before, after = data[:at], data[at:]
    if kind == 'cut':
        return before
    if kind == 'insert':
        return before + piece + after
    if kind == 'flip' and after:
        return before + bytes([after[0] ^ piece[0]]) + after[1:]
    past = at + len(piece)
    return before + piece + data[past:]
