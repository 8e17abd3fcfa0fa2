"""Images made to lead the edits of a GPU astray, at every place that something is put: nothing outside changes, nothing
hangs, and what cannot be done is told in one sentence; the image is afterwards what it was."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from gpurun.cdi.edits import ContainerEdits
from gpurun.errors import GpurunError
from tests.hook.applying import LIB, V, applied, edits_of, undone
from tests.native.listing import tree_listing
from tests.simdriver import Options, SimulatedDriver, make

pytestmark = [
    pytest.mark.native,
    pytest.mark.gpurun_only,
    pytest.mark.attack(
        "NVIDIA CVE-2024-0132, -0133, -0134, CVE-2025-23267, CVE-2025-23359",
        "an image leads what is put in for its GPUs to the host, or has files made or written there",
    ),
]

CACHE, COMPAT = "etc/ld.so.cache", "usr/local/cuda/compat"
DEADLINE_S = 60
LOOP, FULL = os.makedev(7, 0), os.makedev(1, 7)


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> SimulatedDriver:
    """A host with all that a driver can bring."""
    return make(tmp_path_factory.mktemp("rich") / "host", Options(mps=True, extras=True))


@pytest.fixture
def everything(rich: SimulatedDriver) -> ContainerEdits:
    return edits_of(rich, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all", "NVIDIA_GDS=enabled")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of the host that an image would like to reach: with all that it could look for there."""
    directory = tmp_path / "outside"
    for name in ("lib", "bin", "etc", "current"):
        (directory / name).mkdir(parents=True)
        (directory / name / "file").write_text("of the host\n")
    return directory


def places_of(edits: ContainerEdits) -> list[str]:
    """Every directory of the image that something of *edits* is put into, and those above; /dev is the container's own."""
    paths = [m.container_path for m in edits.mounts] + [link.path for link in edits.links]
    paths += [t.path + "/x" for t in edits.proc_trees if t.path.startswith("/etc")] + [f.path for f in edits.image_files]
    paths += [f"/{CACHE}"]
    found = {str(parent).lstrip("/") for path in paths if not path.startswith("/dev/") for parent in Path(path).parents}
    return sorted(found - {""})


def _link(text: str) -> Callable[[Path, Path], None]:
    return lambda path, outside: path.symlink_to(text.format(outside=outside, up="../" * 30, name=path.name))


def _socket(path: Path, _outside: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is a short one
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)
    os.chdir(here)


def _node(kind: int, number: int) -> Callable[[Path, Path], None]:
    return lambda path, _outside: os.mknod(path, kind | 0o666, number)


#: What an image may have in the place of a directory or a file.
KINDS: dict[str, Callable[[Path, Path], None]] = {
    "link to the host": _link("{outside}/lib"),
    "link up and out": _link("{up}{outside}/lib"),
    "link by the root of a process": _link("/proc/self/root{outside}/lib"),
    "link by the working directory of a process": _link("/proc/self/cwd"),
    "link by an open file": _link("/proc/self/fd/0"),
    "link into procfs": _link("/proc/self/attr"),
    "link to procfs": _link("/proc"),
    "link to itself": _link("{name}"),
    "link to the root": _link("/"),
    "link to nothing": _link("/no/such/thing"),
    "link of a thousand steps": _link("/." * 500),
    "file": lambda path, _outside: path.write_text("x"),  # type: ignore[dict-item,return-value]
    "fifo": lambda path, _outside: os.mkfifo(path),
    "socket": _socket,
    "disk": _node(stat.S_IFBLK, LOOP),
    "device that is full": _node(stat.S_IFCHR, FULL),
}


def attempt(in_mount_namespace: Any, rootfs: Path, edits: ContainerEdits, user_namespace: bool = False) -> str:
    """Put *edits* in and take them back, within a minute: why it failed, in one sentence; empty when it did not."""

    def tried() -> str:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(DEADLINE_S)  # a hang ends this child, and the test
        try:
            applied(rootfs, edits, user_namespace)
        except GpurunError as e:
            return str(e)
        return ""

    journal = rootfs.parent / "journal"
    said = in_mount_namespace(tried)
    assert undone(rootfs, journal.read_bytes()) == ()
    assert "\n" not in said and len(said) < 500, said
    return str(said)


@pytest.mark.sweep(5)
@pytest.mark.parametrize("kind", KINDS)
def test_in_the_place_of_each_directory(
    everything: ContainerEdits, rich: SimulatedDriver, rootfs: Path, in_mount_namespace: Any, outside: Path, kind: str
) -> None:
    before, host = tree_listing(outside, exact=True), tree_listing(rich.path)
    places = places_of(everything)
    assert len(places) > 15 and LIB in places
    refused = []
    for place in places:
        path = rootfs / place
        shutil.rmtree(rootfs)
        for name in ("dev", "proc"):
            (rootfs / name).mkdir(parents=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        KINDS[kind](path, outside)
        image = tree_listing(rootfs)
        said = attempt(in_mount_namespace, rootfs, everything)
        refused += [place] if said else []
        assert tree_listing(rootfs) == image, f"{place}: {said}"
        assert tree_listing(outside, exact=True) == before, f"{place}: {said}"
        if kind in ("link to the host", "link up and out", "link to nothing", "link to the root"):
            # Inside the rootfs it leads to a directory like any other, unless that is the link itself again.
            assert not said or str(outside).startswith(f"/{place}/"), f"{place}: {said}"
        elif kind in ("link to procfs", "link into procfs", "link by the working directory of a process"):
            assert said or place == "etc/ld.so.conf.d", place  # without that directory nothing goes there
    assert tree_listing(rich.path) == host
    if not kind.startswith("link"):
        assert refused, "what is no directory cannot be one, unless nothing needs it"


@pytest.mark.sweep(24)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", [f"{LIB}/libcuda.so.{V}", f"{LIB}/libcuda.so", "usr/bin/nvidia-smi", CACHE])
def test_in_the_place_of_a_file(
    everything: ContainerEdits, rootfs: Path, in_mount_namespace: Any, outside: Path, kind: str, path: str
) -> None:
    before = tree_listing(outside, exact=True)
    (rootfs / path).parent.mkdir(parents=True, exist_ok=True)
    KINDS[kind](rootfs / path, outside)
    image = tree_listing(rootfs)
    attempt(in_mount_namespace, rootfs, everything)
    assert tree_listing(rootfs) == image
    assert tree_listing(outside, exact=True) == before


def test_no_file_of_procfs_is_covered(rootfs: Path, rich: SimulatedDriver, in_mount_namespace: Any) -> None:
    """A label that is written into another file than the kernel's is a process without a label."""
    edits = edits_of(rich, "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility")
    for target in ("/proc/self/attr/exec", "/proc/self/oom_score_adj", "/proc/sys/kernel/core_pattern", "/proc/uptime"):
        (rootfs / "usr/bin/nvidia-smi").symlink_to(target)
        said = attempt(in_mount_namespace, rootfs, edits)
        assert (
            said == "/usr/bin/nvidia-smi: a symbolic link in the image leads into /proc or /sys, where gpurun makes nothing"
        )
        (rootfs / "usr/bin/nvidia-smi").unlink()


def loader_cache(names: int, text: bytes) -> bytes:
    """A cache whose entries have all of *text* as their name and path."""
    base = 48 + 24 * names
    head = b"glibc-ld.so.cache1.1" + pack("<IIB3xI12x", names, len(text), 2, 0)
    return head + pack("<iIIIQ", 0x303, base, base, 0, 0) * names + text


CACHES = {
    "a number of megabytes": loader_cache(1, b"lib" + b"9" * (7 << 20) + b"\0"),
    "a name of megabytes, often": loader_cache(100_000, b"libcuda.so.1" * 300_000 + b"\0"),
    "as many entries as fit": loader_cache(300_000, b"libcuda.so.1\0"),
    "names without an end": loader_cache(1000, b"x" * 100_000),
    "our own path, often": loader_cache(200_000, b"/" + LIB.encode() + b"/libcuda.so." + V.encode() + b"\0"),
    "nothing but a header": loader_cache(0, b""),
}


@pytest.mark.parametrize("name", CACHES)
def test_a_loader_cache(rootfs: Path, rich: SimulatedDriver, in_mount_namespace: Any, name: str) -> None:
    """It is read for each library: what it takes does not grow with what the image has written into it."""
    (rootfs / CACHE).write_bytes(CACHES[name])
    image = tree_listing(rootfs)
    edits = edits_of(rich, "NVIDIA_VISIBLE_DEVICES=0")

    def found() -> bytes:
        signal.alarm(DEADLINE_S)
        applied(rootfs, edits)
        return (rootfs / CACHE).read_bytes()

    content = in_mount_namespace(found)
    assert content.startswith(b"glibc-ld.so.cache1.1") and f"/{LIB}/libnvidia-ml.so.1\0".encode() in content
    assert undone(rootfs, (rootfs.parent / "journal").read_bytes()) == () and tree_listing(rootfs) == image


def _many(directory: Path) -> None:
    for i in range(20_000):
        (directory / f"libcuda.so.999.{i}").touch()


def _huge(directory: Path) -> None:
    with (directory / "libcuda.so.1000.1").open("wb") as f:
        f.write(
            b"\x7fELF\x02\x01\x01"
            + b"\0" * 9
            + pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 1 << 61, 0, 64, 56, 63, 64, 511, 510)
        )
        f.truncate(1 << 40)


def _links(directory: Path) -> None:
    (directory / "libcuda.so.1000.1").symlink_to("/etc/passwd")
    (directory / "libcuda.so.1").symlink_to("/proc/1/exe")


#: What is in the image's directory of newer CUDA libraries.
COMPATS: dict[str, Callable[[Path], None]] = {
    "more files than anybody reads": _many,
    "a library of a terabyte": _huge,
    "links to the host": _links,
    "a fifo": lambda d: os.mkfifo(d / "libcuda.so.1000.1"),
    "a disk": lambda d: os.mknod(d / "libcuda.so.1000.1", stat.S_IFBLK | 0o666, LOOP),
    "a directory": lambda d: (d / "libcuda.so.1000.1").mkdir(),
    "a name of two lines": lambda d: (d / "libcuda.so.1000.1\nevil").touch(),
    "a version of digits only": lambda d: (d / f"libcuda.so.{'9' * 200}.1").touch(),
}


@pytest.mark.parametrize("name", COMPATS)
def test_newer_libraries_of_the_image(rootfs: Path, rich: SimulatedDriver, in_mount_namespace: Any, name: str) -> None:
    (rootfs / COMPAT).mkdir(parents=True)
    COMPATS[name](rootfs / COMPAT)
    edits = edits_of(rich, "NVIDIA_VISIBLE_DEVICES=0")
    assert edits.forward_compat is not None

    def found() -> bytes:
        signal.alarm(DEADLINE_S)
        applied(rootfs, edits)
        return (rootfs / CACHE).read_bytes()

    content = in_mount_namespace(found)
    assert b"/compat/" not in content and b"libcuda.so.1\0" in content, "nothing of the image's goes before the driver's"
    assert undone(rootfs, (rootfs.parent / "journal").read_bytes()) == ()


@pytest.mark.parametrize(
    "where", ["{outside}", "/proc/self/root{outside}", "/proc/1/root{outside}", "../../../../../..{outside}"]
)
def test_newer_libraries_of_the_host(
    rootfs: Path, rich: SimulatedDriver, in_mount_namespace: Any, outside: Path, where: str
) -> None:
    """CVE-2024-0132: the image's directory is a link to one of the host's, which has what is looked for."""
    source = next(rich.path.rglob(f"libcuda.so.{V}"))
    shutil.copy(source, outside / "libcuda.so.1000.1")
    (rootfs / "usr/local/cuda").mkdir(parents=True)
    (rootfs / COMPAT).symlink_to(where.format(outside=outside))
    edits = edits_of(rich, "NVIDIA_VISIBLE_DEVICES=0")

    def found() -> bytes:
        applied(rootfs, edits)
        return (rootfs / CACHE).read_bytes()

    assert b"outside" not in in_mount_namespace(found)


@pytest.mark.parametrize("kind", ["fifo", "socket", "device that is full", "link to the host", "link to itself", "file"])
@pytest.mark.parametrize("name", ["00-gpurun.conf", "zz-gpurun.conf"])
def test_the_files_for_ldconfig(
    rootfs: Path, rich: SimulatedDriver, in_mount_namespace: Any, outside: Path, kind: str, name: str
) -> None:
    (rootfs / "etc/ld.so.conf.d").mkdir()
    (rootfs / "etc/ld.so.conf").write_text("include /etc/ld.so.conf\ninclude /etc/ld.so.conf.d/*.conf\n" * 10_000)
    KINDS[kind](rootfs / "etc/ld.so.conf.d" / name, outside)
    image, before = tree_listing(rootfs), tree_listing(outside, exact=True)
    assert attempt(in_mount_namespace, rootfs, edits_of(rich, "NVIDIA_VISIBLE_DEVICES=0")) == ""
    assert tree_listing(rootfs) == image and tree_listing(outside, exact=True) == before


def test_a_path_of_musls_loader_without_an_end(rootfs: Path, rich: SimulatedDriver, in_mount_namespace: Any) -> None:
    machine = os.uname().machine
    (rootfs / f"usr/lib/ld-musl-{machine}.so.1").touch()
    (rootfs / f"etc/ld-musl-{machine}.path").write_bytes(b"/a:" * 2_000_000)
    image = tree_listing(rootfs, exact=True)
    assert attempt(in_mount_namespace, rootfs, edits_of(rich, "NVIDIA_VISIBLE_DEVICES=0")) == ""
    assert tree_listing(rootfs, exact=True).keys() == image.keys()


@pytest.mark.parametrize("kind", [k for k in KINDS if k.startswith("link")])
def test_dev_that_is_a_link(rootfs: Path, rich: SimulatedDriver, in_mount_namespace: Any, outside: Path, kind: str) -> None:
    """Nodes of GPUs, too, are made in a directory of the container alone."""
    edits = edits_of(rich, "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility")
    (rootfs / "dev").rmdir()
    KINDS[kind](rootfs / "dev", outside)
    before = tree_listing(outside, exact=True)

    def tried() -> str:
        from tests.hook.applying import applied_alone

        signal.alarm(DEADLINE_S)
        os.system(f"mount -t proc proc {rootfs}/proc")
        try:
            applied_alone(rootfs, edits)
        except GpurunError as e:
            return str(e)
        return ""

    said = in_mount_namespace(tried)
    assert "\n" not in said and tree_listing(outside, exact=True) == before
    assert undone(rootfs, (rootfs.parent / "journal").read_bytes()) == ()


def test_a_node_of_the_image_with_other_numbers(rootfs: Path, rich: SimulatedDriver, in_mount_namespace: Any) -> None:
    """An image's /dev/nvidiactl that is the host's memory is not taken for the GPU's."""
    os.mknod(rootfs / "dev/nvidiactl", stat.S_IFCHR | 0o666, os.makedev(1, 1))
    edits = edits_of(rich, "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility")

    def tried() -> tuple[str, int]:
        from tests.hook.applying import applied_alone

        os.system(f"mount -t proc proc {rootfs}/proc")
        try:
            applied_alone(rootfs, edits)
        except GpurunError as e:
            return str(e), 0
        return "", os.stat(rootfs / "dev/nvidiactl").st_rdev

    assert in_mount_namespace(tried) == ('cannot make the device node "/dev/nvidiactl": something else has that name', 0)
    assert os.stat(rootfs / "dev/nvidiactl").st_rdev == os.makedev(1, 1), "the image has its own again"
