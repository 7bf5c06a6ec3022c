"""Times in text files: whole nanoseconds, without the loss of a floating-point number."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

LATEST_S = 2**33
"""Upper bound of a stamp in seconds (the year 2242), so that nanoseconds fit 64 bits."""


def parse_seconds(text: str) -> int:
    """
    Nanoseconds of a text of seconds, as `1403636579.763555584`.

    Raises ValueError for what is no number, and for one outside of [0, LATEST_S).
    """
    try:
        seconds = Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f'expected a time in seconds, got {text[:40]!r}') from error
    # compared before it is an integer, which has as many digits as the exponent says
    if not (seconds.is_finite() and 0 <= seconds < LATEST_S):
        raise ValueError(f'expected a time in [0, {LATEST_S}) s, got {text[:40]!r}')
    return int(seconds.scaleb(9).to_integral_value())
