"""Tables for people."""

from __future__ import annotations

import pytest

from gpurun.commands.tables import align, fitting_table, size, table

ROWS = [("ID", "STATUS", "PID"), ("a-long-name", "running", "7"), ("b", "stopped", "0")]


def test_columns_line_up() -> None:
    assert align(ROWS, 0) == ["ID            STATUS    PID", "a-long-name   running   7", "b             stopped   0"]
    assert table(ROWS[:1]) == "ID          STATUS      PID\n", "as wide as runc's, where nothing is wider"


def test_what_does_not_fit_is_left_out_from_the_right() -> None:
    assert fitting_table(ROWS, 0, 1) == fitting_table(ROWS, 27, 1) == table(ROWS, 0)
    assert fitting_table(ROWS, 26, 1).splitlines()[0] == "ID            STATUS"
    assert fitting_table(ROWS, 5, 2).splitlines()[0] == "ID            STATUS", "so many are always there"
    assert fitting_table(ROWS, 5, 1).splitlines() == ["ID", "a-long-name", "b"]


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0B"), (999, "999B"), (1000, "0.977KiB"), (1 << 20, "1MiB"), (3 << 29, "1.5GiB")]
)
def test_sizes(number: int, text: str) -> None:
    assert size(number) == text
