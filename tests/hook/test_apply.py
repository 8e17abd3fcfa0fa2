"""Edits put into a rootfs in a mount namespace of its own: what the container sees, and what is refused."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.cdi.edits import Chmod, ContainerEdits, DeviceNode, EditMount, FileEdit, Link, ProcTree
from gpurun.errors import GpurunError
from gpurun.formats.ldcache import parse
from gpurun.hook import apply
from gpurun.linux.mount import MS_BIND, mount
from gpurun.record import replace
from tests.hook.applying import LIB, V, applied, applied_alone, edits_of, made, undone
from tests.native.listing import tree_listing
from tests.simdriver import SimulatedDriver, bus_id, minor

pytestmark = pytest.mark.native


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


def test_the_journal_is_there_also_when_a_step_fails(rootfs: Path, in_mount_namespace: Any, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    edits = ContainerEdits(
        mounts=(EditMount(str(tmp_path / "there"), "/opt/a/there", ("ro",)),), links=(Link("/opt/a/there", "elsewhere"),)
    )

    with pytest.raises(GpurunError, match="make the link /opt/a/there"):
        in_mount_namespace(lambda: applied_alone(rootfs, edits))
    journal = (rootfs.parent / "journal").read_bytes()
    assert made(journal) == ["opt", "opt/a", "opt/a/there"]
    assert undone(rootfs, journal) == () and not (rootfs / "opt").exists()


def test_a_file_that_the_host_lacks_is_told_before_the_image_is_touched(
    rootfs: Path, in_mount_namespace: Any, tmp_path: Path
) -> None:
    (tmp_path / "there").write_text("x")
    edits = ContainerEdits(
        mounts=(
            EditMount(str(tmp_path / "there"), "/opt/a/there", ("ro",)),
            EditMount(str(tmp_path / "absent"), "/opt/b/absent", ("ro",)),
        )
    )

    with pytest.raises(GpurunError, match=f"mount {tmp_path}/absent: no such file or directory"):
        in_mount_namespace(lambda: applied_alone(rootfs, edits))
    assert made((rootfs.parent / "journal").read_bytes()) == [] and not (rootfs / "opt").exists()


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


def tree_of(rootfs: Path) -> list[tuple[str, str, str]]:
    """What is mounted below *rootfs*: place, options, and what of its file system."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    found = [
        (f[4].removeprefix(str(rootfs)), f[5], "" if "tmpfs" in f else f[3]) for f in lines if f[4].startswith(str(rootfs))
    ]
    return sorted(found)


def test_what_was_opened_ahead_gives_the_same_container(
    sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The starter opens the sources in the host's mount namespace, more of them than are made at once here."""
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
    assert len(edits.mounts) > 20 and len(edits.proc_trees) == 2
    before = tree_listing(rootfs)
    fds = sorted(os.listdir("/proc/self/fd"))

    def look(ahead: apply.Opened | None) -> tuple[bytes, list[Any]]:
        journal = applied(rootfs, edits, ahead=ahead)
        gpus = sorted(os.listdir(rootfs / "proc/driver/nvidia/gpus"))
        return journal, [gpus, tree_of(rootfs), *[tree_listing(rootfs / name) for name in ("dev", "etc", "usr")]]

    seen = []
    for at_once, is_ahead in ((96, False), (96, True), (20, True)):
        monkeypatch.setattr(apply, "_AT_ONCE", at_once)
        ahead = apply.open_sources(edits, "") if is_ahead else None
        assert (ahead is not None) is is_ahead
        seen.append(in_mount_namespace(lambda ahead=ahead: look(ahead)))
        if ahead is not None:
            close(ahead)
        assert undone(rootfs, seen[-1][0]) == () and tree_listing(rootfs) == before
    assert seen[0][1] == seen[1][1] == seen[2][1]
    assert made(seen[0][0]) == made(seen[1][0])
    assert seen[0][1][0] == [bus_id(0), bus_id(1)]
    assert sorted(os.listdir("/proc/self/fd")) == fds


def close(ahead: apply.Opened) -> None:
    for fd in ahead.mounts:
        os.close(fd)
    for tree in ahead.trees:
        tree.close()


def test_a_tree_for_another_proc_than_the_containers_is_made_anew(
    sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any
) -> None:
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0")
    ahead = apply.open_sources(edits, "")
    assert ahead is not None
    wrong = tuple(replace(tree, prefix="elsewhere/") for tree in ahead.trees)

    def look() -> list[str]:
        applied(rootfs, edits, ahead=replace(ahead, trees=wrong))
        return sorted(os.listdir(rootfs / "proc/driver/nvidia/gpus"))

    assert in_mount_namespace(look) == [bus_id(0)]
    close(ahead)


@pytest.mark.parametrize("what", ["mount", "tree"])
def test_what_cannot_be_opened_ahead_is_told_when_it_is_needed(
    rootfs: Path, in_mount_namespace: Any, tmp_path: Path, what: str
) -> None:
    (tmp_path / "there").write_text("x")
    good, bad = [EditMount(str(tmp_path / name), f"/opt/{name}", ("ro",)) for name in ("there", "absent")]
    binds = (replace(bad, container_path="/opt/tree/absent"),) if what == "tree" else ()
    edits = ContainerEdits(
        mounts=(good, bad) if what == "mount" else (good,), proc_trees=(ProcTree("/opt/tree", (), binds),)
    )
    fds = sorted(os.listdir("/proc/self/fd"))
    assert apply.open_sources(edits, "") is None
    assert sorted(os.listdir("/proc/self/fd")) == fds
    with pytest.raises(GpurunError, match=f"mount {tmp_path}/absent: no such file or directory"):
        in_mount_namespace(lambda: applied_alone(rootfs, edits))
