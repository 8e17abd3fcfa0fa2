"""A mount that the kernel refuses: the word that it does not know is named, with the likely one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.engine.caller.mount_hint import mount_hint
from gpurun.ns.mount_plan import MountStep, failed_mount
from gpurun.ns.options import likely_option, parse_options


def hint(kind: str, reason: str, *options: str, where: str = "mounts[3]") -> str:
    step = MountStep(kind, kind, "/there", parse_options(options), where)
    return mount_hint(str(failed_mount(step, reason)), (step,))


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("tmpfs", ("nosiud",), ': tmpfs has no option "nosiud" (did you mean "nosuid"?)'),
        ("tmpfs", ("mode=755", "siez=64k"), ': tmpfs has no option "siez" (did you mean "size"?)'),
        ("proc", ("subste=pid",), ': proc has no option "subste" (did you mean "subset"?)'),
        ("devpts", ("gibberish",), ': devpts has no option "gibberish"'),
        ("ext4", ("nodevv",), ': ext4 has no option "nodevv" (did you mean "nodev"?)'),
        ("ext4", ("journal_checksum",), ""),  # it may well know that
        ("tmpfs", ("size=banana",), ""),  # the option is known: what is wrong is its value
        ("tmpfs", ("context=u:r:t:s0", "mode=x"), ""),
    ],
)
def test_options(kind: str, options: tuple[str, ...], expected: str) -> None:
    assert hint(kind, "invalid argument", *options) == expected


def test_types() -> None:
    assert hint("tmpf", "no such device") == ': this kernel has no file system "tmpf" (did you mean "tmpfs"?)'
    assert hint("frobnicate", "no such device") == ': this kernel has no file system "frobnicate"'


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nothing")
    reason = "no such file or directory"

    def bound(source: str, reason: str = reason) -> str:
        step = MountStep("bind", source, "/there", parse_options(("bind",)), "mounts[3]")
        return mount_hint(str(failed_mount(step, reason)), (step,))

    for missing in (f"{tmp_path}/missing/x", f"{tmp_path}/link"):
        assert bound(missing) == f": the host has no {missing}"
    assert bound(str(tmp_path)) == "", "then it is the place in the container that is missing"
    assert bound(f"{tmp_path}/missing", "permission denied") == ""


def test_what_is_no_mistake_of_a_word_is_told_nothing() -> None:
    assert hint("tmpfs", "permission denied", "nosiud") == ""
    assert hint("bind", "no such file or directory") == ""
    assert mount_hint("exec: no such file", ()) == ""


def test_the_likely_option() -> None:
    assert likely_option("nosiud") == ' (did you mean "nosuid"?)'
    assert likely_option("rbnid") == ' (did you mean "rbind"?)'
    assert likely_option("xyzzy") == ""
