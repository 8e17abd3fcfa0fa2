"""What every fuzz test is made of: how many cases, how long one may take, and what is done to something good.

Bounded in CI, the same each time; ``make fuzz`` takes ``CASES`` of each, at random, and keeps those that failed below
build/fuzz.
"""

from __future__ import annotations

import copy
import functools
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from gpurun.errors import GpurunError

CASES = int(os.environ.get("FUZZ_CASES", "0"))
KEPT = Path(__file__).resolve().parents[2] / "build/fuzz"
#: Seconds for one input, and those after which one that does not come to its end is interrupted.
DEADLINE_S, HANGS_S = 10, 60

_settings = settings(
    derandomize=not CASES,
    database=DirectoryBasedExampleDatabase(KEPT) if CASES else None,
    deadline=timedelta(seconds=DEADLINE_S),
    suppress_health_check=list(HealthCheck),
)


def fuzzed(test: Any, cases: int = 60) -> Any:
    """*test*, made by ``@given``, with *cases* in CI, each of which is interrupted where it hangs."""
    inner = test.hypothesis.inner_test

    @functools.wraps(inner)
    def timed(*args: Any, **given: Any) -> None:
        before = signal.signal(signal.SIGALRM, _interrupt)
        signal.alarm(HANGS_S)
        try:
            inner(*args, **given)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    test.hypothesis.inner_test = timed
    return settings(_settings, max_examples=CASES or cases)(test)


#: For what takes less than a millisecond, and is right or wrong by what stands together.
fuzzed_more = functools.partial(fuzzed, cases=200)


def share(strategy: st.SearchStrategy[Any], reaches: Callable[[Any], Any]) -> int:
    """Of 200 cases of *strategy*, how many percent reach what they are to test; an error in *reaches* is none of these."""
    found: list[bool] = []

    @settings(_settings, max_examples=200, derandomize=True, database=None, deadline=None)
    @given(strategy)
    def count(made: Any) -> None:
        try:
            found.append(bool(reaches(made)))
        except (GpurunError, ValueError):
            found.append(False)

    count()
    return 100 * sum(found) // len(found)


def _interrupt(*_: object) -> None:
    raise AssertionError(f"this input takes longer than {HANGS_S} seconds")


#: Numbers and texts at which programs break.
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(
        [0, -1, 1 << 20, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), 1.5, 1e308]
    ),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(["", "/", "..", "/..", "/proc", "\0", "a\nb", "\udc80", "9" * 30, "-1", "c", "rbind", "CAP_SYS_ADMIN"]),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a document, but of the document itself."""
    found = [path] if path else []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += places(inner, (*path, key))
    return found


@st.composite
def changed(draw: Callable[..., Any], document: dict[str, Any]) -> dict[str, Any]:
    """*document* with some values that are others, are missing, or stand twice."""
    made = copy.deepcopy(document)
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 4)))):  # mostly one: what is wrong twice is refused for the first
        where = places(made)
        if not where:
            break
        *above, last = draw(st.sampled_from(where))
        holder = made
        for key in above:
            holder = holder[key]
        how = draw(st.sampled_from(["other", "missing", "twice"]))
        if how == "other":
            holder[last] = draw(ODD)
        elif how == "missing":
            del holder[last]
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(holder[last]))
        else:
            holder[draw(st.text(max_size=8))] = copy.deepcopy(holder[last])
    return made


@st.composite
def damaged(draw: Callable[..., Any], good: bytes) -> bytes:
    """*good* with bytes that are others, cut off, or put in."""
    data = bytearray(good)
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 6)))):  # as above
        at = draw(st.integers(0, len(data)))
        how = draw(st.sampled_from(["byte", "word", "cut", "put", "take"]))
        if how == "byte" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif how == "word":
            number = draw(st.sampled_from([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, len(data)]))
            data[at : at + 4] = number.to_bytes(4, "little")
        elif how == "cut":
            del data[at:]
        elif how == "put":
            data[at:at] = draw(st.binary(max_size=30))
        else:
            del data[at : at + draw(st.integers(1, 40))]
    return bytes(data)
