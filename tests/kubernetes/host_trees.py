"""The file system of a node for the installer's tests: a shell, an engine and systemctl that only note what they see."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

#: The engine: it refuses a configuration with the word "broken", and says which one it has read when it is restarted.
_CONTAINERD = """#!/bin/sh
case "$*" in
  --version) echo containerd github.com/containerd/containerd VERSION 0 ;;
  *"config dump") grep -qs broken /etc/containerd/config.toml && { echo containerd: broken >&2; exit 1; }; exit 0 ;;
esac
"""
_SYSTEMCTL = """#!/bin/sh
echo "$@" >>/var/log/systemctl
rm -rf /var/log/read; mkdir -p /var/log/read
cp -r /etc/containerd /etc/crio /var/log/read/ 2>/dev/null
[ ! -e /refuse ] || { echo Job failed >&2; exit 1; }
"""
PROGRAM = "#!/bin/sh\necho gpurun version 1\n"
WATCHED = ("etc", "opt", "usr", "var/lib", "run")


def busybox() -> str | None:
    return shutil.which("busybox")


def make_tree(directory: Path, version: str = "1.7.24") -> Path:
    """A node's root below *directory*."""
    root = directory / "node"
    for name in ("bin", "usr/bin", "etc/containerd", "run", "var/lib", "var/log", "opt", "proc", "tmp", "dev"):
        (root / name).mkdir(parents=True)
    os.mknod(root / "dev/null", 0o20666, os.makedev(1, 3))
    program = busybox()
    assert program is not None
    shutil.copy(program, root / "bin/busybox")
    told = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    for library in re.findall(r"(/\S+) \(0x", told):
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    for name in ("sh", "grep", "cp", "rm", "mkdir", "cat"):
        (root / "bin" / name).symlink_to("busybox")
    _script(root / "usr/bin/containerd", _CONTAINERD.replace("VERSION", f"v{version}"))
    _script(root / "usr/bin/systemctl", _SYSTEMCTL)
    return root


@contextlib.contextmanager
def listening(root: Path, path: str = "run/containerd/containerd.sock") -> Iterator[None]:
    """Somebody answers at the engine's socket, as the installer waits for."""
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    here = os.getcwd()
    os.chdir(target.parent)  # the path of a Unix socket has at most 107 bytes
    try:
        made.bind(target.name)
    finally:
        os.chdir(here)
    made.listen(128)

    def answer() -> None:
        with contextlib.suppress(OSError):  # shut down: nobody is to be answered any more
            while True:
                made.accept()[0].close()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        made.shutdown(socket.SHUT_RDWR)
        thread.join()
        made.close()


def contents(root: Path) -> dict[str, str]:
    """Path → text (or the target) of everything that an installer may touch."""
    found = {}
    for top in WATCHED:
        for path in sorted((root / top).rglob("*")):
            name = str(path.relative_to(root))
            if path.is_symlink():
                found[name] = os.readlink(path)
            elif path.is_file() and not name.startswith(("usr/bin", "usr/lib")) and not name.endswith(".lock"):
                found[name] = path.read_text()
    return found


def read_by_engine(root: Path) -> dict[str, str]:
    """The configuration that the engine had when it was restarted last."""
    place = root / "var/log/read"
    return {str(p.relative_to(place)): p.read_text() for p in sorted(place.rglob("*.toml"))} if place.exists() else {}


def now(root: Path) -> dict[str, str]:
    """The configuration that it would read now."""
    return {str(p.relative_to(root / "etc")): p.read_text() for p in sorted((root / "etc").rglob("*.toml"))}


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
