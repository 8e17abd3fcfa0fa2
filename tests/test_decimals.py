"""What is a number, and what is none."""

from __future__ import annotations

import pytest

from gpurun.decimals import decimal


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("007", 7), ("18446744073709551615", 2**64 - 1)])
def test_numbers(text: str, value: int) -> None:
    assert decimal(text) == value


@pytest.mark.parametrize("text", ["", " 1", "1\n", "+1", "-1", "1_0", "0x1", "\u0663", "9" * 20, "0" * 21, "1" * 5000])
def test_no_numbers(text: str) -> None:
    assert decimal(text) is None


def test_the_largest_that_is_meant() -> None:
    assert (decimal("65535", 65535), decimal("65536", 65535)) == (65535, None)
