"""The doors of an interpreter: from the moment that it is in the rootfs until it has become the user's program, it
opens nothing by a path that the container controls, and maps no file: no module, no locale, no library, no configuration.

Seen from outside, by strace(1): what a module of the standard library opens by itself counts as much as what gpurun does.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simdriver import SimulatedDriver, make

pytestmark = [
    pytest.mark.gpurun_only,
    pytest.mark.attack("doors of an interpreter", "what it opens by itself comes from the image"),
]

CALLS = "open,openat,openat2,creat,pivot_root,setns,execve,execveat,mmap,uselib,clone,clone3,fork,vfork"
#: Opens that take nothing of what is at the path, and run nothing of it: what comes out is only looked at, or mounted on.
HARMLESS = ("O_PATH", "O_EXCL")
#: Rules under which the kernel follows no link of the image out of it: files are opened that way, or not at all.
BENEATH = ("RESOLVE_IN_ROOT", "RESOLVE_BENEATH", "RESOLVE_NO_SYMLINKS")


def problem(line: str) -> str:
    """What is wrong with a system call that strace tells of, or ""."""
    call, _, rest = line.partition("(")
    if line.rstrip().endswith("= -1 ENOENT (No such file or directory)"):
        return f"looked for: {line}" if call in ("open", "openat", "creat") and not any(f in rest for f in HARMLESS) else ""
    if call == "mmap":
        mapped = re.search(r", MAP_\S+, (\d+)", rest)
        return f"a file is mapped: {line}" if mapped else ""
    if call in ("open", "creat", "uselib"):
        return line
    if call == "openat":
        if any(flag in rest for flag in HARMLESS):
            return ""
        # what has been looked at by its O_PATH descriptor, through a /proc that is verified to be one
        return "" if re.match(r'\d+(<[^>]*>)?, "\d+/fd/\d+"', rest) else line
    if call == "openat2":
        return "" if any(flag in rest for flag in (*HARMLESS, *BENEATH)) else line
    return ""


@pytest.mark.parametrize(
    "line",
    [
        'openat(AT_FDCWD, "/etc/passwd", O_RDONLY|O_CLOEXEC) = 3',
        'openat(AT_FDCWD, "/usr/lib/python3.11/linecache.py", O_RDONLY|O_CLOEXEC) = -1 ENOENT (No such file or directory)',
        'openat(5, "etc/passwd", O_RDONLY|O_CLOEXEC) = 3',
        'open("/dev/tty", O_RDWR) = 3',
        'openat2(5, "etc/passwd", {flags=O_RDONLY, resolve=0}, 24) = 3',
        "mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, 3, 0) = 0x7f0000000000",
    ],
)
def test_what_is_a_door(line: str) -> None:
    assert problem(line)


def inside(text: str, entered: str) -> list[str]:
    """What strace has seen of each process from *entered* (pivot_root, setns) on, or from its beginning where the one that
    has cloned it was inside already, until its execve: "call(...) = result"."""
    calls: list[tuple[str, str]] = []
    unfinished: dict[str, int] = {}
    for line in text.splitlines():
        pid, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):  # it counts where it began: a child may be told of before its clone returns
            unfinished[pid] = len(calls)
            calls.append((pid, call.removesuffix("<unfinished ...>").rstrip()))
        elif found := re.match(r"<\.\.\. \w+ resumed>", call):
            at = unfinished.pop(pid)
            calls[at] = (pid, calls[at][1] + call[found.end() :])
        else:
            calls.append((pid, call))
    seen = []
    there: set[str] = set()
    for pid, call in calls:
        if pid not in there:
            if call.startswith(entered) and call.endswith("= 0"):
                there.add(pid)
            continue
        if call.startswith("execve") and call.endswith("= 0"):
            there.discard(pid)
        elif found := re.match(r"(?:clone|clone3|fork|vfork)\(.*= (\d+)$", call):
            there.add(found[1])
        seen.append(call)
    return seen


def test_who_is_inside() -> None:
    log = """1 pivot_root(".", ".") = 0
2 openat(AT_FDCWD, "/outside", O_RDONLY) = 3
1 clone3({flags=CLONE_PARENT, ...}, 88 <unfinished ...>
3 openat(AT_FDCWD, "/inside", O_RDONLY) = 3
1 <... clone3 resumed>) = 3
1 execve("/bin/true", ["true"], 0x7f /* 1 var */) = 0
1 openat(AT_FDCWD, "/etc/passwd", O_RDONLY) = 3
"""
    assert [call.partition("(")[0] for call in inside(log, "pivot_root")] == ["clone3", "openat", "execve"]


def plain(_: Bundle) -> None:
    """The config as it is."""


def as_user(b: Bundle) -> None:
    b.process["user"] = {"uid": 1000, "gid": 1000, "additionalGids": [5]}
    b.process["env"] = [*b.process["env"], "LANG=de_DE.UTF-8", "PYTHONHOME=/x", "LD_PRELOAD=/x.so"]


def user_namespace(b: Bundle) -> None:
    b.user_namespace()


def with_sysctl(b: Bundle) -> None:
    b.linux["sysctl"] = {"net.ipv4.ip_default_ttl": "65"}
    b.config["root"]["readonly"] = True
    b.process["cwd"] = "/tmp"


def no_program(b: Bundle) -> None:
    b.args("no-such-program")


def no_format(b: Bundle) -> None:
    (b.rootfs / "usr/program").write_bytes(b"\x7fELF nothing")
    (b.rootfs / "usr/program").chmod(0o755)
    b.args("/usr/program")


CONFIGS: list[Callable[[Bundle], None]] = [plain, as_user, user_namespace, with_sysctl, no_program, no_format]


def traps(b: Bundle) -> None:
    """What an interpreter or a C library would like to find."""
    for name in (
        "etc/ld.so.preload",
        "etc/ld.so.cache",
        "etc/locale.alias",
        "etc/nsswitch.conf",
        "etc/localtime",
        "pyvenv.cfg",
    ):
        (b.rootfs / name).write_text("")


@pytest.fixture(scope="module")
def reachable(place: Path) -> SimulatedDriver:
    """A driver where the root of a user namespace gets to it."""
    return make(place / "driver")


@pytest.mark.sweep(6)
@pytest.mark.native
@pytest.mark.parametrize("gpus", [False, True], ids=["", "gpus"])
@pytest.mark.parametrize("change", CONFIGS, ids=lambda change: change.__name__)
def test_the_init_opens_nothing(
    runtime: Runtime,
    bundle: MakeBundle,
    leaks: Leaks,
    reachable: SimulatedDriver,
    tmp_path: Path,
    change: Callable[[Bundle], None],
    gpus: bool,
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    leaks.allow_rootfs_changes()
    b = bundle().args("true")
    change(b)
    traps(b)
    if gpus:
        b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=all"]
    log = tmp_path / "log"
    tracer = ("strace", "-f", "-qq", "-o", str(log), "-e", f"trace={CALLS}")
    runtime.run(b, tracer=tracer, env=ENVIRONMENT | reachable.env)
    calls = inside(log.read_text(), "pivot_root")
    assert [call for call in calls if call.startswith("openat")], "nothing is seen of the init"
    wrong = [text for call in calls if (text := problem(call))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.native
@pytest.mark.parametrize("command", ["true", "no-such-program"])
@pytest.mark.parametrize("change", [plain, as_user, user_namespace], ids=lambda change: change.__name__)
def test_the_processes_of_exec_open_nothing(
    runtime: Runtime, bundle: MakeBundle, leaks: Leaks, tmp_path: Path, change: Callable[[Bundle], None], command: str
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    leaks.allow_rootfs_changes()
    b = bundle().sh("while :; do sleep 0.02; done")
    change(b)
    traps(b)
    container = runtime.start(b)
    log = tmp_path / "log"
    tracer = ("strace", "-f", "-qq", "-o", str(log), "-e", f"trace={CALLS}")
    runtime("exec", container.id, command, tracer=tracer)
    calls = inside(log.read_text(), "setns")
    assert [call for call in calls if call.startswith("openat")], "nothing is seen of the process"
    wrong = [text for call in calls if (text := problem(call))]
    assert not wrong, "\n".join(wrong)
