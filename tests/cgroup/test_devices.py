"""Device rules and their program, which an interpreter of eBPF runs here; the kernel runs it in test_manager.py."""

from __future__ import annotations

import itertools
import random

import pytest

from gpurun.cgroup.devices import (
    DeviceException,
    DeviceFilter,
    compile_filter,
    container_rules,
    describe_rule,
    device_program,
    emulate,
)
from gpurun.errors import ConfigError
from gpurun.oci.resources import DeviceRule
from tests.cgroup.ebpf import run

ACCESSES = ("r", "w", "m", "rw", "rm", "wm", "rwm")


def rule(text: str) -> DeviceRule:
    """``+c 195:255 rw`` allows, ``-a`` denies all."""
    allow, (kind, *rest) = text[0] == "+", text[1:].split()
    if not rest:
        return DeviceRule(allow, kind, None, None, "rwm")
    major, minor = [None if number == "*" else int(number) for number in rest[0].split(":")]
    return DeviceRule(allow, kind, major, minor, rest[1])


def rules(*texts: str) -> tuple[DeviceRule, ...]:
    return tuple(rule(text) for text in texts)


def allows(given: tuple[DeviceRule, ...], kind: str, major: int, minor: int, letters: str) -> bool:
    return run(device_program(given), kind, major, minor, letters)


@pytest.mark.parametrize(
    ("text", "words"),
    [("+c 195:255 rw", "c 195:255 rw"), ("-b *:* m", "b *:* m"), ("+c 136:* rwm", "c 136:* rwm"), ("-a", "a *:* rwm")],
)
def test_describe(text: str, words: str) -> None:
    assert describe_rule(rule(text)) == words


def test_a_rule_about_all_devices_is_described_so_whatever_numbers_it_has() -> None:
    assert describe_rule(DeviceRule(False, "a", 1, 3, "r")) == "a *:* rwm"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], (False, {})),
        (["-a"], (False, {})),
        (["+a"], (True, {})),
        (["+a", "-a"], (False, {})),
        (["+c 1:3 rw", "+a"], (True, {})),
        (["+a", "-c 1:3 rw", "-a"], (False, {})),
        (["+c 1:3 r", "+c 1:3 w"], (False, {"c 1:3": "rw"})),
        (["+c 1:3 rwm", "-c 1:3 m"], (False, {"c 1:3": "rw"})),
        (["+c 1:3 rw", "-c 1:3 rwm"], (False, {})),
        (["-c 1:3 rwm"], (False, {})),
        (["+a", "+c 1:3 rwm"], (True, {})),
        (["+a", "-c 1:3 w"], (True, {"c 1:3": "w"})),
        (["+a", "-c 1:3 rw", "+c 1:3 r"], (True, {"c 1:3": "w"})),
        # another type, or another access, is no part of the wildcard
        (["+c 1:* rw", "-b 1:3 rw", "-c 1:3 m"], (False, {"c 1:*": "rw"})),
        # nor is another major or minor; and the wildcard itself is no hole in it
        (["+c 1:* rw", "-c 2:3 rw"], (False, {"c 1:*": "rw"})),
        (["+c *:3 rw", "-c 1:4 rw"], (False, {"c *:3": "rw"})),
        (["+c *:* rw", "-c *:* r"], (False, {"c *:*": "w"})),
        (["+c 1:* rw", "-c 1:* r"], (False, {"c 1:*": "w"})),
        # a deny takes away the narrower allows it covers
        (["+c 195:0 rw", "+c 195:1 rwm", "+c 5:1 rw", "-c 195:* rw"], (False, {"c 195:1": "m", "c 5:1": "rw"})),
        (["+c 195:0 rw", "+b 8:0 r", "-c *:* rwm"], (False, {"b 8:0": "r"})),
        (["+c 1:3 rw", "+c 2:3 rw", "+c 2:4 r", "-c *:3 r"], (False, {"c 1:3": "w", "c 2:3": "w", "c 2:4": "r"})),
        # an allow leaves the narrower denies, as in v1
        (["+a", "-c 195:0 rw", "+c 195:* rw"], (True, {"c 195:0": "rw"})),
    ],
)
def test_emulate(given: list[str], expected: tuple[bool, dict[str, str]]) -> None:
    made = emulate(rules(*given))
    default, exceptions = expected
    found = {}
    for one in made.exceptions:
        held = "".join(letter for letter in "rwm" if one.access & {"m": 1, "r": 2, "w": 4}[letter])
        found[describe_rule(DeviceRule(True, one.type, one.major, one.minor, "")).rstrip()] = held
    assert (made.default_allow, found) == (default, exceptions)


@pytest.mark.parametrize("allow", [False, True])
def test_a_rule_without_a_letter_says_nothing(allow: bool) -> None:
    for first in ("+a", "-a"):
        assert emulate((rule(first), DeviceRule(allow, "c", 1, 3, ""))) == emulate(rules(first))


def test_exceptions_are_sorted() -> None:
    made = emulate(rules("+c 5:1 r", "+b 5:1 r", "+c *:9 r", "+c 1:* r"))
    assert [(one.major, one.minor, one.type) for one in made.exceptions] == [
        (None, 9, "c"),
        (1, None, "c"),
        (5, 1, "b"),
        (5, 1, "c"),
    ]


@pytest.mark.parametrize(
    ("given", "where", "earlier"),
    [
        (["+c *:* rw", "-c 1:3 r"], "d[1]", 'part of "c *:* rw", which an earlier rule allows'),
        (["-a", "+c 195:* rw", "-c 195:0 rwm"], "d[2]", 'part of "c 195:* rw", which an earlier rule allows'),
        (["+c *:3 r", "-c 1:3 r"], "d[1]", 'part of "c *:3 r", which an earlier rule allows'),
        (["+c *:3 r", "-c 1:* r"], "d[1]", 'part of "c *:3 r", which an earlier rule allows'),
        (["+a", "-c 5:* rwm", "+c 5:3 r"], "d[2]", 'part of "c 5:* rwm", which an earlier rule denies'),
    ],
)
def test_a_hole_in_a_wildcard_is_refused(given: list[str], where: str, earlier: str) -> None:
    with pytest.raises(ConfigError, match="cannot punch hole in existing wildcard rule") as caught:
        emulate(rules(*given), "d")
    assert caught.value.where == where
    assert earlier in caught.value.what


def test_a_hole_for_a_standard_device_names_no_rule_of_the_document() -> None:
    with pytest.raises(ConfigError) as caught:
        emulate(container_rules(rules("+a", "-c 1:* rw")), "d")
    assert caught.value.where == "d"


DOCKER = rules("-a", "+c *:* m", "+b *:* m", "+c 1:3 rwm", "+c 195:255 rw", "+c 10:229 r")


@pytest.mark.parametrize(
    ("kind", "major", "minor", "letters", "verdict"),
    [
        ("c", 195, 255, "rw", True),
        ("c", 195, 255, "r", True),
        ("c", 195, 255, "m", True),
        ("c", 195, 255, "rwm", False),  # m and rw are different rules: one has to cover all
        ("c", 195, 0, "r", False),
        ("b", 195, 255, "r", False),
        ("c", 10, 229, "r", True),
        ("c", 10, 229, "rw", False),
        ("b", 8, 0, "m", True),
        ("b", 8, 0, "r", False),
        # what every container may use
        ("c", 1, 3, "rwm", True),
        ("c", 1, 5, "rw", True),
        ("c", 1, 7, "rw", True),
        ("c", 1, 8, "rw", True),
        ("c", 1, 9, "rw", True),
        ("c", 5, 0, "rw", True),
        ("c", 5, 2, "rw", True),
        ("c", 136, 41, "rw", True),
        ("c", 10, 200, "rw", True),
        ("c", 1, 1, "r", False),  # /dev/mem
        ("c", 5, 1, "w", False),
    ],
)
def test_docker(kind: str, major: int, minor: int, letters: str, verdict: bool) -> None:
    assert allows(container_rules(DOCKER), kind, major, minor, letters) is verdict


@pytest.mark.parametrize(
    ("path", "major", "minor"),
    [
        ("/dev/null", 1, 3),
        ("/dev/zero", 1, 5),
        ("/dev/full", 1, 7),
        ("/dev/random", 1, 8),
        ("/dev/urandom", 1, 9),
        ("/dev/tty", 5, 0),
    ],
)
def test_each_standard_device_is_the_documents_where_it_is_listed(path: str, major: int, minor: int) -> None:
    assert allows(container_rules(rules("-a")), "c", major, minor, "rwm")
    assert not allows(container_rules(rules("-a"), (path,)), "c", major, minor, "r")


def test_a_standard_device_in_the_document_has_only_the_rules_of_the_document() -> None:
    given = container_rules(rules("-a", "+c 1:3 r"), ("/dev/null", "/dev/fuse"))
    assert allows(given, "c", 1, 3, "r")
    assert not allows(given, "c", 1, 3, "w")
    assert allows(given, "c", 1, 5, "rw")


def test_no_deny_takes_the_standard_devices_away() -> None:
    assert allows(container_rules(rules("-c 1:3 rwm", "-a")), "c", 1, 3, "rw")


def test_privileged() -> None:
    made = emulate(
        container_rules(rules("-a", "+a", *[f"+c {major}:{minor} rwm" for major in range(30) for minor in range(9)]))
    )
    assert made == DeviceFilter(True, ())
    assert made.enforces_nothing()
    assert run(compile_filter(made), "b", 8, 0, "rwm")


def test_a_partial_deny_stops_requests_that_want_more() -> None:
    given = rules("+a", "-c 1:1 w")
    assert not emulate(given).enforces_nothing()
    assert allows(given, "c", 1, 1, "r")
    assert not allows(given, "c", 1, 1, "w")
    assert not allows(given, "c", 1, 1, "rw")
    assert allows(given, "c", 1, 2, "rw")


def test_numbers_up_to_the_largest() -> None:
    given = rules("+c 4294967295:2147483648 r")
    assert allows(given, "c", 4294967295, 2147483648, "r")
    assert not allows(given, "c", 4294967294, 2147483648, "r")
    assert not allows(given, "c", 4294967295, 0, "r")


def test_an_instruction_is_eight_bytes_little_endian() -> None:
    program = compile_filter(DeviceFilter(False, (DeviceException(195, 255, "c", 6),)))
    assert program[:8].hex() == "6112000000000000"  # r2 = *(u32 *)(r1 + 0)
    assert program[-16:].hex() == "b4000000000000009500000000000000"  # r0 = 0; exit


def test_many_devices_of_one_major_are_told_apart_by_few_instructions() -> None:
    minors = [minor for minor in range(64) if minor != 5]
    one = device_program(rules("+c 195:0 rw", "+b 195:5 rw"))
    given = rules(*[f"+c 195:{minor} rw" for minor in minors], "+c 195:255 rwm", "+c 194:5 rw", "+b 195:5 rw")
    for minor in (*range(66), 255):
        expected = minor in (*minors, 255)
        assert allows(given, "c", 195, minor, "rw") is expected, minor
        assert allows(given, "c", 195, minor, "r") is expected, minor
        assert allows(given, "c", 195, minor, "rwm") is (minor == 255), minor
        assert not allows(given, "b", 195, minor, "w") or minor == 5
    assert allows(given, "c", 194, 5, "w") and not allows(given, "c", 194, 6, "w")
    assert len(device_program(given)) < len(one) + 8 * (len(minors) + 20)
    denied = rules("+a", "-c 195:0 rw", "-c 195:1 rw", "-c 195:2 rw")
    assert [allows(denied, "c", 195, minor, "r") for minor in range(4)] == [False, False, False, True]


def by_the_letter(given: tuple[DeviceRule, ...], kind: str, major: int, minor: int, letter: str) -> bool:
    """The specification's reading: of the rules about this device and access the last one counts."""
    verdict = False
    for one in given:
        same = one.type == kind and one.major in (None, major) and one.minor in (None, minor) and letter in one.access
        if one.type == "a" or same:
            verdict = one.allow
    return verdict


def random_rule(source: random.Random) -> DeviceRule:
    if source.random() < 0.12:
        return DeviceRule(source.random() < 0.4, "a", None, None, "rwm")
    numbers = (None, 1, 2, 2**31)
    major, minor = source.choice(numbers), source.choice(numbers)
    return DeviceRule(source.random() < 0.6, source.choice("bc"), major, minor, source.choice(ACCESSES))


def test_programs_agree_with_the_rules() -> None:
    source = random.Random(195)
    checked = 0
    for _ in range(4000):
        given = tuple(random_rule(source) for _ in range(source.randrange(1, 8)))
        try:
            devices = emulate(given)
        except ConfigError:
            continue
        program = compile_filter(devices)
        device = (source.choice("bc"), source.choice((1, 2, 3, 2**31)), source.choice((1, 2, 3, 2**31)))
        singles = {letter: by_the_letter(given, *device, letter) for letter in "rwm"}
        for letters in ACCESSES:
            verdict = run(program, *device, letters)
            # Never more than the document allows; and exactly that for one letter of a default deny.
            assert not verdict or all(singles[letter] for letter in letters), (given, device, letters)
            if not devices.default_allow and len(letters) == 1:
                assert verdict is singles[letters], (given, device, letters)
            checked += 1
    assert checked > 10000


def test_programs_agree_with_the_filter() -> None:
    """Every combination of one exception, a default and a request, against a reading of DeviceFilter's own words."""
    requests = list(itertools.product("bc", (1, 2), (1, 2), ACCESSES))
    bits = {"m": 1, "r": 2, "w": 4}
    for default, kind, major, minor, held in itertools.product((True, False), "bc", (None, 1), (None, 1), range(1, 8)):
        program = compile_filter(DeviceFilter(default, (DeviceException(major, minor, kind, held),)))
        for want_kind, want_major, want_minor, letters in requests:
            want = sum(bits[letter] for letter in letters)
            same = kind == want_kind and major in (None, want_major) and minor in (None, want_minor)
            hit = same and (bool(want & held) if default else want & held == want)
            assert run(program, want_kind, want_major, want_minor, letters) is (default != hit)
