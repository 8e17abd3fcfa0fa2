"""What is a number, and what is none."""

from __future__ import annotations

import pytest

from gpurun.decimals import bit_mask, decimal, number_list


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("007", 7), ("18446744073709551615", 2**64 - 1)])
def test_numbers(text: str, value: int) -> None:
    assert decimal(text) == value


@pytest.mark.parametrize("text", ["", " 1", "1\n", "+1", "-1", "1_0", "0x1", "\u0663", "9" * 20, "0" * 21, "1" * 5000])
def test_no_numbers(text: str) -> None:
    assert decimal(text) is None


def test_the_largest_that_is_meant() -> None:
    assert (decimal("65535", 65535), decimal("65536", 65535)) == (65535, None)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0", {0}), ("7,8", {7, 8}), ("0-2, 5\n", {0, 1, 2, 5}), ("1\n", {1}), ("8191,3", {3, 8191})],
)
def test_lists(text: str, numbers: set[int]) -> None:
    assert number_list(text) == frozenset(numbers)


@pytest.mark.parametrize(
    "text",
    ["", "\n", ",", "1,", "-1", "1-", "1--2", "8192", "0-8192", "2-1", "²", "\u0661", "0x1", "0-1\n3", "9" * 5000],
)
def test_lists_that_are_none(text: str) -> None:
    assert number_list(text) is None


def test_bit_masks() -> None:
    masks = [bit_mask(frozenset(numbers)) for numbers in ((), (0,), (7, 8), range(16))]
    assert masks == [b"", b"\1", b"\x80\1", b"\xff\xff"]
