"""Root file systems of real distributions for tests, from the machine's own apt; kept in ``~/.cache/gpurun-images``."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

CACHE = Path.home() / ".cache/gpurun-images"
_LEFT_OUT = ("dev/*", "usr/share/*", "usr/lib/*/gconv", "usr/lib/*/perl-base", "usr/lib/locale")  # what no test looks at


def debian_tar() -> Path:
    """A tar of the essential packages of this machine's Debian; skips the test where it cannot be had."""
    release = dict(
        line.partition("=")[::2] for line in Path("/etc/os-release").read_text().splitlines() if line.startswith("VERSION_C")
    )
    codename = release.get("VERSION_CODENAME", "")
    tar = CACHE / f"debian-{codename}-{os.uname().machine}.tar"
    if tar.exists():
        return tar
    if not shutil.which("mmdebstrap") or not codename:
        pytest.skip("a Debian image is made with mmdebstrap, which is not here")
    CACHE.mkdir(parents=True, exist_ok=True)
    new = CACHE / f".{os.getpid()}.tar"
    made = subprocess.run(
        ["mmdebstrap", "--variant=essential", codename, str(new)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if made.returncode:
        new.unlink(missing_ok=True)
        pytest.skip(f"no Debian image can be made here: {made.stderr.strip()[-200:]}")
    new.rename(tar)
    return tar


def unpack(tar: Path, directory: Path) -> None:
    """Replace the tree at *directory* by the image, device nodes left out."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    subprocess.run(
        ["tar", "-C", str(directory), *[f"--exclude=./{left_out}" for left_out in _LEFT_OUT], "-xf", str(tar)], check=True
    )


def package(name: str) -> Path:
    """The unpacked Debian package *name*; skips the test where it cannot be had."""
    root = CACHE / f"package-{name}"
    if root.exists():
        return root
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        pytest.skip(f"the package {name} comes from apt, which is not here")
    work = CACHE / f".{os.getpid()}-{name}"
    work.mkdir(parents=True)
    try:
        got = subprocess.run(
            ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", name],
            cwd=work,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if got.returncode:
            pytest.skip(f"{name} cannot be downloaded: {got.stderr.strip()[-200:]}")
        subprocess.run(["dpkg", "-x", str(next(work.glob("*.deb"))), str(work / "root")], check=True)
        (work / "root").rename(root)
    finally:
        shutil.rmtree(work)
    return root


def exact_listing(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything about every file of a tree, times of change included.

    A file that goes while this looks is not in it: the init of a killed ``create`` may end its last system call meanwhile.
    """
    found: dict[str, tuple[object, ...]] = {}
    for directory, names, files in os.walk(root):
        for path in (directory, *[os.path.join(directory, n) for n in (*names, *files)]):
            what: object = None
            try:
                s = os.lstat(path)
                if stat.S_ISLNK(s.st_mode):
                    what = os.readlink(path)
                elif stat.S_ISREG(s.st_mode):
                    what = hashlib.blake2b(Path(path).read_bytes()).hexdigest()
            except FileNotFoundError:
                continue
            size = s.st_size if stat.S_ISREG(s.st_mode) else 0
            found[os.path.relpath(path, root)] = (s.st_mode, s.st_uid, s.st_gid, s.st_rdev, size, s.st_mtime_ns, what)
    return found
