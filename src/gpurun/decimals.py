"""Numbers in texts that are not ours.

``int`` takes blanks, signs, underscores and the digits of other scripts as well, and of thousands of digits it makes an
error that nobody expects.
"""

from __future__ import annotations

_MAX_DIGITS = 20  # of a number of 64 bits


def decimal(text: str, most: int = (1 << 64) - 1) -> int | None:
    """The number that *text* is, in ASCII digits and nothing else; ``None`` for other text, and for more than *most*."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        return None
    value = int(text)
    return value if value <= most else None
