"""The D-Bus wire format: byte for byte what another implementation (jeepney 0.9) writes, and back."""

from __future__ import annotations

import pytest

from gpurun.formats.dbus import ERROR, METHOD_CALL, marshal, method_call, split_signature, take_message, unmarshal
from gpurun.formats.gvariant import parse_variant

START = (
    "u.scope",
    "replace",
    (
        ("Delegate", ("b", True)),
        ("PIDs", ("au", (7, 8))),
        ("DeviceAllow", ("a(ss)", (("/dev/null", "rwm"),))),
        ("MemoryMax", ("t", 1 << 40)),
        ("AllowedCPUs", ("ay", b"\3\1")),
        ("X", ("as", ("a", "bcd"))),
    ),
    (),
)
SIGNATURE = "ssa(sv)a(sa(sv))"
JEEPNEY = bytes.fromhex(
    "6c010001f800000005000000b600000001016f00190000002f6f72672f667265656465736b746f702f73797374656d64310000000000000002017300"
    "200000006f72672e667265656465736b746f702e73797374656d64312e4d616e616765720000000000000000030173001200000053746172745472"
    "616e7369656e74556e697400000000000006017300180000006f72672e667265656465736b746f702e73797374656d6431000000000000000008016700"
    "107373612873762961287361287376292900000007000000752e73636f706500070000007265706c61636500d0000000000000000800000044656c65"
    "676174650001620001000000000000000400000050494473000261750000000008000000070000000800000000000000"
    "0b000000446576696365416c6c6f770005612873732900001800000000000000090000002f6465762f6e756c6c0000000300000072776d0009000000"
    "4d656d6f72794d6178000174000000000000000000000000000100000b000000416c6c6f776564435055730002617900020000000301000000000000"
    "01000000580002617300000010000000010000006100000003000000626364000000000000000000"
)
NAME, PATH = "org.freedesktop.systemd1", "/org/freedesktop/systemd1"


def test_a_call_is_written_as_others_write_it() -> None:
    assert method_call(5, NAME, PATH, f"{NAME}.Manager", "StartTransientUnit", SIGNATURE, START) == JEEPNEY


def test_a_message_is_read_back() -> None:
    taken = take_message(JEEPNEY + b"more")
    assert taken is not None
    message, size = taken
    assert size == len(JEEPNEY)
    assert (message.kind, message.member, message.body) == (METHOD_CALL, "StartTransientUnit", START)


@pytest.mark.parametrize("size", [0, 15, 16, 100, len(JEEPNEY) - 1])
def test_what_has_not_arrived_is_waited_for(size: int) -> None:
    assert take_message(JEEPNEY[:size]) is None


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad", b"l\2\0\1" + b"\xff" * 12])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a message"):
        take_message(data)


def test_a_damaged_message_is_refused() -> None:
    for at in range(16, len(JEEPNEY)):  # whatever byte is wrong: an answer, or a ValueError
        damaged = bytearray(JEEPNEY)
        damaged[at] ^= 0xFF
        try:
            take_message(bytes(damaged))
        except ValueError:
            pass


def test_big_endian() -> None:
    body = b"\0\0\0\3abc\0"
    fields = b"\4\1s\0\0\0\0\5a.b.C\0\0\0" + b"\5\1u\0\0\0\0\7" + b"\x08\1g\0\1s\0"
    sizes = len(body).to_bytes(4, "big") + b"\0\0\0\2" + len(fields).to_bytes(4, "big")
    head = b"B" + bytes([ERROR]) + b"\0\1" + sizes + fields
    taken = take_message(head + b"\0" * (-len(head) % 8) + body)
    assert taken is not None
    assert (taken[0].error, taken[0].reply_to, taken[0].body) == ("a.b.C", 7, ("abc",))


@pytest.mark.parametrize(
    ("signature", "values"),
    [
        ("ybnqiuxtd", (255, True, -2, 65535, -5, 1 << 31, -(1 << 63), (1 << 64) - 1, 1.5)),
        ("sog", ("ü", "/a", "a{sv}")),
        ("v", (("(iv)", (1, ("as", ("x",)))),)),
        ("yaty", (1, (), 2)),
        ("a{sv}", ((("k", ("u", 1)),),)),
    ],
)
def test_round_trip(signature: str, values: tuple[object, ...]) -> None:
    data = bytes(marshal(signature, values))
    assert unmarshal(signature, data) == (values, len(data))


def test_signatures() -> None:
    assert split_signature("sa{sv}u(i(ss))aau") == ("s", "a{sv}", "u", "(i(ss))", "aau")
    for wrong in ("a", "(s", "z", "a{s", "()", "a()"):
        with pytest.raises(ValueError, match="signature"):
            split_signature(wrong)


@pytest.mark.parametrize(
    ("text", "signature", "value"),
    [
        ("true", "b", True),
        ("5", "i", 5),
        ("uint64 5000000", "t", 5000000),
        ("uint32 0x10", "u", 16),
        ("int64 -010", "x", -8),
        ("byte 0xff", "y", 255),
        ("1.5", "d", 1.5),
        ("'inactive-or-failed'", "s", "inactive-or-failed"),
        (r'"a\"b\n\u00e9"', "s", 'a"b\né'),
        ("['a', 'b']", "as", ("a", "b")),
        ("[uint32 1, 2]", "au", (1, 2)),
        ("[byte 1, 2]", "ay", b"\1\2"),
        ("@as []", "as", ()),
        ("@a(st) [('a', 1)]", "a(st)", (("a", 1),)),
        ("(1, 'x', [true])", "(isab)", (1, "x", (True,))),
        ("(1,)", "(i)", (1,)),
        (" @t 7 ", "t", 7),
    ],
)
def test_gvariant(text: str, signature: str, value: object) -> None:
    assert parse_variant(text) == (signature, value)
    assert marshal(signature, (value,))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "uint64",
        "uint32 -1",
        "byte 256",
        "'open",
        "[1, 'a']",
        "[]",
        "[1 2]",
        "true false",
        "nonsense",
        "@zz 1",
        "(1",
        "@s 1",
        "[" * 5000,
        "@" + "a" * 5000 + "y []",
        "byte " * 5000 + "1",
        "'\\ud800'",
        "'\\u0000'",
    ],
)
def test_gvariant_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_variant(text)
