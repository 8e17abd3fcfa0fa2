"""Root file systems of real distributions for tests, from the machine's own apt; kept in ``~/.cache/gpurun-images``."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CACHE = Path.home() / ".cache/gpurun-images"
_LEFT_OUT = ("dev/*", "usr/share/*", "usr/lib/*/gconv", "usr/lib/*/perl-base", "usr/lib/locale")  # what no test looks at


def debian_tar(name: str = "debian", *packages: str) -> Path:
    """A tar of the essential packages of this machine's Debian and of *packages*, kept by *name*; skips the test where it
    cannot be had."""
    release = dict(
        line.partition("=")[::2] for line in Path("/etc/os-release").read_text().splitlines() if line.startswith("VERSION_C")
    )
    codename = release.get("VERSION_CODENAME", "")
    tar = CACHE / f"{name}-{codename}-{os.uname().machine}.tar"
    if tar.exists():
        return tar
    if not shutil.which("mmdebstrap") or not codename:
        pytest.skip("a Debian image is made with mmdebstrap, which is not here")
    included = [f"--include={','.join(packages)}", "--aptopt=APT::Install-Recommends false"] if packages else []
    with _making() as work:
        if tar.exists():  # somebody else has made it meanwhile
            return tar
        made = subprocess.run(
            ["mmdebstrap", "--variant=essential", *included, codename, str(work / "image.tar")],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if made.returncode:
            pytest.skip(f"no Debian image can be made here: {made.stderr.strip()[-200:]}")
        (work / "image.tar").rename(tar)
    return tar


@contextmanager
def _making() -> Iterator[Path]:
    """A directory to make an image in, of one process at a time: what one that was killed has left there is removed."""
    CACHE.mkdir(parents=True, exist_ok=True)
    held = os.open(CACHE, os.O_RDONLY | os.O_CLOEXEC)
    work = CACHE / ".making"
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(held)


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
    with _making() as work:
        if root.exists():
            return root
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
    return root
