"""CRIU's messages: the wire format by the examples of its specification, and what is sent for what is asked."""

from __future__ import annotations

import pytest

from gpurun.criu import rpc
from gpurun.formats import protobuf
from gpurun.record import replace


def test_the_specifications_examples() -> None:
    assert protobuf.message([(1, 150)]) == bytes.fromhex("089601")
    assert protobuf.message([(2, "testing")]) == bytes.fromhex("120774657374696e67")
    assert protobuf.message([(3, protobuf.message([(1, 150)]))]) == bytes.fromhex("1a03089601")
    assert protobuf.message([(1, -2)]) == bytes.fromhex("08feffffffffffffffff01"), "negative numbers are ten bytes long"
    assert protobuf.message([(1, True)]) == b"\x08\x01"


def test_what_is_written_can_be_read() -> None:
    found = protobuf.fields(protobuf.message([(1, 0), (1, 300), (2, "ä\udcff"), (40, b""), (5, -1)]))
    assert found == {1: [0, 300], 2: ["ä\udcff".encode("utf-8", "surrogateescape")], 40: [b""], 5: [(1 << 64) - 1]}
    assert (protobuf.number(found, 1), protobuf.number(found, 5), protobuf.number(found, 9, 7)) == (300, -1, 7)
    assert protobuf.text(found, 2) == "ä\ufffd"


def test_fields_of_other_kinds_are_passed_over() -> None:
    data = bytes.fromhex("0d010203041101020304050607082007")
    assert protobuf.fields(data)[4] == [7]


@pytest.mark.parametrize("data", ["08", "0896", "1207", "120774", "0d010203", "0b", "08ffffffffffffffffffffff01"])
def test_what_is_no_message_is_refused(data: str) -> None:
    with pytest.raises(protobuf.BadMessage):
        protobuf.fields(bytes.fromhex(data))


@pytest.mark.parametrize("reader", [protobuf.number, protobuf.inner])
def test_a_field_of_the_wrong_kind_is_refused(reader: object) -> None:
    found = protobuf.fields(protobuf.message([(1, "text" if reader is protobuf.number else 5)]))
    with pytest.raises(protobuf.BadMessage):
        reader(found, 1)  # type: ignore[operator]


def options(data: bytes) -> dict[int, list[int | bytes]]:
    return protobuf.fields(protobuf.inner(protobuf.fields(data), 2))


def test_only_what_is_asked_for_is_sent() -> None:
    sent = options(rpc.request(rpc.DUMP, rpc.Options(images_dir_fd=4, work_dir_fd=5)))
    assert sent == {1: [4], 17: [5], 9: [4], 12: [1], 50: [1]}


def test_every_option_has_its_number() -> None:
    assert set(rpc._NUMBERS) == set(rpc.Options._fields)
    assert len(set(rpc._NUMBERS.values())) == len(rpc._NUMBERS)


def test_lists_and_pairs() -> None:
    asked = replace(
        rpc.Options(images_dir_fd=4, work_dir_fd=5),
        external=("net[1]:extRootNetNS", "file[1:2]"),
        ext_mnt=(("/a", "/b"),),
        inherit_fd=(("pipe:[7]", 0),),
        page_server=("::1", 27),
        manage_cgroups_mode=0,
        empty_ns=0x40000000,
    )
    sent = options(rpc.request(rpc.RESTORE, asked))
    assert sent[37] == [b"net[1]:extRootNetNS", b"file[1:2]"]
    assert [protobuf.fields(one) for one in sent[23] if isinstance(one, bytes)] == [{1: [b"/a"], 2: [b"/b"]}]
    assert [protobuf.fields(one) for one in sent[27] if isinstance(one, bytes)] == [{1: [b"pipe:[7]"], 2: [0]}]
    assert [protobuf.fields(one) for one in sent[11] if isinstance(one, bytes)] == [{1: [b"::1"], 2: [27]}]
    assert sent[34] == [0], "to ignore cgroups is a wish, not the absence of one"
    assert sent[38] == [0x40000000]


def test_answers() -> None:
    notify = protobuf.message([(1, rpc.NOTIFY), (2, True), (5, protobuf.message([(1, "post-restore"), (2, 77)]))])
    assert rpc.answer(notify) == rpc.Answer(rpc.NOTIFY, True, script="post-restore", pid=77)
    failed = protobuf.message([(1, rpc.DUMP), (2, False), (7, 16), (9, "busy")])
    assert rpc.answer(failed) == rpc.Answer(rpc.DUMP, False, errno=16, error="busy")
    done = protobuf.message([(1, rpc.RESTORE), (2, True), (4, protobuf.message([(1, 4711)]))])
    assert rpc.answer(done).restored == 4711
    able = protobuf.message([(1, rpc.FEATURE_CHECK), (2, True), (8, protobuf.message([(1, False), (2, True)]))])
    assert (rpc.answer(able).memory_tracking, rpc.answer(able).lazy_pages) == (False, True)


def test_a_restore_that_failed_early_has_no_process() -> None:
    """CRIU's answer then names the process -1; of one that has succeeded that is no number of a process."""
    pid = protobuf.message([(1, -1)])
    found = rpc.answer(protobuf.message([(1, rpc.RESTORE), (2, False), (4, pid)]))
    assert (found.success, found.restored) == (False, 0)
    with pytest.raises(protobuf.BadMessage):
        rpc.answer(protobuf.message([(1, rpc.RESTORE), (2, True), (4, pid)]))
