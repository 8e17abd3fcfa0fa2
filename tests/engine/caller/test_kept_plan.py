"""The plan of exec that is kept for the compiled front: of which process, and what of its text may change."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from pathlib import Path
from struct import unpack_from
from typing import Any

import pytest

from gpurun.engine.caller.kept_plan import (
    FILES,
    MAX_BYTES,
    NAME,
    NONE,
    NUMBERS,
    TEXTS,
    around_args,
    encode,
    is_ordinary,
    keep_plan,
    stamps,
)
from gpurun.engine.plan.exec import ExecOptions
from gpurun.engine.plan.records import ExecPlan, Knobs, ProcessPlan
from gpurun.engine.state import State
from gpurun.linux.process import CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER
from gpurun.record import replace
from gpurun.security.capabilities import CapabilityMasks

STATE = State("c", "/b", "/b/rootfs", "/sys/fs/cgroup/c", True)
PROCESS = ProcessPlan(("true",), (("PATH", "/bin"),), "/", capabilities=CapabilityMasks(1, 2, 3, 4, 5))
PLAN = ExecPlan("c", PROCESS, CLONE_NEWNS | CLONE_NEWPID, "", "_ses.c")
OPTIONS = ExecOptions("c", "/run/gpurun", args=("true",))


@pytest.mark.parametrize(
    ("text", "around"),
    [
        ('{"args":["a"],"cwd":"/"}', ('{"args":', ',"cwd":"/"}')),
        (' {"cwd":"/" , "args" : [ "a]" , "b\\"]" ] } x', (' {"cwd":"/" , "args" : ', " } x")),
        ('{"env":["args=[]", "\\"args\\":[]"],"args":["\\\\"]}', ('{"env":["args=[]", "\\"args\\":[]"],"args":', "}")),
        ('{"args":["a"],"args":["b"]}', None),
        ('{"args":["a","args"]}', None),
        ('{"x":{"args":["a"]}}', None),
        ('{"x\\"args":["a"],"cwd":"/"}', None),
        ('{"args":null,"x":["a"]}', None),
        ('{"args":[["a"]]}', None),
        ('{"args"\t:\r\n ["a"]}', ('{"args"\t:\r\n ', "}")),
        ('{"x":["args",["a"]]}', None),
        ('{"cwd":"/"}', None),
        ('{"args":[', None),
        ("", None),
    ],
)
def test_what_is_around_the_arguments(text: str, around: tuple[str, str] | None) -> None:
    assert around_args(text.encode()) == (None if around is None else (around[0].encode(), around[1].encode()))


UNUSUAL_OPTIONS: list[dict[str, Any]] = [
    {"cwd": "/tmp"}, {"env": ("A=1",)}, {"user": "1"}, {"additional_gids": ("1",)}, {"capabilities": ("CAP_KILL",)},
    {"apparmor_profile": "x"}, {"selinux_label": "x"}, {"no_new_privileges": False},
]  # fmt: skip
UNUSUAL_PROCESSES: list[dict[str, Any]] = [
    {"terminal": True}, {"groups": None}, {"capabilities": None}, {"knobs": Knobs()}, {"seccomp": (b"x" * 8, 8)},
]  # fmt: skip
UNUSUAL_PLANS: list[dict[str, Any]] = [
    {"affinity": (b"", b"\1")}, {"namespaces": CLONE_NEWPID}, {"namespaces": CLONE_NEWNS | CLONE_NEWUSER},
]  # fmt: skip


def test_every_member_of_a_process_is_in_the_file_or_keeps_the_front_away() -> None:
    """Otherwise the front would leave it out without a word, from the second exec of a container on."""
    text = inspect.getsource(is_ordinary) + inspect.getsource(encode)
    read = set(re.findall(r"\bprocess\.(\w+)", text))
    # The arguments are those of each call; a size is that of a terminal.
    assert set(ProcessPlan._fields) - read == {"args", "console_size"}


def test_which_plans_are_kept() -> None:
    assert is_ordinary(OPTIONS, STATE, PLAN)
    filtered = replace(PLAN, process=replace(PROCESS, seccomp=(b"x" * 8, 1 << 32 | 2)))
    assert is_ordinary(OPTIONS, STATE, filtered)
    for change in UNUSUAL_OPTIONS:
        assert not is_ordinary(replace(OPTIONS, **change), STATE, PLAN), change
        assert is_ordinary(replace(OPTIONS, **change, process={}), STATE, PLAN), change  # they do not count beside a file
    for change in UNUSUAL_PROCESSES:
        assert not is_ordinary(OPTIONS, STATE, replace(PLAN, process=replace(PROCESS, **change))), change
    for change in UNUSUAL_PLANS:
        assert not is_ordinary(OPTIONS, STATE, replace(PLAN, **change)), change
    assert not is_ordinary(OPTIONS, replace(STATE, manager="/run/user/1/systemd"), PLAN)
    assert not is_ordinary(OPTIONS, replace(STATE, cgroup=""), PLAN)


def _decoded(data: bytes) -> tuple[dict[str, int], dict[str, bytes]]:
    words = unpack_from(f"={len(NUMBERS) + len(TEXTS)}Q", data)
    at, texts = 8 * len(words), {}
    for name, size in zip(TEXTS, words[len(NUMBERS) :], strict=True):
        texts[name] = data[at : at + size]
        at += size + 8 - size % 8
        assert data[at - 1] == 0 and at % 8 == 0
    assert at == len(data)
    return dict(zip(NUMBERS, words, strict=False)), texts


@pytest.mark.parametrize(
    ("env", "variables", "home"),
    [
        ((("A", "1"),), b"A=1\0HOME=\0", 1),
        ((("HOME", ""), ("A", "1")), b"HOME=\0A=1\0", 0),
        ((("A", "\udcff"), ("HOME", "/x")), b"A=\xff\0HOME=/x\0", NONE),
    ],
)
def test_the_file(env: tuple[tuple[str, str], ...], variables: bytes, home: int) -> None:
    process = replace(
        PROCESS, env=env, groups=(5, 7), rlimits=((7, 1, (1 << 64) - 1),), oom_score_adj=-5, seccomp=(b"12345678", 3)
    )
    numbers, texts = _decoded(encode(replace(PLAN, process=process), True, b"stamps", b"before", b""))
    assert (texts["variables"], numbers["home"]) == (variables, home)
    assert (numbers["from_file"], numbers["namespaces"], numbers["umask"]) == (1, PLAN.namespaces, 0o22)
    assert [numbers[name] for name in CapabilityMasks._fields] == [1, 2, 3, 4, 5]
    assert (texts["before"], texts["behind"], texts["oom_score_adj"], texts["keyring"]) == (b"before", b"", b"-5", b"_ses.c")
    assert (
        texts["groups"] == b"\5\0\0\0\7\0\0\0"
        and texts["limits"][:8] == b"\7" + bytes(7)
        and texts["limits"][16:] == b"\xff" * 8
    )
    assert (texts["seccomp"], numbers["seccomp_flags"]) == (b"12345678", 3)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of the container, with all that a plan is made from."""
    directory = tmp_path / OPTIONS.id
    directory.mkdir()
    for name in FILES:
        (directory / name).write_text(name)
    monkeypatch.setitem(sys._xoptions, "gpurun-called", str(tmp_path / "program"))
    (tmp_path / "program").write_text("of gpurun")
    return directory


@pytest.mark.parametrize("which", ["../program", *FILES])
@pytest.mark.parametrize("change", ["content", "time", "another", "gone"])
def test_whatever_a_plan_was_made_from_is_told_from_others(kept: Path, which: str, change: str) -> None:
    path, root = kept / which, str(kept.parent)
    before = stamps(root, OPTIONS.id)
    assert stamps(root, OPTIONS.id) == before and len(before) == 8 * 4 * (1 + len(FILES))
    found = path.stat()
    if change == "content":  # of the same size, and with the same mtime
        path.write_text(path.read_text().swapcase())
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    elif change == "time":
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    elif change == "another":
        (kept / "new").write_bytes(path.read_bytes())
        os.utime(kept / "new", ns=(found.st_atime_ns, found.st_mtime_ns))
        (kept / "new").rename(path)
    elif which == "../program":
        path.unlink()
        with pytest.raises(FileNotFoundError):
            stamps(root, OPTIONS.id)
        return
    else:
        path.unlink()
    at = 32 * ["../program", *FILES].index(which)
    now = stamps(root, OPTIONS.id)
    assert now[at : at + 32] != before[at : at + 32] and now[:at] + now[at + 32 :] == before[:at] + before[at + 32 :]
    assert (now[at : at + 32] == bytes(32)) is (change == "gone")


def test_a_plan_is_kept_by_one_that_runs_itself_as_well(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another Python's copy the program is the file that this process executes."""
    monkeypatch.delitem(sys._xoptions, "gpurun-called")
    with open(kept.parent / "program", "rb") as program:
        monkeypatch.setattr("gpurun.engine.caller.kept_plan.program_file", lambda: (program.fileno(), ""))
        found = os.fstat(program.fileno())
        assert unpack_from("=4Q", stamps(str(kept.parent), OPTIONS.id)) == (
            found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns,
        )  # fmt: skip


def test_what_is_kept(kept: Path) -> None:
    options = replace(OPTIONS, root=str(kept.parent))
    keep_plan(options, STATE, PLAN, b"stamps")
    assert (kept / NAME).read_bytes() == encode(PLAN, False, b"stamps", b"", b"")
    assert (kept / NAME).stat().st_mode & 0o777 == 0o600
    of_file = replace(options, process={}, process_text=b'{"args":["x"],"cwd":"/"}')
    keep_plan(of_file, STATE, PLAN, b"stamps")
    assert (kept / NAME).read_bytes() == encode(PLAN, True, b"stamps", b'{"args":', b',"cwd":"/"}')


def test_what_is_not_kept(kept: Path) -> None:
    options = replace(OPTIONS, root=str(kept.parent))
    keep_plan(replace(options, cwd="/tmp"), STATE, PLAN, b"")
    keep_plan(replace(options, process={}, process_text=b'{"args":["x"],"args":["y"]}'), STATE, PLAN, b"")
    room = MAX_BYTES - len(encode(PLAN, False, b"", b"", b""))
    large = replace(PLAN, process=replace(PROCESS, env=(("PATH", "/bin" + "x" * room),)))
    assert len(encode(large, False, b"", b"", b"")) == MAX_BYTES
    keep_plan(options, STATE, large, b"")
    keep_plan(replace(options, root="/nowhere"), STATE, PLAN, b"")  # no error: the next exec is done here as well
    assert not (kept / NAME).exists() and sorted(path.name for path in kept.iterdir()) == sorted(FILES)
    fits = replace(PLAN, process=replace(PROCESS, env=(("PATH", "/bin" + "x" * (room - 8)),)))
    keep_plan(options, STATE, fits, b"")
    assert (kept / NAME).stat().st_size == MAX_BYTES - 8, "the front reads less than MAX_BYTES"


def test_any_arguments_may_stand_there() -> None:
    """The text with others in their place is that of the same process with these."""
    process = {"cwd": "/", "args": ["a", "]", '"', "\\"], "env": ["A=[]"]}
    around = around_args(json.dumps(process).encode())
    assert around is not None
    for args in ([], ["x"], ["]", "[", '\\"']):
        assert json.loads(around[0] + json.dumps(args).encode() + around[1]) == {**process, "args": args}
