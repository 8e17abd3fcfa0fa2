"""What those who wait keep of the free GPUs, and what the next one may have."""

from __future__ import annotations

import itertools
import random

import pytest

from gpurun.gpu.device import DIRECT, GpuDevice
from gpurun.gpu.leases.turns import Want, available_units

#: A to H; A-B, C-D, E-F and G-H are connected by NVLink.
UNITS = tuple(
    GpuDevice("nvidia", letter, (letter,), n, "Tesla T4" if letter in "AB" else "A100", links=((n ^ 1, DIRECT),))
    for n, letter in enumerate("ABCDEFGH")
)


def wants(text: str) -> tuple[Want, ...]:
    """``2:AB 1:ABC 2:ABCD;nvlink``: so many of these."""
    made = []
    for word in text.split():
        count, _, keys = word.removesuffix(";nvlink").partition(":")
        made.append(Want(frozenset(keys), int(count), word.endswith(";nvlink")))
    return tuple(made)


def left_of(own: str, free: str, before: str) -> str:
    (want,) = wants(own)
    return "".join(
        [unit.key for unit in available_units(want, UNITS, tuple(u for u in UNITS if u.key in free), wants(before))]
    )


@pytest.mark.parametrize(
    ("own", "free", "before", "given"),
    [
        ("1:ABCDEFGH", "CDEFGH", "", "CDEFGH"),  # nobody waits
        ("1:ABCDEFGH", "CDEFGH", "2:AB", "CDEFGH"),  # six idle that the one before does not want
        ("1:ABCDEFGH", "ACDEFGH", "2:AB", "CDEFGH"),  # one of its two is free already, and stays its own
        ("1:AB", "A", "2:AB", ""),
        ("1:ABC", "A", "4:ABCD", ""),  # it collects
        ("1:ABCDE", "ABC", "2:ABC", "A"),  # it is about to be served, and needs no more
        ("1:ABCDE", "ABC", "2:ABC 1:ABC", ""),
        ("1:ABCDE", "ABCE", "2:ABC 1:ABC", "E"),
        ("1:A", "AB", "1:AB", "A"),  # those before keep what the next one cannot have
        ("2:AB", "ABC", "1:AC", "AB"),
        ("2:AB", "ABCD", "1:AC 1:CD", "AB"),
        ("2:AB", "ABCD", "1:AC 1:CD 1:D", "B"),  # but what they want, they keep
        ("1:B", "AB", "1:AB 1:A", ""),  # the second of them is not passed over either
        ("1:ABCDEFGH", "ACEG", "2:ABCDEFGH;nvlink", "CEG"),  # it keeps the half of one pair
        ("1:ABCDEFGH", "ACDEG", "2:ABCDEFGH;nvlink", "AEG"),  # a whole pair rather than a half
        ("1:ABCDEFGH", "ACE", "2:GH;nvlink", "ACE"),
        ("1:ABCDEFGH", "ACE", "3:ABCDEFGH;nvlink", "ACE"),  # no three are connected: it can never have them
        ("1:A", "", "1:A", ""),
        ("1:A", "A", "9:B", "A"),
    ],
)
def test_cases(own: str, free: str, before: str, given: str) -> None:
    assert left_of(own, free, before) == given


def most(free: str, before: tuple[Want, ...]) -> int:
    """How many of the *free* ones are wanted by those *before* at the most, by trying everything."""
    slots = [want.keys & set(free) for want in before for _ in range(want.count)]

    def best(rest: list[frozenset[str]], taken: frozenset[str]) -> int:
        if not rest:
            return 0
        with_it = [1 + best(rest[1:], taken | {key}) for key in rest[0] - taken]
        return max([best(rest[1:], taken), *with_it])

    return best(slots, frozenset())


def test_nobody_who_came_first_loses_one_and_no_other_stays_idle() -> None:
    """Of 400 queues: those before keep exactly as many as they could have, and the next one is served where that leaves
    enough that it can use."""
    chance = random.Random(7)
    served = 0
    for _ in range(400):
        letters = "ABCDEF"
        free = "".join(letter for letter in letters if chance.random() < 0.6)
        texts = [
            f"{chance.choice((1, 1, 2, 3))}:{''.join(chance.sample(letters, chance.randint(1, 6)))}"
            for _ in range(chance.randint(1, 4))
        ]
        *before, own = wants(" ".join(texts))
        given = available_units(own, UNITS, tuple(u for u in UNITS if u.key in free), before)
        keys = {unit.key for unit in given}
        assert len(free) - len(keys) == most(free, tuple(before))
        usable = [set(some) for some in itertools.combinations(sorted(own.keys & set(free)), own.count)]
        possible = any(most("".join(set(free) - some), tuple(before)) == most(free, tuple(before)) for some in usable)
        assert (len(keys & own.keys) >= own.count) == possible, (texts, free)
        served += possible
    assert 40 < served < 360, "both happen"
