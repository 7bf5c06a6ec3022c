"""How fuzz tests damage data, and how often."""

import os

EXAMPLES = int(os.environ.get('KBR_FUZZ_EXAMPLES', '0'))
"""Examples per test, and their seed; 0: few, and the same ones in every run."""


def damage(content, rng):
    """Cut, insert, overwrite or flip a piece."""
    at, piece = int(rng.integers(len(content))), rng.bytes(int(rng.integers(1, 65)))
    flipped = bytes([content[at] ^ (1 << int(rng.integers(8)))])
    over, behind = at + len(piece), at + 1
    forms = [b'', piece + content[at:], piece + content[over:], *[flipped + content[behind:]] * 3]
    return content[:at] + forms[int(rng.integers(len(forms)))]
