"""Edits put into a rootfs in a mount namespace of its own; what the container sees, and what the image is left with."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpurunError
from gpurun.hook import apply
from gpurun.hook.apply import apply_edits
from gpurun.hook.edits import Chmod, ContainerEdits, DeviceNode, EditMount, FileEdit, Link, ProcTree
from gpurun.hook.gpu import gpu_edits
from gpurun.hook.ldcache import parse
from gpurun.hook.rewrite import MAX_SIZE
from gpurun.hook.target import Target
from gpurun.linux.mount import MS_BIND, mount
from gpurun.ns.journal import LINK, TEMPORARY, TIMES, Journal
from gpurun.ns.journal import parse as parse_journal
from gpurun.ns.undo import undo
from tests.simdriver import SimulatedDriver, bus_id, minor

LIB = (
    "usr/lib/x86_64-linux-gnu/nvidia/current"
    if os.uname().machine == "x86_64"
    else "usr/lib/aarch64-linux-gnu/nvidia/current"
)
V = "999.88.77"

pytestmark = pytest.mark.native


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    root = tmp_path / "rootfs"
    for directory in ("dev", "proc", "etc", "usr/bin"):
        (root / directory).mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (root / "usr/lib").mkdir()
    return root


def listing(root: Path) -> dict[str, tuple[Any, ...]]:
    """Everything in a tree that could have been changed, but for the times of directories."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(root.rglob("*")):
        s = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if stat.S_ISREG(s.st_mode) else b""
        found[str(path.relative_to(root))] = (s.st_mode, s.st_uid, s.st_gid, s.st_rdev, content)
    return found


def edits_of(sim: SimulatedDriver, *env: str) -> ContainerEdits:
    made = gpu_edits(env, {}, False, sim.env)
    assert made is not None
    return made


def opened(rootfs: Path) -> int:
    return os.open(rootfs, os.O_PATH | os.O_DIRECTORY)


def mount_basics(rootfs: Path) -> None:
    mount("proc", str(rootfs / "proc"), "proc", 0)
    mount("tmpfs", str(rootfs / "dev"), "tmpfs", 0)


def applied(rootfs: Path, edits: ContainerEdits, user_namespace: bool = False, readonly: bool = False) -> bytes:
    """Applies *edits*; the journal, also (in the file beside the rootfs) when that fails."""
    mount_basics(rootfs)
    return applied_alone(rootfs, edits, user_namespace, readonly)


def applied_alone(rootfs: Path, edits: ContainerEdits, user_namespace: bool = False, readonly: bool = False) -> bytes:
    file = rootfs.parent / "journal"
    fd = opened(rootfs)
    journal = Journal(fd, os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC))
    try:
        apply_edits(edits, Target(fd, journal, user_namespace, readonly))
    finally:
        journal.close()
        os.close(fd)
    return file.read_bytes()


def undone(rootfs: Path, journal: bytes) -> tuple[str, ...]:
    fd = opened(rootfs)
    try:
        return undo(fd, parse_journal(journal))
    finally:
        os.close(fd)


def made(journal: bytes) -> list[str]:
    """What a journal says was made, as ``path`` or ``path -> target``."""
    found = []
    for trace in parse_journal(journal):
        if trace.kind not in (TIMES, TEMPORARY):
            found.append(trace.path + (f" -> {trace.rest.decode()}" if trace.kind == LINK else ""))
    return found


def test_what_the_container_sees(sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any) -> None:
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")

    def look() -> dict[str, Any]:
        applied(rootfs, edits)
        proc = rootfs / "proc/driver/nvidia"
        mine = rootfs / f"dev/nvidia{minor(1, 2)}"
        cuda = ctypes.CDLL(str(rootfs / LIB / f"libcuda.so.{V}"))
        return {
            "node": (stat.S_ISCHR(mine.stat().st_mode), mine.stat().st_mode & 0o777, mine.stat().st_rdev),
            "dev": sorted(os.listdir(rootfs / "dev")),
            "gpus": os.listdir(proc / "gpus"),
            "params": (proc / "params").read_text(),
            "links": {n: os.readlink(rootfs / LIB / n) for n in ("libcuda.so", "libcuda.so.1", "libnvidia-nvvm.so.4")},
            "cuInit": cuda.cuInit(0),
            "cache": [e.soname for e in parse((rootfs / "etc/ld.so.cache").read_bytes())],
            "smi": subprocess.run([rootfs / "usr/bin/nvidia-smi"], capture_output=True, text=True).returncode,
            "mounts": [
                line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(rootfs) in line
            ],
        }

    seen = in_mount_namespace(look)
    assert seen["node"] == (True, 0o666, os.makedev(195, minor(1, 2)))
    assert seen["dev"] == sorted(["nvidia-uvm", "nvidia-uvm-tools", f"nvidia{minor(1, 2)}", "nvidiactl"])
    assert seen["gpus"] == [bus_id(1)]
    assert "ModifyDeviceFiles: 0\n" in seen["params"] and "ModifyDeviceFiles: 1" not in seen["params"]
    assert seen["links"] == {
        "libcuda.so": "libcuda.so.1",
        "libcuda.so.1": f"libcuda.so.{V}",
        "libnvidia-nvvm.so.4": f"libnvidia-nvvm.so.{V}",
    }
    assert seen["cuInit"] == 100 and seen["smi"] == 0
    assert "libcuda.so.1" in seen["cache"] and "libnvidia-ml.so.1" in seen["cache"]
    for fields in seen["mounts"]:
        if "/nvidia" in fields[4] or fields[4].endswith("/proc/driver"):
            assert "nosuid" in fields[5] and "nodev" in fields[5], fields
            if not fields[4].endswith("socket"):
                assert fields[5].startswith("ro,"), fields
    assert not any(line[4] == str(rootfs) for line in seen["mounts"]), "the helper tmpfs is still on the rootfs"


@pytest.mark.parametrize("user_namespace", [False, True])
def test_the_image_is_left_as_it_was(
    sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any, user_namespace: bool
) -> None:
    (rootfs / "etc/ld.so.cache").write_bytes(b"not a cache")
    before = listing(rootfs)
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
    created = in_mount_namespace(lambda: applied(rootfs, edits, user_namespace))
    during = listing(rootfs)
    assert set(during) - set(before) == {c.partition(" -> ")[0] for c in made(created)} - {"etc/ld.so.cache"}
    assert {path for path in before if during[path] != before[path]} == {"etc/ld.so.cache"}
    assert not any(path.startswith("dev/") for path in during), "the nodes are on the container's own /dev"
    assert undone(rootfs, created) == ()
    assert listing(rootfs) == before


def test_what_the_container_changed_is_kept(sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any) -> None:
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0")
    created = in_mount_namespace(lambda: applied(rootfs, edits))
    (rootfs / LIB / "theirs").write_text("x")
    (rootfs / LIB / f"libcuda.so.{V}").write_text("x")
    (rootfs / LIB / "libcuda.so").unlink()
    (rootfs / LIB / "libcuda.so").symlink_to("elsewhere")
    assert undone(rootfs, created) == ()
    assert sorted(os.listdir(rootfs / LIB)) == ["libcuda.so", f"libcuda.so.{V}", "theirs"]


def test_the_journal_is_there_also_when_a_step_fails(rootfs: Path, in_mount_namespace: Any, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    edits = ContainerEdits(
        mounts=(
            EditMount(str(tmp_path / "there"), "/opt/a/there", ("ro",)),
            EditMount(str(tmp_path / "absent"), "/opt/b/absent", ("ro",)),
        )
    )

    with pytest.raises(GpurunError, match=f"mount {tmp_path}/absent: no such file or directory"):
        in_mount_namespace(lambda: applied_alone(rootfs, edits))
    journal = (rootfs.parent / "journal").read_bytes()
    assert made(journal) == ["opt", "opt/a", "opt/a/there"]
    assert undone(rootfs, journal) == () and not (rootfs / "opt").exists()


def test_a_stale_library_of_the_image_is_covered_not_replaced(
    sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any
) -> None:
    (rootfs / LIB).mkdir(parents=True)
    (rootfs / LIB / "libcuda.so.1").symlink_to("libcuda.so.470.1")
    (rootfs / LIB / "libcuda.so.470.1").write_text("stale")
    (rootfs / LIB / "libnvidia-ml.so.1").write_text("stub")
    before = listing(rootfs)
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0")

    def look() -> tuple[bytes, bool, bool]:
        created = applied(rootfs, edits)
        host = sim.path / LIB
        return (
            created,
            os.path.samefile(rootfs / LIB / "libcuda.so.1", host / f"libcuda.so.{V}"),
            os.path.samefile(rootfs / LIB / "libnvidia-ml.so.1", host / f"libnvidia-ml.so.{V}"),
        )

    created, cuda, ml = in_mount_namespace(look)
    assert cuda and ml
    assert undone(rootfs, created) == ()
    assert listing(rootfs) == before


def evil_links(rootfs: Path, outside: Path) -> None:
    """Every directory that anything is put into leads out of the rootfs, if it is followed as a host path."""
    (rootfs / "lib").unlink()
    (rootfs / "usr/lib").rmdir()
    (rootfs / "usr/bin").rmdir()
    (rootfs / "etc").rmdir()
    for name in ("usr/lib", "usr/bin", "etc", "lib", "run"):
        (rootfs / name).symlink_to(f"../../../../..{outside}/{Path(name).name}")
        (outside / Path(name).name).mkdir(exist_ok=True)


def test_links_of_the_image_lead_nowhere_else(
    sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    evil_links(rootfs, outside)
    before_outside, before = listing(outside), listing(rootfs)
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
    created = in_mount_namespace(lambda: applied(rootfs, edits))
    assert listing(outside) == before_outside
    assert undone(rootfs, created) == ()
    assert listing(outside) == before_outside and listing(rootfs) == before


def test_a_loader_cache_that_is_a_link_to_the_host_is_not_read(
    sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any, tmp_path: Path
) -> None:
    """A process in the container would see its own root behind that link: there is no such file there."""
    (tmp_path / "secret").write_bytes(b"host secret")
    (rootfs / "etc/ld.so.cache").symlink_to(tmp_path / "secret")
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0")

    def look() -> bytes:
        applied(rootfs, edits)
        return (rootfs / str(tmp_path / "secret").lstrip("/")).read_bytes()

    assert in_mount_namespace(look).startswith(b"glibc-ld.so.cache1.1")
    assert (tmp_path / "secret").read_bytes() == b"host secret"


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "huge"])
def test_a_loader_cache_that_is_no_file(sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any, kind: str) -> None:
    """Nothing of the kind is replaced: a private file is bound over it, and only a directory cannot be covered so."""
    path = rootfs / "etc/ld.so.cache"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "huge":
        with path.open("wb") as f:
            f.truncate(MAX_SIZE + 1)
    else:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    before = listing(rootfs)["etc/ld.so.cache"]
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0")

    def look() -> tuple[bytes, bytes]:
        journal = applied(rootfs, edits)
        return journal, path.read_bytes()

    if kind == "directory":
        with pytest.raises(GpurunError, match=r"compose the loader's cache /etc/ld\.so\.cache"):
            in_mount_namespace(look)
    else:
        journal, content = in_mount_namespace(look)
        assert content.startswith(b"glibc-ld.so.cache1.1")
        assert "etc/ld.so.cache" not in made(journal)
    assert listing(rootfs)["etc/ld.so.cache"] == before


def test_etc_that_is_a_volume_is_not_written_into(
    sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any, tmp_path: Path
) -> None:
    volume = tmp_path / "volume"
    (volume / "ld.so.conf.d").mkdir(parents=True)
    (volume / "ld.so.cache").write_bytes(b"the volume's")
    before = listing(volume)

    def look() -> bytes:
        mount(str(volume), str(rootfs / "etc"), "none", MS_BIND)
        applied(rootfs, edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0"))
        return (rootfs / "etc/ld.so.cache").read_bytes()

    assert in_mount_namespace(look).startswith(b"glibc-ld.so.cache1.1")
    assert {path: what for path, what in listing(volume).items() if path.startswith("ld.so")} == before


def test_etc_that_is_a_link_is_followed_inside(sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any) -> None:
    (rootfs / "etc").rmdir()
    (rootfs / "usr/etc").mkdir()
    (rootfs / "etc").symlink_to("/usr/etc")
    before = listing(rootfs)
    journal = in_mount_namespace(lambda: applied(rootfs, edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0")))
    assert (rootfs / "usr/etc/ld.so.cache").read_bytes().startswith(b"glibc-ld.so.cache1.1")
    undone(rootfs, journal)
    assert listing(rootfs) == before


def test_a_second_container_changes_nothing_more(sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any) -> None:
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0")
    in_mount_namespace(lambda: applied(rootfs, edits))
    first = listing(rootfs)
    assert made(in_mount_namespace(lambda: applied(rootfs, edits))) == []
    assert listing(rootfs) == first


def test_a_read_only_root_is_not_written(sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any) -> None:
    (rootfs / "etc/ld.so.conf.d").mkdir()
    (rootfs / "etc/ld.so.cache").write_bytes(b"")
    before = listing(rootfs)
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0")
    in_mount_namespace(lambda: applied(rootfs, edits, readonly=True))
    after = listing(rootfs)
    assert {k: v for k, v in after.items() if k.startswith("etc/ld")} == {
        k: before[k] for k in before if k.startswith("etc/ld")
    }


def test_a_directory_that_is_exchanged_meanwhile_is_told(
    rootfs: Path, in_mount_namespace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_text("host")
    attached: Any = vars(apply)["attach"]

    def and_exchange(tree: int, place: int) -> None:
        attached(tree, place)
        (rootfs / "opt/lib").rename(rootfs / "opt/old")
        (rootfs / "opt/lib").mkdir()

    monkeypatch.setattr(apply, "attach", and_exchange)
    mount = EditMount(str(source), "/opt/lib/a", ("ro",))
    with pytest.raises(GpurunError, match="find again /opt/lib"):
        in_mount_namespace(lambda: applied(rootfs, ContainerEdits(mounts=(mount,))))


def test_no_procfs_no_mask(sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any) -> None:
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0")

    def look() -> list[str]:
        applied_alone(rootfs, edits)
        return os.listdir(rootfs / "proc")

    assert in_mount_namespace(look) == []


def wrong_node(tmp_path: Path) -> DeviceNode:
    os.mknod(tmp_path / "node", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    return DeviceNode("/dev/nvidia0", str(tmp_path / "node"), "c", 195, 0)


def test_a_host_node_with_other_numbers_is_never_bound(rootfs: Path, in_mount_namespace: Any, tmp_path: Path) -> None:
    edits = ContainerEdits(device_nodes=(wrong_node(tmp_path),))
    with pytest.raises(GpurunError, match="is not the device c 195:0"):
        in_mount_namespace(lambda: applied(rootfs, edits, True))


def test_a_missing_host_node_is_named(rootfs: Path, in_mount_namespace: Any) -> None:
    edits = ContainerEdits(device_nodes=(DeviceNode("/dev/nvidia0", "/nowhere/nvidia0", "c", 195, 0),))
    with pytest.raises(GpurunError, match="bind the device node of the host /nowhere/nvidia0: no such file or directory"):
        in_mount_namespace(lambda: applied(rootfs, edits, True))


@pytest.mark.parametrize(
    "break_it",
    [
        lambda p: (p / "a").symlink_to("/etc/passwd"),
        lambda p: (p / "a").mkdir(),
    ],
    ids=["link", "directory"],
)
def test_sources_that_are_not_what_discovery_saw(
    rootfs: Path, in_mount_namespace: Any, tmp_path: Path, break_it: Callable[[Path], None]
) -> None:
    break_it(tmp_path)
    edits = ContainerEdits(mounts=(EditMount(str(tmp_path / "a"), "/opt/a", ("ro",)),))
    with pytest.raises(GpurunError, match=f"mount {tmp_path}/a"):
        in_mount_namespace(lambda: applied(rootfs, edits))


def test_a_link_over_something_of_the_image_that_no_library_can_cover(rootfs: Path, in_mount_namespace: Any) -> None:
    (rootfs / "etc/x").write_text("the image's")
    (rootfs / "etc/y").write_text("the image's too")
    edits = ContainerEdits(links=(Link("/etc/x", "y"),))
    with pytest.raises(GpurunError, match="make the link /etc/x"):
        in_mount_namespace(lambda: applied(rootfs, edits))
    assert (rootfs / "etc/x").read_text() == "the image's"


def test_modes_of_the_containers_own_dev_alone(rootfs: Path, in_mount_namespace: Any, tmp_path: Path) -> None:
    """A directory of the image, one of the host bound into /dev, a file and a name that is not there keep what they have."""
    (tmp_path / "of-the-host").mkdir(mode=0o700)
    (rootfs / "opt").mkdir(mode=0o700)

    def look() -> list[int]:
        mount("tmpfs", str(rootfs / "dev"), "tmpfs", 0)
        for name in ("own", "bound"):
            (rootfs / "dev" / name).mkdir(mode=0o700)
        (rootfs / "dev/file").touch(mode=0o600)
        (rootfs / "dev/link").symlink_to("/opt")
        mount("tmpfs", str(tmp_path / "of-the-host"), "tmpfs", 0, "mode=700")  # the same kind as the container's own
        mount(str(tmp_path / "of-the-host"), str(rootfs / "dev/bound"), "none", MS_BIND)
        names = ("/dev/own", "/dev/bound", "/dev/file", "/dev/link", "/dev/absent", "/opt")
        applied_alone(rootfs, ContainerEdits(chmods=tuple([Chmod(name, 0o755) for name in names])))
        paths = [rootfs / "dev/own", tmp_path / "of-the-host", rootfs / "dev/file", rootfs / "opt"]
        return [path.stat().st_mode & 0o7777 for path in paths]

    assert in_mount_namespace(look) == [0o755, 0o700, 0o600, 0o700]


def test_a_tree_of_proc_holds_files_and_directories_of_the_host_at_any_depth(
    rootfs: Path, in_mount_namespace: Any, tmp_path: Path
) -> None:
    (tmp_path / "caps/gpu0/mig/gi1").mkdir(parents=True)
    (tmp_path / "caps/gpu0/mig/gi1/access").write_text("DeviceFileMinor: 12")
    path = "/proc/driver/nvidia"
    name = "capabilities/gpu0/mig/gi1"
    bind = EditMount(f"{tmp_path}/caps/gpu0/mig/gi1/access", f"{path}/{name}/access", ("ro", "nosuid"), "file")
    directory = EditMount(f"{tmp_path}/caps", f"{path}/a/b", ("ro",), "dir")
    tree = ProcTree(path, (FileEdit(f"{path}/c/d/e", b"content"),), (bind, directory))

    def look() -> tuple[str, str, list[str], str]:
        applied(rootfs, ContainerEdits(proc_trees=(tree,)))
        at = rootfs / path.lstrip("/")
        try:
            (at / name / "access").write_text("changed")
        except OSError as e:
            refused = str(e.strerror)
        return (at / name / "access").read_text(), (at / "c/d/e").read_text(), os.listdir(at / "a/b"), refused

    assert in_mount_namespace(look) == ("DeviceFileMinor: 12", "content", ["gpu0"], "Read-only file system")


def test_a_tree_of_proc_takes_no_other_kind_than_it_was_told(rootfs: Path, in_mount_namespace: Any, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    path = "/proc/driver/nvidia"
    tree = ProcTree(path, (), (EditMount(f"{tmp_path}/dir", f"{path}/x", ("ro",), "file"),))
    with pytest.raises(GpurunError, match=f"mount {tmp_path}/dir: invalid argument"):
        in_mount_namespace(lambda: applied(rootfs, ContainerEdits(proc_trees=(tree,))))
