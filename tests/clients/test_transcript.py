"""What two runs of one operation say differently without meaning to, and that it is taken out."""

from __future__ import annotations

import pytest

from tests.clients.operation import Operation, missing, transcript
from tests.native.runtime import Result

TYPED = "/ # echo $((6*7))\n42\n/ # exit 5\n"


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(TYPED, id="as it was typed"),
        pytest.param("/ # / # / # echo $((6*7))\n42\n/ # exit 5\n", id="the prompt drawn again"),
        pytest.param("/ # echo $((6/ # echo $((6*7))\n42\n/ # exit 5\n", id="the line drawn again, half typed"),
        pytest.param("/ # \x1b[6necho/ # \x1b[Jecho $((6*7))\n42\n/ # ex/ # exit 5\n", id="with what a terminal is asked"),
    ],
)
def test_a_line_drawn_again_is_one_line(said: str) -> None:
    assert transcript(Result(5, said, ""), {}) == [*TYPED.splitlines(), "exit 5"]


def test_names_and_volatile_words_stand_for_themselves() -> None:
    result = Result(0, f"{'ab' * 32} t1234 2026-01-02T03:04:05.678Z 172.17.0.2\n", "t1234 is gone\n")
    assert transcript(result, {"t1234": "<name>"}) == ["<id> <name> <time> <address>", "! <name> is gone", "exit 0"]


def test_a_carriage_return_is_shown() -> None:
    assert transcript(Result(0, "one\r\ntwo \rthree\n", ""), {}) == ["one\\r", "two \\rthree", "exit 0"]


@pytest.mark.parametrize(
    ("wanted", "found"), [("one", True), (r"one\\r", True), (r"two\\r", False), ("two", True), ("on", False)]
)
def test_a_carriage_return_that_must_be(wanted: str, found: bool) -> None:
    lines = transcript(Result(0, "one\r\ntwo\n", ""), {})
    assert missing(Operation("client", "name", "", says=(wanted,)), lines) == ([] if found else [wanted])
