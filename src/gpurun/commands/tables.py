"""Tables for people: columns that line up, fewer of them where the terminal is narrow, and numbers of bytes."""

from __future__ import annotations

from gpurun.output import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: The terminal is cleared, and the cursor put into its first column: before each table of a command that shows one again
#: and again.
CLEAR = "\x1b[H\x1b[J"


def align(rows: Sequence[tuple[str, ...]], least: int) -> list[str]:
    """*rows* as lines, columns at least *least* wide and 3 apart, as runc prints them.

    What a terminal would obey is escaped.
    """
    rows = [tuple([one_line(cell) for cell in row]) for row in rows]
    widths = [max(least, *[len(row[i]) + 3 for row in rows]) for i in range(len(rows[0]))]
    return ["".join([cell.ljust(width) for cell, width in zip(row, widths, strict=True)]).rstrip() for row in rows]


def table(rows: Sequence[tuple[str, ...]], least: int = 12) -> str:
    """The lines of :func:`aligned` as a text."""
    return "\n".join(align(rows, least)) + "\n"


def fitting_table(rows: Sequence[tuple[str, ...]], columns: int, fewest: int) -> str:
    """A table that is at most *columns* wide (0: any width): columns that do not fit are left out, from the right.

    *fewest* of them always stay.
    """
    lines = align(rows, 0)
    while columns and len(rows[0]) > fewest and max(map(len, lines)) > columns:
        rows = [row[:-1] for row in rows]
        lines = align(rows, 0)
    return "\n".join(lines) + "\n"


def size(number: int) -> str:
    """Bytes as a person says them: three digits, and the unit."""
    value, unit = float(number), 0
    while value >= 1000 and unit < 5:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f}B" if not unit else f"{value:.3g}{'BKMGTP'[unit]}iB"
