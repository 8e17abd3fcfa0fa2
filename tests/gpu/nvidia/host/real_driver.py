"""The real NVIDIA userspace from Debian's non-free archive: downloaded when a test wants it, never part of the project.

The licence lets Debian redistribute unmodified packages; nobody else is given a copy.  They are unpacked (``dpkg -x``), not
installed: no maintainer script runs.  Kept in ``.cache/`` of the repository.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packages.trees import debian_mirror
from tests.simdriver import Options, SimulatedDriver, make

REPOSITORY = Path(__file__).resolve().parents[4]
#: Debian package → the capabilities whose files it has.  Which of them exist depends on the release.
PACKAGES = {
    "libnvidia-ml1": ("utility",),
    "libnvidia-cfg1": ("utility",),
    "nvidia-smi": ("utility",),
    "nvidia-driver-bin": ("utility", "graphics"),
    "nvidia-persistenced": ("utility",),
    "libcuda1": ("compute",),
    "libcudadebugger1": ("compute",),
    "libnvidia-ptxjitcompiler1": ("compute",),
    "libnvidia-nvvm4": ("compute",),
    "libnvidia-pkcs11-openssl3": ("compute",),
    "libnvidia-allocator1": ("compute", "graphics"),
    "libnvidia-gpucomp": ("compute", "graphics"),
    "nvidia-opencl-icd": ("compute",),
    "nvidia-opencl-common": ("compute",),
    "nvidia-cuda-mps": ("compute",),
    "libnvcuvid1": ("video",),
    "libnvidia-encode1": ("video",),
    "libnvidia-opticalflow1": ("video",),
    "nvidia-vdpau-driver": ("video",),
    "libnvidia-ngx1": ("ngx",),
    "libegl-nvidia0": ("graphics",),
    "libgl1-nvidia-glvnd-glx": ("graphics",),
    "libgles-nvidia1": ("graphics",),
    "libgles-nvidia2": ("graphics",),
    "libglx-nvidia0": ("graphics",),
    "libnvidia-api1": ("graphics",),
    "libnvidia-egl-gbm1": ("graphics",),
    "libnvidia-egl-wayland1": ("graphics",),
    "libnvidia-egl-xcb1": ("graphics",),
    "libnvidia-egl-xlib1": ("graphics",),
    "libnvidia-eglcore": ("graphics",),
    "libnvidia-fbc1": ("graphics",),
    "libnvidia-glcore": ("graphics",),
    "libnvidia-glvkspirv": ("graphics",),
    "libnvidia-rtcore": ("graphics",),
    "libnvoptix1": ("graphics",),
    "nvidia-driver-libs": ("graphics",),
    "nvidia-egl-common": ("graphics",),
    "nvidia-egl-icd": ("graphics",),
    "nvidia-vulkan-common": ("graphics",),
    "nvidia-vulkan-icd": ("graphics",),
    "xserver-xorg-video-nvidia": ("graphics",),
    "nvidia-alternative": ("graphics",),
    "nvidia-kernel-support": (),
    "nvidia-modprobe": (),
}
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def unpacked() -> Path:
    """The directory with the unpacked packages; skips the calling test, with the reason, where it cannot be had.

    Beside it, ``packages/NAME`` lists the files of each package.
    """
    cache = REPOSITORY / ".cache/nvidia-userspace"
    cache.parent.mkdir(exist_ok=True)
    with (cache.parent / "nvidia-userspace.lock").open("w") as lock:  # another test process may be downloading
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _unpacked(cache)


def _unpacked(cache: Path) -> Path:
    root = cache / "root"
    asked = " ".join(PACKAGES)
    if (cache / "complete").exists() and (cache / "complete").read_text() == asked:
        return root
    if os.uname().machine != "x86_64" or not shutil.which("apt-get") or not os.path.exists(KEYRING):
        pytest.skip("the real driver's libraries come from Debian's amd64 archive: this is no such host")
    codename = next(
        (
            line.partition("=")[2].strip()
            for line in Path("/etc/os-release").read_text().splitlines()
            if "VERSION_CODENAME" in line
        ),
        "",
    )
    shutil.rmtree(cache, ignore_errors=True)
    for name in ("lists/partial", "archives/partial", "debs", "root", "packages"):
        (cache / name).mkdir(parents=True)
    mirror = debian_mirror()
    if not mirror:
        pytest.skip("the real driver's libraries come from Debian's archive: this machine's apt names none")
    (cache / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {codename} contrib non-free\n")
    options = [
        f"Dir::Etc::SourceList={cache}/sources.list",
        "Dir::Etc::SourceParts=-",
        f"Dir::State::Lists={cache}/lists",
        f"Dir::Cache={cache}",
        "Dir::State::status=/dev/null",
        "APT::Sandbox::User=root",
        "Acquire::Retries=1",
        "Acquire::http::Timeout=20",
    ]
    words = [word for option in options for word in ("-o", option)]
    _run(cache, "apt-get", "-q", *words, "update")
    there = set(_run(cache, "apt-cache", *words, "pkgnames").split())
    _run(cache / "debs", "apt-get", "-q", *words, "download", *[name for name in PACKAGES if name in there])
    for package in (cache / "debs").glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)
        listed = subprocess.run(["dpkg-deb", "-c", str(package)], capture_output=True, text=True, check=True).stdout
        # mode, owner, size, date, time, ./path (links: "-> target" after it)
        files = [line.split(maxsplit=5)[5][1:] for line in listed.splitlines() if line.startswith("-")]
        (cache / "packages" / package.name.partition("_")[0]).write_text("\n".join(files))
    for name in ("lists", "archives", "debs"):
        shutil.rmtree(cache / name)
    (cache / "complete").write_text(asked)
    return root


def files_of_packages() -> dict[str, tuple[str, ...]]:
    """Package → its regular files, documentation left out."""
    listed = {p.name: p.read_text().splitlines() for p in (unpacked().parent / "packages").iterdir()}
    documentation = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/bug/", "/usr/share/lintian/")
    return {name: tuple([f for f in files if not f.startswith(documentation)]) for name, files in listed.items()}


def _run(directory: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip(f"the real driver's libraries cannot be downloaded: {done.stderr.strip()[-200:]}")
    return done.stdout


def version_of(root: Path) -> str:
    return next(p.name.partition(".so.")[2] for p in root.rglob("libcuda.so.*.*"))


def host_with_real_userspace(directory: Path) -> SimulatedDriver:
    """*directory* as a host: the real libraries, and the simulated kernel side of that version."""
    root = unpacked()
    # Names of the same files: 600 MB need not be copied, and nothing writes to them.
    if subprocess.run(["cp", "-al", f"{root}/.", str(directory)], capture_output=True, check=False).returncode:
        subprocess.run(["cp", "-a", "--reflink=auto", f"{root}/.", str(directory)], check=True)
    return make(directory, Options(gpus=1, version=version_of(root), no_userspace=True))
