"""Containers with SELinux labels, for tests beside runc and crun: contexts, what the kernel logs, and an enforcing policy.

The fixtures are those of tests/lifecycle.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpurun.security.lsm import selinux_enabled
from tests.native.bundle import Bundle
from tests.native.runtime import Runtime

PROCESS = "system_u:system_r:container_t:s0:c1,c2"
OTHER = "system_u:system_r:container_t:s0:c3,c4"
FILES = "system_u:object_r:container_file_t:s0:c1,c2"
SCRIPT = "touch /tmp/file /data/file; cat /proc/self/attr/current; echo; echo up; exec sleep 1000"
_SELINUX = Path("/sys/fs/selinux")

needs_selinux = [
    pytest.mark.native,
    pytest.mark.skipif(not selinux_enabled(), reason="this kernel does not run SELinux (make test-selinux)"),
    pytest.mark.usefixtures("as_an_engine"),
]


@pytest.fixture(params=["runc", "crun"])
def peer(request: pytest.FixtureRequest, runtime: Runtime) -> Iterator[Runtime]:
    path = shutil.which(request.param)
    if path is None or os.path.realpath(path) == os.path.realpath(runtime.path):
        pytest.skip(f"{request.param} is not there to compare with")
    made = Runtime(path, runtime.bed, Path(tempfile.mkdtemp(dir=runtime.directory.parent)))
    made.directory.chmod(0o711)
    yield made
    made.cleanup()
    shutil.rmtree(made.directory)


@pytest.fixture
def as_an_engine(runtime: Runtime) -> None:
    """The program in the domain that the policy has for runc and crun, of which it knows the paths."""
    if runtime.name.startswith("gpurun"):
        os.setxattr(os.path.realpath(runtime.path), "security.selinux", b"system_u:object_r:container_engine_exec_t:s0")


@pytest.fixture
def sealed(runtime: Runtime) -> Iterator[Callable[[Bundle], None]]:
    """Binds a rootfs on itself, read-only: nothing can be made in it."""
    bound: list[Path] = []

    def bind(b: Bundle) -> None:
        runtime.bed.run("mount", "--bind", str(b.rootfs), str(b.rootfs))
        bound.append(b.rootfs)
        runtime.bed.run("mount", "-o", "remount,bind,ro", str(b.rootfs))

    yield bind
    runtime.cleanup()
    for rootfs in bound:
        runtime.bed.run("umount", str(rootfs))


def labelled(bundle: Bundle, process: str = PROCESS, files: str = FILES) -> Bundle:
    bundle.process["selinuxLabel"], bundle.linux["mountLabel"] = process, files
    data = bundle.directory / "data"
    data.mkdir(exist_ok=True)
    (bundle.rootfs / "data").mkdir(exist_ok=True)
    return bundle.mount("/tmp", "tmpfs", kind="tmpfs").mount("/data", str(data), "rbind", "rw").sh(SCRIPT)


def label(path: str | Path) -> str:
    try:
        return os.getxattr(path, "security.selinux", follow_symlinks=False).decode().rstrip("\0")
    except OSError as e:
        return os.strerror(e.errno or 0)


def set_label(path: str | Path, context: str) -> None:
    os.setxattr(path, "security.selinux", context.encode(), follow_symlinks=False)


@contextmanager
def enforcing() -> Iterator[None]:
    """The policy is enforced, on the whole machine."""
    (_SELINUX / "enforce").write_text("1")
    try:
        yield
    finally:
        (_SELINUX / "enforce").write_text("0")


def flush_decisions() -> None:
    """Have the kernel forget what it has logged already: permissive, it logs each refusal once."""
    (_SELINUX / "commit_pending_bools").write_text("1")


def refusals(lines: list[str]) -> set[tuple[str, str, str, str]]:
    """(permission, type of who asked, type of what, its class) of each refusal in the kernel's log."""
    found = set()
    for line in lines:
        match = re.search(
            r"avc:  denied  \{ ([^}]*) \} .*scontext=\w+:\w+:(\w+):\S* tcontext=\w+:\w+:(\w+):\S* tclass=(\w+)", line
        )
        if match and match[2] != "init_t":  # systemd talks to its own
            found |= {(permission, match[2], match[3], match[4]) for permission in match[1].split()}
    return found


@pytest.fixture
def all_logged() -> Iterator[None]:
    """Without the kernel's limit of lines in five seconds."""
    limit = Path("/proc/sys/kernel/printk_ratelimit")
    before = limit.read_text()
    limit.write_text("0")
    yield
    limit.write_text(before)
